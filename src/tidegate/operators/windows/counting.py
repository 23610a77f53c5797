"""Count windows: a number of records of a key, one window after the other or overlapping."""

from __future__ import annotations

from collections.abc import Collection

from tidegate.base.arguments import expect_int
from tidegate.base.errors import ProgramError
from tidegate.common.serializer import TypeSerializer
from tidegate.common.typeinfo import Types
from tidegate.operators.windows.assigner import WindowAssigner
from tidegate.operators.windows.trigger import Trigger
from tidegate.operators.windows.triggers import CountTrigger, PurgingTrigger
from tidegate.operators.windows.window import CountWindow, CountWindowSerializer
from tidegate.state.descriptors import ValueStateDescriptor


class _Counting(WindowAssigner[object, CountWindow]):
    """Count the records of each key. A full window fires and is deleted: no more records enter it."""

    _state_name: str

    def __init__(self, window_size: int) -> None:
        self._window_size = _count("size", window_size)
        self._descriptor = ValueStateDescriptor(self._state_name, Types.LONG())

    def _next(self, context: WindowAssigner.WindowAssignerContext) -> int:
        """Return the number of this record among the records of its key, from 0."""
        state = context.get_runtime_context().get_state(self._descriptor)
        number: int = state.value() or 0
        state.update(number + 1)
        return number

    def get_default_trigger(self, env: object) -> Trigger[object, CountWindow]:
        return PurgingTrigger(CountTrigger(self._window_size))

    def get_window_serializer(self) -> TypeSerializer[CountWindow]:
        return CountWindowSerializer()

    def is_event_time(self) -> bool:
        return False


class CountTumblingWindowAssigner(_Counting):
    """Make a window of every ``window_size`` records of a key."""

    _state_name = "tumble-count-assigner"

    @staticmethod
    def of(window_size: int) -> CountTumblingWindowAssigner:
        """Return windows of ``window_size`` records."""
        return CountTumblingWindowAssigner(window_size)

    def assign_windows(
        self, element: object, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[CountWindow]:
        return [CountWindow(self._next(context) // self._window_size)]

    def __repr__(self) -> str:
        return f"CountTumblingWindowAssigner({self._window_size})"


class CountSlidingWindowAssigner(_Counting):
    """Start a window of ``window_size`` records with every ``window_slide``-th record of a key."""

    _state_name = "slide-count-assigner"

    def __init__(self, window_size: int, window_slide: int) -> None:
        super().__init__(window_size)
        self._window_slide = _count("slide", window_slide)

    @staticmethod
    def of(window_size: int, window_slide: int) -> CountSlidingWindowAssigner:
        """Return windows of ``window_size`` records, one starting every ``window_slide`` records."""
        return CountSlidingWindowAssigner(window_size, window_slide)

    def assign_windows(
        self, element: object, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[CountWindow]:
        number = self._next(context)
        last, first = number // self._window_slide, (number - self._window_size) // self._window_slide + 1
        return [CountWindow(n) for n in range(last, max(first, 0) - 1, -1)]

    def __repr__(self) -> str:
        return f"CountSlidingWindowAssigner({self._window_size}, {self._window_slide})"


def _count(what: str, value: int) -> int:
    if expect_int(f"The {what} of a count window", value, "a number of records") < 1:
        raise ProgramError(
            f"The {what} of a count window must be at least 1", found=str(value), cure="count_window(100)"
        )
    return value
