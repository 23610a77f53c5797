"""Averages the readings of sensors that report late: allowed lateness, and a side output for what comes too late.

python examples/tutorials/late_sensors.py
"""

from collections.abc import Iterable, Iterator

from tidegate.common import Time, Types, WatermarkGenerator, WatermarkStrategy
from tidegate.common.watermark_strategy import WatermarkOutput
from tidegate.datastream import OutputTag, ProcessWindowFunction, StreamExecutionEnvironment
from tidegate.datastream.window import TimeWindow, TumblingEventTimeWindows

SECOND = 1_000

# Sensor, degrees, time in milliseconds, in the order in which the readings arrive
READINGS = [
    ("roof", 20.0, 1 * SECOND),
    ("roof", 22.0, 8 * SECOND),
    ("roof", 30.0, 14 * SECOND),  # the watermark passes 10 s: the first window fires
    ("roof", 24.0, 9 * SECOND),  # late, within 10 s: the first window fires again
    ("roof", 31.0, 27 * SECOND),  # the watermark passes 20 s: the second window fires, the first one is closed
    ("roof", 26.0, 3 * SECOND),  # too late
]
READING = Types.TUPLE([Types.STRING(), Types.DOUBLE(), Types.LONG()])
TOO_LATE = OutputTag("too late", READING)


class AfterEachReading(WatermarkGenerator):
    """The watermark is two seconds before the latest reading. It moves with every reading, so that this example is exact."""

    def __init__(self) -> None:
        self.latest = 0

    def on_event(self, event: object, event_timestamp: int, output: WatermarkOutput) -> None:
        self.latest = max(self.latest, event_timestamp)
        output.emit_watermark(self.latest - 2 * SECOND - 1)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        pass


class Average(ProcessWindowFunction[tuple[str, float, int], str, str, TimeWindow]):
    def process(
        self, key: str, context: ProcessWindowFunction.Context, elements: Iterable[tuple[str, float, int]]
    ) -> Iterator[str]:
        degrees = [reading[1] for reading in elements]
        begin = context.window().start // SECOND
        yield f"{key} from {begin} s: {sum(degrees) / len(degrees):.1f} degrees, from {len(degrees)}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
times = WatermarkStrategy.for_generator(AfterEachReading).with_timestamp_assigner(lambda reading, _: reading[2])
averages = (
    env.from_collection(READINGS, type_info=READING)
    .assign_timestamps_and_watermarks(times)
    .key_by(lambda reading: reading[0], key_type=Types.STRING())
    .window(TumblingEventTimeWindows.of(Time.seconds(10)))
    .allowed_lateness(10 * SECOND)
    .side_output_late_data(TOO_LATE)
    .process(Average(), output_type=Types.STRING())
)
averages.print()
too_late = averages.get_side_output(TOO_LATE)
too_late.map(lambda reading: f"too late: {reading[1]} at {reading[2] // 1_000} s", Types.STRING()).print()
env.execute("late sensors")
