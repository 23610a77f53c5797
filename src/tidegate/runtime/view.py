"""The view of a job for faces: frozen data, made by the job's thread and read from any thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from tidegate.base import secrets
from tidegate.base.clock import Clock
from tidegate.base.portable_errors import trace_of
from tidegate.checkpoint.checkpoint import Checkpoint, Cut, Failed, Triggered
from tidegate.checkpoint.history import CheckpointStatus, HistoryEntry, slowest_and_largest
from tidegate.checkpoint.history import SubtaskFigures as SubtaskFigures
from tidegate.checkpoint.metadata import CHECKPOINT
from tidegate.checkpoint.policy import CheckpointPolicy
from tidegate.checkpoint.savepoint import Copied
from tidegate.common.job_status import JobStatus
from tidegate.graph.plan import JobGraph
from tidegate.graph.transformation import Ship
from tidegate.operators.contracts.source import Lag
from tidegate.operators.flow.rows import MAX_WATERMARK, Ack
from tidegate.operators.loop.rewrites.explain import functions_of
from tidegate.runtime.commits import CommitRetry
from tidegate.runtime.figures import HeavyKey as HeavyKey
from tidegate.runtime.figures import SubtaskTally
from tidegate.runtime.figures import SubtaskView as SubtaskView
from tidegate.runtime.guarantee import JobGuarantee, guarantee_of
from tidegate.runtime.statistics import JobMetrics, Key, MetricView, RoundStatistics

_ROUNDS, _CHECKPOINTS, _ATTEMPTS, _EXCEPTIONS, _NOTES = 100, 200, 50, 50, 1000
"""How many of the latest items are shown."""
_SUBTASKS = 50_000
"""Figures of subtasks in all checkpoints together."""
_RATE_OVER_MS = 5_000
_LONGEST_TRACE = 20_000


@dataclass(frozen=True)
class OperatorView:
    """``label``: the name for people, of a source or sink with its connector. ``inputs``: ids of the operators before it.
    Records are counted where they cross an edge: what comes into a chain counts for its first operator, what leaves it for the
    last one with an edge; None for the others."""

    id: int
    name: str
    label: str
    uid: str | None
    parallelism: int
    max_parallelism: int
    chain: int
    inputs: tuple[int, ...]
    records_in: int | None = None
    records_out: int | None = None
    records_in_per_second: float | None = None
    """In the latest round."""
    records_out_per_second: float | None = None
    busy_seconds: float | None = None
    """How long the slowest subtask of the chain took in the latest round; for its first operator."""
    watermark: int | None = None
    """Event time after the operator, of its slowest subtask; None: the operator has run no round."""
    state_bytes: int | None = None
    """Bytes of all state files of the operator; None: the operator has no state."""
    states: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each state by its name, as far as known."""
    heavy_keys: tuple[HeavyKey, ...] = ()
    """The heaviest first."""
    functions: tuple[str, ...] = ()
    """How the functions run, as ``explain`` says it: called, inlined, on columns."""
    ships: tuple[str, ...] = ()
    """How records come from each of ``inputs``: a name of ``Ship``."""
    level: int = 0
    """The level of the chain: its place in ``RoundStatistics.levels``."""


@dataclass(frozen=True)
class AttemptView:
    """``restored``: the attempt began after this round, 0: from the start. ``checkpoint``: the address of the restored snapshot.
    ``reason``: why the attempt ended, None if it runs or has finished."""

    number: int
    started_ms: int
    restored: int
    checkpoint: str | None = None
    ended_ms: int | None = None
    reason: str | None = None


class Outcome(Enum):
    IN_PROGRESS = "in progress"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True)
