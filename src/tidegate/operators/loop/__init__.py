"""Generate the loop of a chain: code generation and rewrites."""
