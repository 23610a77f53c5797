"""Two lanes and an inbox, with real threads: what runs beside what, and what waits for what."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.small_jobs import SmallJob
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import FencedError, JobCancelledError, RoundError
from tidegate.base.files import Files
from tidegate.checkpoint.history import read_history
from tidegate.checkpoint.lease import acquire
from tidegate.operators.contracts.sink import (
    Committer,
    CommitterContext,
    Prepared,
    Publication,
    Sink,
    SinkWriter,
    WriterContext,
)
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.master import JobMaster
from tidegate.runtime.view import Outcome
from tidegate.testing.simulation.engine import SimulatedEngine

PATIENCE_S = 60
TOLERABLE = "execution.checkpointing.tolerable-failed-checkpoints"
RESTARTS = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": 3} | {
    "restart-strategy.fixed-delay.delay": 0
}


class Rounds(SimulatedEngine):
    """Rounds take 6 ms, so that the third carries the first checkpoint. ``at``: what happens when a round begins, by its number
    in this engine."""

    def __init__(self, clock: ManualClock, **at: Callable[[], None]) -> None:
        super().__init__(1)
        self.clock, self._at, self.runs = clock, at, 0

    def run(self, plan: RoundPlan) -> list[Ack]:
        self.runs += 1
        self.clock.advance(6)
        self._at.get(f"round_{self.runs}", lambda: None)()
        return super().run(plan)


class Site:
    """A small job with a manual clock; the points it passes, in order, and what to do at the first passing of one."""

    def __init__(self, directory: Path, *steps: Any, sink: Sink | None = None, **at: Callable[[], None]) -> None:
        self.job, self.clock = SmallJob(directory, *(steps or range(18)), sink=sink), ManualClock()
        self.engine = Rounds(self.clock, **at)
        self.directory = f"{directory}/checkpoints/small"
        self.passed: list[str] = []
        self.at: dict[str, Callable[[], None]] = {}

    def run(self, **settings: Any) -> None:
        self.master = JobMaster(
            self.job.program(**settings), self.engine, clock=self.clock, local_root=self.job.local, listeners=[]
        )
        faults.install(self._hook)
        try:
            self.master.run()
        finally:
            faults.install(None)

    def _hook(self, name: str, where: dict[str, Any]) -> None:
        self.passed.append(name)
        act = self.at.pop(name, None)
        if act is not None:
            act()


def test_the_next_round_runs_while_the_last_checkpoint_is_stored(tmp_path: Path) -> None:
    """Step 7 of the first checkpoint does not begin before the round after it has: with one line of work it never would."""
    running = threading.Event()
    site = Site(tmp_path, round_4=running.set)
    overlapped: list[bool] = []
    site.at["C4.before-publish"] = lambda: overlapped.append(running.wait(PATIENCE_S))
    site.run()
    assert overlapped == [True]
    assert site.job.committed() == list(range(18))


def test_the_next_round_runs_while_the_last_checkpoint_is_committed(tmp_path: Path) -> None:
    running = threading.Event()
    site = Site(tmp_path, round_4=running.set)
    overlapped: list[bool] = []
    site.at["C6.before-commit"] = lambda: overlapped.append(running.wait(PATIENCE_S))
    site.run()
    assert overlapped == [True]
    assert site.job.committed() == list(range(18))


def test_no_checkpoint_is_triggered_before_the_last_is_through(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.run()
    steps = [name for name in site.passed if name in ("C1.triggered", "C7.subsumed")]
    assert len(steps) >= 4
    assert steps == ["C1.triggered", "C7.subsumed"] * (len(steps) // 2)


def test_two_checkpoints_are_under_way_if_the_user_allows_it(tmp_path: Path) -> None:
    """The second is triggered, carried by a round and acknowledged while the first waits for storage."""
    again = threading.Event()
    site = Site(tmp_path)
    overlapped: list[bool] = []

    def wait_for_the_second() -> None:
        site.at["C1.triggered"] = again.set
        overlapped.append(again.wait(PATIENCE_S))

    site.at["C4.before-publish"] = wait_for_the_second
    site.run(**{"execution.checkpointing.max-concurrent-checkpoints": 2})
    assert overlapped == [True]
    assert site.job.committed() == list(range(18))


def test_a_checkpoint_that_could_not_be_stored_goes_into_the_next(tmp_path: Path) -> None:
    """The round after it has been accepted by then: what both have prepared is committed, in order."""
    running = threading.Event()
    site = Site(tmp_path, round_4=running.set)

    def no_space() -> None:
        assert running.wait(PATIENCE_S)
        site.at["storage.publish.before-link"] = full

    def full() -> None:
        raise OSError(28, "No space left on device")

    site.at["C4.before-publish"] = no_space
    site.run(**{TOLERABLE: 3})
    assert site.job.committed() == list(range(18))
    reasons = [entry.reason for entry in read_history(Files(site.directory))]
    assert reasons[0] == "STORAGE_FAILED"
    assert set(reasons[1:]) == {""}


def test_storage_that_does_not_answer_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rounds continue, so somebody has to say why nothing is committed any more."""
    site = Site(tmp_path)
    site.at["C4.before-publish"] = lambda: site.clock.advance(5_000)
    site.run(**{"execution.checkpointing.timeout": 4_000})
    assert (
        "checkpoint 1: its metadata is not stored after execution.checkpointing.timeout; rounds continue" in caplog.text
    )
    assert "checkpoint 2: its metadata" not in caplog.text
    assert site.job.committed() == list(range(18))