class CheckpointView:
    """A ``Checkpoint`` as it was at a moment. ``passed_ms``: when (wall clock, milliseconds) it had come through the steps of the
    protocol: 1 triggered, 6 acknowledged, 7 complete, 8 committed, 9 cleaned up. ``message``: why it failed. ``entry``: what the
    history has of it, once it is complete or has failed. ``copied``: of a savepoint's files, while they are."""

    checkpoint_id: int
    kind: str
    attempt: int
    status: Outcome
    passed_ms: Mapping[int, int]
    size: int = 0
    message: str | None = None
    entry: HistoryEntry | None = None
    copied: Copied | None = None
    subtasks: tuple[SubtaskFigures, ...] = ()
    address: str | None = None
    """Where a savepoint is written; None for a checkpoint."""

    @staticmethod
    def of(checkpoint: Checkpoint, attempt: int) -> CheckpointView:
        match checkpoint.stage:
            case Triggered() | Cut():
                status = Outcome.IN_PROGRESS
            case Failed():
                status = Outcome.FAILED
            case _:
                status = Outcome.COMPLETED
        return CheckpointView(
            checkpoint.checkpoint_id,
            checkpoint.kind,
            attempt,
            status,
            dict(checkpoint.passed_ms),
            checkpoint.sizes[0],
            None if checkpoint.message is None else _clean(checkpoint.message),
            checkpoint.entry,
            checkpoint.copied,
            checkpoint.subtasks,
            address=None if checkpoint.target is None else checkpoint.target.address,
        )


@dataclass(frozen=True)
class ExceptionView:
    """A failure of the job. ``kind``: the class of the error. The others are those of user code, as far as known."""

    at_ms: int
    attempt: int
    kind: str
    message: str
    traceback: str = ""
    operator: str | None = None
    subtask: int | None = None
    record: str | None = None
    key: str | None = None
    checkpoint_id: int | None = None
    """The checkpoint whose round failed, or the latest one before."""
    debug_command: str | None = None
    """The command that runs the round again and stops at the failure."""


@dataclass(frozen=True)
class Totals:
    """The totals of this run, over all its attempts: records that are read again after a failure count again."""

    rounds: int = 0
    records: int = 0
    """Records the sources read, in accepted rounds."""
    checkpoints: int = 0
    """Completed ones."""
    failed_checkpoints: Mapping[str, int] = field(default_factory=dict)
    """How many failed for each reason: a name of ``CheckpointFailureReason``."""
    rebuilds: int = 0
    """Local stores that were built from all their files."""
    savepoints: int = 0
    """Completed ones."""
    restored: int = 0
    """Attempts that began from a snapshot."""


