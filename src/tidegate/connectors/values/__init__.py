"""Sources of values that the program holds or makes, and sinks that give values back."""
