"""Built-in aggregations: by record, on columns, in windows of all kinds."""

from __future__ import annotations

import copy
import datetime
import math
import pickle
import random
from collections import defaultdict
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.functions import CountRecords
from tests.programs import program_of
from tests.simulation.executor import Simulated
from tidegate.base.errors import ProgramError, TidegateError
from tidegate.common import Duration, Row, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import Aggregates, ProcessWindowFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.window import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from tidegate.graph.plan import build
from tidegate.operators.contracts.arrow_batch import ArrowBatch, Layout
from tidegate.operators.contracts.batch import Batch, ColumnBatch
from tidegate.operators.kinds import sliced_window
from tidegate.operators.kinds.sliced_window import SlicedWindowOperator
from tidegate.operators.loop.rewrites.explain import explain_functions
from tidegate.testing.simulation.engine import Chances

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
MIXED = Types.TUPLE([Types.LONG(), Types.DOUBLE(), Types.STRING()])
EVERY = (
    Aggregates.count(),
    Aggregates.sum(1),
    Aggregates.min(1),
    Aggregates.max(1),
    Aggregates.avg(1),
    Aggregates.first(1),
    Aggregates.last(1),
)


def by_record(function: Any, records: list[Any]) -> Any:
    return reduce(lambda accumulator, value: function.add(value, accumulator), records, function.create_accumulator())


# -- single functions


def test_results_of_all_aggregations() -> None:
    records = [(1, 5), (1, 2), (1, None), (1, 9), (1, 2)]
    function = Aggregates.of(
        *EVERY,
        Aggregates.count(1),
        Aggregates.count_distinct(1),
        Aggregates.top(2, 1),
    ).typed(PAIR)
    assert function.get_result(by_record(function, records)) == (5, 18, 2, 9, 4.5, 5, 2, 4, 3, [9, 5])
    assert function.get_result(function.create_accumulator()) == (0, None, None, None, None, None, None, 0, 0, [])


def test_merged_parts_give_the_result_of_all_records() -> None:
    chance = random.Random(7)
    records = [(1, chance.choice([None, chance.randrange(-50, 50)])) for _ in range(300)]
    function = Aggregates.of(
        *EVERY, Aggregates.count_distinct(1), Aggregates.top(5, 1), Aggregates.percentile(90, 1)
    ).typed(PAIR)
    whole = function.get_result(by_record(function, records))
    pieces = [by_record(function, records[start : start + 37]) for start in range(0, 300, 37)]
    assert function.get_result(reduce(function.merge, [function.create_accumulator(), *pieces])) == whole


@pytest.mark.parametrize("percent", [0, 1, 50, 90, 99, 100])
@pytest.mark.parametrize("low", [1, -5000])
def test_percentile_is_within_its_error(percent: float, low: int) -> None:
    values = [n + low for n in range(10_000)]
    random.Random(3).shuffle(values)
    function = Aggregates.of(Aggregates.percentile(percent, error=0.02)).typed(Types.LONG())
    (found,) = function.get_result(by_record(function, values))
    exact = sorted(values)[math.floor(percent / 100 * 9999)]
    assert abs(found - exact) <= 0.0201 * abs(exact)


def test_fields_by_name_of_rows_and_of_unknown_records() -> None:
    rows = Aggregates.of(Aggregates.sum("price")).typed(
        Types.ROW_NAMED(["item", "price"], [Types.STRING(), Types.INT()])
    )
    assert rows.get_result(by_record(rows, [Row("a", 1), Row("b", 4)])) == (5,)
    assert rows.output_type == Types.TUPLE([Types.LONG()])
    unknown = Aggregates.of(Aggregates.sum("price"), Aggregates.count())
    assert unknown.get_result(by_record(unknown, [{"price": 1}, {"price": 2}])) == (3, 2)


def test_field_that_the_type_lacks_fails_and_names_the_fields() -> None:
    with pytest.raises(ProgramError, match="sum names a field that the records do not have") as caught:
        Aggregates.of(Aggregates.sum("prize")).typed(Types.ROW_NAMED(["price"], [Types.LONG()]))
    assert "use one of price" in str(caught.value)
    with pytest.raises(ProgramError, match="max names a field"):
        Aggregates.of(Aggregates.max(2)).typed(PAIR)


