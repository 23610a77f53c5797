"""The interval join in Tidegate: two number sequences whose times run side by side. Same options and output as tidegate_jobs.py.

Each source has a split for each subtask, and its times are the position in the split: so all splits of both sources are at the
same time together, and a record finds a partner in each split of the other side.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tidegate_jobs
from tidegate_jobs import PAIR, NumberSequenceSource, StreamExecutionEnvironment, Types, WatermarkStrategy

from tidegate.common import Time
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.connectors.values.sinks import DiscardingSink
from tidegate.datastream import KeyedStream, ProcessJoinFunction

TRIPLE = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[tuple[int, int, int]]:
        yield left[0], left[1], right[1]


def side(env: StreamExecutionEnvironment, count: int, keys: int, span: int) -> KeyedStream:
    numbers = env.from_source(
        NumberSequenceSource(0, count - 1), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    )
    pairs = numbers.map(lambda x: ((x % span) * 2654435761 % keys, x % span), output_type=PAIR)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(_Time())
    return pairs.assign_timestamps_and_watermarks(strategy).key_by(lambda pair: pair[0], key_type=Types.LONG())


class _Time(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        moment: int = value[1]
        return moment


def interval_join(env: StreamExecutionEnvironment, source: Any, keys: int) -> None:
    """``source``: has as many records as both sides together."""
    count = (source.end - source.start + 1) // 2
    span = count // env.get_parallelism()
    left, right = side(env, count, keys, span), side(env, count, keys, span)
    joined = left.interval_join(right).between(Time.milliseconds(-1000), Time.milliseconds(1000))
    joined.process(Pairs(), output_type=TRIPLE).sink_to(DiscardingSink())


if __name__ == "__main__":
    tidegate_jobs.main(interval_join)
