"""The window count in Tidegate: event-time windows by text key, tumbling, and sliding with sixty windows for each record."""

from __future__ import annotations

import sys
from typing import Any

from tidegate_jobs import main

from tidegate.common import Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.connectors.values.sinks import DiscardingSink
from tidegate.datastream import AggregateFunction, StreamExecutionEnvironment
from tidegate.datastream.window import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])
PARALLELISM = 2
WINDOWS: dict[str, WindowAssigner[Any, Any]] = {
    "window-count": TumblingEventTimeWindows.of(Time.seconds(100)),
    "sliding": SlidingEventTimeWindows.of(Time.seconds(6000), Time.seconds(100)),
    "tumbling": TumblingEventTimeWindows.of(Time.seconds(6000)),
    "sessions": EventTimeSessionWindows.with_gap(Time.seconds(100)),
    "short-sessions": EventTimeSessionWindows.with_gap(Time.seconds(5)),
}
"""By program. Each subtask reads a record for every millisecond: of 20,000 keys each has ten in 100 seconds. Sessions of 100
seconds never end with so many keys, and short sessions have one or two records."""


class EventTime(TimestampAssigner):
    """Each subtask reads a range of its own: event time advances in all of them alike."""

    def __init__(self, span: int) -> None:
        self.span = span

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value % self.span)


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


def window_count(assigner: WindowAssigner[Any, Any]) -> Any:
    def program(env: StreamExecutionEnvironment, source: Any, keys: int) -> None:
        records = source.end - source.start + 1
        times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(EventTime(records // PARALLELISM))
        (
            env.from_source(source, times, "numbers", Types.LONG())
            .map(lambda x: (f"key-{(x * 2654435761) % keys}", x), output_type=PAIR)
            .key_by(lambda pair: pair[0], key_type=Types.STRING())
            .window(assigner)
            .aggregate(Count(), accumulator_type=Types.LONG(), output_type=Types.LONG())
            .sink_to(DiscardingSink())
        )

    return program


if __name__ == "__main__":
    main(window_count(WINDOWS[sys.argv.pop(1)]))
