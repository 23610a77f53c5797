"""Jobs that fail in the middle and leave a checkpoint to look into, on the simulated engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.executor import TARGET
from tidegate.base.errors import JobFailedError
from tidegate.common import Configuration, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import (
    AggregateFunction,
    BroadcastProcessFunction,
    CheckpointedFunction,
    KeyedProcessFunction,
    MapFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.datastream.window import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from tidegate.state_reader import SavepointReader

RECORDS, FAILS_FROM = 20_000, 150
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
Build = Callable[[StreamExecutionEnvironment, Any], Any]


class SameTime(TimestampAssigner):
    def extract_timestamp(self, value: int, record_timestamp: int) -> int:
        return value


class Fails(MapFunction):
    """After the first complete checkpoint that has some records in it, if the job's parameter says so."""

    def open(self, runtime_context: Any) -> None:
        self._fails = runtime_context.get_job_parameter("fails", "no") == "yes"
        self._checkpoints, self._last = 0, 0

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._checkpoints += self._last >= FAILS_FROM

    def map(self, value: int) -> int:
        if self._fails and self._checkpoints:
            raise RuntimeError("as planned")
        self._last = value
        return value


def run(
    build: Build, directory: Path | str, *, fails: bool = False, restore: str = "", parallelism: int = 1, **more: str
) -> list[Any]:
    """The output of what ``build(env, numbers)`` makes of the numbers below ``RECORDS``, whose event time they are."""
    settings = {
        "execution.target": TARGET,
        "execution.checkpointing.interval": "10 ms",
        "execution.checkpointing.dir": str(directory),
        "execution.state-recovery.path": restore,
        "tidegate.round.max-records": "20" if fails else "4000",
        "restart-strategy.type": "none",
        "pipeline.global-job-parameters": f"fails:{'yes' if fails else 'no'}",
        "parallelism.default": str(parallelism),
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    configuration = Configuration()
    for key, value in settings.items():
        if value:
            configuration.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SameTime())
    numbers = env.from_source(NumberSequenceSource(0, RECORDS - 1), strategy, "numbers", Types.LONG()).uid("numbers")
    numbers = numbers.set_parallelism(1).map(Fails(), Types.LONG()).uid("fails").set_parallelism(1)
    with build(env, numbers).execute_and_collect("kept") as results:
        return sorted(results)


def kept(build: Build, directory: Path | str, **more: Any) -> SavepointReader:
    """The checkpoint that the job leaves when it fails."""
    with pytest.raises(JobFailedError):
        run(build, directory, fails=True, **more)
    [job] = Path(directory).iterdir()
    return SavepointReader(str(job))


def read_so_far(reader: SavepointReader) -> range:
    """The numbers whose effects are in a checkpoint."""
    [[_, position, _]] = reader.operator("numbers").source["splits"]
    assert 0 < position < RECORDS
    return range(position)


class Sum(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: int, accumulator: Any) -> Any:
        return accumulator[0] + 1, accumulator[1] + value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[1] / accumulator[0]

    def merge(self, one: Any, other: Any) -> Any:
        return one[0] + other[0], one[1] + other[1]


class EveryKind(KeyedProcessFunction):
    """A state of every kind, with types and without, and timers of both domains."""

    def open(self, runtime_context: Any) -> None:
        get, ttl = runtime_context, ValueStateDescriptor("short-lived", Types.LONG())
        ttl.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        items = ListStateDescriptor("short-lived items", Types.LONG())
        items.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        pair = Types.TUPLE([Types.LONG(), Types.LONG()])
        self.value = get.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.pickled = get.get_state(ValueStateDescriptor("pickled", Types.PICKLED_BYTE_ARRAY()))
        self.items = get.get_list_state(ListStateDescriptor("items", Types.LONG()))
        self.seen = get.get_map_state(MapStateDescriptor("seen", Types.LONG(), Types.STRING()))
        self.sum = get.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()))
        self.mean = get.get_aggregating_state(AggregatingStateDescriptor("mean", Sum(), pair))
        self.short, self.short_items = get.get_state(ttl), get.get_list_state(items)

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.value.update((self.value.value() or 0) + 1)
        self.pickled.update({"last": value})
        self.items.update([*self.items.get()[-4:], value])
        self.seen.put(value, str(value))
        self.seen.remove(value - 10)
        self.sum.add(value)
        self.mean.add(value)
        self.short.update(value)
        self.short_items.update([*self.short_items.get()[-4:], value])
        ctx.timer_service().register_event_time_timer(10**12)
        if value == 0:
            ctx.timer_service().register_processing_time_timer(10**14)
        yield ctx.get_current_key(), self.value.value()


def every_kind(env: StreamExecutionEnvironment, numbers: Any) -> Any:
    by_text = numbers.key_by(lambda x: f"k{x % 5}", key_type=Types.STRING())
    return by_text.process(EveryKind(), Types.TUPLE([Types.STRING(), Types.LONG()])).uid("every kind")


class Highest(MapFunction, CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.list = store.get_list_state(ListStateDescriptor("latest", Types.LONG()))
        self.union = store.get_union_list_state(ListStateDescriptor("union", None))
        self.highest = max(self.union.get(), default=0)

    def snapshot_state(self, context: Any) -> None:
        self.list.update([self.highest, self.highest])
        self.union.update([self.highest])

    def map(self, value: int) -> int:
        self.highest = max(value, self.highest)
        return value


class Rules(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.get_broadcast_state(RULES).put(f"rule {value % 3}", value)
        yield from ()


def own_states(env: StreamExecutionEnvironment, numbers: Any) -> Any:
    rules = numbers.broadcast(RULES)
    return numbers.map(Highest(), Types.LONG()).uid("highest").connect(rules).process(Rules()).uid("rules")


def windows(env: StreamExecutionEnvironment, numbers: Any) -> Any:
    keyed = numbers.key_by(lambda x: x % 2, key_type=Types.LONG())
    tumbling = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(100))).reduce(lambda a, b: a + b)
    sliding = keyed.window(SlidingEventTimeWindows.of(Time.milliseconds(100), Time.milliseconds(30)))
    sessions = keyed.window(EventTimeSessionWindows.with_gap(Time.milliseconds(50)))
    return tumbling.uid("tumbling").union(
        sliding.reduce(lambda a, b: a + b).uid("sliding"),
        sessions.reduce(lambda a, b: a + b).uid("sessions"),
    )
