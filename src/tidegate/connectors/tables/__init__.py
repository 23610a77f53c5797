"""Tables of Delta and Iceberg as sinks."""
