"""Whole programs: with their arithmetic done to batches and their functions inlined they give what calls give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.executor import simulated_environment
from tests.unit.operators.written_functions import exact, written
from tidegate.common import Types, WatermarkStrategy
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.datastream import DataStream, KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.functions import MapFunction
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.testing.simulation.engine import Chances

Build = Callable[[StreamExecutionEnvironment], DataStream]


FAULTY = Chances(die=0.05, zombie=0.05, late=0.05, rerun=0.05, lose_store=0.1)


def run(build: Build, directory: Path, **options: Any) -> list[Any]:
    keys = {
        "execution.checkpointing.interval": "10 ms",
        "tidegate.chunk.records": 100,
        "tidegate.round.max-records": 300,
        "parallelism.default": 2,
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 100,
        "restart-strategy.fixed-delay.delay": "1 ms",
        **options,
    }
    env = simulated_environment(directory, seed=3, **keys)
    return sorted(map(exact, build(env).execute_and_collect()), key=repr)


def check(build: Build, **options: Any) -> list[Any]:
    results = []
    for inline in (False, True):
        with TemporaryDirectory() as directory:
            results.append(run(build, Path(directory), **{"tidegate.functions.inline": inline, **options}))
    assert results[0] == results[1]
    return results[0]


class Counts(KeyedProcessFunction):
    """How many records of the key, and a number that depends on their order."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        self.sum.update(((self.sum.value() or 0) * 3 + value[1]) % 1009)
        yield value[0], n, self.sum.value()


