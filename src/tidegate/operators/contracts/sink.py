"""The sink protocol: writers on the executors, committables through the checkpoint, a committer on the driver.

One round of one sink subtask: ``create_writer`` -> ``write_batch``* -> ``prepare_commit`` -> ``close``. A writer lives
for one attempt of one round only, and several attempts may be alive at once (retries, zombies). So **everything that a
writer creates outside must be invisible to readers and have a name that no other attempt uses**
(``WriterContext.attempt`` is unique). Committables of accepted rounds are committed, in order, when the checkpoint that
covers them is complete (step 8). A job that only promises at-least-once commits them with their round.

Committables and writer states are plain data (None, bool, int, float, str, bytes, list, dict): they go into checkpoint
metadata.

``DeliveryGuarantee`` names the guarantees that a user can ask of a sink.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tidegate.base import faults
from tidegate.base.user_code import UserValue
from tidegate.operators.contracts.arrow_batch import ArrowBatch


class Publication(Enum):
    """Say when the committables of a round are handed to the committer. At-least-once mode uses ROUND for all sinks."""

    CHECKPOINT = "checkpoint"
    """When the checkpoint is complete (exactly-once); without checkpointing, at the end of the job."""
    CHECKPOINT_OR_ROUND = "checkpoint-or-round"
    """As CHECKPOINT, but without checkpointing after every round."""
    ROUND = "round"
    """After every accepted round: low latency, output may repeat after a failure."""


class SinkGuarantee(Enum):
    """Say what a sink adds to the job's end-to-end guarantee (SPEC E9)."""

    BEST_EFFORT = "best effort"
    """Output may be lost even without a failure of the job."""
    NONE = "any"
    IDEMPOTENT = "idempotent"
    WRITE_AHEAD = "write-ahead"
    TWO_PHASE_COMMIT = "two-phase commit"


@dataclass(frozen=True)
class WriterContext:
    job_id: str
    sink_id: str
    """The sink operator's uid hash: the same after restarts and rescales."""
    subtask: int
    parallelism: int
    round: int
    checkpoint_id: int | None
    """The checkpoint or savepoint whose barrier belongs to this round, or None."""
    attempt: str
    """Unique for each attempt of each task."""
    now_ms: int
    """This task's time: never earlier than ``round_ms``."""
    staging: str
    """Directory on checkpoint storage for files of this sink (``taskowned/<sink_id>``); create it before use."""
    lease: int = 0
    """The token of the job attempt, which grows. Data with a token smaller than the committer's belongs to an earlier
    attempt."""
    publishes: bool = False
    """The output of this round is committed as soon as the round is accepted (at-least-once). The state with which the
    next writer is restored may be older than the committed output. A writer finishes everything it has open."""
    savepoint: bool = False
    """This round has a savepoint. A writer should finish everything it has open: a savepoint may be restored long after
    the job has continued, and the things its writers continued with have changed by then. Committables are either
    committed or not."""
    round_ms: int = 0
    """When the driver began the round, by its clock: the same in all subtasks."""


def _always_ours() -> None:
    """Pass: there is no lease to lose (contract tests)."""


@dataclass(frozen=True)
class CommitterContext:
    job_id: str
    sink_id: str
    staging: str
    check_lease: Callable[[], None] = _always_ours
    """Raises FencedError if a newer attempt has taken the job over."""
    root: str | None = None
    """The job's directory on checkpoint storage; None outside of a job."""
    lease: int = 0
    """As in ``WriterContext``."""
    publishes: bool = False
    """At-least-once: ``commit`` gets the prepared output of a round, which is in no checkpoint. If a crash interrupts a
    commit, ``abort_lingering`` completes the commit, where an abort would do harm."""


@dataclass(frozen=True)
class Prepared:
    """Hold the result of ``prepare_commit``: ``committables`` to commit, ``state`` for the next round's writers."""

    committables: list[Any] = field(default_factory=list)
    state: list[Any] = field(default_factory=list)


class SinkWriter(ABC):
    @abstractmethod
    def write_batch(self, values: list[UserValue], timestamps: list[int] | None, /) -> None:
        """Write some thousand records. Must not keep the lists: they are reused."""

    def write_columns(self, batch: ArrowBatch, /) -> bool:
        """Write records that come as columns of the stream's declared type, if ``Sink.takes_columns``. False: nothing
        was written, and ``write_batch`` gets the records."""
        return False

    @abstractmethod
    def prepare_commit(self, end_of_input: bool, /) -> Prepared:
        """Step 5: make everything written durable. Afterwards another process must be able to commit or abort it."""

    def abort(self) -> None:
        """Undo what can be undone, because the attempt failed. Best effort; ``Committer.abort_lingering`` finds the
        rest."""

    def close(self) -> None:
        """Release resources. Called after ``prepare_commit`` or ``abort``."""


class Committer(ABC):
    """Commit on the driver. All methods are idempotent: after a crash they are called again."""

    @abstractmethod
    def commit(self, committables: list[Any], /) -> None:
        """Step 8: commit, in order of rounds. Raise ``RetryableCommitError`` to be called again with backoff and with
        all committables: a commit that is already done must be a no-op. Raise any other error to fail the job."""

    def recover(self, committables: list[Any], /) -> None:
        """Commit as ``commit`` does, for committables of a restored checkpoint: whether they were committed before is
        unknown."""
        self.commit(committables)

    def abort(self, committables: list[Any], /) -> None:
        """Abort committables that will never be committed, because their round or checkpoint was discarded."""

    def abort_lingering(self, committables: list[Any], states: list[Any], /) -> None:
        """Abort everything of this job and sink that earlier attempts prepared and that is in neither list. Called
        after a restore, before the first round. ``committables`` were committed just before, ``states`` go to the new
        writers. Prepared work is found by name.

        **List first, then ``CommitterContext.check_lease()``, then abort only what was listed.** An attempt that was
        paused here and wakes up after a newer attempt has taken over must not see the newer attempt's transactions. If
        the check passes, the newer attempt had not started when the list was made, so nothing in the list can belong to
        it.
        """

    def close(self) -> None: ...


