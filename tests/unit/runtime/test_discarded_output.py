"""What a round that did not count has prepared is aborted, by the runtime, with the lease held."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.simulation.observer import staged_pages
from tests.sources import ScriptedSource
from tests.unit.runtime.small_jobs import SmallJob
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import FencedError, UserCodeError
from tidegate.base.files import Files
from tidegate.checkpoint.lease import acquire
from tidegate.operators.contracts.sink import Committer, CommitterContext, Prepared, Sink, SinkWriter, WriterContext
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine

TOLERABLE = "execution.checkpointing.tolerable-failed-checkpoints"


class Written(SinkWriter):
    def __init__(self, page: str) -> None:
        self._page = page

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None: ...

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        faults.point("K1.pages.flush", page=self._page)
        return Prepared([self._page])


class Pages(Sink, Committer):
    """Every subtask prepares a page a round; what becomes of it is written down."""

    asked: ClassVar[list[tuple[str, list[Any]]]] = []

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return Written(f"{context.round}-{context.subtask}")

    def create_committer(self, context: CommitterContext) -> Committer:
        return self

    def commit(self, committables: list[Any]) -> None:
        Pages.asked.append(("commit", committables))

    def abort(self, committables: list[Any]) -> None:
        Pages.asked.append(("abort", committables))


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    Pages.asked.clear()


def two_subtasks(directory: Path, sink: Sink | None = None, function: Any = None) -> SmallJob:
    job = SmallJob(directory, sink=sink, **({"function": function} if function else {}))
    job.source = ScriptedSource([0, 1, 2], [10, 11, 12])
    return job


def run(job: SmallJob, **settings: Any) -> None:
    program = job.program(**{"parallelism.default": 2, **settings})
    JobMaster(program, SimulatedEngine(1), clock=ManualClock(), local_root=job.local).run()


def decline_once(name: str, where: dict[str, Any]) -> None:
    if name == "K1.pages.flush" and where["page"] == "1-1":
        raise OSError(28, "No space left on device")


def test_what_others_prepared_in_a_declined_round_is_aborted_before_it_is_run_again(tmp_path: Path) -> None:
    faults.install(decline_once)
    run(two_subtasks(tmp_path, Pages()), **{TOLERABLE: 1})
    assert Pages.asked == [("abort", ["1-0"]), ("commit", ["2-0", "2-1"])]


def fail_at_eleven(value: Any) -> Any:
    if value == 11:
        raise ValueError("eleven")
    return value


def test_what_others_prepared_in_a_round_that_failed_is_aborted(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match="eleven"):
        run(two_subtasks(tmp_path, Pages(), fail_at_eleven))
    assert Pages.asked == [("abort", ["1-0"])]


def test_a_job_that_failed_leaves_no_prepared_output(tmp_path: Path) -> None:
    """Nobody may start it again: then nobody else would find it."""
    with pytest.raises(UserCodeError):
        run(two_subtasks(tmp_path, function=fail_at_eleven))
    assert staged_pages(f"{tmp_path}/ledger") == []


def test_nothing_is_aborted_without_the_lease(tmp_path: Path) -> None:
    """A newer driver has begun by the time the acks are in: what has these names may be its business."""

    def take_over(name: str, where: dict[str, Any]) -> None:
        if name == "C3.acks-in":
            acquire(Files(f"{tmp_path}/checkpoints/small"), ManualClock(), job_id="small", liveness=lambda owner: False)

    faults.install(take_over)
    with pytest.raises(FencedError):
        run(two_subtasks(tmp_path, Pages(), fail_at_eleven))
    assert Pages.asked == []
