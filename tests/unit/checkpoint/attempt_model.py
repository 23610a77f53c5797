"""A small job on the real checkpoint room: counts, writes segments, commits to a sink that knows what it must never see."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec

from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import CheckpointError, FencedError, StorageError
from tidegate.base.files import FileHandle, Files
from tidegate.checkpoint.checkpoint import Checkpoint, CheckpointFailureReason, Committed, Failed, Stored, Subsumed
from tidegate.checkpoint.completed import CompletedCheckpoint, CompletedCheckpoints, OutcomeUnknownError
from tidegate.checkpoint.history import CheckpointHistory
from tidegate.checkpoint.lease import Lease, acquire
from tidegate.checkpoint.lease_records import AttemptStatus
from tidegate.checkpoint.locate import Located, locate_own, read_lineage
from tidegate.checkpoint.metadata import OperatorState
from tidegate.checkpoint.owner import Owner
from tidegate.checkpoint.policy import CheckpointPolicy
from tidegate.checkpoint.recovery import Recovery, decide
from tidegate.checkpoint.savepoint import SavepointPlace
from tidegate.runtime.checkpoints import Checkpoints
from tidegate.runtime.commands import Stop
from tidegate.runtime.savepoints import Around
from tidegate.runtime.steps import CheckpointSteps
from tidegate.state.refs import KeyGroupRange, StateFile
from tidegate.state.snapshot import KEYED, KeyedPart, OperatorSnapshot

FINISHED_AT = 6
GROUPS = KeyGroupRange(0, 127)


class NoLanes:
    """Whoever uses the checkpoints here does the work of the lanes itself."""

    def submit(self, lane: Any, work: Any) -> None: ...


def new_checkpoints(
    lease: Lease,
    completed: CompletedCheckpoints,
    policy: CheckpointPolicy,
    clock: ManualClock,
    *,
    job_name: str = "model",
) -> Checkpoints:
    """The checkpoints of an attempt, without lanes, sinks and anybody who looks on."""
    lanes, history = NoLanes(), CheckpointHistory(lease.files)
    committers: Any = SimpleNamespace(at_once=False)
    steps = CheckpointSteps(lanes, committers, lease, clock, 1, completed, history, policy.concurrency)  # type: ignore[arg-type]
    nobody: Any = SimpleNamespace(checkpoint=lambda checkpoint: None)
    around = Around(SavepointPlace("job", job_name, None), nobody, lease, nobody, clock, Stop())
    return Checkpoints(steps, around, policy, history)


def complete(
    checkpoints: Checkpoints, pending: Checkpoint, operators: list[OperatorState], **options: Any
) -> CompletedCheckpoint | None:
    """Step 7 as the runtime does it, in one thread."""
    cut = checkpoints.fix(pending, operators, **options)
    try:
        done = checkpoints.steps.completed.add(cut.metadata)
    except StorageError as error:
        unknown = isinstance(error, OutcomeUnknownError)
        reason = CheckpointFailureReason.OUTCOME_UNKNOWN if unknown else CheckpointFailureReason.STORAGE_FAILED
        checkpoints.failed(pending, Failed(reason, str(error), error), 0.0)
        return None
    checkpoints.stored(pending, Stored(cut, done.sizes))
    return done


def end(checkpoints: Checkpoints, pending: Checkpoint, subsume: Callable[[], object] = lambda: None) -> None:
    """Steps 8 and 9, after the commits."""
    assert pending.cut is not None
    nothing: Any = SimpleNamespace(without_pending=lambda confirmed: nothing, paths=set)
    checkpoints.committed(pending, Committed(pending.cut), nothing, 0.0)
    subsume()
    checkpoints.write_history()
    checkpoints.subsumed(pending, Subsumed(), 0.0)


class Crash(BaseException):
    """The process ends here."""


@dataclass
class ModelSink:
    """The outside system. Transactions carry a position; each position must become visible exactly once, in order."""

    prepared: dict[str, int] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    committed: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def prepare(self, transaction: str, position: int) -> None:
        self.prepared[transaction] = position

    def commit(self, transaction: str) -> None:
        if transaction in self.committed:
            return
        position = self.prepared[transaction]
        if transaction in self.aborted:
            self.violations.append(f"{transaction} was aborted and is in a completed checkpoint")
        if position != len(self.committed) + 1:
            self.violations.append(f"{transaction}: position {position} after {list(self.committed.values())}")
        self.committed[transaction] = position

    def lingering(self, keep: list[str]) -> set[str]:
        return self.prepared.keys() - self.committed.keys() - set(keep)

    def abort(self, transactions: set[str]) -> None:
        self.aborted |= transactions


@dataclass
class ModelState:
    position: int = 0
    files: list[StateFile] = field(default_factory=list)
    committables: list[str] = field(default_factory=list)
    finished: bool = False

    @property
    def paths(self) -> list[str]:
        return [file.path for file in self.files]


@dataclass
class Attempt:
    """One driver process. ``run`` is its whole life; it ends early when fenced or when checkpoints fail too often."""

    files: Files
    sink: ModelSink
    name: str
    checkpoints: int = 4
    retained: int = 2
    until: int | None = None
    """The input ends at this position: the job finishes."""
    explicit: str | None = None
    ids: list[int] = field(default_factory=list)
    lease: Any = None
    completed: Any = None
    state: ModelState = field(default_factory=ModelState)
    previous: AttemptStatus | None = None
    outcome: str = "not run"

    def run(self) -> Attempt:
        try:
            self._run()
            self.outcome = "done"
        except (FencedError, CheckpointError, StorageError) as error:
            self.outcome = type(error).__name__
        return self

    def _run(self) -> None:
        clock = ManualClock()
        self.lease = acquire(self.files, clock, job_id="job", owner=Owner(self.name, 1), liveness=lambda owner: False)
        recovery = decide(self.files, self.lease, self.explicit)
        self.previous = recovery.previous
        if recovery.previous is AttemptStatus.FINISHED:
            recovery.record_finished(self.lease)
            CompletedCheckpoints(self.files, self.lease, self.retained).sweep(())
            self.lease.release()
            return
        self._restore(recovery)
        policy = CheckpointPolicy(interval_ms=100, retained=self.retained)
        checkpoints = new_checkpoints(self.lease, self.completed, policy, clock)
        for _ in range(self.checkpoints):
            if self.state.finished:
                break
            self._checkpoint(checkpoints)
        checkpoints.on_shutdown(AttemptStatus.FINISHED if self.state.finished else AttemptStatus.RUNNING)

    def _restore(self, recovery: Recovery) -> None:
        located = recovery.located
        if located is not None:
            located.check_files()
            self.state = restored_state(located)
        recovery.record(self.lease)
        self.completed = CompletedCheckpoints(self.files, self.lease, self.retained)
        self.resume_sink()
        self.completed.sweep(self.state.paths)

    def resume_sink(self) -> None:
        for transaction in self.state.committables:
            faults.point("model.commit-restored")
            self.sink.commit(transaction)
        # Listed, then checked, then aborted: aborting what is found after a newer attempt has begun could hit its output.
        lingering = self.sink.lingering(self.state.committables)
        faults.point("model.before-abort")
        self.lease.check()
        faults.point("model.abort")
        self.sink.abort(lingering)
        self.state.committables = []

    def _checkpoint(self, checkpoints: Checkpoints) -> None:
        pending = checkpoints.trigger([("count", 0)])
        if pending is None:
            return
        self.ids.append(pending.checkpoint_id)
        released = self.round(pending.checkpoint_id)
        pending.acknowledge("count", 0)
        operators, finished = [self.operator()], self.state.finished
        done = complete(checkpoints, pending, operators, round=self.state.position, finished=finished)
        if done is None:
            return
        for transaction in self.state.committables:
            faults.point("model.commit")
            self.sink.commit(transaction)
        self.state.committables = []
        end(checkpoints, pending, lambda: self.completed.subsume(self.state.paths, released))

    def round(self, number: int) -> list[str]:
        """One more position, one more segment; every third round all segments become one. Gives what it released."""
        version = f"{self.lease.token}-{number}"
        self.state.position += 1
        self.state.finished = self.state.position == self.until
        transaction = f"txn-{version}"
        self.sink.prepare(transaction, self.state.position)
        self.state.committables.append(transaction)
        handle = self.files.write(f"shared/{version}.seg", f"{self.state.position}".encode())
        file = StateFile(handle.path, handle.size, handle.hash, version, GROUPS)
        if self.state.position % 3:
            self.state.files = [*self.state.files, file]
            return []
        old = self.state.paths
        self.state.files = [file]
        return old

    def operator(self) -> OperatorState:
        return OperatorState(
            uid_hash="count",
            name="count",
            parallelism=1,
            max_parallelism=128,
            subtasks=[OperatorSnapshot({KEYED: KeyedPart(GROUPS, tuple(self.state.files))})],
            source={"position": self.state.position},
            committables=[msgspec.msgpack.encode(item) for item in self.state.committables],
        )


def restored_state(located: Located) -> ModelState:
    """Reads every file: a checkpoint that cannot be restored raises."""
    (operator,) = located.metadata.operators
    files = operator.state_files()
    contents = [located.root.read(FileHandle(file.path, file.size, file.hash)) for file in files]
    position = operator.source["position"]
    assert int(contents[-1]) == position, "the last segment holds the position"
    committables = [msgspec.msgpack.decode(item) for item in operator.committables]
    return ModelState(position, list(files), committables, located.metadata.finished)


def check_recorded(files: Files) -> None:
    """I7, as the next attempt will see it: every checkpoint that counts restores."""
    for point in read_lineage(files).retained:
        restored_state(locate_own(files, point))


def check_invariants(files: Files, sink: ModelSink) -> None:
    """Run a fresh attempt without faults and look at everything from outside."""
    check_recorded(files)
    last = Attempt(files, sink, "verifier", checkpoints=1).run()
    assert last.outcome == "done"
    assert sink.violations == []
    positions = list(sink.committed.values())
    assert positions == list(range(1, len(positions) + 1))  # I1, I2, I5, I11
    if last.previous is AttemptStatus.FINISHED or last.state.finished:
        assert positions[-1] == FINISHED_AT
        assert not [path for path in files.list() if path.startswith(("shared/", "chk-")) or path.endswith(".tmp")]
        again = Attempt(files, sink, "again").run()
        assert (again.outcome, again.previous) == ("done", AttemptStatus.FINISHED)
        return
    assert positions[-1] == last.state.position
    referenced: set[str] = set()
    for point in last.completed.retained:  # I7
        located = locate_own(files, point)
        restored_state(located)
        referenced |= located.metadata.paths()
    found = files.list()
    kept = {f"chk-{point.checkpoint_id}/_metadata" for point in last.completed.retained}
    assert {path for path in found if path.startswith("shared/")} == referenced | set(last.state.paths)  # I8
    assert {path for path in found if path.startswith("chk-")} == kept
    assert not [path for path in found if path.endswith(".tmp")]  # I12


# -- pausing attempts at fault points --


class Actor:
    """An attempt in a thread of its own that runs only when told, from fault point to fault point."""

    def __init__(self, life: Callable[[], Any]) -> None:
        self._life = life
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._budget = 0
        self.over = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        _actors[self._thread] = self
        self._thread.start()

    def advance(self, points: int) -> None:
        """Let it pass so many points; it stops at the next one, or ends."""
        if not self.over:
            self._budget = points
            self._go.release()
            self._stopped.acquire()

    def finish(self) -> None:
        self.advance(1_000_000)
        self._thread.join()
        assert self.over
        if self.failure is not None:
            raise self.failure

    def at_point(self) -> None:
        if self._budget == 0:
            self._stopped.release()
            self._go.acquire()
        self._budget -= 1

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._life()
        except BaseException as error:
            self.failure = error
        finally:
            self.over = True
            self._stopped.release()


_actors: dict[threading.Thread, Actor] = {}


@contextmanager
def stepping() -> Iterator[None]:
    """Actors stop at fault points inside this; the main thread passes them all."""

    def hook(name: str, where: dict[str, Any]) -> None:
        actor = _actors.get(threading.current_thread())
        if actor is not None:
            actor.at_point()

    faults.install(hook)
    try:
        yield
    finally:
        faults.install(None)
        _actors.clear()


@contextmanager
def crashing_at(number: int, error: Callable[[], BaseException] = Crash) -> Iterator[list[str]]:
    """Raise at the n-th fault point passed; gives the names passed, the last one is where it crashed."""
    passed: list[str] = []

    def hook(name: str, where: dict[str, Any]) -> None:
        if len(passed) < number:
            passed.append(name)
            if len(passed) == number:
                raise error()

    faults.install(hook)
    try:
        yield passed
    finally:
        faults.install(None)
