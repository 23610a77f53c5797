"""The state of ``counts.py``: executors have this module only if it was brought to them."""

from collections.abc import Iterator
from typing import Any

from tidegate.common import Types
from tidegate.datastream import KeyedProcessFunction
from tidegate.datastream.state import ValueStateDescriptor

KEYS = 20


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: int, ctx: Any) -> Iterator[str]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield f"{value} {count}"
