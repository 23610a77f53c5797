"""What type checkers infer of a program: the ``assert_type`` lines. The program runs too.

``make check-programs`` gives it to three checkers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, assert_type

from tests.simulation.executor import Simulated
from tidegate.common import Duration, Time, Types, WatermarkStrategy
from tidegate.common.types import Row
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import (
    AggregateFunction,
    CoProcessFunction,
    DataStream,
    KeyedProcessFunction,
    KeyedStream,
    MapFunction,
    OutputTag,
    ProcessWindowFunction,
    RuntimeContext,
)
from tidegate.datastream.state import MapStateDescriptor, ValueStateDescriptor
from tidegate.datastream.window import TimeWindow, TumblingEventTimeWindows

LARGE = OutputTag("large", Types.STRING())
Order = tuple[str, int]


class ByAmount(TimestampAssigner):
    def extract_timestamp(self, value: Order, record_timestamp: int) -> int:
        return value[1]


class RunningTotal(KeyedProcessFunction[Order, Order, str]):
    """Its methods call their parameters as they like."""

    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", Types.LONG()))
        self.seen = context.get_map_state(MapStateDescriptor("seen", Types.STRING(), Types.LIST(Types.LONG())))

    def process_element(
        self, order: Order, ctx: KeyedProcessFunction.Context
    ) -> Iterator[Order | tuple[OutputTag[str], str]]:
        customer, amount = order
        assert_type(self.seen.get("a"), list[int] | None)
        total = (self.total.value() or 0) + amount
        assert_type(total, int)
        self.total.update(total)
        yield customer, total
        if total > 35:
            yield LARGE, customer


def pair(name: str) -> tuple[str, int]:
    return name, 1


class Untyped(MapFunction):
    def map(self, anything: Any) -> Any:
        return anything


class Sums(ProcessWindowFunction[int, str, str, TimeWindow]):
    def process(self, key: str, context: ProcessWindowFunction.Context[TimeWindow], sums: Iterable[int]) -> list[str]:
        return [f"{key} from {context.window().start}: {sum(sums)}"]


class Sum(AggregateFunction[Order, list[int], int]):
    def create_accumulator(self) -> list[int]:
        return [0]

    def add(self, order: Order, accumulator: list[int]) -> list[int]:
        return [accumulator[0] + order[1]]

    def get_result(self, accumulator: list[int]) -> int:
        return accumulator[0]

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return [one[0] + other[0]]


class Both(CoProcessFunction[Order, str, bytes]):
    def process_element1(self, order: Order, ctx: CoProcessFunction.Context) -> Iterable[bytes]:
        return [order[0].encode()]

    def process_element2(self, name: str, ctx: CoProcessFunction.Context) -> Iterable[bytes]:
        return [name.encode()]


def test_program_whose_types_checkers_infer(simulated: Simulated) -> None:
    env = simulated()
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1)).with_timestamp_assigner(
        ByAmount()
    )
    orders = env.from_collection(
        [("ada", 30), ("bob", 5), ("ada", 10)], type_info=Types.TUPLE([Types.STRING(), Types.LONG()])
    )
    assert_type(orders, DataStream[Order])
    assert_type(env.from_collection([("ada", 30)], Types.ROW([Types.STRING(), Types.LONG()])), DataStream[Row])
    assert_type(env.from_collection([1.5], float), DataStream[float])
    orders = orders.assign_timestamps_and_watermarks(strategy)
    keyed = orders.key_by(lambda order: order[0])
    assert_type(keyed, KeyedStream[Order, str])
    totals = keyed.process(RunningTotal())
    assert_type(totals, DataStream[Order])
    assert_type(totals.get_side_output(LARGE), DataStream[str])
    names = totals.map(lambda total: total[0]).filter(lambda name: name != "x")
    assert_type(names, DataStream[str])
    lengths = names.map(len)
    assert_type(lengths, DataStream[int])
    assert_type(names.flat_map(lambda name: name.split()), DataStream[str])
    assert_type(names.map(Untyped()), DataStream[Any])
    assert_type(names.map(pair, Types.ROW([Types.STRING(), Types.LONG()])), DataStream[Row])
    assert_type(names.union(lengths), DataStream[str | int])
    assert_type(orders.connect(names).process(Both()), DataStream[bytes])
    windows = keyed.window(TumblingEventTimeWindows.of(Time.seconds(5)))
    assert_type(windows.aggregate(Sum()), DataStream[int])
    assert_type(windows.reduce(lambda one, other: (one[0], one[1] + other[1])), DataStream[Order])
    sums = windows.aggregate(Sum(), Sums())
    assert_type(sums, DataStream[str])
    joined = (
        orders.join(names)
        .where(lambda order: order[0])
        .equal_to(lambda name: name)
        .window(TumblingEventTimeWindows.of(Time.seconds(5)))
        .apply(lambda order, name: (order[1], name))
    )
    assert_type(joined, DataStream[tuple[int, str]])
    found = sums.execute_and_collect(limit=2)
    assert_type(found, list[str])
    assert sorted(found) == ["ada from 0: 40", "bob from 0: 5"]
    env = simulated()
    with env.from_collection([1, 2]).map(str).execute_and_collect() as texts:
        for text in texts:
            assert_type(text, str)
