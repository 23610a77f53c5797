"""Sessions that are merged in memory give what windows of any kind give: results, order of firing, late records, snapshots."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.functions import CountRecords
from tests.programs import transformations_of
from tests.unit.windows.window_jobs import WindowJob, cut, lives, timed
from tidegate.base.errors import TidegateError
from tidegate.common import Configuration, Time, Types
from tidegate.datastream import (
    AggregateFunction,
    DataStream,
    OutputTag,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.window import EventTimeSessionWindows, EventTimeTrigger
from tidegate.operators.contracts.specs import SessionWindowSpec
from tidegate.testing.simulation.engine import Chances

IN_MEMORY = "tidegate.windows.sessions-in-memory"
LATE = OutputTag("late")
emitted: list[Any] = []
"""What the windows of a job without failures have emitted, in order."""


class Numbers(AggregateFunction):
    """An accumulator that changes in place."""

    def create_accumulator(self) -> Any:
        return []

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator.append(value[2])
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return list(accumulator)

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a + acc_b


class Labelled(ProcessWindowFunction):
    """Results with the window, and a line for every window that ends."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        window = context.window()
        yield [key, window.start, window.end, list(elements), context.current_watermark()]

    def clear(self, context: Any) -> None:
        emitted.append(("clear", context.window().start, context.window().end))


FUNCTIONS: dict[str, Any] = {
    "reduce": lambda w: w.reduce(lambda a, b: (min(a[0], b[0]), max(a[1], b[1]), a[2] * 31 + b[2])),
    "reduce-process": lambda w: w.reduce(lambda a, b: (a[0], a[1], a[2] * 31 + b[2]), Labelled()),
    "aggregate": lambda w: w.aggregate(Numbers()),
    "aggregate-process": lambda w: w.aggregate(Numbers(), Labelled()),
    "count": lambda w: w.aggregate(CountRecords(), Labelled(), accumulator_type=Types.LONG()),
    "process": lambda w: w.process(Labelled()),
}
GAPS = {
    "fixed": EventTimeSessionWindows.with_gap(Time.milliseconds(6)),
    "dynamic": EventTimeSessionWindows.with_dynamic_gap(lambda r: 1 + r[2] % 9),
}


def sessions(function: str, gap: str, lateness: int) -> Any:
    def build(stream: DataStream) -> DataStream:
        windows = stream.key_by(lambda r: r[0], Types.STRING()).window(GAPS[gap]).allowed_lateness(lateness)
        results = FUNCTIONS[function](windows.side_output_late_data(LATE))
        late = results.get_side_output(LATE).map(lambda r: ["late", *r])
        return results.union(late).map(_noted)

    return build


def _noted(result: Any) -> Any:
    emitted.append(result)
    return result


def in_order(build: Any, found: list[Any], workers: int = 1, **options: Any) -> list[Any]:
    """Run a job without failures; return what its windows emit, in order."""
    limit = options.pop("limit")
    emitted.clear()
    with tempfile.TemporaryDirectory() as place:
        job = WindowJob(Path(place), build, timed(found), disorder_ms=options.pop("disorder_ms", 0), limit=limit)
        job._chances, job.workers = Chances(), workers
        job.run(1, **options)
    return list(emitted)


@st.composite
def records(draw: Any) -> list[Any]:
    keys = st.sampled_from(["a", "a", "b", "c"])
    steps = draw(
        st.lists(st.tuples(keys, st.sampled_from([0, 1, 2, 4, 9]), st.integers(0, 40)), min_size=1, max_size=40)
    )
    time, found = 0, []
    for number, (key, step, back) in enumerate(steps):
        time += step
        found.append((key, time - (back if back > 20 else back % 4), number))
    return found


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(
    found=records(),
    function=st.sampled_from(sorted(FUNCTIONS)),
    gap=st.sampled_from(sorted(GAPS)),
    lateness=st.sampled_from([0, 3, 12, 1000]),
    disorder_ms=st.sampled_from([0, 5]),
    limit=st.sampled_from([2, 5, 13, 100]),
    chunk=st.sampled_from([1, 3, 50]),
    backend=st.sampled_from(["hashmap", "rocksdb"]),
    workers=st.sampled_from([1, 1, 3]),
)
def test_sessions_in_memory_emit_the_same_in_the_same_order(
    found: list[Any],
    function: str,
    gap: str,
    lateness: int,
    disorder_ms: int,
    limit: int,
    chunk: int,
    backend: str,
    workers: int,
) -> None:
    options: dict[str, Any] = {"disorder_ms": disorder_ms, "limit": limit, "tidegate.chunk.records": chunk}
    options |= {"state.backend.type": backend, "workers": workers}
    build = sessions(function, gap, lateness)
    expected = in_order(build, found, **{IN_MEMORY: False}, **options)
    assert in_order(build, found, **options) == expected


