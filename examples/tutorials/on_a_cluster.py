"""Counts numbers by their last digit, on the cluster on which it is started.

tidegate run --master spark://HOST:7077 -p 2 on_a_cluster.py DIRECTORY [LAST_NUMBER]

DIRECTORY must be one that all hosts reach. Checkpoints and output go there.
"""

import os
import sys
from collections.abc import Iterator

from tidegate.common import Configuration, Encoder, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import BucketAssigner, FileSink
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.state import ValueStateDescriptor

LAST = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000


class Count(KeyedProcessFunction[int, str, int]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[str]:
        self.count.update((self.count.value() or 0) + 1)
        if self.count.value() == LAST // 10:
            yield f"{ctx.get_current_key()} {self.count.value()}"


if len(sys.argv) not in (2, 3):
    sys.exit(__doc__)
directory = os.path.abspath(sys.argv[1])
configuration = Configuration.from_dict(
    {
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": f"{directory}/checkpoints",
    }
)
env = StreamExecutionEnvironment.get_execution_environment(configuration)
numbers = env.from_source(NumberSequenceSource(1, LAST), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
sink = FileSink.for_row_format(f"{directory}/counts", Encoder.simple_string_encoder())
(
    numbers.uid("numbers")
    .key_by(lambda number: number % 10, key_type=Types.LONG())
    .process(Count(), output_type=Types.STRING())
    .uid("count")
    .sink_to(sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    .uid("files")
)
env.execute("on a cluster")
