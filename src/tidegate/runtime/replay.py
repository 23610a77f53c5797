"""Run rounds again in this process: a failed round, or the rounds after a checkpoint.

A replay shows where user code fails. It needs no Spark, writes into a directory of its own, and touches no sink and
nothing of the job.

For a failed round, everything upstream of the failed subtask is computed again, level by level. Functions are called,
never inlined, so that a debugger finds the user's own frames. At the first failure ``stopped`` is called, with
everything alive.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from tidegate.base.clock import SystemClock
from tidegate.base.errors import SnapshotError, UserCodeError
from tidegate.base.files import Files
from tidegate.base.user_code import CHAIN_FILE, UserValue, user_line
from tidegate.checkpoint.assign import refusal
from tidegate.checkpoint.locate import locate
from tidegate.checkpoint.owner import is_alive
from tidegate.common import options
from tidegate.graph.plan import JobGraph
from tidegate.graph.transformation import Program
from tidegate.operators.contracts.operator import StreamOperator
from tidegate.operators.contracts.specs import sources_of
from tidegate.operators.flow.level import Job, JobSpec, job_spec
from tidegate.operators.flow.rows import Ack, RoundContext, Row, TaskPlan
from tidegate.operators.flow.subtask import Subtask
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.failed_round import FailedRound
from tidegate.runtime.planner import SourcePlanner
from tidegate.runtime.restoring import Submission, read_restored
from tidegate.runtime.settings import JobSettings
from tidegate.runtime.statistics import busy_seconds
from tidegate.state.context import NO_KEY
from tidegate.state.keys import visible
from tidegate.state.refs import StateFile


@dataclass(frozen=True)
class Failure:
    """A failure at the moment when it happens.

    ``error``: the exception of user code, with its traceback. ``record``: the record that failed, if user code was called for one.
    ``has_key``: whether there was a key. Then ``state`` has the operator's state of this key, by name of the state."""

    subtask: str
    operator: str
    where: str
    line: str | None
    error: BaseException
    has_record: bool = False
    record: UserValue = None
    has_key: bool = False
    key: UserValue = None
    namespace: bytes = b""
    state: dict[str, UserValue] = field(default_factory=dict)


Stopped = Callable[[Failure], None]


def replay(failed: FailedRound, directory: str, stopped: Stopped) -> bool:
    """Run the round again, and return whether it failed again. ``directory``: an empty directory for files that the round
    writes."""
    gone = failed.missing_files()
    if gone:
        raise SnapshotError(
            "State files of the failed round are missing, so the round cannot run again.",
            where=failed.root,
            found=f"missing: {', '.join(gone)}",
            cure="debug the job after it has failed for good (it has continued since), or give a checkpoint with --program FILE",
        )
    sys.path.extend(path for path in failed.modules if path not in sys.path)
    rounds = LocalRounds(failed.spec, directory, stopped)
    rounds.run(moved(failed.plan, failed.found), until=(failed.chain, failed.subtask))
    return rounds.failed


def moved(plan: RoundPlan, there: Callable[[StateFile], StateFile]) -> RoundPlan:
    """Return the plan for subtasks that write into another directory than that of their files, without a deadline."""

    def task(one: TaskPlan) -> TaskPlan:
        snapshots = {n: snapshot.with_files(there) for n, snapshot in one.snapshots.items()}
        return replace(one, snapshots=snapshots, compact={}, replaced={})

    return RoundPlan(replace(plan.context, deadline_ms=None), [[task(one) for one in level] for level in plan.tasks])


class LocalRounds:
    """Run levels in one process, one subtask after the other. ``failed``: a subtask has failed, and ``stopped`` was called."""

    def __init__(self, spec: JobSpec, directory: str, stopped: Stopped) -> None:
        own = {"root": directory, "local_root": f"{directory}/local", "spool": None, "inline": False, "replays": True}
        self._spec = replace(spec, settings=replace(spec.settings, **own))  # type: ignore[arg-type]
        self._job = _WatchedJob(self._spec, self._on_failure)
        self._stopped, self.failed = stopped, False

    def run(self, plan: RoundPlan, until: tuple[int, int] | None = None) -> list[UserValue]:
        """Run up to the subtask ``until``, or all subtasks. Return the output of the last level: pickled acks."""
        widths = self._spec.widths
        incoming: list[list[Row]] = [[] for _ in range(widths[0])]
        for level in range(len(widths)):
            places = self._spec.partitions[level]
            wanted = [n for n, place in enumerate(places) if place == until] or range(len(places))
            outgoing: list[tuple[int, Any]] = []
            for partition in wanted:
                task = plan.tasks[level][partition]
                rows = iter(incoming[partition])
                outgoing += self._job.run_partition(level, partition, plan.context, task, rows)
                if self.failed:
                    return []
            if until in places or level + 1 == len(widths):
                return [payload for _, payload in outgoing]
            incoming = [[] for _ in range(widths[level + 1])]
            for partition, row in outgoing:
                incoming[partition].append(row)
        return []

    def close(self) -> None:
        self._job.close()

    def _on_failure(self, subtask: Subtask, error: Exception) -> None:
        if not self.failed:
            self.failed = True
            self._stopped(look_at(subtask, error))


