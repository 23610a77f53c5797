"""Makes sessions of a click stream and writes them to Parquet.

python examples/tutorials/sessions.py [OUTPUT]

Needs the extra formats: pip install 'tidegate[formats]'.
"""

import sys
import tempfile
from collections.abc import Iterable, Iterator

import pyarrow.parquet

from tidegate.common import Duration, Row, Time, Types, WatermarkStrategy
from tidegate.datastream import ProcessWindowFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import BucketAssigner, FileSink
from tidegate.datastream.formats.parquet import ParquetBulkWriters
from tidegate.datastream.window import EventTimeSessionWindows, TimeWindow

MINUTE = 60_000
GAP_MINUTES = 30

# User, page, time in milliseconds.
CLICKS = [
    ("ann", "/", 0 * MINUTE),
    ("ann", "/shoes", 4 * MINUTE),
    ("bob", "/", 5 * MINUTE),
    ("ann", "/shoes/7", 31 * MINUTE),
    ("bob", "/hats", 50 * MINUTE),  # 45 minutes after the last click: another session
    ("ann", "/cart", 38 * MINUTE),  # twelve minutes out of order
]
CLICK = Types.TUPLE([Types.STRING(), Types.STRING(), Types.LONG()])
SESSION = Types.ROW_NAMED(
    ["user", "clicks", "minutes", "first_page", "last_page"],
    [Types.STRING(), Types.LONG(), Types.DOUBLE(), Types.STRING(), Types.STRING()],
)


class Summary(ProcessWindowFunction[tuple[str, str, int], Row, str, TimeWindow]):
    def process(
        self, key: str, context: ProcessWindowFunction.Context, elements: Iterable[tuple[str, str, int]]
    ) -> Iterator[Row]:
        clicks = sorted(elements, key=lambda click: click[2])
        minutes = (clicks[-1][2] - clicks[0][2]) / MINUTE
        yield Row(key, len(clicks), minutes, clicks[0][1], clicks[-1][1])


def run(output: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    env.enable_checkpointing(1_000)
    times = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_minutes(15))
    times = times.with_timestamp_assigner(lambda click, _: click[2])
    sink = FileSink.for_bulk_format(output, ParquetBulkWriters.for_row_type(SESSION))
    (
        env.from_collection(CLICKS, type_info=CLICK)
        .assign_timestamps_and_watermarks(times)
        .key_by(lambda click: click[0], key_type=Types.STRING())
        .window(EventTimeSessionWindows.with_gap(Time.minutes(GAP_MINUTES)))
        .process(Summary(), output_type=SESSION)
        .uid("sessions")
        .sink_to(sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
        .uid("parquet")
    )
    env.execute("sessions")


output = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="sessions-")
run(output)
for session in sorted(pyarrow.parquet.read_table(output).to_pylist(), key=str):
    print(*session.values())
