"""The keyed count with texts as keys: what most real programs look like. Same options and output as tidegate_jobs.py."""

from __future__ import annotations

from typing import Any

import tidegate_jobs
from tidegate_jobs import Count, StreamExecutionEnvironment, Types, WatermarkStrategy

from tidegate.connectors.values.sinks import DiscardingSink

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


def text_count(env: StreamExecutionEnvironment, source: Any, keys: int) -> None:
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    (
        numbers.map(lambda x: (f"k{(x * 2654435761) % keys}", x), output_type=PAIR)
        .key_by(lambda pair: pair[0], key_type=Types.STRING())
        .process(Count(), output_type=PAIR)
        .sink_to(DiscardingSink())
    )


if __name__ == "__main__":
    tidegate_jobs.main(text_count)
