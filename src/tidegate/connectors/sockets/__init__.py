"""Lines of a socket as a source."""
