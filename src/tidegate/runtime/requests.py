"""Checkpoints somebody has asked for: which command waits for which checkpoint."""

from __future__ import annotations

from tidegate.base.errors import CheckpointError
from tidegate.runtime.commands import TriggerCheckpoint


class CheckpointRequests:
    """Belongs to an attempt and is its thread's. Every command that comes here is answered before the attempt has ended."""

    def __init__(self) -> None:
        self._waiting: list[TriggerCheckpoint] = []
        self._attached: dict[int, list[TriggerCheckpoint]] = {}

    @property
    def waiting(self) -> bool:
        """Whether the next round should carry a checkpoint for somebody."""
        return bool(self._waiting)

    def add(self, command: TriggerCheckpoint) -> None:
        self._waiting.append(command)

    def attach(self, checkpoint_id: int) -> None:
        """A checkpoint was triggered: it is the one all who wait have asked for."""
        if self._waiting:
            self._attached[checkpoint_id], self._waiting = self._waiting, []

    def complete(self, checkpoint_id: int) -> None:
        for command in self._attached.pop(checkpoint_id, []):
            command.succeed(checkpoint_id)

    def fail(self, checkpoint_id: int, why: str) -> None:
        for command in self._attached.pop(checkpoint_id, []):
            command.fail(_refused(f"checkpoint {checkpoint_id}: {why}"))

    def refuse_waiting(self, why: str) -> None:
        """The next one could not be triggered. Those under way may still come."""
        waiting, self._waiting = self._waiting, []
        for command in waiting:
            command.fail(_refused(why))

    def refuse(self, why: str) -> None:
        """None of those that are left will come."""
        self.refuse_waiting(why)
        for checkpoint_id in list(self._attached):
            self.fail(checkpoint_id, why)


def _refused(why: str) -> CheckpointError:
    return CheckpointError(
        "A checkpoint that was asked for could not be taken.", found=why, cure="see the job's log, and ask again"
    )
