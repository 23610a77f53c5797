"""Jobs whose code fails at a record, a timer or a window, to be looked at again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.simulation.executor import TARGET
from tidegate.common import Configuration, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.functions import ProcessWindowFunction, SinkFunction
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tidegate.datastream.window import TumblingEventTimeWindows

BAD = 431


class SameTime(TimestampAssigner):
    def extract_timestamp(self, value: int, record_timestamp: int) -> int:
        return value


class Totals(KeyedProcessFunction):
    def __init__(self, bad: int = BAD, timer: bool = False) -> None:
        self._bad, self._timer = bad, timer

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", Types.LONG(), Types.LONG()))
        self.last = runtime_context.get_list_state(ListStateDescriptor("last", Types.LONG()))

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        if value == self._bad:
            if self._timer:
                ctx.timer_service().register_event_time_timer(value + 5)
            else:
                broken = value
                raise ValueError(f"cannot take {broken}")
        self.total.update((self.total.value() or 0) + value)
        self.last.update([value])
        yield self.total.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        raise KeyError("timer")


class Windows(ProcessWindowFunction):
    def process(self, key: int, context: Any, elements: Any) -> Iterator[int]:
        if BAD in elements:
            raise IndexError("window")
        yield sum(elements)


class Touched(SinkFunction):
    """Tells that it was touched."""

    def __init__(self, path: str) -> None:
        self._path = path

    def invoke(self, value: Any, context: Any) -> None:
        with open(self._path, "a") as out:
            out.write(f"{value}\n")


def environment(directory: Path, parallelism: int, **more: str) -> StreamExecutionEnvironment:
    settings = {
        "execution.target": TARGET,
        "execution.checkpointing.interval": "10 ms",
        "execution.checkpointing.dir": str(directory),
        "tidegate.round.max-records": "50",
        "restart-strategy.type": "none",
        "parallelism.default": str(parallelism),
        **more,
    }
    configuration = Configuration()
    for key, value in settings.items():
        if value:
            configuration.set_string(key, value)
    return StreamExecutionEnvironment.get_execution_environment(configuration)


def numbers(env: StreamExecutionEnvironment, records: int = 2000) -> Any:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SameTime())
    found = env.from_source(NumberSequenceSource(0, records - 1), strategy, "numbers", Types.LONG())
    return found.uid("numbers").set_parallelism(1)


def build(env: StreamExecutionEnvironment, kind: str, touched: Path, **options: Any) -> None:
    passed = numbers(env).map(lambda x: x + 0, Types.LONG()).set_parallelism(1)
    keyed = passed.key_by(lambda x: x % 7, key_type=Types.LONG())
    if kind == "window":
        results = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(100))).process(Windows(), Types.LONG())
    else:
        results = keyed.process(Totals(timer=kind == "timer", **options), Types.LONG())
    results.uid("totals").name("totals").add_sink(Touched(str(touched)))
