"""An ordinary Tidegate program: orders by customer in, exactly-once files out.

    python orders_job.py OUTPUT_DIRECTORY [--orders N] [--rate ORDERS_PER_SECOND]

For every customer it keeps a running total (one line for each order), gathers orders into windows of activity that a timer
closes after five quiet minutes of event time (one line for each window), and reports large orders (one line each).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from orders import MAX_DELAY_MS, Order, order

from tidegate.common import Duration, Encoder, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, OutputTag, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors.datagen import DataGeneratorSource
from tidegate.datastream.connectors.file_system import BucketAssigner, FileSink, RollingPolicy
from tidegate.datastream.state import MapStateDescriptor, ValueStateDescriptor

GAP_MS = 5 * 60 * 1000
LARGE_CENTS = 250_000

WINDOWS = OutputTag("windows", Types.STRING())
ALERTS = OutputTag("alerts", Types.STRING())

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
TRIPLE = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])
ORDER = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG(), Types.LONG()])


class CustomerActivity(KeyedProcessFunction):
    """Everything the job knows of one customer. Orders may come out of order, so windows can grow at both ends and merge."""

    def open(self, runtime_context: RuntimeContext) -> None:
        # (orders, cents) so far; and for each open window: first event time -> (last event time, orders, cents)
        self.total = runtime_context.get_state(ValueStateDescriptor("total", PAIR))
        self.windows = runtime_context.get_map_state(MapStateDescriptor("windows", Types.LONG(), TRIPLE))

    def process_element(self, value: Order, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        number, customer, cents, event_ms = value
        orders, total = self.total.value() or (0, 0)
        orders, total = orders + 1, total + cents
        self.total.update((orders, total))
        self._add_to_window(event_ms, cents, ctx)
        if cents >= LARGE_CENTS:
            yield ALERTS, f"{number},{customer},{cents}"
        yield f"{number},{customer},{cents},{orders},{total}"

    def _add_to_window(self, event_ms: int, cents: int, ctx: KeyedProcessFunction.Context) -> None:
        timers = ctx.timer_service()
        first, last, orders = event_ms, event_ms, 1
        for start, (end, count, amount) in list(self.windows.items()):
            if start - GAP_MS <= event_ms <= end + GAP_MS:
                first, last, orders, cents = min(first, start), max(last, end), orders + count, cents + amount
                self.windows.remove(start)
                timers.delete_event_time_timer(end + GAP_MS)
        self.windows.put(first, (last, orders, cents))
        timers.register_event_time_timer(last + GAP_MS)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        """The watermark has passed the end of a window and the gap after it: no order can join it any more."""
        for first, (last, orders, cents) in list(self.windows.items()):
            if last + GAP_MS <= timestamp:
                self.windows.remove(first)
                yield WINDOWS, f"{ctx.get_current_key()},{first},{last},{orders},{cents}"


def build(env: StreamExecutionEnvironment, output: str, count: int, rate: float) -> None:
    """The program; every operator that has state has a uid, so that it finds it again."""
    out_of_order = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(MAX_DELAY_MS))
    watermarks = out_of_order.with_timestamp_assigner(lambda order, _: order[3])
    source = DataGeneratorSource(order, count, records_per_second=rate)
    orders = env.from_source(source, watermarks, "orders", ORDER).uid("orders")
    keyed = orders.key_by(lambda order: order[1], key_type=Types.LONG())
    totals = keyed.process(CustomerActivity(), output_type=Types.STRING()).name("customer activity").uid("activity")
    totals.sink_to(lines(f"{output}/totals")).name("totals").uid("totals")
    totals.get_side_output(WINDOWS).sink_to(lines(f"{output}/windows")).name("windows").uid("windows")
    totals.get_side_output(ALERTS).sink_to(lines(f"{output}/alerts")).name("alerts").uid("alerts")


def lines(directory: str) -> FileSink:
    """Lines into files that readers see when, and only when, their checkpoint is complete."""
    return (
        FileSink.for_row_format(directory, Encoder.simple_string_encoder())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .build()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Orders by customer, exactly-once files out.")
    parser.add_argument("output", help="directory for totals/, windows/ and alerts/")
    parser.add_argument("--orders", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=10_000, help="orders per second")
    given = parser.parse_args()
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1_000)
    build(env, given.output, given.orders, given.rate)
    env.execute("orders by customer")


if __name__ == "__main__":
    main()
