"""Define what travels: rows between levels, plans to the tasks, acks to the driver.

A shuffle row is ``(partition of the next level, Row)``. A Row whose level is not the next one is relayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from tidegate.base.clock import MAX_WATERMARK as MAX_WATERMARK
from tidegate.base.clock import MIN_WATERMARK as MIN_WATERMARK
from tidegate.operators.contracts.metrics import Change
from tidegate.operators.contracts.source import SplitInterval
from tidegate.state.snapshot import OperatorSnapshot

DATA, BARRIER, ACK = 0, 1, 2

Row = tuple[int, int, int, int, int, int, int, Any]
"""(level, partition, kind, edge, sending subtask, number in the channel, watermark after it, payload).

DATA: payload is a ``Payload``, or None where only the watermark is sent; numbers count from 0 in each channel and round.
BARRIER: exactly one a sending subtask, edge and *task* of the receiving level, after all chunks. All subtasks of the edge in the
task take it, so each sees exactly one barrier of every channel. Its partition is the number of the task; payload a ``Barrier``.
ACK: payload is a pickled ``Ack``; its level is -1, so it is relayed to the driver.

Why subtasks may share a barrier (T4): what a task of the engine reads of a sending task is one block of the shuffle, so it
comes from one attempt. Relayed rows for one task pass the same tasks (``level.py``), so this holds for them too. A barrier for
each subtask in the task would say the same. If a stage runs again, tasks that read the first run and tasks that read the second
have other tokens, and the driver discards the round. The barrier counts chunks for each subtask: a subtask whose chunk is
missing, or that gets one too many, fails the round, as it would with its own barrier.
"""


Payload = tuple[bytes, bytes | None, bytes | None]
"""A packed batch (``packing.py``): values, keys, timestamps."""


NO_CHUNKS: Mapping[int, int] = {}


class Barrier(NamedTuple):
    """Hold a barrier. ``token``: the sending attempt. ``failed``: the sender failed, and its output is incomplete.
    ``chunks``: how many chunks each receiving subtask of the task was sent; the others were sent none."""

    token: str
    idle: bool
    finished: bool
    failed: bool
    chunks: Mapping[int, int] = NO_CHUNKS


def seen_tokens(tokens: Sequence[str]) -> str:
    """Return a digest of the attempts of an edge's senders, in the order of the senders. Two digests are equal if and only if
    all tokens are: so the driver compares one text an edge and receiver, and not a token for each pair of subtasks."""
    return blake2b(" ".join(tokens).encode(), digest_size=16).hexdigest()


class Status(NamedTuple):
    """Hold the status of a subtask's output at the end of a round, with which the next round starts."""

    watermark: int = MIN_WATERMARK
    idle: bool = False


class Generator(NamedTuple):
    """Hold the state of a watermark generator: greatest timestamp seen, and when a record was last seen (processing
    time)."""

    greatest: int = MIN_WATERMARK
    active_ms: int = 0


@dataclass(frozen=True)
class RoundContext:
    """Hold the part of the plan that all subtasks of a round share. ``checkpoint_id``: of the checkpoint or savepoint
    of the round. ``savepoint``: the round has a savepoint. ``statuses``: per operator the status of each of its
    subtasks. ``rehearsal``: nothing is read; functions only open, to see whether they declare their states as these are
    stored. ``deadline_ms``: after it subtasks take no more input, and keep what they have; None: they take all input.
    """

    round: int
    version: str
    checkpoint_id: int | None
    now_ms: int
    completed: tuple[int, ...] = ()
    aborted: tuple[int, ...] = ()
    statuses: dict[int, list[Status]] = field(default_factory=dict)
    savepoint: bool = False
    rehearsal: bool = False
    deadline_ms: int | None = None


class TaskRun(NamedTuple):
    """Identify the run of a task. ``attempt``: above 0 if earlier attempts may have left something outside that no ack
    reports. ``stage``: the engine's own numbers, for the engine alone. ``task``: subtasks of a level with the same number
    ran one after the other; -1: the subtask had a task of its own. ``place``: the host, for people."""

    attempt: int = 0
    stage: int = -1
    task: int = -1
    place: str = ""


