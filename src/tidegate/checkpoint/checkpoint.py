"""One checkpoint or savepoint of an attempt, from its trigger to its end: its stage, its figures, the commands that wait for it.

The stage is a type. It says which step of the protocol is done:

``Triggered`` (1) -> ``Cut`` (6) -> ``Stored`` (7) -> ``Committed`` (8) -> ``Subsumed`` (9), or ``Failed`` after the first two.

A savepoint is a checkpoint with a target. A savepoint ends as ``Stored``: it commits and subsumes nothing. The savepoint that a
job ends with is committed too. If the job takes checkpoints, that savepoint is at the same time the job's last checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import msgspec

from tidegate.base.clock import Timer
from tidegate.base.errors import InternalError
from tidegate.checkpoint.history import (
    CheckpointStatus,
    HistoryEntry,
    OperatorFigures,
    Sizes,
    SubtaskFigures,
    entry_of,
    output_of,
    shown_subtasks,
)
from tidegate.checkpoint.metadata import CHECKPOINT, SAVEPOINT, CheckpointMetadata
from tidegate.checkpoint.savepoint import Copied, Ending, NewSavepoint

SubtaskId = tuple[str, int]
"""Operator (uid hash) and subtask number."""
Committables = Mapping[int, Sequence[Any]]
"""What each sink, by its operator id, has prepared."""


class CheckpointFailureReason(Enum):
    """Each reason has a text for people, and says whether the failure counts against the tolerable number."""

    EXPIRED = ("took longer than execution.checkpointing.timeout", True)
    DECLINED = ("a subtask declined: its snapshot or pre-commit failed", True)
    TRIGGER_FAILED = ("could not be triggered: checkpoint storage failed", True)
    STORAGE_FAILED = ("its metadata could not be stored", True)
    STATE_TOO_LARGE = ("its state is larger than tidegate.checkpoint.max-state-size", True)
    OUTCOME_UNKNOWN = ("storage did not say whether its metadata was stored", True)
    SAVEPOINT_FAILED = ("the job could not end with it: its savepoint could not be written", False)
    ROUND_FAILED = ("the round that carried its barrier failed; the restart strategy decides", False)
    JOB_STOPPING = ("the job ends", False)
    DRIVER_LOST = ("the driver ended while it was under way", False)
    SUBSUMED = ("a later checkpoint completed first", False)

    def __init__(self, text: str, counts: bool) -> None:
        self.text = text
        self.counts = counts


# -- stages --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Triggered:
    """Step 1 is done: the checkpoint has an id, and the round that begins carries its barrier."""


@dataclass(frozen=True)
class Cut:
    """Step 6 is done: the content of the checkpoint is fixed. ``confirmed``: how many committables of each sink were confirmed
    before the committables of this cut. ``savepoint``: the copy that is written for the user."""

    metadata: CheckpointMetadata
    committables: Committables
    confirmed: Mapping[int, int]
    savepoint: NewSavepoint | None = None

    def unconfirmed(self, by_now: Mapping[int, int]) -> Committables:
        """Return the committables that are not among the first ``by_now`` of their sinks."""
        return {sink: items[by_now[sink] - self.confirmed[sink] :] for sink, items in self.committables.items()}


@dataclass(frozen=True)
class Stored:
    """Step 7 is done: a restore finds the checkpoint. For a savepoint: the savepoint is published."""

    cut: Cut
    sizes: Sizes | None = None


@dataclass(frozen=True)
class Committed:
    """Step 8 is done: all output of the checkpoint is visible."""

    cut: Cut


@dataclass(frozen=True)
class Subsumed:
    """Step 9 is done: older checkpoints and files without a reference are deleted."""


@dataclass(frozen=True)
class Failed:
    """The checkpoint was aborted. ``error``: the error that the lane raised, if the lane aborted the checkpoint."""

    reason: CheckpointFailureReason
    message: str = ""
    error: Exception | None = None


Stage = Triggered | Cut | Stored | Committed | Subsumed | Failed
_NEXT: dict[type, tuple[type, ...]] = {
    Triggered: (Cut, Failed),
    Cut: (Stored, Failed),
    Stored: (Committed,),
    Committed: (Subsumed,),
}
_STEP: dict[type, int] = {Triggered: 1, Cut: 6, Stored: 7, Committed: 8, Subsumed: 9}


# -- who asked, and for what ---------------------------------------------------------------------------------------------


class Asked(Protocol):
    """A command that waits for a checkpoint. It is answered exactly once."""

    def succeed(self, value: Any) -> None: ...

    def fail(self, error: BaseException) -> None: ...


@dataclass(frozen=True, eq=False)
class Target:
    """The address of a savepoint and the command that asked for it. ``ending``: how the job ends with the savepoint; None: the job
    continues."""

    address: str
    asked: Asked
    ending: Ending | None = None


_NOTHING = OperatorFigures()


@dataclass(eq=False)
class Checkpoint:
    """A checkpoint or savepoint. It belongs to the job's thread; a lane gets its ``Cut``, which never changes.

    Times without ``_ms`` in their name are on the monotonic clock, in milliseconds.
    """

    checkpoint_id: int
    token: int
    """The token of the attempt's lease."""
    trigger_ms: int
    began: float
    """When the checkpoint got its id: its timeout and its duration count from here."""
    deadline: float
    expected: frozenset[SubtaskId] = frozenset()
    kind: str = CHECKPOINT
    target: Target | None = None
    asked: list[Asked] = field(default_factory=list)
    """Commands that get the checkpoint's id as the answer when the checkpoint is committed."""
    aligned_until: float = 0.0
    """When the checkpoint turns unaligned, if it may."""
    round: int = 0
    """The round that carried the barrier, after that round is accepted."""
    stage: Stage = Triggered()
    message: str | None = None
    """Why the checkpoint failed, for people."""
    notified: bool = False
    """Functions were notified of the outcome."""
    passed_ms: dict[int, int] = field(default_factory=dict)
    """When, on the wall clock, each step of the protocol was done."""
    copied: Copied | None = None
    entry: HistoryEntry | None = None
    """The entry in the history, from the end of the checkpoint on."""
    handed_over: float | None = None
    """When the lane got the checkpoint."""
    slow: Timer | None = None
    """Reports storage that does not answer."""
    steps_ms: dict[str, float] = field(default_factory=dict)
    operators: dict[str, OperatorFigures] = field(default_factory=dict)
    """By uid hash."""
    subtasks: tuple[SubtaskFigures, ...] = ()
    """From step 6 on."""
    uid_hashes: Mapping[int, str] = field(default_factory=dict)
    """Of the operators of ``subtasks``."""
    sizes: tuple[int, int] = (0, 0)
    """Bytes in total, and bytes that the previous checkpoint did not have."""

    def __post_init__(self) -> None:
        self.missing = set(self.expected)
        self.passed_ms[1] = self.trigger_ms
        self._measured = self.began

    # -- stage -----------------------------------------------------------------------------------------------------------

    def reach(self, stage: Stage, now_ms: int) -> None:
        """Go to the next stage. Any other order of stages is a bug."""
        if type(stage) not in _NEXT.get(type(self.stage), ()):
            raise self.bug(f"from {type(self.stage).__name__} to {type(stage).__name__}")
        self.stage = stage
        step = _STEP.get(type(stage))
        if step is not None:
            self.passed_ms.setdefault(step, now_ms)

    def bug(self, found: str) -> InternalError:
        return InternalError(
            "A checkpoint takes a step of the protocol out of order.",
            where=f"{self.kind} {self.checkpoint_id}",
            found=found,
        )

    @property
    def is_pending(self) -> bool:
        """Whether step 7 is not done yet, so that the checkpoint can still be aborted."""
        return isinstance(self.stage, Triggered | Cut)

    @property
    def is_committed(self) -> bool:
        return isinstance(self.stage, Committed | Subsumed)

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to the checkpoint."""
        over: type | tuple[type, ...] = (Stored, Committed, Failed) if self.kind == SAVEPOINT else (Subsumed, Failed)
        return isinstance(self.stage, over)

    @property
    def is_decided(self) -> bool:
        """Whether the job now ends with this checkpoint, if a command asked for the end. True also if only storage knows whether
        the checkpoint is complete: the attempt that restores the job finds out."""
        match self.stage:
            case Failed(reason=CheckpointFailureReason.OUTCOME_UNKNOWN):
                return True
            case Triggered() | Cut() | Failed():
                return False
        return True

    @property
    def ending(self) -> Ending | None:
        """How the job ends with this checkpoint; None: the job continues."""
        return self.target.ending if self.target is not None else None

    @property
    def cut(self) -> Cut | None:
        """The content of the checkpoint, from step 6 until step 9."""
        match self.stage:
            case Cut():
                return self.stage
            case Stored(cut=cut) | Committed(cut=cut):
                return cut
        return None

    def paths(self) -> set[str]:
        """Return the state files that must not be deleted: the checkpoint is cut, and not yet committed or copied."""
        cut = self.cut
        return set() if cut is None or self.is_committed or self.is_over else cut.metadata.paths()

    # -- step 6 ----------------------------------------------------------------------------------------------------------

    def acknowledge(self, operator: str, subtask: int, figures: OperatorFigures | None = None) -> bool:
        """Record the ack of a subtask. False: the ack is unknown, duplicate or late, which retries and zombies may send."""
        if not isinstance(self.stage, Triggered) or (operator, subtask) not in self.missing:
            return False
        self.missing.discard((operator, subtask))
        self.operators[operator] = self.operators.get(operator, _NOTHING).with_subtask(figures or _NOTHING)
        return True

    @property
    def is_acknowledged(self) -> bool:
        return isinstance(self.stage, Triggered) and not self.missing

    def is_expired(self, now: float) -> bool:
        return self.is_pending and now >= self.deadline

    # -- what is measured ------------------------------------------------------------------------------------------------

    def measure_from(self, now: float) -> None:
        """Start the clock for the step that ``passed`` reports next."""
        self._measured = now

    def passed(self, step: str, now: float) -> None:
        """Record how long a step took (``history.STEPS``)."""
        self.steps_ms[step] = round(now - self._measured, 1)
        self._measured = now

    def ran(self, round_ms: float, behind: Mapping[str, int]) -> None:
        """Record the figures of the round: all subtasks have acknowledged. Steps 4 and 5 took as long as the slowest subtask.
        ``behind``: by uid hash, how many records a source knows of but has not read."""
        for operator, records in behind.items():
            before = self.operators.get(operator, _NOTHING)
            self.operators[operator] = msgspec.structs.replace(before, behind=records)
        of_all = self.operators.values()
        self.steps_ms["run"] = round(round_ms, 1)
        self.steps_ms["align"] = max((figures.align_ms for figures in of_all), default=0.0)
        self.steps_ms["snapshot"] = max((figures.snapshot_ms for figures in of_all), default=0.0)

    def measured(self, sizes: Sizes) -> None:
        self.sizes = (sizes.size, sizes.incremental)
        for operator, (name, size, new) in sizes.operators.items():
            known = self.operators.get(operator, _NOTHING)
            known = known if known.name else msgspec.structs.replace(known, name=name)
            self.operators[operator] = msgspec.structs.replace(known, size=size, incremental=new)

    @property
    def behind(self) -> int | None:
        """How many records the sources have not read, over all sources that know it; None: no source knows it."""
        known = [figures.behind for figures in self.operators.values() if figures.behind is not None]
        return sum(known) if known else None

    # -- as the history has it -------------------------------------------------------------------------------------------

    def enter(self, now: float, end_ms: int) -> HistoryEntry:
        """Make the entry for the history, at step 7 or at the failure."""
        self.entry = self._entry_of_savepoint(end_ms) if self.kind == SAVEPOINT else self._entry(now, end_ms)
        return self.entry

    def _entry(self, now: float, end_ms: int) -> HistoryEntry:
        of_all, failed = self.operators.values(), self.stage if isinstance(self.stage, Failed) else None
        cut = self.cut
        return HistoryEntry(
            checkpoint_id=self.checkpoint_id,
            token=self.token,
            kind=self.kind,
            status=CheckpointStatus.FAILED if failed is not None else CheckpointStatus.COMPLETED,
            trigger_ms=self.trigger_ms,
            end_ms=end_ms,
            duration_ms=now - self.began,
            round=cut.metadata.round if cut is not None else 0,
            size=self.sizes[0],
            reason=failed.reason.name if failed is not None else "",
            message=failed.message if failed is not None else "",
            incremental=self.sizes[1],
            in_flight_bytes=sum(figures.in_flight_bytes for figures in of_all),
            in_flight_records=sum(figures.in_flight_records for figures in of_all),
            behind=self.behind,
            output=output_of(cut.metadata) if cut is not None else None,
            steps_ms=dict(self.steps_ms),
            operators=dict(self.operators),
            subtasks=shown_subtasks(self.subtasks, self.uid_hashes, self.trigger_ms),
        )

    def _entry_of_savepoint(self, end_ms: int) -> HistoryEntry:
        """Make the entry. A complete savepoint has its address as the message."""
        assert self.target is not None
        took_ms = end_ms - self.trigger_ms
        match self.stage:
            case Stored(cut=cut):
                known = entry_of(cut.metadata)
                told = {"message": self.target.address, "end_ms": end_ms, "duration_ms": took_ms}
                return msgspec.structs.replace(known, incremental=known.size, **told)
            case Failed(reason=reason, message=message):
                return HistoryEntry(
                    checkpoint_id=self.checkpoint_id,
                    token=self.token,
                    kind=self.kind,
                    status=CheckpointStatus.FAILED,
                    trigger_ms=self.trigger_ms,
                    end_ms=end_ms,
                    duration_ms=took_ms,
                    round=self.round,
                    reason=reason.name,
                    message=message,
                )
        raise self.bug(f"its history at the stage {self.stage}")