@dataclass(frozen=True)
class JobView:
    """Oldest first in every list; only the latest of each are there.

    ``directory``: on checkpoint storage; ``is_temporary``: made for this run alone. ``checkpoint_interval_ms``: None if the job
    takes none. ``finished_before``: an earlier run has done everything, this one does nothing.
    """

    job_id: str
    name: str
    status: JobStatus
    created_ms: int
    ended_ms: int | None = None
    operators: tuple[OperatorView, ...] = ()
    attempts: tuple[AttemptView, ...] = ()
    rounds: tuple[RoundStatistics, ...] = ()
    checkpoints: tuple[CheckpointView, ...] = ()
    exceptions: tuple[ExceptionView, ...] = field(default=())
    directory: str = ""
    is_temporary: bool = False
    checkpoint_interval_ms: int | None = None
    guarantee: JobGuarantee | None = None
    """Of the job and of each path through it; computed before the start."""
    finished_before: bool = False
    totals: Totals = field(default=Totals())
    metrics: Mapping[Key, MetricView] = field(default_factory=dict)
    """What functions measure."""
    subtasks: tuple[SubtaskView, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    """The configuration of the job; secrets are masked."""
    commit_retry: CommitRetry | None = None
    """The commit (step 8) that fails and is retried now."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Versions, master, host and user of the driver."""

    @property
    def attempts_so_far(self) -> int:
        """The number of all attempts. ``attempts`` has only the latest ones."""
        return self.attempts[-1].number if self.attempts else 0

    def records_per_second(self, now_ms: int) -> float:
        """Over the latest seconds, pauses included."""
        latest = [r for r in self.rounds if r.started_ms >= now_ms - _RATE_OVER_MS] or list(self.rounds[-1:])
        if not latest:
            return 0.0
        return 1000 * sum(r.records_in for r in latest) / max(now_ms - latest[0].started_ms, 1)


@dataclass(frozen=True)
class Note:
    """One event of a checkpoint, a savepoint or a round (``kind``, ``number``)."""

    at_ms: int
    attempt: int
    kind: str
    number: int
    what: str
    more: str = ""


class FailedAck(NamedTuple):
    """The ack that brought the error of a failed round. ``checkpoint_id``: of the round."""

    ack: Ack
    checkpoint_id: int | None


class JobRecorder:
    """Makes the next view from the last one. Only ``view`` and ``story`` may be called from other threads than the job's."""

    def __init__(
        self,
        job_id: str,
        graph: JobGraph,
        clock: Clock,
        *,
        directory: str = "",
        is_temporary: bool = False,
        policy: CheckpointPolicy | None = None,
        configuration: Mapping[str, str] = MappingProxyType({}),
        environment: Mapping[str, str] = MappingProxyType({}),
        fast_json: bool = True,
    ) -> None:
        self._clock = clock
        self._view = JobView(
            job_id,
            graph.name,
            JobStatus.CREATED,
            clock.now_ms(),
            directory=directory,
            is_temporary=is_temporary,
            checkpoint_interval_ms=policy.interval_ms if policy is not None else None,
            guarantee=guarantee_of(graph, policy),
            configuration=dict(configuration),
            environment=dict(environment),
        )
        self._attempt = 0
        self._functions = functions_of(graph, fast_json=fast_json)
        self._metrics = JobMetrics()
        self._subtasks = SubtaskTally()
        self._commit_retry: CommitRetry | None = None
        self._notes: deque[Note] = deque(maxlen=_NOTES)
        self._latest: dict[str, tuple[int, str, str]] = {}
        self._noting = threading.Lock()
        self.graph(graph)

    def view(self, status: JobStatus) -> JobView:
        """Return the view, from any thread. ``status``: other threads may change it, so it is not stored here."""
        figures = self._subtasks.shown()
        states, heavy = figures.states, figures.heavy_keys
        operators = tuple(
            replace(
                o,
                state_bytes=states[o.id].bytes if o.id in states else None,
                states=states[o.id].states if o.id in states else {},
                heavy_keys=heavy.get(o.id, ()),
            )
            for o in self._view.operators
        )
        return replace(
            self._view,
            status=status,
            operators=operators,
            subtasks=figures.subtasks,
            commit_retry=self._commit_retry,
        )

    def graph(self, graph: JobGraph) -> None:
        """Show the program as it runs. A restore may have fixed the maximum parallelism of some operators."""
        nodes = [(chain.id, node) for chain in graph.chains for node in chain.head.walk()]
        before: dict[int, list[tuple[int, str]]] = {}
        for _, node in nodes:
            for _, child in node.children:
                before.setdefault(child.operator.id, []).append((node.operator.id, Ship.FORWARD.name))
            for edge in node.edges:
                before.setdefault(edge.target, []).append((node.operator.id, edge.partitioning.ship.name))
        self._first = {chain.id: chain.head.operator.id for chain in graph.chains}
        self._last = {chain: node.operator.id for chain, node in nodes if node.edges}
        shown = [
            OperatorView(
                o.id,
                o.name,
                o.label,
                o.uid,
                o.parallelism,
                o.max_parallelism,
                graph.chain_of[o.id],
                tuple(id for id, _ in before.get(o.id, ())),
                functions=self._functions.get(o.id, ()),
                ships=tuple(ship for _, ship in before.get(o.id, ())),
                level=graph.chains[graph.chain_of[o.id]].level,
            )
            for o in graph.operators
        ]
        self._view = replace(self._view, operators=tuple(shown))
        self._subtasks.graph(graph)

    def attempt_started(self, round: int, checkpoint: str | None = None) -> None:
        self._attempt += 1
        self._subtasks.attempt_started()
        started = AttemptView(self._attempt, self._clock.now_ms(), round, checkpoint)
        totals = replace(self._view.totals, restored=self._view.totals.restored + (checkpoint is not None))
        self._view = replace(self._view, attempts=(*self._view.attempts, started)[-_ATTEMPTS:], totals=totals)

    def attempt_ended(self, error: BaseException | None, failed: FailedAck | None = None) -> None:
        """Record the end of an attempt. A failure before the first attempt is shown as an exception only. ``failed``: where user
        code failed, if that is why."""
        now, attempts = self._clock.now_ms(), list(self._view.attempts)
        if attempts and attempts[-1].ended_ms is None:
            reason = None if error is None else _clean(f"{type(error).__name__}: {error}")
            attempts[-1] = replace(attempts[-1], ended_ms=now, reason=reason)
        self._view = replace(self._view, attempts=tuple(attempts))
        shown = [_given_up(checkpoint) for checkpoint in self._view.checkpoints]
        self._view = replace(self._view, checkpoints=tuple(shown))
        if error is not None:
            met = self._met(now, error, failed)
            self._view = replace(self._view, exceptions=(*self._view.exceptions, met)[-_EXCEPTIONS:])

    def _met(self, now_ms: int, error: BaseException, failed: FailedAck | None) -> ExceptionView:
        """Return what is known of an error. Its texts contain no secrets."""
        done = [shown.checkpoint_id for shown in self._view.checkpoints if shown.status is Outcome.COMPLETED]
        checkpoint_id = failed.checkpoint_id if failed is not None else None
        where, record, key = (getattr(error, name, None) for name in ("where", "record", "key"))
        in_chain = [o.name for o in self._view.operators if failed is not None and o.chain == failed.ack.chain]
        named = [name for name in in_chain if f"operator '{name}'" in (where or "")]
        return ExceptionView(
            now_ms,
            self._attempt,
            type(error).__name__,
            _clean(str(error)),
            traceback=_clean(trace_of(error))[-_LONGEST_TRACE:],
            operator=next(iter(named or in_chain), None),
            subtask=failed.ack.subtask if failed is not None else None,
            record=None if record is None else _clean(record),
            key=None if key is None else _clean(key),
            checkpoint_id=checkpoint_id or max(done, default=None),
        )

    def can_be_debugged(self, command: str) -> None:
        """Say how the round of the latest failure can be run again."""
        *before, latest = self._view.exceptions
        self._view = replace(self._view, exceptions=(*before, replace(latest, debug_command=command)))

    def finished_before(self) -> None:
        self._view = replace(self._view, finished_before=True)

    def ended(self) -> None:
        self._view = replace(self._view, ended_ms=self._clock.now_ms())

    def commit_retried(self, retry: CommitRetry | None) -> None:
        """Remember a commit that is retried; None: none is. Called by the checkpoint lane."""
        self._commit_retry = None if retry is None else replace(retry, error=_clean(retry.error))

    # -- rounds ----------------------------------------------------------------------------------------------------------

    def round(self, statistics: RoundStatistics, acks: list[Ack], lags: Mapping[int, Lag]) -> None:
        """Record an accepted round. ``lags``: what the sources have not read, by operator id."""
        self._subtasks.add(statistics.started_ms, statistics.seconds, acks, lags)
        received: dict[int, int] = {}
        sent: dict[int, int] = {}
        for ack in acks:
            first, last = self._first[ack.chain], self._last.get(ack.chain)
            received[first] = received.get(first, 0) + ack.records_in
            if last is not None:
                sent[last] = sent.get(last, 0) + ack.records_out
        seconds = max(statistics.seconds, 1e-9)
        shown = [_counted(o, received.get(o.id), sent.get(o.id), seconds) for o in self._view.operators]
        shown = self._timed(shown, acks)
        if self._metrics.add(acks, self._clock.now_ms()):
            self._view = replace(self._view, metrics=self._metrics.shown)
        rounds = (*self._view.rounds, statistics)[-_ROUNDS:]
        totals = self._view.totals
        totals = replace(
            totals,
            rounds=totals.rounds + 1,
            records=totals.records + statistics.records_in,
            rebuilds=totals.rebuilds + statistics.rebuilds,
        )
        self._view = replace(self._view, operators=tuple(shown), rounds=rounds, totals=totals)

    def _timed(self, shown: list[OperatorView], acks: list[Ack]) -> list[OperatorView]:
        busy: dict[int, float] = {}
        watermarks: dict[int, int] = {}
        for ack in acks:
            first = self._first[ack.chain]
            busy[first] = max(busy.get(first, 0.0), ack.seconds)
            for operator_id, snapshot in ack.snapshots.items():
                if not snapshot.idle:
                    watermarks[operator_id] = min(watermarks.get(operator_id, MAX_WATERMARK), snapshot.watermark)
        return [replace(o, busy_seconds=busy.get(o.id), watermark=watermarks.get(o.id, o.watermark)) for o in shown]

    # -- checkpoints -----------------------------------------------------------------------------------------------------

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        """Record a change of a checkpoint or savepoint. A checkpoint whose trigger failed is counted, but not shown."""
        known = next((c for c in self._view.checkpoints if c.checkpoint_id == checkpoint.checkpoint_id), None)
        new = CheckpointView.of(checkpoint, self._attempt)
        if known is not None:
            shown = tuple(new if each is known else each for each in self._view.checkpoints)
        else:
            begun = (new,) if isinstance(checkpoint.stage, Triggered) else ()
            shown = (*self._view.checkpoints, *begun)[-_CHECKPOINTS:]
        self._view = replace(self._view, checkpoints=_thinned(shown), totals=self._totals(known, new))
        self.note(checkpoint.kind, checkpoint.checkpoint_id, type(checkpoint.stage).__name__, new.message or "")

    def _totals(self, known: CheckpointView | None, new: CheckpointView) -> Totals:
        totals, entry = self._view.totals, new.entry
        is_new = known is None or known.entry is None
        if entry is None or not is_new:
            return totals
        if entry.status is CheckpointStatus.FAILED:
            failed = {**totals.failed_checkpoints, entry.reason: totals.failed_checkpoints.get(entry.reason, 0) + 1}
            return replace(totals, failed_checkpoints=failed)
        if new.kind == CHECKPOINT:
            return replace(totals, checkpoints=totals.checkpoints + 1)
        return replace(totals, savepoints=totals.savepoints + 1)

    # -- stories ---------------------------------------------------------------------------------------------------------

    def note(self, kind: str, number: int, what: str, more: str = "") -> None:
        """Remember an event of a checkpoint, a savepoint or a round. The same event twice in a row is noted once."""
        with self._noting:
            if self._latest.get(kind) != (number, what, more):
                self._latest[kind] = (number, what, more)
                self._notes.append(Note(self._clock.now_ms(), self._attempt, kind, number, what, more))

    def notes(self) -> list[Note]:
        """Return all notes that are remembered, oldest first. May be called from any thread."""
        with self._noting:
            return list(self._notes)

    def story(self, kind: str, number: int) -> list[Note]:
        """Return the notes on one of them, oldest first, as far as remembered. May be called from any thread."""
        with self._noting:
            return [note for note in self._notes if (note.kind, note.number) == (kind, number)]


def _thinned(checkpoints: tuple[CheckpointView, ...]) -> tuple[CheckpointView, ...]:
    """Bound the memory for figures of subtasks: with thousands of them only the latest checkpoints have all."""
    room, kept = _SUBTASKS, []
    if sum(len(checkpoint.subtasks) for checkpoint in checkpoints) <= room:
        return checkpoints
    for checkpoint in reversed(checkpoints):
        room -= len(checkpoint.subtasks)
        kept.append(checkpoint if room >= 0 else replace(checkpoint, subtasks=slowest_and_largest(checkpoint.subtasks)))
    return tuple(reversed(kept))


def _clean(text: str) -> str:
    """Return a text of the user without secrets, as it can be written in UTF-8: file names and byte strings may contain half a
    character, and a view that cannot be written hides the job from its user."""
    return secrets.masked(text.encode(errors="backslashreplace").decode())


def _given_up(checkpoint: CheckpointView) -> CheckpointView:
    """Mark a checkpoint as failed at the end of an attempt: it was never stored, or its round did not end."""
    if checkpoint.status is not Outcome.IN_PROGRESS:
        return checkpoint
    return replace(checkpoint, status=Outcome.FAILED, message="the attempt has ended")


def _counted(o: OperatorView, received: int | None, sent: int | None, seconds: float) -> OperatorView:
    return replace(
        o,
        records_in=None if received is None else (o.records_in or 0) + received,
        records_out=None if sent is None else (o.records_out or 0) + sent,
        records_in_per_second=None if received is None else received / seconds,
        records_out_per_second=None if sent is None else sent / seconds,
    )
