"""A checkpoint's life as types: pending until every subtask has acknowledged, then completed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tidegate.checkpoint.figures import CheckpointFigures, OperatorFigures, Sizes
from tidegate.checkpoint.lease_records import RestorePoint
from tidegate.checkpoint.metadata import CHECKPOINT, CheckpointMetadata, metadata_path

SubtaskId = tuple[str, int]
"""Operator (uid hash) and subtask number."""


class Acknowledgement(Enum):
    """The answer to an ack: the rest is not an error, retries and zombies send them."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown subtask"
    TOO_LATE = "the checkpoint is over"


@dataclass
class PendingCheckpoint:
    """Between trigger (step 1) and complete (step 7). Not thread safe: it belongs to the master."""

    checkpoint_id: int
    trigger_ms: int
    deadline: float
    """On the monotonic clock, in milliseconds."""
    expected: frozenset[SubtaskId]
    kind: str = CHECKPOINT
    over: bool = False
    aligned_until: float = 0.0
    """When it turns unaligned, if it may; on the same clock as ``deadline``."""
    figures: CheckpointFigures = field(default_factory=CheckpointFigures)
    _missing: set[SubtaskId] = field(init=False)

    def __post_init__(self) -> None:
        self._missing = set(self.expected)

    @property
    def is_acknowledged(self) -> bool:
        """All acks are in: it may be completed."""
        return not self._missing and not self.over

    @property
    def missing(self) -> list[SubtaskId]:
        return sorted(self._missing)

    def acknowledge(self, operator: str, subtask: int, figures: OperatorFigures | None = None) -> Acknowledgement:
        """Step 6."""
        key = (operator, subtask)
        if self.over:
            return Acknowledgement.TOO_LATE
        if key not in self.expected:
            return Acknowledgement.UNKNOWN
        if key not in self._missing:
            return Acknowledgement.DUPLICATE
        self._missing.discard(key)
        self.figures.acknowledged(operator, figures or OperatorFigures())
        return Acknowledgement.ACCEPTED

    def is_expired(self, now_ms: float) -> bool:
        return not self.over and now_ms >= self.deadline


@dataclass(frozen=True)
class CompletedCheckpoint:
    """Behind step 7: its ``_metadata`` is published and it may be committed."""

    metadata: CheckpointMetadata
    sizes: Sizes

    @property
    def size(self) -> int:
        """Bytes of metadata and of all state files it refers to."""
        return self.sizes.size

    @property
    def checkpoint_id(self) -> int:
        return self.metadata.checkpoint_id

    @property
    def point(self) -> RestorePoint:
        return RestorePoint(self.metadata.checkpoint_id, self.metadata.token)

    @property
    def path(self) -> str:
        return metadata_path(self.checkpoint_id)