class CountsAndTimers(Counts):
    """What it emits does not depend on when a watermark comes, unless it comes too early."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() // 50 * 50 + 49)
        if ctx.timestamp() <= ctx.timer_service().current_watermark():
            yield "late", value
        yield ctx.get_current_key(), n, ctx.timestamp()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield "timer", timestamp, ctx.get_current_key()


class Doubles(MapFunction):
    def __init__(self) -> None:
        self.factor = 0

    def open(self, runtime_context: Any) -> None:
        self.factor = 2

    def map(self, value: Any) -> Any:
        return value * self.factor


def numbers(env: StreamExecutionEnvironment, start: int = 0, end: int = 999) -> DataStream:
    source = env.from_source(NumberSequenceSource(start, end), WatermarkStrategy.no_watermarks(), "numbers")
    return source.set_parallelism(1)  # so that there is one order


def timed(env: StreamExecutionEnvironment) -> DataStream:
    stamped = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, before: value)
    return env.from_source(NumberSequenceSource(0, 999), stamped, "numbers").set_parallelism(1)


def alone(stream: DataStream) -> DataStream:
    return stream.set_parallelism(1)


PROGRAMS: dict[str, Build] = {
    "pairs": lambda env: (
        alone(numbers(env).map(lambda x: (x * 31 % 17, x))).key_by(lambda r: r[0], Types.LONG()).process(Counts())
    ),
    "key of the source": lambda env: (
        numbers(env, -500, 500).key_by(lambda x: x % -7).reduce(lambda a, b: a * 3 % 97 + b)
    ),
    "sums": lambda env: alone(numbers(env).map(lambda x: (x % 5, x))).key_by(lambda r: r[0]).sum(1),
    "filters": lambda env: (
        alone(alone(numbers(env).filter(lambda x: x % 3)).map(lambda x: (x // 10, x)))
        .key_by(lambda r: r[1] % 4)
        .filter(lambda r: r[0] > 20)
        .map(lambda r: (r[1], "tg_v_5", r))
    ),
    "two keys": lambda env: (
        alone(numbers(env).map(lambda x: (x % 6, x)))
        .key_by(lambda r: r[0])
        .map(lambda r: (r[0] + 1, r[1] * 2, 5))
        .key_by(lambda r: r[1])
        .map(lambda r: r)
    ),
    "method": lambda env: alone(numbers(env).map(Doubles())).key_by(lambda x: x % 10).map(lambda x: (x, x > 5)),
    "beyond 64 bits": lambda env: (
        alone(numbers(env, 2**63 - 600, 2**63 + 400).map(lambda x: (x % 9, x * x)))
        .key_by(lambda r: r[0])
        .process(Counts())
    ),
    "odd records": lambda env: (
        alone(env.from_collection([*range(300), None, 2.5, *range(300), "odd", *range(300)]))
        .key_by(lambda x: 0 if x.__class__ is not int else x % 7)
        .map(lambda x: (x, x))
    ),
    "declared": lambda env: (
        alone(numbers(env).map(lambda x: (x % 7, x), Types.TUPLE([Types.LONG(), Types.LONG()])))
        .key_by(lambda r: r[0], Types.LONG())
        .process(Counts(), Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()]))
    ),
    "timers": lambda env: (
        alone(timed(env).map(lambda x: (x % 5, x))).key_by(lambda r: r[0], Types.LONG()).process(CountsAndTimers())
    ),
    "timers and filters": lambda env: (
        alone(alone(timed(env).filter(lambda x: x % 4 != 1)).map(lambda x: (x % 5, x)))
        .key_by(lambda r: r[0], Types.LONG())
        .process(CountsAndTimers())
        .map(lambda r: r[1:])
    ),
    "readers of one stream": lambda env: (
        (pairs := alone(numbers(env).map(lambda x: (x % 5, x))))
        .key_by(lambda r: r[0])
        .map(lambda r: r[1])
        .union(pairs.key_by(lambda r: r[1]).map(lambda r: r[0]), pairs.map(lambda r: r[0] + r[1]))
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_what_calls_give(name: str) -> None:
    assert len(check(PROGRAMS[name])) > 100


@pytest.mark.parametrize("name", ["timers", "two keys"])
def test_with_faults_and_another_parallelism(name: str) -> None:
    faults = {"chances": FAULTY, "parallelism.default": 3, "pipeline.max-parallelism": 100}
    assert check(PROGRAMS[name], **faults) == check(PROGRAMS[name])


# -- random programs ---------------------------------------------------------------------------------------------------

MAPS = ["x * 31 % 17", "x - 500", "x // -7", "x * x", "-x", "x * 4611686018427387904"]
FILTERS = ["x % 3", "x > 100 and x != 200", "not x % 2", "x < -1000", "10 <= x < 700"]
PAIRS = ["(x % 5, x)", "(x, 1)", "(x // 3, x % 3)", "(7, x)"]
KEYS = ["r[0]", "r[1] % 4", "r[-1]", "r[0] + r[1]", "3"]
HEADS: list[Callable[[Any], DataStream]] = [
    lambda keyed: keyed.process(Counts()),
    lambda keyed: keyed.reduce(lambda a, b: (b[0], a[1] * 3 % 1009 + b[1])),
    lambda keyed: keyed.map(lambda r: (r[1], r[0], r)),
    lambda keyed: keyed.filter(lambda r: r[1] % 2).map(lambda r: r[1]),
    lambda keyed: keyed.flat_map(lambda r: r),
]


STEPS = st.one_of(
    st.tuples(st.just("map"), st.sampled_from(MAPS)),
    st.tuples(st.just("filter"), st.sampled_from(FILTERS)),
)


@st.composite
def programs(draw: st.DrawFn) -> Build:
    steps = draw(st.lists(STEPS, max_size=3))
    pair, key, head = draw(st.sampled_from(PAIRS)), draw(st.sampled_from(KEYS)), draw(st.sampled_from(HEADS))

    def build(env: StreamExecutionEnvironment) -> DataStream:
        stream = numbers(env, -100, 400)
        for method, text in steps:
            stream = alone(getattr(stream, method)(written(f"lambda x: {text}")))
        return head(alone(stream.map(written(f"lambda x: {pair}"))).key_by(written(f"lambda r: {key}")))

    return build


@settings(max_examples=4, deadline=None)
@given(programs(), st.sampled_from([1, 3]))
def test_random_programs(build: Build, parallelism: int) -> None:
    check(build, **{"parallelism.default": parallelism})
