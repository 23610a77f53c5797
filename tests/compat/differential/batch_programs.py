"""BATCH mode: what a keyed function sees, and in which order."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.catalog import first, program
from tests.compat.differential.engine_api import KeyedProcessFunction, Types, ValueStateDescriptor
from tests.compat.differential.timer_programs import BOUNDED, events
from tests.compat.differential.window_programs import keyed

SCATTERED = [(key, moment * 37 % 101, n) for n, (key, moment) in enumerate((f"k{m % 5}", m) for m in range(80))]


class Sees(KeyedProcessFunction):
    """Every record with what came before it; ``previous`` is a field, and shows that keys do not mix."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.previous: Any = None

    def process_element(self, value: Any, ctx: Any) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        same = count == 1 or self.previous == value[0]
        self.previous = value[0]
        yield value[0], "record", value[1], count, same, ctx.timer_service().current_watermark() < 0


@program(parallelisms=(1, 2), key=first, modes=("BATCH",))
def what_a_keyed_function_sees_in_batch_mode(env: Any) -> Any:
    """Records of a key together, sorted by time."""
    return events(env, BOUNDED, SCATTERED).key_by(lambda v: v[0], Types.STRING()).process(Sees())


@program(parallelisms=(1, 2), key=first, modes=("BATCH",))
def a_keyed_function_behind_another_in_batch_mode(env: Any) -> Any:
    stream = events(env, BOUNDED, SCATTERED).key_by(lambda v: v[0], Types.STRING()).process(Sees())
    stream = stream.filter(lambda v: v[1] == "record").map(lambda v: (f"{v[2] % 3}", v[2], v[3]))
    return stream.key_by(lambda v: v[0]).reduce(lambda a, b: (a[0], a[1] + b[1], a[2] + b[2]))


@program(parallelisms=(1, 2), modes=("BATCH",))
def count_windows_in_batch_mode(env: Any) -> Any:
    return keyed(env).count_window(2).reduce(lambda a, b: (a[0], a[1] + b[1]))
