"""The generated loop of a chain: code generation and rewrites."""
