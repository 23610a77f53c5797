"""RuntimeExecutionMode: streaming or batch semantics."""

from __future__ import annotations

from enum import Enum

__all__ = ["RuntimeExecutionMode"]


class RuntimeExecutionMode(Enum):
    """STREAMING: rolling aggregates emit with every record. BATCH: they emit once, when the bounded input has ended; unbounded
    sources are refused. AUTOMATIC: BATCH if all sources are bounded, else STREAMING."""

    STREAMING = 0
    BATCH = 1
    AUTOMATIC = 2
