"""Define what sources, sinks, operators and functions promise each other."""
