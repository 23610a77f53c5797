"""Sinks made of functions that users write."""