class _WatchedJob(Job):
    """A job whose subtasks report a failure where it happens."""

    def __init__(self, spec: JobSpec, on_failure: Callable[[Subtask, Exception], None]) -> None:
        super().__init__(spec)
        self._on_failure = on_failure

    def subtask(self, chain: int, index: int, plan: TaskPlan) -> Subtask:
        made = super().subtask(chain, index, plan)
        made.on_failure = self._on_failure
        return made


# -- looking -------------------------------------------------------------------------------------------------------------


def look_at(subtask: Subtask, error: Exception) -> Failure:
    """Describe the failure of a subtask, while the subtask is still at the failing record."""
    raised: BaseException = error
    while isinstance(raised, UserCodeError) and raised.__cause__ is not None:
        raised = raised.__cause__
    where = getattr(error, "where", None) or ""
    operator = _operator(subtask, where)
    record = _record(raised)
    found = Failure(
        subtask=f"{subtask.chain.name} ({subtask.index + 1}/{subtask.chain.parallelism})",
        operator=operator.operator.name,
        where=where,
        line=user_line(raised),
        error=raised,
        has_record=bool(record),
        record=record[0] if record else None,
    )
    context = operator.key_context
    if context is None or context.key is NO_KEY:
        return found
    key, namespace = visible(context.key), context.namespace
    return replace(found, has_key=True, key=key, namespace=namespace, state=_state(operator))


def _operator(subtask: Subtask, where: str) -> StreamOperator:
    ours = subtask.operators.values()
    named = [one for one in ours if f"'{one.operator.name}'" in where or f"sink {one.operator.label}" in where]
    return named[0] if named else subtask.head


def _record(error: BaseException) -> list[UserValue]:
    """Return the current record of the innermost loop; an empty list if user code was not called for a record."""
    found: list[UserValue] = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        caller = frame.f_back
        if frame.f_code.co_filename == CHAIN_FILE and caller is not None and "source" in caller.f_locals:
            found = caller.f_locals["source"].record_at(line, frame.f_locals)
    return found


def _state(operator: StreamOperator) -> dict[str, UserValue]:
    backend = getattr(operator, "backend", None)
    if backend is None:
        return {}
    return {name: _read(state) for name, state in backend.registered().items()}


def _read(state: UserValue) -> UserValue:
    """Read the state of the current key, as the user's function would get it."""
    for method in ("value", "items", "get"):
        read = getattr(state, method, None)
        if read is not None:
            try:
                return dict(read()) if method == "items" else read()
            except Exception as error:
                return f"<cannot be read: {type(error).__name__}: {error}>"
    return "<not keyed>"


class End(Enum):
    """Why no further round was run."""

    FAILED = "user code failed"
    FINISHED = "all sources have ended"
    IDLE = "the sources have no more records now"
    ENOUGH = "the requested number of rounds has run"
    DECLINED = "a snapshot could not be taken"


@dataclass(frozen=True)
class Replayed:
    rounds: int
    records: int
    end: End


def replay_after(program: Program, path: str, directory: str, stopped: Stopped, most: int) -> Replayed:
    """Run at most ``most`` rounds after the checkpoint ``path``. These rounds differ from the job's rounds, because a round reads
    the records that are available when it is planned."""
    settings, clock = JobSettings.of(program.configuration), SystemClock()
    job = Submission(
        program=program,
        settings=settings,
        job_id="replay",
        run_id="replay",
        files=Files(directory),
        local_root=f"{directory}/local",
        clock=clock,
        liveness=is_alive,
    )
    located = locate(path)
    graph, progress, positions, misfits = read_restored(job, located)
    if misfits:
        raise refusal(located.address, misfits, [o.uid_hash for o in graph.operators])
    _refuse_once_only(graph)
    own = settings.of_tasks(job.run_id, job.files.root, job.local_root)
    # State files fit every store, and this one needs no package of its own.
    own = replace(own, state_backend=options.STATE_BACKEND.default)
    rounds = LocalRounds(job_spec(graph, "replay", own), directory, stopped)
    planner = SourcePlanner(
        sources_of(graph), settings.round_target_ms, positions, settings.round_max_records, whole=settings.batch_mode
    )
    number, records = located.metadata.round, 0
    try:
        for done in range(most):
            number, now = number + 1, clock.now_ms()
            sources = planner.plan(now, progress.snapshots)
            news = any(plan.intervals or plan.finished for plan in sources.values())
            if not news and not progress.in_flight_records:
                return Replayed(done, records, End.IDLE)
            context = RoundContext(number, f"replay-{number}", None, now, statuses=progress.statuses())
            acks: list[Ack] = [pickle.loads(ack) for ack in rounds.run(progress.plan(context, sources))]
            if rounds.failed:
                return Replayed(done, records, End.FAILED)
            progress.check(acks)
            if any(ack.declined is not None for ack in acks):
                return Replayed(done, records, End.DECLINED)
            progress = progress.accept(acks).progress
            planner.accept(busy_seconds(acks, graph))
            records += sum(ack.records_in for ack in acks)
            if planner.finished:
                return Replayed(done + 1, records, End.FINISHED)
        return Replayed(most, records, End.ENOUGH)
    finally:
        planner.close()
        rounds.close()


def _refuse_once_only(graph: JobGraph) -> None:
    for operator in sources_of(graph):
        if not operator.spec.source.can_replay:
            raise SnapshotError(
                "The rounds after the checkpoint cannot run again, because a source cannot be read again.",
                where=f"source '{operator.name}'",
                found="the source does not give its records a second time",
            )
