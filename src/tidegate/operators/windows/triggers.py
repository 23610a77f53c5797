"""Flink's triggers."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.base.arguments import expect_int, wrong
from tidegate.base.errors import ProgramError
from tidegate.base.user_code import UserValue
from tidegate.common.time import Span, millis_of
from tidegate.common.typeinfo import TypeInformation, Types
from tidegate.operators.windows.trigger import Trigger, TriggerResult
from tidegate.operators.windows.window import Window
from tidegate.state.descriptors import ReducingState, ReducingStateDescriptor, ValueStateDescriptor

CONTINUE, FIRE = TriggerResult.CONTINUE, TriggerResult.FIRE
Context = Trigger.TriggerContext
MergeContext = Trigger.OnMergeContext


class _Quiet(Trigger[object, Window]):
    """Do nothing but what a subclass defines."""

    def on_element(self, element: object, timestamp: int, window: Window, ctx: Context) -> TriggerResult:
        return CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: Context) -> TriggerResult:
        return CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: Context) -> TriggerResult:
        return CONTINUE

    def on_merge(self, window: Window, ctx: MergeContext) -> None:
        return None

    def clear(self, window: Window, ctx: Context) -> None:
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class EventTimeTrigger(_Quiet):
    """Fire when the watermark passes the end of the window, and after that for each record that is late but allowed."""

    @staticmethod
    def create() -> EventTimeTrigger:
        """Return a trigger that fires when the watermark passes the end of the window."""
        return EventTimeTrigger()

    def on_element(self, element: object, timestamp: int, window: Window, ctx: Context) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: Context) -> TriggerResult:
        return FIRE if time == window.max_timestamp() else CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: MergeContext) -> None:
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Window, ctx: Context) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())


class ProcessingTimeTrigger(_Quiet):
    """Fire when the clock passes the end of the window."""

    @staticmethod
    def create() -> ProcessingTimeTrigger:
        """Return a trigger that fires when the clock passes the end of the window."""
        return ProcessingTimeTrigger()

    def on_element(self, element: object, timestamp: int, window: Window, ctx: Context) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        return CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: Context) -> TriggerResult:
        return FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: MergeContext) -> None:
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: Window, ctx: Context) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())


class _Continuous(_Quiet):
    """Fire every ``interval`` from the first record of a window on, at whole multiples of the interval.

    The state is the time of the next firing; of merged windows the earliest.
    """

    def __init__(self, interval: int) -> None:
        if expect_int(type(self).__name__, interval, "milliseconds") <= 0:
            raise ProgramError(
                f"The interval of {type(self).__name__} must be greater than 0",
                found=f"{interval} ms",
                cure="Time.seconds(5)",
            )
        self.interval = interval
        self._descriptor = ReducingStateDescriptor("fire-time", min, Types.LONG())

    def _register(self, ctx: Context, time: int) -> None:
        raise NotImplementedError

    def _delete(self, ctx: Context, time: int) -> None:
        raise NotImplementedError

    def _begin(self, time: int, window: Window, ctx: Context) -> None:
        state = ctx.get_partitioned_state(self._descriptor)
        if state.get() is None:
            self.register_next_fire_timestamp(time - time % self.interval, window, ctx, state)

    def _is_due(self, time: int, window: Window, ctx: Context) -> bool:
        state = ctx.get_partitioned_state(self._descriptor)
        if state.get() != time:
            return False
        state.clear()
        self.register_next_fire_timestamp(time, window, ctx, state)
        return True

    def register_next_fire_timestamp(
        self, time: int, window: Window, ctx: Context, fire_timestamp_state: ReducingState[int]
    ) -> None:
        """Set the timer of the next firing."""
        following = min(time + self.interval, window.max_timestamp())
        fire_timestamp_state.add(following)
        self._register(ctx, following)

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: MergeContext) -> None:
        ctx.merge_partitioned_state(self._descriptor)
        following = ctx.get_partitioned_state(self._descriptor).get()
        if following is not None:
            self._register(ctx, following)

    def clear(self, window: Window, ctx: Context) -> None:
        state = ctx.get_partitioned_state(self._descriptor)
        following = state.get()
        if following is not None:
            self._delete(ctx, following)
            state.clear()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.interval})"


class ContinuousEventTimeTrigger(_Continuous):
    """Fire every ``interval`` of event time, and when the watermark passes the end of the window."""

    @staticmethod
    def of(interval: Span) -> ContinuousEventTimeTrigger:
        """Return a trigger that fires every ``interval`` of event time, and at the end of the window."""
        return ContinuousEventTimeTrigger(millis_of("ContinuousEventTimeTrigger.of", interval))

    def on_element(self, element: object, timestamp: int, window: Window, ctx: Context) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        self._begin(timestamp, window, ctx)
        return CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: Context) -> TriggerResult:
        if time == window.max_timestamp():
            return FIRE
        return FIRE if self._is_due(time, window, ctx) else CONTINUE

    def clear(self, window: Window, ctx: Context) -> None:
        super().clear(window, ctx)
        ctx.delete_event_time_timer(window.max_timestamp())

    def _register(self, ctx: Context, time: int) -> None:
        ctx.register_event_time_timer(time)

    def _delete(self, ctx: Context, time: int) -> None:
        ctx.delete_event_time_timer(time)


class ContinuousProcessingTimeTrigger(_Continuous):
    """Fire every ``interval`` by the clock, for the last time when the clock passes the end of the window."""

    @staticmethod
    def of(interval: Span) -> ContinuousProcessingTimeTrigger:
        """Return a trigger that fires every ``interval`` by the clock."""
        return ContinuousProcessingTimeTrigger(millis_of("ContinuousProcessingTimeTrigger.of", interval))

    def on_element(self, element: object, timestamp: int, window: Window, ctx: Context) -> TriggerResult:
        self._begin(ctx.get_current_processing_time(), window, ctx)
        return CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: Context) -> TriggerResult:
        if time == window.max_timestamp():
            return FIRE  # nothing is registered after the end
        return FIRE if self._is_due(time, window, ctx) else CONTINUE

    def _register(self, ctx: Context, time: int) -> None:
        ctx.register_processing_time_timer(time)

    def _delete(self, ctx: Context, time: int) -> None:
        ctx.delete_processing_time_timer(time)


class CountTrigger(_Quiet):
    """Fire with every ``window_size``-th record of a window."""

    def __init__(self, window_size: int) -> None:
        if expect_int("CountTrigger", window_size, "a number of records") < 1:
            raise ProgramError(
                "The count of a CountTrigger must be at least 1", found=str(window_size), cure="CountTrigger.of(100)"
            )
        self._window_size = window_size
        self._descriptor = ReducingStateDescriptor("count", _plus, Types.LONG())

    @staticmethod
    def of(window_size: int) -> CountTrigger:
        """Return a trigger that fires with every ``window_size``-th record of a window."""
        return CountTrigger(window_size)

    def on_element(self, element: object, timestamp: int, window: Window, ctx: Context) -> TriggerResult:
        state = ctx.get_partitioned_state(self._descriptor)
        state.add(1)
        if state.get() < self._window_size:
            return CONTINUE
        state.clear()
        return FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: MergeContext) -> None:
        ctx.merge_partitioned_state(self._descriptor)

    def clear(self, window: Window, ctx: Context) -> None:
        ctx.get_partitioned_state(self._descriptor).clear()

    def __repr__(self) -> str:
        return f"CountTrigger({self._window_size})"


class NeverTrigger(_Quiet):
    """Never fire. This is the default trigger of a global window."""


class PurgingTrigger(Trigger[object, Window]):
    """Fire as another trigger does, and discard the contents of the window with every firing."""

    def __init__(self, nested_trigger: Trigger[object, Window]) -> None:
        self.nested_trigger = _expect_trigger("PurgingTrigger", nested_trigger)

    @staticmethod
    def of(nested_trigger: Trigger[object, Window]) -> PurgingTrigger:
        """Return a trigger that fires when the given trigger fires, and then empties the window."""
        return PurgingTrigger(nested_trigger)

    def on_element(self, element: object, timestamp: int, window: Window, ctx: Context) -> TriggerResult:
        return _purging(self.nested_trigger.on_element(element, timestamp, window, ctx))

    def on_event_time(self, time: int, window: Window, ctx: Context) -> TriggerResult:
        return _purging(self.nested_trigger.on_event_time(time, window, ctx))

    def on_processing_time(self, time: int, window: Window, ctx: Context) -> TriggerResult:
        return _purging(self.nested_trigger.on_processing_time(time, window, ctx))

    def can_merge(self) -> bool:
        return self.nested_trigger.can_merge()

    def on_merge(self, window: Window, ctx: MergeContext) -> None:
        self.nested_trigger.on_merge(window, ctx)

    def clear(self, window: Window, ctx: Context) -> None:
        self.nested_trigger.clear(window, ctx)

    def __repr__(self) -> str:
        return f"PurgingTrigger({self.nested_trigger!r})"


class DeltaTrigger(_Quiet):
    """Fire when a record is further than ``threshold`` from the record it last fired for, by ``delta_function(old,
    new)``.

    This is Java's trigger, in PyFlink's spelling. It starts from the first record of a window.
    """

    def __init__(self, threshold: float, delta_function: object, type_info: TypeInformation | None = None) -> None:
        self._threshold, self._delta = threshold, delta_callable("DeltaTrigger", delta_function)
        self._descriptor = ValueStateDescriptor("last-element", type_info)

    @staticmethod
    def of(threshold: float, delta_function: object, type_info: TypeInformation | None = None) -> DeltaTrigger:
        """Return the trigger. ``type_info``: the type of the records; None: they are pickled."""
        return DeltaTrigger(threshold, delta_function, type_info)

    def on_element(self, element: object, timestamp: int, window: Window, ctx: Context) -> TriggerResult:
        state = ctx.get_partitioned_state(self._descriptor)
        last = state.value()
        if last is None:
            state.update(element)
            return CONTINUE
        if self._delta(last, element) <= self._threshold:
            return CONTINUE
        state.update(element)
        return FIRE

    def clear(self, window: Window, ctx: Context) -> None:
        ctx.get_partitioned_state(self._descriptor).clear()


class ProcessingTimeoutTrigger(Trigger[object, Window]):
    """Fire as another trigger does, and also when ``interval`` has passed by the clock since the first record of a
    window.

    This is Java's trigger, in PyFlink's spelling. ``reset_timer_on_new_record``: count from the last record.
    ``should_clear_on_timeout``: a timeout clears the nested trigger too.
    """

    def __init__(
        self,
        nested_trigger: Trigger[object, Window],
        interval: int,
        reset_timer_on_new_record: bool,
        should_clear_on_timeout: bool,
    ) -> None:
        self._nested = _expect_trigger("ProcessingTimeoutTrigger", nested_trigger)
        self._interval, self._resets, self._clears = interval, reset_timer_on_new_record, should_clear_on_timeout
        self._descriptor = ValueStateDescriptor("timeout", Types.LONG())

    @staticmethod
    def of(
        nested_trigger: Trigger[object, Window],
        timeout: Span,
        reset_timer_on_new_record: bool = False,
        should_clear_on_timeout: bool = True,
    ) -> ProcessingTimeoutTrigger:
        """Return a trigger that fires as the given trigger does, and also when a window has waited for this long."""
        interval = millis_of("ProcessingTimeoutTrigger.of", timeout)
        return ProcessingTimeoutTrigger(nested_trigger, interval, reset_timer_on_new_record, should_clear_on_timeout)

    def on_element(self, element: object, timestamp: int, window: Window, ctx: Context) -> TriggerResult:
        result = self._nested.on_element(element, timestamp, window, ctx)
        if result.is_fire():
            self.clear(window, ctx)
            return result
        state = ctx.get_partitioned_state(self._descriptor)
        due = state.value()
        if due is not None and self._resets:
            ctx.delete_processing_time_timer(due)
            due = None
        if due is None:
            due = ctx.get_current_processing_time() + self._interval
            state.update(due)
            ctx.register_processing_time_timer(due)
        return result

    def on_processing_time(self, time: int, window: Window, ctx: Context) -> TriggerResult:
        result = self._nested.on_processing_time(time, window, ctx)
        if self._clears:
            self.clear(window, ctx)
        return TriggerResult.FIRE_AND_PURGE if result.is_purge() else FIRE

    def on_event_time(self, time: int, window: Window, ctx: Context) -> TriggerResult:
        result = self._nested.on_event_time(time, window, ctx)
        if self._clears:
            self.clear(window, ctx)
        return TriggerResult.FIRE_AND_PURGE if result.is_purge() else FIRE

    def on_merge(self, window: Window, ctx: MergeContext) -> None:
        self._nested.on_merge(window, ctx)

    def clear(self, window: Window, ctx: Context) -> None:
        state = ctx.get_partitioned_state(self._descriptor)
        due = state.value()
        if due is not None:
            ctx.delete_processing_time_timer(due)
            state.clear()
        self._nested.clear(window, ctx)

    def __repr__(self) -> str:
        return f"ProcessingTimeoutTrigger({self._nested!r}, {self._interval})"


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result


def _plus(first: int, second: int) -> int:
    return first + second


def delta_callable(method: str, function: object) -> Callable[[UserValue, UserValue], float]:
    """Return a callable of two records, from a callable or from an object with ``get_delta`` as in Java."""
    found = getattr(function, "get_delta", function)
    if isinstance(function, type) or not callable(found):
        raise wrong(method, "a function of two records", function, "for example lambda old, new: abs(new - old)")
    return found


def _expect_trigger(method: str, trigger: object) -> Trigger[object, Window]:
    if not isinstance(trigger, Trigger):
        raise wrong(method, "a Trigger object", trigger, "CountTrigger.of(100)")
    return trigger
