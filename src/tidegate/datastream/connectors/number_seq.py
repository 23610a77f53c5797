"""The number sequence source."""

from tidegate.connectors.values.ranges import NumberSequenceSource

__all__ = ["NumberSequenceSource"]