FIRST_RUN = TaskRun()


@dataclass(frozen=True)
class TaskPlan:
    """Hold the work of one subtask in one round. The dicts are keyed by operator id."""

    snapshots: dict[int, OperatorSnapshot] = field(default_factory=dict)
    """Each operator of the chain as the last accepted round has left it."""
    compact: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The run of an operator's state files to merge."""
    whole: bool = False
    """The files must be merged: the snapshot must not refer to files of an earlier round."""
    replaced: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Paths of files that merges have recently removed from an operator's list."""
    intervals: list[SplitInterval] = field(default_factory=list)
    source_finished: bool = False
    source_held: bool = False
    """The source was not asked for more: a lack of records says nothing about its splits."""
    source_awaited: bool = False
    """The subtask gets another split when it has none."""
    run: TaskRun = FIRST_RUN
    """Set by the engine where the task runs; the driver's plan does not know it."""


class Work(NamedTuple):
    """Hold what one subtask's round took and moved. ``read``: seconds for batches of the source, or for the unpacking of
    chunks; ``user``: in the loop with the user's functions; ``pack``: for the packing of chunks; ``snapshot``: for step 5.
    Bytes are those of chunks. ``acknowledged_ms``: when (wall clock) step 5 was done."""

    read: float = 0.0
    user: float = 0.0
    pack: float = 0.0
    snapshot: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    acknowledged_ms: int = 0

    @property
    def seconds(self) -> float:
        """How long the subtask worked: it was not waiting for its input, nor for who takes its output."""
        return self.read + self.user + self.pack + self.snapshot


NO_WORK = Work()


@dataclass
class Ack:
    """Step 6: report to the driver everything about one subtask's round.

    ``error``: user code or a read failed, so the round fails. ``declined``: the snapshot or a pre-commit failed, so the
    round is discarded and the checkpoint counts as failed. ``inputs``: per edge the ``seen_tokens`` of its barriers.
    """

    chain: int
    subtask: int
    token: str
    run: TaskRun = FIRST_RUN
    inputs: dict[int, str] = field(default_factory=dict)
    error: Exception | None = None
    declined: str | None = None
    snapshots: dict[int, OperatorSnapshot] = field(default_factory=dict)
    """The present state of each operator of the chain; the driver takes it over unchanged if it accepts the round."""
    committables: dict[int, list[Any]] = field(default_factory=dict)
    wake_up_ms: int | None = None
    records_in: int = 0
    records_out: int = 0
    seconds: float = 0.0
    align_seconds: float = 0.0
    """From the first barrier to the last."""
    snapshot_seconds: dict[int, float] = field(default_factory=dict)
    """Per operator how long its snapshot, or its pre-commit, took."""
    in_flight_bytes: int = 0
    """The in-flight records that the snapshot holds."""
    in_flight_records: int = 0
    rebuilds: int = 0
    """Local stores that were built from all their files."""
    metrics: dict[int, list[Change]] = field(default_factory=dict)
    """Per operator the measurements of its functions in the round; only operators with measurements."""
    misfits: dict[int, list[str]] = field(default_factory=dict)
    """Result of a rehearsal: per operator the states that are declared otherwise than they are stored."""
    work: Work = NO_WORK
    shares: dict[str, dict[str, int]] = field(default_factory=dict)
    """About how many bytes of the files that the round has written belong to which state: path -> name -> bytes."""
    heavy: tuple[int, tuple[tuple[str, int], ...]] | None = None
    """The number of records with keys, and the heaviest keys with about as many records (``heavy_keys.py``)."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields that say something: with thousands of subtasks the driver reads as many acks a round."""
        return {name: value for name, value in self.__dict__.items() if value or name in _NEVER_LEFT_OUT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


_NEVER_LEFT_OUT = frozenset(["chain", "subtask", "token", "wake_up_ms"])
"""Fields without a default, and one whose 0 is not its default."""