@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(
    found=records().filter(lambda found: len(found) > 20),
    function=st.sampled_from(sorted(FUNCTIONS)),
    gap=st.sampled_from(sorted(GAPS)),
    lateness=st.sampled_from([0, 12]),
    parallelisms=st.sampled_from([(1, 1, 1), (2, 3, 1), (1, 2, 2)]),
    modes=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_either_way_continues_from_checkpoints_of_the_other_with_another_parallelism(
    found: list[Any],
    function: str,
    gap: str,
    lateness: int,
    parallelisms: tuple[int, int, int],
    modes: tuple[bool, bool, bool],
) -> None:
    def run(modes: tuple[bool, bool, bool]) -> list[str]:
        with tempfile.TemporaryDirectory() as place:
            steps = cut(timed(found), Path(place), len(found) // 3, 2 * len(found) // 3)
            job = WindowJob(Path(place), sessions(function, gap, lateness), steps, limit=4)
            job._chances = Chances()  # a task that is run again would use up a failure of the source
            for parallelism, mode in zip(parallelisms[:-1], modes[:-1], strict=True):
                _fail(job, parallelism, mode)
            return sorted(map(repr, lives(job, parallelisms[-1:], **{IN_MEMORY: modes[-1]})))

    assert run(modes) == run((False, False, False))


def _fail(job: WindowJob, parallelism: int, mode: bool) -> None:
    with pytest.raises(TidegateError):
        job.run(parallelism, **{"restart-strategy.type": "none", IN_MEMORY: mode})
    assert job.checkpoints()


def test_a_session_of_an_earlier_round_fires_in_the_round_that_extends_it() -> None:
    found = [("a", 0, 0), ("b", 1, 1), ("a", 3, 2), ("b", 100, 3), ("b", 101, 4), ("b", 200, 5)]
    build = sessions("count", "fixed", 0)
    options: dict[str, Any] = {"limit": 2, "tidegate.chunk.records": 1}
    expected = in_order(build, found, **{IN_MEMORY: False}, **options)
    assert in_order(build, found, **options) == expected
    assert ["a", 0, 9, [2], 99] in expected


def test_a_record_that_is_none_empties_the_accumulator_of_its_session() -> None:
    def build(stream: DataStream) -> DataStream:
        records = stream.map(lambda r: None if r[2] == 2 else r)
        windows = records.key_by(lambda r: 0).window(GAPS["fixed"])
        return windows.aggregate(CountRecords()).map(_noted)

    found = [("a", time, time) for time in range(5)]
    results = [in_order(build, found, limit=10, **{IN_MEMORY: mode}) for mode in (True, False)]
    assert results == [[2], [2]]


class Opened(CountRecords):
    def open(self, runtime_context: Any) -> None:
        self.context = runtime_context


class NotBuiltIn(EventTimeTrigger):
    """The same, but nobody knows."""


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda w: w.aggregate(CountRecords()), True),
        (lambda w: w.process(Labelled()), True),
        (lambda w: w.reduce(lambda a, b: a), True),
        (lambda w: w.aggregate(Opened()), False),
        (lambda w: w.trigger(NotBuiltIn()).aggregate(CountRecords()), False),
    ],
)
def test_only_sessions_that_fire_by_the_watermark_are_intervals(build: Any, expected: bool) -> None:
    env = StreamExecutionEnvironment(Configuration())
    windows = env.from_collection([("a", 1)]).key_by(lambda r: r[0]).window(GAPS["fixed"])
    build(windows)
    assert isinstance(transformations_of(env)[-1].spec, SessionWindowSpec) is expected


def _added_in_place(a: Any, b: Any) -> Any:
    a[2]["n"] += b[2]["n"]
    return a


@pytest.mark.parametrize("in_memory", [False, True])
def test_object_that_a_source_emits_several_times_is_a_record_of_its_own_each_time(in_memory: bool) -> None:
    def build(stream: DataStream) -> DataStream:
        return stream.key_by(lambda r: r[0]).window(GAPS["fixed"]).reduce(_added_in_place).map(_noted)

    one = {"n": 1}
    found = [("a", 0, one), ("b", 1, one), ("a", 2, one), ("a", 3, one), ("b", 4, one)]
    given: dict[str, Any] = {IN_MEMORY: in_memory, "limit": 100, "tidegate.chunk.records": 50}
    counts = sorted((record[0], record[2]["n"]) for record in in_order(build, found, **given))
    assert counts == [("a", 3), ("b", 2)]


@pytest.mark.parametrize("in_memory", [False, True])
def test_session_that_ends_after_all_time_is_refused_with_its_record(in_memory: bool) -> None:
    def build(stream: DataStream) -> DataStream:
        return stream.key_by(lambda r: r[0]).window(GAPS["fixed"]).aggregate(Numbers()).map(_noted)

    last = (1 << 63) - 1
    found = [("a", last - 9, 0), ("a", last - 6, 1), ("a", last - 4, 2)]
    given: dict[str, Any] = {IN_MEMORY: in_memory, "limit": 100, "tidegate.chunk.records": 50}
    with pytest.raises(TidegateError, match=f"'a', {last - 4}, 2"):
        in_order(build, found, **given)


def test_sessions_have_the_kind_that_ids_without_uid_were_made_of() -> None:
    env = StreamExecutionEnvironment.get_execution_environment(Configuration())
    env.from_collection([(1, 2, 3)]).key_by(lambda r: r[0]).window(GAPS["fixed"]).aggregate(Numbers())
    [spec] = [t.spec for t in transformations_of(env) if isinstance(t.spec, SessionWindowSpec)]
    assert spec.kind == "WindowSpec"