def test_other_arguments_fail() -> None:
    with pytest.raises(TidegateError, match="aggregations of Aggregates"):
        Aggregates.of(sum)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="at least one aggregation"):
        Aggregates.of()
    with pytest.raises(TidegateError, match="number of values from 1"):
        Aggregates.top(0)
    with pytest.raises(TidegateError, match="0 to 100"):
        Aggregates.percentile(101)


def test_the_function_survives_pickling() -> None:
    function = pickle.loads(pickle.dumps(Aggregates.of(*EVERY).typed(PAIR)))
    assert function.get_result(by_record(function, [(1, 2)])) == (1, 2, 2, 2, 2.0, 2, 2)


# -- columns


def folded(function: Any, records: list[Any], groups: list[int], before: list[Any]) -> Any:
    batch = ColumnBatch.of_tuples(*map(list, zip(*records, strict=True)))
    return function.fold_columns(batch, np.array(groups, np.int64), before)


def expected(function: Any, records: list[Any], groups: list[int], before: list[Any]) -> list[Any]:
    made = [function.create_accumulator() if one is None else one for one in before]
    for group, record in zip(groups, records, strict=True):
        made[group] = function.add(record, made[group])
    return made


def same(found: Any, wanted: Any) -> bool:
    return repr(found) == repr(wanted)  # bits of floats and classes of numbers count


@pytest.mark.parametrize("seed", range(30))
def test_columns_give_bit_by_bit_what_records_give(seed: int) -> None:
    chance = random.Random(seed)
    function = Aggregates.of(*EVERY, *(Aggregates.sum(0), Aggregates.max(0), Aggregates.last(2))).typed(MIXED)
    before: list[Any] = [None] * 5
    wanted = list(before)
    for _ in range(3):
        count = chance.randrange(5, 200)
        groups = [*range(5), *(chance.randrange(5) for _ in range(count))]
        records = [
            (chance.randrange(-(10**6), 10**6), chance.gauss(0, 10.0 ** chance.randrange(-5, 9)), chance.choice("abc"))
            for _ in groups
        ]
        wanted = expected(function, records, groups, wanted)
        before = folded(function, records, groups, before)
        assert same(before, wanted)


@pytest.mark.parametrize(
    "values",
    [
        [math.nan, 1.0, 2.0],
        [0.0, -0.0, 0.0],
    ],
)
def test_floats_whose_order_matters_are_added_one_by_one(values: list[float]) -> None:
    function = Aggregates.of(Aggregates.min(1)).typed(MIXED)
    assert folded(function, [(1, value, "a") for value in values], [0, 0, 0], [None]) is None


def test_negative_zero_and_overflow_of_floats_are_exact() -> None:
    function = Aggregates.of(Aggregates.sum(1)).typed(MIXED)
    for values in ([-0.0, -0.0], [1e308, 1e308], [-0.0, 0.0]):
        records = [(1, value, "a") for value in values]
        assert same(folded(function, records, [0, 0], [None]), expected(function, records, [0, 0], [None]))


def test_sums_beyond_64_bits_are_added_one_by_one() -> None:
    function = Aggregates.of(Aggregates.sum(0)).typed(PAIR)
    records = [(1 << 62, 0), (1 << 62, 0)]
    assert folded(function, records, [0, 0], [None]) is None
    assert folded(function, [(1, 0)], [0], [((1 << 63) - 1,)]) is None
    assert function.get_result(by_record(function, records)) == (1 << 63,)


