"""Finds stolen cards: a tiny payment that tests the card, then a large one within ten minutes.

python examples/tutorials/fraud.py
"""

from collections.abc import Iterator

from tidegate.common import Duration, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor

MINUTE = 60_000
TINY, LARGE, WITHIN = 1.00, 500.00, 10 * MINUTE

# Card, amount, time in milliseconds.
PAYMENTS = [
    ("4001", 25.00, 0 * MINUTE),
    ("4002", 0.50, 1 * MINUTE),
    ("4001", 620.00, 2 * MINUTE),  # large, but no tiny payment before it
    ("4002", 910.00, 4 * MINUTE),  # three minutes after the tiny one
    ("4003", 0.10, 5 * MINUTE),
    ("4003", 30.00, 7 * MINUTE),
    ("4003", 750.00, 20 * MINUTE),  # too late: fifteen minutes after the tiny one
]
PAYMENT = Types.TUPLE([Types.STRING(), Types.DOUBLE(), Types.LONG()])


class FindStolenCards(KeyedProcessFunction[tuple[str, float, int], str, str]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.tested_at = runtime_context.get_state(ValueStateDescriptor("tested at", Types.LONG()))

    def process_element(self, value: tuple[str, float, int], ctx: KeyedProcessFunction.Context) -> Iterator[str]:
        card, amount, time = value
        tested_at = self.tested_at.value()
        if tested_at is not None and amount >= LARGE and time - tested_at <= WITHIN:
            ctx.timer_service().delete_event_time_timer(tested_at + WITHIN)
            self.tested_at.clear()
            yield f"card {card}: {amount:.2f} after a test payment"
        elif amount <= TINY:
            self.tested_at.update(time)
            ctx.timer_service().register_event_time_timer(time + WITHIN)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        if self.tested_at.value() == timestamp - WITHIN:
            self.tested_at.clear()  # nothing happened: the card costs no memory any more


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
times = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_minutes(1))
times = times.with_timestamp_assigner(lambda payment, _: payment[2])
payments = env.from_collection(PAYMENTS, type_info=PAYMENT).assign_timestamps_and_watermarks(times).uid("payments")
alerts = (
    payments.key_by(lambda payment: payment[0], key_type=Types.STRING())
    .process(FindStolenCards(), output_type=Types.STRING())
    .uid("find-stolen-cards")
)
alerts.print()
env.execute("fraud detection")
