"""Counts numbers by key into files: ``counts.py OUTPUT RECORDS PAUSE_S``. A module beside it does the counting."""

import sys
import time

from counting import KEYS, Count  # type: ignore[import-not-found]  # beside this file, not in this package

from tidegate.common import Encoder, Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink, RollingPolicy
from tidegate.datastream.connectors.number_seq import NumberSequenceSource

if __name__ == "__main__":
    output, records, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

    def slowly(number: int) -> int:
        if pause and number % 10 == 0:
            time.sleep(pause)
        return number

    env = StreamExecutionEnvironment.get_execution_environment()
    numbers = env.from_source(NumberSequenceSource(1, records), WatermarkStrategy.no_watermarks(), "numbers").uid(
        "numbers"
    )
    slow = numbers.map(slowly, Types.LONG())
    counts = slow.key_by(lambda number: number % KEYS, Types.LONG()).process(Count(), Types.STRING()).uid("counts")
    sink = FileSink.for_row_format(output, Encoder.simple_string_encoder())
    counts.sink_to(sink.with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy()).build()).uid("files")
    print(f"counting to {records}")
    env.execute("counts")
    print("all is counted")
