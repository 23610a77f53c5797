"""The ledger sink, its audit, and scripted sources: tools that must find faults themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sinks import LedgerObserver, LedgerSink, audit
from tests.sources import At, Fail, Pause, ScriptedFailure, ScriptedSource
from tidegate.base.errors import CommitError
from tidegate.base.pickling import find_other
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.sink import CommitterContext, Prepared, Sink, SinkWriter, WriterContext
from tidegate.operators.contracts.source import Boundedness, Source, SplitInterval
from tidegate.testing.sink_contract import SinkContract
from tidegate.testing.sink_run import SinkRun
from tidegate.testing.source_contract import START_MS, SourceContract, read_all, read_interval


class TestLedgerContract(SinkContract):
    def make_sink(self, directory: Path) -> Sink:
        return LedgerSink(str(directory))

    def visible(self, directory: Path) -> list[Any]:
        return LedgerObserver(str(directory)).look()

    def leftovers(self, directory: Path) -> list[str]:
        return LedgerObserver(str(directory)).staged()


class TestScriptedContract(SourceContract):
    def make_source(self, directory: Path) -> Source:
        return ScriptedSource([1, 2, Pause(50), 3], [4, At(99, 5)], [])

    def expected(self) -> list[Any]:
        return [1, 2, 3, 4, 5]


def test_the_audit_finds_lost_doubled_unknown_and_disordered() -> None:
    expected = [["a", 1], ["a", 2], ["b", 1], ["b", 2]]
    found = [["a", 2], ["a", 1], ["b", 1], ["b", 1], ["c", 9]]
    result = audit(expected, found, key=lambda v: v[0], order=lambda v: v[1])
    assert result.lost == {("b", 2): 1}
    assert result.doubled == {("b", 1): 1}
    assert result.unknown == {("c", 9): 1}
    assert result.disordered == ["a"]
    assert not result.clean
    assert audit(expected, expected, key=lambda v: v[0], order=lambda v: v[1]).clean


def test_the_observer_notices_pages_that_disappear(tmp_path: Path) -> None:
    run = SinkRun(LedgerSink(str(tmp_path)), "unused", lambda n: n, 1)
    run.step(2, checkpoint=True)
    observer = LedgerObserver(str(tmp_path))
    assert observer.look() == [0, 1]
    next((tmp_path / "committed").rglob("*-a1")).unlink()
    with pytest.raises(AssertionError, match="disappeared"):
        observer.look()


def test_the_ledger_refuses_a_lost_page(tmp_path: Path) -> None:
    run = SinkRun(LedgerSink(str(tmp_path)), "unused", lambda n: n, 1)
    run.accept(run.attempt(1), 1)
    next((tmp_path / "staged").rglob("*-a1")).unlink()
    with pytest.raises(CommitError, match="no page"):
        run.commit()


def test_a_script_fails_so_often_and_then_continues(tmp_path: Path) -> None:
    source = ScriptedSource([1, Fail(str(tmp_path), times=2), 2])
    interval = SplitInterval("0", 0, 0, 3)
    for _ in range(2):
        with pytest.raises(ScriptedFailure, match="fail"):
            read_interval(source, interval)
    assert read_interval(source, interval) == [1, 2]


def test_a_script_pauses_and_says_until_when() -> None:
    source = ScriptedSource([1, Pause(500), 2], ends=False)
    assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    enumerator = source.create_enumerator(1, None)
    first = enumerator.plan(10, START_MS)
    assert (first.intervals[0].end, first.wake_up_ms, first.backlog) == (1, START_MS + 500, False)
    assert enumerator.plan(10, START_MS + 499).intervals == []
    last = enumerator.plan(10, START_MS + 500)
    assert ([(i.start, i.end) for i in last.intervals], last.finished) == ([(1, 3)], False)


def test_timestamps_of_a_script() -> None:
    source = ScriptedSource([At(7, "x")])
    [batch] = map(Batch.of, source.create_reader(0).read(SplitInterval("0", 0, 0, 1)))
    assert (batch.rows(), batch.time_list()) == (["x"], [7])


def test_plain_data() -> None:
    assert find_other([1, None, {"a": [2.5, "x", True]}], allow_bytes=False) is None
    assert find_other([b"x"], allow_bytes=True) is None
    assert find_other([b"x"], allow_bytes=False) == b"x"
    assert find_other({"a": (1, 2)}, allow_bytes=True) == (1, 2)


class Careless(LedgerSink):
    """Write directly to visible output."""

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        inner = super().create_writer(context, state)
        committer = self.create_committer(CommitterContext(context.job_id, context.sink_id, context.staging))

        class Writer(SinkWriter):
            def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
                inner.write_batch(values, timestamps)

            def prepare_commit(self, end_of_input: bool) -> Prepared:
                prepared = inner.prepare_commit(end_of_input)
                committer.commit(prepared.committables)
                return prepared

        return Writer()


@pytest.mark.parametrize(
    "name",
    [
        "test_nothing_is_visible_before_the_commit",
        "test_two_attempts_of_a_round_do_not_meet",
        "test_lingering_work_is_aborted_and_nothing_else",
        "test_random_runs_with_crashes_and_rescales",
    ],
)
def test_the_sink_contract_catches_a_careless_sink(tmp_path: Path, name: str) -> None:
    contract = TestLedgerContract()
    contract.make_sink = lambda directory: Careless(str(directory))  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        getattr(contract, name)(tmp_path)


class Forgetful(ScriptedSource):
    """Lose the positions at every restore."""

    def create_enumerator(self, parallelism: int, restored: Any | None) -> Any:
        return super().create_enumerator(parallelism, None)


def test_the_source_contract_catches_a_forgetful_source(tmp_path: Path) -> None:
    contract = TestScriptedContract()
    contract.make_source = lambda directory: Forgetful([1, 2, 3], [4, 5])  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match=r"records lost or duplicated|after its last"):
        contract.test_snapshot_and_rescale_at_any_point_lose_and_double_nothing(tmp_path)


def test_reading_stops_for_an_endless_source() -> None:
    reading = read_all(ScriptedSource([1, 2], ends=False), [(1, 1)])
    assert (reading.values, reading.finished) == ([1, 2], False)
