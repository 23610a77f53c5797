"""The number sequence source."""

from tidegate.connectors.values.number_sequence import NumberSequenceSource

__all__ = ["NumberSequenceSource"]
