"""Why checkpoints fail, and how many failures in a row are too many."""

from __future__ import annotations

from enum import Enum

from tidegate.base.errors import CheckpointError


class CheckpointFailureReason(Enum):
    """Each with a text for people and whether it counts against the tolerable number."""

    EXPIRED = ("took longer than execution.checkpointing.timeout", True)
    DECLINED = ("a subtask declined: its snapshot or pre-commit failed", True)
    TRIGGER_FAILED = ("could not be triggered: checkpoint storage failed", True)
    STORAGE_FAILED = ("its metadata could not be stored", True)
    STATE_TOO_LARGE = ("its state is larger than tidegate.checkpoint.max-state-size", True)
    OUTCOME_UNKNOWN = ("storage did not say whether its metadata was stored", True)
    SAVEPOINT_FAILED = ("the job was to end with it, and the savepoint beside it could not be written", False)
    ROUND_FAILED = ("the round that carried its barrier failed; the restart strategy decides", False)
    JOB_STOPPING = ("the job ends", False)
    DRIVER_LOST = ("the driver ended while it was under way", False)
    SUBSUMED = ("a later checkpoint completed first", False)

    def __init__(self, text: str, counts: bool) -> None:
        self.text = text
        self.counts = counts


class FailureCounter:
    """Consecutive failures. More than tolerated fail the job: ``CheckpointError``, which a restart may help."""

    def __init__(self, tolerable: int) -> None:
        self._tolerable = tolerable
        self.consecutive = 0

    @property
    def tolerated(self) -> int:
        """So many more in a row may fail."""
        return self._tolerable - self.consecutive

    def completed(self) -> None:
        self.consecutive = 0

    def use_up(self) -> None:
        """All that were tolerated have failed: the next one fails the job."""
        self.consecutive = max(self.consecutive, self._tolerable)

    def failed(self, checkpoint_id: int, reason: CheckpointFailureReason, message: str) -> None:
        if not reason.counts:
            return
        self.consecutive += 1
        if self.consecutive > self._tolerable:
            raise CheckpointError(
                f"At most {self._tolerable} checkpoints in a row may fail.",
                where=f"checkpoint {checkpoint_id}" if checkpoint_id else "no checkpoint was under way",
                found=f"{self.consecutive} failed; the last: {reason.text}: {message}",
                cure="remove the cause, or raise execution.checkpointing.tolerable-failed-checkpoints",
            )
