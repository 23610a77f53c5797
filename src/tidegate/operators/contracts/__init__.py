"""What sources, sinks, operators and functions promise each other."""
