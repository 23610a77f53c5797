"""CheckpointingMode: what a checkpoint guarantees."""

from __future__ import annotations

from enum import Enum

__all__ = ["CheckpointingMode"]


class CheckpointingMode(Enum):
    """EXACTLY_ONCE: every record affects state and committed output once, whatever fails. AT_LEAST_ONCE: the same for state, but
    output is committed with its round instead of its checkpoint: sooner, and again after a failure."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