def test_the_lane_is_at_rest_before_a_restart_claims_a_new_lease(tmp_path: Path) -> None:
    """The round fails while step 7 is under way: the checkpoint is stored and committed, then restored."""
    begun, failed = threading.Event(), threading.Event()

    def fail() -> None:
        assert begun.wait(PATIENCE_S), "what has not begun would be dropped"
        failed.set()
        raise RoundError("A simulated round failed")

    def begin() -> None:
        begun.set()
        assert failed.wait(PATIENCE_S)

    site = Site(tmp_path, round_4=fail)
    site.at["C4.before-publish"] = begin
    site.run(**RESTARTS)
    claims = [index for index, name in enumerate(site.passed) if name == "C9.before-claim"]
    assert len(claims) == 2
    assert site.passed.index("C6.all-committed") < claims[1]
    assert site.job.committed() == list(range(18))


def test_a_commit_that_fails_ends_the_attempt_though_a_round_runs(tmp_path: Path) -> None:
    running = threading.Event()
    site = Site(tmp_path, round_4=running.set)

    def refuse() -> None:
        assert running.wait(PATIENCE_S)
        raise OSError(5, "the outside system is gone")

    site.at["K3.ledger.before-commit"] = refuse
    site.run(**RESTARTS)
    assert site.passed.count("C9.before-claim") == 2
    assert site.job.committed() == list(range(18))


def test_a_checkpoint_under_way_when_the_attempt_fails_is_shown_as_failed(tmp_path: Path) -> None:
    """The first cannot be committed, so the second, which the fifth round carries, is never stored."""
    running = threading.Event()
    site = Site(tmp_path, round_5=running.set)

    def refuse() -> None:
        assert running.wait(PATIENCE_S)
        raise OSError(5, "the outside system is gone")

    site.at["K3.ledger.before-commit"] = refuse
    site.run(**RESTARTS, **{"execution.checkpointing.max-concurrent-checkpoints": 2})
    shown = site.master.view().checkpoints
    assert [c.status for c in shown[:2]] == [Outcome.COMPLETED, Outcome.FAILED]
    assert shown[1].message == "the attempt has ended"
    assert {c.status for c in shown[2:]} == {Outcome.COMPLETED}


def test_cancelling_waits_for_the_commit_that_has_begun(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.at["C6.before-commit"] = lambda: site.master.cancel()
    with pytest.raises(JobCancelledError):
        site.run()
    assert site.passed.count("C6.all-committed") == site.passed.count("C6.published") >= 1
    committed = site.job.committed()
    assert committed == list(range(len(committed)))
    assert committed


def test_a_lost_lease_stops_both_lanes(tmp_path: Path) -> None:
    """A newer driver has claimed the directory: the lane finds it in step 7, the round after it counts for nothing."""
    site = Site(tmp_path)

    def take_over() -> None:
        acquire(Files(site.directory), ManualClock(), job_id="small", liveness=lambda owner: False)

    site.at["C4.before-publish"] = take_over
    with pytest.raises(FencedError):
        site.run(**RESTARTS)
    assert "C6.before-commit" not in site.passed
    assert site.job.committed() == []


def test_the_heartbeat_finds_a_lost_lease_while_a_round_runs(tmp_path: Path) -> None:
    """On the injected clock: the round takes longer than the heartbeat's pause. There are no checkpoints to find it first."""
    site = Site(tmp_path)
    site.engine._at["round_1"] = lambda: (
        acquire(Files(site.directory), ManualClock(), job_id="small", liveness=lambda owner: False),
        site.clock.advance(20_000),
    )[1]
    with pytest.raises(FencedError):
        site.run(**RESTARTS)
    assert site.engine.cancelled
    assert site.job.committed() == []


@pytest.mark.parametrize("lane", ["rounds", "checkpoints"])
def test_no_thread_left_for_a_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lane: str) -> None:
    """The attempt fails, does not wait for what never began, and the next one has better luck."""
    site, real = Site(tmp_path), threading.Thread.start
    refused: list[str] = []

    def start(thread: threading.Thread) -> None:
        if lane in thread.name and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    site.run(**RESTARTS)
    assert refused
    assert len(site.master.view().attempts) == 2
    assert site.job.committed() == list(range(18))


# -- sinks that do not wait for checkpoints --


class Diary(Sink, SinkWriter, Committer):
    """Writes down what is committed, and between which steps."""

    publication = Publication.ROUND

    def __init__(self, passed: list[str]) -> None:
        self.passed = passed

    def __reduce__(self) -> Any:
        return Diary, ([],)

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        self._values: list[Any] = []
        return self

    def create_committer(self, context: CommitterContext) -> Committer:
        return self

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._values += values

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        return Prepared(self._values)

    def abort(self, committables: Any = None) -> None: ...

    def commit(self, committables: list[Any]) -> None:
        self.passed.append(f"published {committables[-1]}")


def test_a_round_is_published_before_the_checkpoint_it_carried_is_stored(tmp_path: Path) -> None:
    """What the sink publishes is in no checkpoint: published later, a crash in between would lose it."""
    sink = Diary([])
    site = Site(tmp_path, sink=sink)
    site.passed = sink.passed
    site.run()
    order = [name for name in site.passed if name.startswith("published") or name == "C4.before-publish"]
    published = [int(name.split()[1]) for name in order if name.startswith("published")]
    assert published == [2, 5, 8, 11, 14, 17]
    # Whenever a checkpoint is stored, every round up to the one that carried it is out.
    rounds = [entry.round for entry in read_history(Files(site.directory))]
    stored = [order[:index] for index, name in enumerate(order) if name == "C4.before-publish"]
    assert len(stored) == len(rounds) > 1
    for before, round in zip(stored, rounds, strict=True):
        assert sum(name.startswith("published") for name in before) >= min(round, len(published))
