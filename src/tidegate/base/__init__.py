"""The engine's base: errors, clock, ids, files, fault points."""