NULLABLE = Types.ROW_NAMED(
    ["long", "double", "text", "flag", "moment"],
    [Types.LONG(), Types.DOUBLE(), Types.STRING(), Types.BOOLEAN(), Types.SQL_TIMESTAMP()],
)
ALL_OF = {
    "long": [
        Aggregates.sum("long"),
        Aggregates.min("long"),
        Aggregates.max("long"),
        Aggregates.avg("long"),
        Aggregates.count_distinct("long"),
        Aggregates.top(3, "long"),
        Aggregates.percentile(90, "long"),
    ],
    "double": [
        Aggregates.sum("double"),
        Aggregates.min("double"),
        Aggregates.max("double"),
        Aggregates.avg("double"),
        Aggregates.top(2, "double"),
        Aggregates.percentile(50, "double", error=0.001),
    ],
    "text": [
        Aggregates.min("text"),
        Aggregates.max("text"),
        Aggregates.first("text"),
        Aggregates.last("text"),
        Aggregates.count_distinct("text"),
        Aggregates.top(2, "text"),
    ],
    "moment": [Aggregates.first("moment"), Aggregates.last("moment"), Aggregates.count("moment")],
    "flag": [Aggregates.count(), Aggregates.count("flag"), Aggregates.last("flag"), Aggregates.count_distinct("flag")],
}
"""Aggregations of the fields of a type, by field."""
VALUES = st.fixed_dictionaries(
    {
        "long": st.none() | st.integers(-(2**62), 2**62) | st.integers(-3, 3),
        "double": st.none() | st.floats() | st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf]),
        "text": st.none() | st.text(max_size=3),
        "flag": st.none() | st.booleans(),
        "moment": st.none() | st.datetimes().map(lambda moment: moment.replace(microsecond=0)),
    }
)


def _fails(function: Any, records: list[Any], groups: list[int], before: list[Any]) -> bool:
    try:
        expected(function, records, groups, before)
    except Exception:
        return True
    return False


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(ALL_OF)), st.lists(st.lists(st.tuples(st.integers(0, 3), VALUES), max_size=30), max_size=3))
def test_columns_with_missing_and_odd_values_give_what_records_give(field: str, batches: Any) -> None:
    layout = Layout(NULLABLE)
    for aggregate in ALL_OF[field]:
        function = Aggregates.of(aggregate).typed(NULLABLE)
        wanted: list[Any] = [None] * 4
        before: list[Any] = [None] * 4
        for batch in batches:
            groups = [group for group, _ in batch]
            records = [Row(**value) for _, value in batch]
            arrow = ArrowBatch(layout.batch_of(Batch(records)), layout)
            rows = [layout.rows(arrow.arrow)[n] for n in range(len(records))]
            found = function.fold_columns(arrow, np.array(groups, np.int64), copy.deepcopy(before))
            if _fails(function, rows, groups, copy.deepcopy(wanted)):
                assert found is None  # the loop finds the record
                return
            wanted = expected(function, rows, groups, copy.deepcopy(wanted))
            before = copy.deepcopy(wanted) if found is None else found
            used = sorted(set(groups))
            assert same([function.get_result(before[n]) for n in used], [function.get_result(wanted[n]) for n in used])


def test_no_aggregation_leaves_ordinary_columns_to_the_loop() -> None:
    layout = Layout(NULLABLE)
    moment = datetime.datetime(1969, 7, 20, 20, 17)
    records = [Row(n, n / 8 + 1, f"t{n}", n % 2 == 0, moment) for n in range(20)] + [Row(*[None] * 5)]
    arrow = ArrowBatch(layout.batch_of(Batch(records)), layout)
    every = [aggregate for some in ALL_OF.values() for aggregate in some]
    function = Aggregates.of(*every).typed(NULLABLE)
    found = function.fold_columns(arrow, np.array([n % 2 for n in range(21)]), [None, None])
    assert found is not None
    assert same(found[1], expected(function, layout.rows(arrow.arrow), [n % 2 for n in range(21)], [None, None])[1])


def test_values_at_the_bounds_of_buckets_fall_into_the_same_bucket() -> None:
    function = Aggregates.of(Aggregates.percentile(50, 1)).typed(MIXED)
    gamma = 1.01 / 0.99
    values = [
        sign * gamma**n * near for n in range(-300, 300) for near in (1, 1 - 1e-15, 1 + 1e-15) for sign in (1, -1)
    ]
    records = [(1, value, "a") for value in values]
    groups = [0] * len(records)
    [[found]], [[wanted]] = folded(function, records, groups, [None]), expected(function, records, groups, [None])
    assert found == wanted


