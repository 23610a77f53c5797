"""The number sequence source."""

from tidegate.connectors.number_sequence import NumberSequenceSource

__all__ = ["NumberSequenceSource"]
