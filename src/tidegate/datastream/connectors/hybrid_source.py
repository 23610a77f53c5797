"""One source after the other."""

from tidegate.connectors.values.hybrid_source import HybridSource, HybridSourceBuilder

__all__ = ["HybridSource", "HybridSourceBuilder"]
