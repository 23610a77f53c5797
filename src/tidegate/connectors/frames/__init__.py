"""DataFrames and DataSources of Spark as sources and sinks."""
