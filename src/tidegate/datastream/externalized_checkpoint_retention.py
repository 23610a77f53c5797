"""ExternalizedCheckpointRetention: whether checkpoints stay when a job is cancelled."""

from __future__ import annotations

from enum import Enum

__all__ = ["ExternalizedCheckpointRetention"]


class ExternalizedCheckpointRetention(Enum):
    """A failed job always keeps its checkpoints. NO_EXTERNALIZED_CHECKPOINTS is the default: as DELETE_ON_CANCELLATION."""

    DELETE_ON_CANCELLATION = 0
    RETAIN_ON_CANCELLATION = 1
    NO_EXTERNALIZED_CHECKPOINTS = 2
