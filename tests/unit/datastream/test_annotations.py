"""Types of results by the annotations of user functions (``tidegate.types.from-annotations``)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, Union

import msgspec
import pytest

from tests.simulation.executor import Simulated
from tidegate.common import Configuration, Time, Types, WatermarkStrategy
from tidegate.common.object_types import type_of
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import (
    AggregateFunction,
    AsyncDataStream,
    AsyncFunction,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    DataStream,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    WindowFunction,
)
from tidegate.datastream.functions import CoGroupFunction, FlatJoinFunction, JoinFunction
from tidegate.datastream.state import MapStateDescriptor
from tidegate.datastream.window import TumblingEventTimeWindows

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers

KEY = "tidegate.types.from-annotations"
LATE = OutputTag("late", Types.STRING())
T = TypeVar("T")
UNKNOWN = Types.PICKLED_BYTE_ARRAY()


@dataclasses.dataclass(frozen=True)
class Order:
    customer: str
    amount: int


class Total(NamedTuple):
    customer: str
    amount: int


class Mean(msgspec.Struct):
    customer: str
    mean: float


def environment(*, on: bool = True) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment(Configuration.from_dict({KEY: on, "execution.target": "test"}))


def numbers(*, on: bool = True) -> DataStream[int]:
    return environment(on=on).from_collection([1, 2, 3])


def mapped(function: Any, *, on: bool = True) -> Any:
    return numbers(on=on).map(function).get_type()


def flat_mapped(function: Any) -> Any:
    return numbers().flat_map(function).get_type()


def to_order(value: int) -> Order:
    return Order("ada", value)


class ToTotal(MapFunction):
    def map(self, value: int) -> Total:
        return Total("ada", value)


class Callable_:
    def __call__(self, value: int) -> str:
        return str(value)


def test_a_map_has_the_type_of_its_annotation() -> None:
    assert mapped(to_order) == type_of("map", Order)
    assert mapped(ToTotal()) == type_of("map", Total)
    assert mapped(Callable_()) == Types.STRING()
    assert mapped(ToTotal().map) == type_of("map", Total)
    assert mapped(functools.partial(to_order)) == type_of("map", Order)

    def pair(value: int) -> tuple[str, list[int]]:
        return "", [value]

    assert mapped(pair) == Types.TUPLE([Types.STRING(), Types.LIST(Types.LONG())])


def test_without_the_key_an_annotation_is_a_comment() -> None:
    assert mapped(to_order, on=False) == UNKNOWN
    assert environment(on=False)._configuration.read(_option()) is False
    assert StreamExecutionEnvironment(Configuration())._configuration.read(_option()) is False, "the default"


def _option() -> Any:
    from tidegate.common.options import TYPES_FROM_ANNOTATIONS

    return TYPES_FROM_ANNOTATIONS


def test_a_declared_type_wins() -> None:
    stream = numbers().map(to_order, Types.PICKLED_BYTE_ARRAY())
    assert stream.get_type() == UNKNOWN
    assert stream._operator("test").annotated is None
    assert numbers().map(to_order)._operator("test").annotated == "to_order"


def unknown_name(value: int) -> OnlyForCheckers: ...  # type: ignore[empty-body]
def any_value(value: int) -> Any: ...
def nothing(value: int) -> None: ...
def some_object(value: int) -> object: ...
def variable(value: T) -> T:
    return value


def constant(value: int) -> Literal["a"]:
    return "a"


def either(value: int) -> int | str:
    return value


def not_annotated(value): ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    "function",
    [
        unknown_name, any_value, nothing, some_object, variable, constant, either, not_annotated, lambda value: value,
        str, str.upper, abs,
    ],
)  # fmt: skip
def test_an_annotation_that_says_too_little_gives_no_type(function: Callable[..., Any]) -> None:
    assert mapped(function) == UNKNOWN


def many(kind: Any) -> Callable[[int], Any]:
    def function(value: int) -> Any:
        return [value]

    function.__annotations__["return"] = kind
    return function


@pytest.mark.parametrize(
    "kind",
    [
        Iterable[int], Iterator[int], Generator[int, None, None], list[int], Sequence[int], Collection[int],
        list[int] | None, Iterator[int | None], Union[Iterator[int], None],  # noqa: UP007
        Iterator[int | tuple[OutputTag[str], str]], Iterator[tuple[OutputTag, str] | int],
    ],
)  # fmt: skip
def test_a_function_of_many_results_has_the_type_of_one(kind: Any) -> None:
    assert flat_mapped(many(kind)) == Types.LONG()


@pytest.mark.parametrize("kind", [int, list, Iterator[Any], dict[int, str], str, Iterator[int | str], set[int], None])
def test_an_iterable_of_unknown_results_gives_no_type(kind: Any) -> None:
    assert flat_mapped(many(kind)) == UNKNOWN


class Largest(KeyedProcessFunction):
    def process_element(self, value: Order, ctx: Any) -> Iterator[Order | tuple[OutputTag[str], str]]:
        yield value


class OnTime(Largest):
    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Order]:
        yield from ()


class OtherOnTime(Largest):
    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[str]:
        yield from ()


class UnknownOnTime(Largest):
    def on_timer(self, timestamp, ctx):  # type: ignore[no-untyped-def]
        yield from ()


def test_all_methods_that_give_results_must_agree() -> None:
    def processed(function: KeyedProcessFunction) -> Any:
        return numbers().key_by(lambda value: value).process(function).get_type()

    assert processed(Largest()) == processed(OnTime()) == type_of("process", Order)
    assert processed(OtherOnTime()) == processed(UnknownOnTime()) == UNKNOWN


class Process(ProcessFunction):
    def process_element(self, value: int, ctx: Any) -> Iterator[str]:
        yield ""


class FlatMap(FlatMapFunction):
    def flat_map(self, value: int) -> list[str]:
        return []


class CoMap(CoMapFunction):
    def map1(self, value: int) -> str:
        return ""

    def map2(self, value: int) -> str:
        return ""


class CoFlatMap(CoFlatMapFunction):
    def flat_map1(self, value: int) -> list[str]:
        return []

    def flat_map2(self, value: int) -> list[str]:
        return []


class CoProcess(CoProcessFunction):
    def process_element1(self, value: int, ctx: Any) -> Iterator[str]:
        yield ""

    def process_element2(self, value: int, ctx: Any) -> Iterator[str]:
        yield ""


class Rules(BroadcastProcessFunction):
    def process_element(self, value: int, ctx: Any) -> Iterator[str]:
        yield ""

    def process_broadcast_element(self, value: int, ctx: Any) -> Iterator[str]:
        yield ""


class Asked(AsyncFunction):
    async def async_invoke(self, value: int) -> list[str]:
        return [""]


class Near(ProcessJoinFunction):
    def process_element(self, left: int, right: int, ctx: Any) -> Iterator[str]:
        yield ""


class Window(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Iterable[int]) -> Iterator[str]:
        yield ""


class Windowed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Iterable[int]) -> Iterator[str]:
        yield ""


class Concatenate(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> str:
        return str(accumulator)

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Join(JoinFunction):
    def join(self, first: int, second: int) -> str:
        return ""


class FlatJoin(FlatJoinFunction):
    def join(self, first: int, second: int) -> Iterator[str]:
        yield ""


class CoGroup(CoGroupFunction):
    def co_group(self, first: Iterable[int], second: Iterable[int]) -> Iterator[str]:
        yield ""


def joined(first: int, second: int) -> str:
    return ""


def test_every_method_that_takes_a_function_reads_its_annotations() -> None:
    env = environment()
    one, other = env.from_collection([1]), env.from_collection([2])
    keyed, hour = one.key_by(abs), TumblingEventTimeWindows.of(Time.hours(1))
    connected, windowed = one.connect(other), keyed.window(hour)
    broadcast = other.broadcast(MapStateDescriptor("rules", Types.STRING(), Types.STRING()))

    def pairs(kind: str) -> Any:
        return getattr(one, kind)(other).where(abs).equal_to(abs).window(hour)

    streams: list[DataStream[Any]] = [
        one.process(Process()),
        one.flat_map(FlatMap()),
        connected.map(CoMap()),
        connected.flat_map(CoFlatMap()),
        connected.process(CoProcess()),
        one.connect(broadcast).process(Rules()),
        AsyncDataStream.ordered_wait(one, Asked(), Time.seconds(5)),
        keyed.interval_join(other.key_by(abs)).between(Time.seconds(0), Time.seconds(1)).process(Near()),
        windowed.apply(Window()),
        windowed.process(Windowed()),
        windowed.aggregate(Concatenate()),
        windowed.reduce(max, Windowed()),
        windowed.aggregate(Concatenate(), Windowed()),
        pairs("join").apply(Join()),
        pairs("join").apply(FlatJoin()),
        pairs("join").apply(joined),
        pairs("co_group").apply(CoGroup()),
    ]
    for stream in streams:
        operator = stream._operator("test")
        assert (stream.get_type(), operator.output_type) == (Types.STRING(), Types.STRING()), operator.name
        assert operator.annotated, operator.name


def test_an_accumulator_has_the_type_of_its_annotation() -> None:
    windows = numbers().key_by(abs).window(TumblingEventTimeWindows.of(Time.hours(1)))
    spec: Any = windows.aggregate(Concatenate())._operator("test").spec
    assert spec.function.contents.type == Types.TUPLE([Types.LONG(), Types.LONG()])


# -- whole programs: the same results, declared, annotated, and without a type


class Sums(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Order, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value.amount, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Named(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Iterable[tuple[int, int]]) -> Iterator[Mean]:
        ((total, count),) = elements
        yield Mean(key, total / count)


def order_of(value: int) -> Order:
    return Order(f"customer {value % 7}", value)


def total_of(mean: Mean) -> Total:
    return Total(mean.customer, round(mean.mean))


@pytest.mark.parametrize("how", ["none", "annotated", "declared"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_the_results_are_the_same_with_and_without_types(simulated: Simulated, how: str, parallelism: int) -> None:
    env = simulated(**{KEY: how == "annotated", "tidegate.round.max-records": 20, "parallelism.default": parallelism})
    types: list[Any] = [Order, tuple[int, int], Mean, Total] if how == "declared" else [None] * 4
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(_Position())
    orders = env.from_collection(list(range(200))).assign_timestamps_and_watermarks(strategy).map(order_of, types[0])
    means = (
        orders.key_by(lambda order: order.customer)
        .window(TumblingEventTimeWindows.of(Time.milliseconds(50)))
        .aggregate(Sums(), Named(), types[1], types[2])
    )
    totals = means.rebalance().map(total_of, types[3]).rebalance()
    assert totals.get_type() == (UNKNOWN if how == "none" else type_of("map", Total))
    with totals.execute_and_collect() as results:
        found = sorted(results)
    windows = [range(start, start + 50) for start in range(0, 200, 50)]
    wanted = [
        Total(f"customer {rest}", round(sum(mine) / len(mine)))
        for rest, window in itertools.product(range(7), windows)
        if (mine := [value for value in window if value % 7 == rest])
    ]
    assert found == sorted(wanted)
    assert {type(one) for one in found} == {Total}


class _Position(TimestampAssigner):
    def extract_timestamp(self, value: int, record_timestamp: int) -> int:
        return value


def wrong_amount(value: int) -> Order:
    return Order("ada", value / 2)  # type: ignore[arg-type]


def test_a_wrong_annotation_fails_the_job_and_names_the_field(simulated: Simulated) -> None:
    stream = simulated(**{KEY: True}).from_collection([1, 2, 3]).map(wrong_amount).rebalance().map(lambda order: order)
    with pytest.raises(Exception, match=r"Expected `int`, got `float`.*amount") as caught:
        list(stream.execute_and_collect())
    assert "A record is not of its declared type" in str(caught.value)
    unchecked = (
        simulated(**{KEY: False}).from_collection([1, 2, 3]).map(wrong_amount).rebalance().map(lambda order: order)
    )
    with unchecked.execute_and_collect() as results:
        assert sorted(order.amount for order in results) == [0.5, 1.0, 1.5]
