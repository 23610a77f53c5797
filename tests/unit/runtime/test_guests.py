"""What users hand to a job: sinks, listeners, functions that want to hear of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.unit.runtime.small_jobs import SmallJob, unchanged
from tidegate.base.clock import ManualClock
from tidegate.base.errors import ArgumentTypeError
from tidegate.datastream.functions import MapFunction
from tidegate.datastream.typed_functions import TypedMap
from tidegate.operators.contracts.functions import is_notified
from tidegate.operators.contracts.sink import Prepared, Sink, SinkWriter, WriterContext
from tidegate.operators.contracts.specs import MapSpec
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.commands import StopWithSavepoint
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.master import JobMaster
from tidegate.runtime.phase import Notifying
from tidegate.runtime.statistics import Listener
from tidegate.testing.simulation.engine import SimulatedEngine


def run(job: SmallJob, *listeners: Listener) -> None:
    master = JobMaster(
        job.program(), SimulatedEngine(1), clock=ManualClock(), local_root=job.local, listeners=list(listeners)
    )
    master.run()


class Handing(Sink, SinkWriter):
    """Its writer hands over whatever it was given."""

    def __init__(self, prepared: Any) -> None:
        self._prepared = prepared

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return self

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None: ...

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        return self._prepared


@pytest.mark.parametrize(
    ("prepared", "found"),
    [
        (None, "None instead of a Prepared"),
        (["page"], "['page'] instead of a Prepared"),
        (Prepared(("page",)), "committables is of type tuple"),  # type: ignore[arg-type]
        (Prepared([{"offsets": (1, 2)}]), "(1, 2) of type tuple in its committables"),
        (Prepared([1 << 70]), f"{1 << 70} of type int in its committables"),
        (Prepared([], [Path("part-0")]), "PosixPath('part-0') of type PosixPath in its state"),
    ],
)
def test_a_sink_that_hands_over_other_than_plain_data_is_named(tmp_path: Path, prepared: Any, found: str) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        run(SmallJob(tmp_path, sink=Handing(prepared)))
    assert caught.value.rule.startswith("prepare_commit must return a Prepared with two lists of plain data")
    assert caught.value.where == "sink Handing 'ledger', subtask 0"
    assert caught.value.found == found
    assert "in prepare_commit, and back in the committer" in str(caught.value.cure)
    assert not caught.value.restart_helps


def test_a_listener_that_fails_fails_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job, rounds = SmallJob(tmp_path), []

    def failing(statistics: Any) -> None:
        raise ValueError("cannot cope")

    run(job, failing, lambda statistics: rounds.append(statistics.round))
    assert job.committed() == list(range(10))
    assert rounds == [1, 2, 3, 4]
    assert "round 1: listener" in caplog.text
    assert "ValueError('cannot cope')" in caplog.text


class Told:
    """A map function that writes down its notifications; ``told`` is shared because the simulated workers are this process."""

    told: ClassVar[list[int]] = []

    def map(self, value: Any) -> Any:
        return value

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        Told.told.append(checkpoint_id)


class CannotBeTold(Told):
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        super().notify_checkpoint_complete(checkpoint_id)
        raise ValueError("too late")


class AsksWhileTelling(SimulatedEngine):
    """Somebody wants to stop the job with a savepoint while the round runs that only tells functions of the last checkpoint."""

    master: JobMaster
    asked: StopWithSavepoint | None = None
    target = ""

    def run(self, plan: RoundPlan) -> list[Ack]:
        if isinstance(self.master._attempt and self.master._attempt.phase, Notifying):
            self.asked = self.master.submit(StopWithSavepoint(self.target))
        return super().run(plan)


def test_a_stop_that_comes_with_the_last_round_is_refused_and_the_job_finishes(tmp_path: Path) -> None:
    Told.told.clear()
    job, engine = SmallJob(tmp_path, 1, 2, function=Told()), AsksWhileTelling(1)
    engine.master = JobMaster(job.program(), engine, clock=ManualClock(), local_root=job.local)
    engine.target = f"{tmp_path}/sp"
    engine.master.run()
    assert engine.asked is not None
    assert "the attempt has ended" in str(engine.asked.answer.exception(1))
    assert job.committed() == [1, 2]


def test_the_last_checkpoint_is_told_too(tmp_path: Path) -> None:
    Told.told.clear()
    job, ids = SmallJob(tmp_path, 1, 2, function=Told()), []
    run(job, lambda statistics: ids.append(statistics.checkpoint_id))
    assert ids == [1], "one round, with the last checkpoint"
    assert Told.told == [1]


def test_what_fails_after_the_last_checkpoint_does_not_fail_a_job_whose_output_is_committed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Told.told.clear()
    job = SmallJob(tmp_path, 1, 2, function=CannotBeTold())
    run(job)
    assert Told.told == [1]
    assert job.committed() == [1, 2]
    assert "checkpoint 1 is complete, but not all functions could be notified" in caplog.text


def test_nobody_to_tell_is_no_reason_for_a_round(tmp_path: Path) -> None:
    engine, job = SimulatedEngine(1), SmallJob(tmp_path, 1, 2)
    runs: list[int] = []
    run_round = engine.run
    engine.run = lambda plan: runs.append(plan.context.round) or run_round(plan)  # type: ignore[method-assign, func-returns-value]
    JobMaster(job.program(), engine, clock=ManualClock(), local_root=job.local).run()
    assert runs == [1]


class Silent(MapFunction):
    def map(self, value: Any) -> Any:
        return value


@pytest.mark.parametrize(
    ("function", "notified"),
    [
        (Told(), True),
        (TypedMap(Told(), unchanged), True),
        (Silent(), False),
        (TypedMap(Silent(), unchanged), False),
        (unchanged, False),
        (TypedMap(unchanged, unchanged), False),
    ],
)
def test_who_is_to_be_told(function: Any, notified: bool) -> None:
    """Every function inherits an empty hook, and the wrapper of a declared type passes all hooks on."""
    assert is_notified(MapSpec(function).user_function) is notified
