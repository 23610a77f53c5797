"""The window count in PyFlink, thread mode: tumbling event-time windows by text key."""

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import AggregateFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.window import TumblingEventTimeWindows
from pyflink_keyed_count import DISCARDING_SINK, main

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])
WINDOW = Time.seconds(100)
PARALLELISM = 2


class EventTime(TimestampAssigner):
    """Each subtask reads a range of its own: event time goes on in all of them alike."""

    def __init__(self, span):
        self.span = span

    def extract_timestamp(self, value, record_timestamp):
        return value % self.span


class Count(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


def build(env: StreamExecutionEnvironment, records: int, keys: int) -> None:
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(EventTime(records // PARALLELISM))
    numbers = env.from_source(
        NumberSequenceSource(0, records - 1), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    )
    (
        numbers.assign_timestamps_and_watermarks(times)
        .map(lambda x: (f"key-{(x * 2654435761) % keys}", x), output_type=PAIR)
        .key_by(lambda pair: pair[0], key_type=Types.STRING())
        .window(TumblingEventTimeWindows.of(WINDOW))
        .aggregate(Count(), accumulator_type=Types.LONG(), output_type=Types.LONG())
        .sink_to(Sink(DISCARDING_SINK))
    )


if __name__ == "__main__":
    main(build)
