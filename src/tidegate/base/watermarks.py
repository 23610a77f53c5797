"""The two ends of event time."""

from __future__ import annotations

MIN_WATERMARK = -(1 << 63)
"""There was no watermark yet."""
MAX_WATERMARK = (1 << 63) - 1
"""The input has ended."""
