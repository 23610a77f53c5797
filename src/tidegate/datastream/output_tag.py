"""OutputTag: the name of a side output."""

from tidegate.graph.output_tag import OutputTag

__all__ = ["OutputTag"]