class GlobalCommitter(ABC):
    """Write one thing for all subtasks (a manifest, a version of a table). Lives on the driver, and is called after the
    ``Committer`` has committed the same committables."""

    @abstractmethod
    def commit(self, committables: list[Any], /) -> None:
        """Commit the committables of a checkpoint: called once for each checkpoint that has any, with those of all
        subtasks, in the order of rounds. After a crash it is called again, possibly together with committables of the
        previous checkpoint, which are done. Errors as in ``Committer.commit``."""

    def close(self) -> None: ...


class Sink(ABC):
    """Write the records of a stream to the outside: the argument of ``DataStream.sink_to``. Pickled once to the
    executors."""

    publication: Publication = Publication.CHECKPOINT
    guarantee: SinkGuarantee = SinkGuarantee.NONE
    to_raise: str = "write to a sink that commits with the checkpoint (FileSink, TwoPhaseCommitSinkFunction ...)"
    """What a user can do about a job that promises less because of this sink."""
    reads_records: bool = True
    """False: no one ever sees the records, so they need not be checked against the declared type of their stream."""
    takes_columns: bool = False
    """True: ``write_columns`` is asked first where records come as columns."""
    holds_back: str | None = None
    """Why records wait for later ones, if they do: such a sink is refused where rounds are committed at once."""
    marks_checkpoints: bool = False
    """True: ``prepare_commit`` is called with every barrier, also in a subtask without records. The committables of
    earlier rounds then always meet the id of the checkpoint with which they are committed."""
    function: object = None
    """The user function, if the sink calls one. It may be a ``CheckpointedFunction``."""
    can_have_uid: bool = True
    """False: the program has no place to give the sink a uid, so the missing uid is not reported."""

    @abstractmethod
    def create_writer(self, context: WriterContext, state: list[Any], /) -> SinkWriter:
        """Return a writer. ``state``: what the previous round's writer of this subtask handed over; after a rescale, of
        several writers or of none."""

    def create_committer(self, context: CommitterContext, /) -> Committer | None:
        """Return the committer. None: the sink needs no commit (nothing it does has to wait)."""
        return None

    def create_global_committer(self, context: CommitterContext, /) -> GlobalCommitter | None:
        """Return the global committer. None: the committer does everything."""
        return None

    def validate(self) -> None:
        """Raise a clear error before the job starts if the sink cannot work (path is a file, server not reachable
        ...)."""

    def validate_parallelism(self, parallelism: int, /) -> None:
        """Raise before the job starts if this number of writers cannot work at once."""

    def validate_checkpoints(self, interval_ms: int | None, /) -> None:
        """Raise before the job starts if the sink cannot keep its promise with checkpoints this far apart, or (None)
        without checkpoints."""

    def job_ended(self, failure: Exception | None, /) -> None:
        """Handle the end of the job, with this failure or without one. Called once, on the driver, on the object that
        the program made."""


class UnwrittenSink(Sink):
    """Replace another sink where a round is only replayed for inspection: records are checked and discarded."""

    def __init__(self, sink: Sink) -> None:
        self.reads_records = sink.reads_records

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _NoWriter()


class _NoWriter(SinkWriter):
    def write_batch(self, values: list[UserValue], timestamps: list[int] | None) -> None:
        pass

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        return Prepared()


def committer_of(sink: Sink, context: CommitterContext) -> Committer | None:
    """Return both committers of a sink as one: step 8 calls the committer, then the global committer. None: the sink
    needs no commit."""
    own, common = sink.create_committer(context), sink.create_global_committer(context)
    return own if common is None else _BothCommitters(own, common)


class _BothCommitters(Committer):
    """Call both committers. A crash or an error between the two is one in the middle of a commit: both are called
    again."""

    def __init__(self, own: Committer | None, common: GlobalCommitter) -> None:
        self._own, self._global = own, common

    def commit(self, committables: list[Any]) -> None:
        if self._own is not None:
            self._own.commit(committables)
        self._commit_globally(committables)

    def recover(self, committables: list[Any]) -> None:
        if self._own is not None:
            self._own.recover(committables)
        self._commit_globally(committables)

    def _commit_globally(self, committables: list[Any]) -> None:
        if committables:
            faults.point("K3.global.before-commit", count=len(committables))
            self._global.commit(committables)
            faults.point("K3.global.committed", count=len(committables))

    def abort(self, committables: list[Any]) -> None:
        if self._own is not None:
            self._own.abort(committables)

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        if self._own is not None:
            self._own.abort_lingering(committables, states)

    def close(self) -> None:
        try:
            if self._own is not None:
                self._own.close()
        finally:
            self._global.close()


class DeliveryGuarantee(Enum):
    """Say what a failure may do to the output of a sink.

    EXACTLY_ONCE: no record is lost or duplicated. AT_LEAST_ONCE: records may be duplicated. NONE: they may be lost or duplicated.
    """

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
    NONE = 2
