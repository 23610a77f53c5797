"""OutputTag: the name of a side output."""

from tidegate.graph.transformation import OutputTag

__all__ = ["OutputTag"]
