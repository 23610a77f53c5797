"""CheckpointingMode: what a checkpoint guarantees."""

from __future__ import annotations

from enum import Enum

__all__ = ["CheckpointingMode"]


class CheckpointingMode(Enum):
    """EXACTLY_ONCE: every record affects state and committed output once, whatever fails. AT_LEAST_ONCE: never less than once;
    in this version it is treated like EXACTLY_ONCE, which includes it."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