@pytest.mark.parametrize("seed", range(10))
def test_keys_are_numbered_in_the_order_of_their_first_record(seed: int) -> None:
    chance = random.Random(seed)
    low, span = chance.choice([(0, 5), (-3, 40), (2**62, 20), (-(2**63), 2**60)])
    keys = [low + chance.randrange(span) for _ in range(100)]
    batch = ColumnBatch.of_tuples(keys, keys)
    batch.key_field, batch.keys = 0, keys
    found, numbers = sliced_window.keys_of(batch)
    assert found == list(dict.fromkeys(keys))
    assert [found[number] for number in numbers.tolist()] == keys


# -- windows


class ByValue(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


class WithWindow(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        (results,) = elements
        yield key, context.window().start, *results


def pairs(env: StreamExecutionEnvironment, count: int) -> Any:
    """Records (key, n) with the event time n. The key is arithmetic, so the records travel as columns."""
    numbers = env.from_source(
        NumberSequenceSource(0, count - 1), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    )
    made = numbers.map_batches(lambda b: {"f0": b["value"] * 7 % 3, "f1": b["value"]}, PAIR, batch_format="numpy")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(count))
    return made.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(ByValue())).key_by(
        lambda pair: pair[0], Types.LONG()
    )


WINDOWS = {
    "tumbling": TumblingEventTimeWindows.of(Time.milliseconds(100)),
    "sliding": SlidingEventTimeWindows.of(Time.milliseconds(250), Time.milliseconds(100)),
    "sessions": EventTimeSessionWindows.with_gap(Time.milliseconds(10)),
}


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("inline", [True, False])
def test_windows_give_the_results_of_their_records(
    simulated: Simulated, kind: str, inline: bool, folds: list[int]
) -> None:
    settings = {"execution.checkpointing.interval": "10 ms", "parallelism.default": 2}
    env = simulated(seed=5, **settings, **{"tidegate.functions.inline": inline})
    windowed = pairs(env, 1000).window(WINDOWS[kind])
    with windowed.aggregate(Aggregates.of(*EVERY), WithWindow()).execute_and_collect() as results:
        found = sorted(results)
    contents: dict[Any, list[Any]] = defaultdict(list)
    for n in range(1000):
        starts = {
            "tumbling": [n // 100 * 100],
            "sliding": list(range(n // 100 * 100, n - 250, -100)),
            "sessions": [n * 7 % 3],
        }[kind]
        for start in starts:
            contents[n * 7 % 3, start].append((0, n))
    function = Aggregates.of(*EVERY).typed(PAIR)
    wanted = [(*key, *function.get_result(by_record(function, sorted(rows)))) for key, rows in contents.items()]
    aggregated = slice(2, 7)  # without first and last: subtasks bring records in any order
    assert [(*row[:2], *row[aggregated]) for row in found] == sorted((*row[:2], *row[aggregated]) for row in wanted)
    assert bool(folds) is (inline and kind != "sessions")


def test_aggregates_are_given_one_by_one_and_make_a_typed_tuple(simulated: Simulated) -> None:
    env = simulated(seed=5, **{"parallelism.default": 1})
    windowed = pairs(env, 300).window(TumblingEventTimeWindows.of(Time.milliseconds(100)))
    stream = windowed.aggregate(
        Aggregates.first(0),
        Aggregates.count(),
        Aggregates.sum(1),
        Aggregates.avg(1),
        Aggregates.min(1),
        Aggregates.max(1),
    )
    longs = [Types.LONG()] * 3
    assert stream.get_type() == Types.TUPLE([*longs, Types.DOUBLE(), Types.LONG(), Types.LONG()])
    with stream.execute_and_collect() as results:
        found = sorted(results)
    wanted = []
    for key in range(3):
        for start in (0, 100, 200):
            mine = [n for n in range(start, start + 100) if n * 7 % 3 == key]
            wanted.append((key, len(mine), sum(mine), sum(mine) / len(mine), min(mine), max(mine)))
    assert found == sorted(wanted)


def test_window_all_takes_aggregates(simulated: Simulated) -> None:
    env = simulated(seed=5, **{"parallelism.default": 2})
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(ByValue())
    stream = env.from_collection([(0, n) for n in range(30)], PAIR).assign_timestamps_and_watermarks(strategy)
    windowed = stream.window_all(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    results: Any = windowed.aggregate(Aggregates.count(), Aggregates.sum(1)).execute_and_collect()
    with results:
        assert sorted(results) == [(10, 45), (10, 145), (10, 245)]


@pytest.mark.parametrize("lateness", [0, 300])
@pytest.mark.parametrize("kind", ["tumbling", "sliding"])
def test_late_records_give_the_same_results_with_and_without_columns(
    simulated: Simulated, kind: str, lateness: int, folds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def results(seed: int) -> list[Any]:
        env = simulated(seed=seed, **{"parallelism.default": 1, "execution.checkpointing.interval": "10 ms"})
        numbers = env.from_source(
            NumberSequenceSource(0, 29_999), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
        )
        shaken = numbers.map_batches(
            lambda b: {"f0": b["value"] % 5, "f1": b["value"] + b["value"] * 7919 % 20_000}, PAIR, batch_format="numpy"
        )
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(500))
        keyed = shaken.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(ByValue())).key_by(
            lambda pair: pair[0], Types.LONG()
        )
        windowed = keyed.window(WINDOWS[kind]).allowed_lateness(lateness)
        found: Any = windowed.aggregate(Aggregates.of(*EVERY), WithWindow()).execute_and_collect()
        with found:
            return sorted(found)

    on_columns = results(11)
    assert folds
    monkeypatch.setattr(SlicedWindowOperator, "fold_batch", lambda self, batch: False)
    assert on_columns == results(11)
    assert sum(row[2] for row in on_columns) != 30_000 * (1 if kind == "tumbling" else 2.5)


def test_records_between_windows_are_dropped(simulated: Simulated, folds: list[int]) -> None:
    """Sliding windows with gaps between them: records in a gap are in no window."""
    env = simulated(seed=5, **{"parallelism.default": 1})
    gaps = SlidingEventTimeWindows.of(Time.milliseconds(50), Time.milliseconds(100))
    stream = pairs(env, 400).window(gaps).aggregate(Aggregates.count(), Aggregates.sum(1))
    with stream.execute_and_collect() as results:
        found = list(results)
    assert sum(count for count, _ in found) == 200
    assert sum(total for _, total in found) == sum(n for n in range(400) if n % 100 < 50)


FAULTS = Chances(die=0.1, zombie=0.1, late=0.1, rerun=0.05, rerun_whole=0.05, lose_store=0.2)
MODES: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": {"execution.checkpointing.unaligned.enabled": True},
    "rocksdb": {"state.backend.type": "rocksdb"},
    "batch": {"execution.runtime-mode": "BATCH"},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_batches_and_aggregates_survive_faults_in_many_rounds(
    simulated: Simulated, mode: str, seed: int, folds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sliced_window, "_LEAST", 8)  # batches of unaligned rounds are small
    settings = {
        "parallelism.default": 2,
        "execution.checkpointing.interval": "10 ms",
        "tidegate.round.max-records": 700,
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 1000,
        "restart-strategy.fixed-delay.delay": "1 ms",
    }
    env = simulated(seed=seed, chances=FAULTS, **{**settings, **MODES[mode]})
    windowed = pairs(env, 5000).window(SlidingEventTimeWindows.of(Time.seconds(2), Time.seconds(1)))
    stream = windowed.aggregate(Aggregates.of(*EVERY[:5], Aggregates.first(0)), WithWindow())
    with stream.execute_and_collect() as results:
        found = sorted(results)
    wanted = []
    for key in range(3):
        for start in range(-1000, 5000, 1000):
            mine = [n for n in range(max(start, 0), min(start + 2000, 5000)) if n * 7 % 3 == key]
            wanted.append((key, start, len(mine), sum(mine), min(mine), max(mine), sum(mine) / len(mine), key))
    assert found == sorted(wanted)
    assert folds or mode == "batch"


def test_explain_says_that_columns_are_added_as_a_whole() -> None:
    env = StreamExecutionEnvironment()
    windowed = pairs(env, 10).window(TumblingEventTimeWindows.of(Time.seconds(1)))
    windowed.aggregate(Aggregates.sum(1)).print()
    windowed.aggregate(CountRecords()).print()
    found = [one for one in explain_functions(build(program_of(env, "job"), 1, None, {})) if "Windows" in one.operator]
    assert ["added as a whole" in one.reason for one in found] == [True, False]
