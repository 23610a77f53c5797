"""Run windows of any kind: assigned record by record, with a trigger, optionally merged, optionally with an evictor.

Contents, trigger state and timers of a window lie in the window's namespace, which is the bytes of the window. Windows
that are the same for all keys and aggregate have a kind of their own: ``sliced_window.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import ClassVar

from tidegate.base.clock import MAX_WATERMARK, MIN_WATERMARK
from tidegate.base.errors import UserCodeError
from tidegate.base.user_code import UserValue
from tidegate.graph.plan import ChainNode
from tidegate.operators.contracts.functions import SubtaskRuntimeContext, TimeDomain
from tidegate.operators.contracts.operator import OperatorRound, OperatorSetup
from tidegate.operators.contracts.specs import WindowingSpec
from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.loop.blame import user_error
from tidegate.operators.loop.codegen import LoopSource
from tidegate.operators.loop.ownership import ATOMS, own
from tidegate.operators.windows.assigner import MergingWindowAssigner, by_processing_time
from tidegate.operators.windows.contexts import (
    LATE_RECORDS_DROPPED,
    Emission,
    OperatorAssignerContext,
    OperatorEvictorContext,
    OperatorTriggerContext,
    WindowContext,
)
from tidegate.operators.windows.evictors import TimestampedValue
from tidegate.operators.windows.merging import MERGING_SET, MergingWindows
from tidegate.operators.windows.operation import CONTENTS
from tidegate.operators.windows.trigger import TriggerResult
from tidegate.operators.windows.window import Window, bytes_of, kind_of
from tidegate.state.context import slot_of
from tidegate.state.descriptors import ListStateDescriptor
from tidegate.state.keys import visible
from tidegate.state.snapshot import OperatorSnapshot

_CONTINUE = TriggerResult.CONTINUE
_MOST_SLOTS = 50_000
"""The most slots that are kept to be used again."""


class WindowOperator(FunctionOperator):
    """Assign records to windows and fire the windows. ``watermark``: event-time timers have fired up to it; it decides
    whether a record is late."""

    emits_fresh: ClassVar[bool] = True

    def __init__(self, node: ChainNode, setup: OperatorSetup) -> None:
        super().__init__(node, setup)
        assert self.backend is not None
        operation = self.operator.spec_as(WindowingSpec).function
        backend = self._backend = self.backend
        runtime = SubtaskRuntimeContext(self.operator, setup.index, backend, setup.settings.parameters, self.metrics)
        self.watermark = MIN_WATERMARK
        self._keys = backend.context
        self._operation, self._assigner, self._trigger = operation, operation.assigner, operation.trigger
        self._merges = isinstance(operation.assigner, MergingWindowAssigner)
        if isinstance(operation.assigner, MergingWindowAssigner):
            self._merger: MergingWindowAssigner[UserValue, Window] = operation.assigner
        self._by_event_time = self._assigner.is_event_time()
        self._windows_at = by_processing_time(operation.assigner)
        self._serializer = self._assigner.get_window_serializer()
        self.windows = kind_of(self._serializer)
        self._trigger_context = OperatorTriggerContext(backend, self, runtime)
        self._assigner_context = OperatorAssignerContext(self, runtime)
        self._evictor_context = OperatorEvictorContext(self, runtime)
        self._window_context = WindowContext(self, runtime, backend, merging=self._merges)
        self._call, self._clear = operation.caller(), operation.clearer()
        self._out = Emission(setup.emit, operation.convert, self.operator.output_type)
        self._dropped = runtime.get_metrics_group().counter(LATE_RECORDS_DROPPED)
        self._contents: UserValue = None
        self._seen: Window | None = None
        """The window of the last record that was added; ``_namespace`` and ``_ends`` are those of this window."""
        self._namespace, self._ends = b"", MIN_WATERMARK
        self._slots: dict[UserValue, UserValue] | None = None
        """The slots of keys in the window of several records in a row; None: it is the window of one record so far."""

    def processing_time(self) -> int:
        return self._keys.time

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        self.watermark = self.output_time.watermark
        self._out.clear()
        evicts = self._operation.evictor is not None
        descriptor = ListStateDescriptor(CONTENTS, None) if evicts else self._operation.contents.descriptor()
        self._contents = self._backend.state(descriptor)
        if self._merges:
            self._sets = self._backend.state(MERGING_SET)

    # -- records -----------------------------------------------------------------------------------------------------

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        owner = source.owner(self.node, value)
        time = "tg_t" if source.timed else "None"
        source.line(depth, f"{source.bind(f'p{self.id}', self.take)}({value}, {time})", owner)

    def take(self, value: UserValue, timestamp: int | None) -> None:
        """Take a record of the current key."""
        time = MIN_WATERMARK if timestamp is None else timestamp
        if value.__class__ not in ATOMS:
            value = own(value)
        if self._windows_at is None:
            windows = self._assigner.assign_windows(value, time, self._assigner_context)
        else:
            windows = self._windows_at(self._keys.time)
        key = self._keys.slot
        skipped = True
        if self._merges:
            for window in windows:
                skipped = not self._take_merging(key, window, value, timestamp, time) and skipped
        else:
            skipped = not self._add_to_all(key, windows, value, timestamp, time)
        self._keys.slot = key
        if skipped and self._by_event_time and time + self._operation.lateness <= self.watermark:
            self._late(value, timestamp)

    def _late(self, value: UserValue, timestamp: int | None) -> None:
        tag = self._operation.late_tag
        if tag is not None:
            self._out.late(tag, value, timestamp)
        else:
            self._dropped.inc()

    def _add_to_all(
        self, key: UserValue, windows: Iterable[Window], value: UserValue, timestamp: int | None, time: int
    ) -> bool:
        """Add a record to windows that are never merged, as ``_add`` does. Return False if the record is too late for all."""
        keys, contents, trigger, context = self._keys, self._contents, self._trigger, self._trigger_context
        by_event_time = self._by_event_time
        timers = self._backend.event_timers if by_event_time else self._backend.processing_timers
        content = value if self._operation.evictor is None else TimestampedValue(value, timestamp)
        added = False
        for window in windows:
            if window is not self._seen:
                self._seen, self._namespace, self._ends = window, self._bytes(window), self._cleanup_time(window)
                slots = self._slots = None
            elif (slots := self._slots) is None or len(slots) > _MOST_SLOTS:
                slots = self._slots = {}
            namespace, ends = self._namespace, self._ends
            if by_event_time and ends <= self.watermark:
                continue
            added = True
            slot = None if slots is None else slots.get(key)
            if slot is None:
                slot = slot_of(key, namespace)
                if slots is not None:
                    slots[key] = slot
            keys.slot = slot
            keys.scoped = True
            contents.add(content)
            keys.slot = slot
            result = trigger.on_element(value, time, window, context)
            if result is not _CONTINUE:
                self._act(result, key, window, namespace, namespace)
            keys.slot = slot
            if ends != MAX_WATERMARK:  # the end of time needs no cleanup
                timers.register(ends)
        return added

    def _take_merging(self, key: UserValue, window: Window, value: UserValue, timestamp: int | None, time: int) -> bool:
        self._keys.slot = key
        merging = self._merging_windows()
        actual = merging.add(window, self._bytes, lambda *merge: self._merge(key, *merge))
        late = self._is_late(actual)
        if late:
            merging.retire(actual)
        else:
            place = merging.place_of(actual)
            assert place is not None
            self._add(key, actual, self._bytes(actual), place, value, timestamp, time)
        self._persist(key, merging)
        return not late

    def _add(
        self,
        key: UserValue,
        window: Window,
        namespace: bytes,
        place: bytes,
        value: UserValue,
        timestamp: int | None,
        time: int,
    ) -> None:
        """Add a record to the contents of a window. ``place``: the namespace of the contents."""
        self._keys.enter(key, place)
        self._contents.add(value if self._operation.evictor is None else TimestampedValue(value, timestamp))
        self._keys.enter(key, namespace)
        result = self._trigger.on_element(value, time, window, self._trigger_context)
        self._act(result, key, window, namespace, place)
        self._keys.enter(key, namespace)
        self._set_cleanup_timer(window)

    # -- results of triggers -------------------------------------------------------------------------------------------

    def _act(self, result: TriggerResult, key: UserValue, window: Window, namespace: bytes, place: bytes) -> None:
        if result is TriggerResult.CONTINUE:
            return
        if not isinstance(result, TriggerResult):
            raise UserCodeError(
                "The trigger did not return a TriggerResult",
                found=f"{result!r:.200} from {type(self._trigger).__name__}",
                cure="return TriggerResult.CONTINUE to do nothing",
            )
        if result.is_fire():
            self._fire_window(key, window, namespace, place)
        if result.is_purge():
            self._keys.enter(key, place)
            self._contents.clear()

    def _fire_window(self, key: UserValue, window: Window, namespace: bytes, place: bytes) -> None:
        self._keys.enter(key, place)
        contents = self._contents.get()
        if contents is None or (isinstance(contents, list) and not contents and not self._operation.is_single):
            return
        evictor = self._operation.evictor
        if evictor is not None and not contents:
            return
        records = contents
        if evictor is not None:
            evictor.evict_before(contents, len(contents), window, self._evictor_context)
            values = [element.value for element in contents]
            records = self._operation.contents.of(values) if values or not self._operation.is_single else None
        if records is not None:
            self._emit(key, window, namespace, [records] if self._operation.is_single else records)
        if evictor is not None:
            evictor.evict_after(contents, len(contents), window, self._evictor_context)
            self._keys.enter(key, place)
            self._contents.update(contents)

    def _emit(self, key: UserValue, window: Window, namespace: bytes, records: list[UserValue]) -> None:
        self._keys.slot = key
        self._window_context.enter(window, lambda: namespace)
        self._out.results(self._call(visible(key), self._window_context, records), window.max_timestamp())

    # -- timers ------------------------------------------------------------------------------------------------------

    def _fire(self, timers: Iterable[tuple[int, UserValue, bytes]], kind: TimeDomain) -> None:
        for moment, key, namespace in timers:
            window = self._window(namespace)
            try:
                self._on_timer_of(moment, key, window, namespace, kind)
            except BaseException as error:
                where = f"operator '{self.operator.name}', {window!r} of key {visible(key)!r}"
                raise user_error(error, where, None) from error
            self._out.flush_full()
        self._out.flush()

    def _on_timer_of(self, moment: int, key: UserValue, window: Window, namespace: bytes, kind: TimeDomain) -> None:
        place, merging = namespace, None
        if self._merges:
            self._keys.slot = key
            merging = self._merging_windows()
            found = merging.place_of(window)
            if found is None:
                return  # a timer that the trigger has not deleted: the window no longer exists
            place = found
        event_time = kind is TimeDomain.EVENT_TIME
        on_time = self._trigger.on_event_time if event_time else self._trigger.on_processing_time
        self._keys.enter(key, namespace)
        self._act(on_time(moment, window, self._trigger_context), key, window, namespace, place)
        if event_time == self._by_event_time and moment == self._cleanup_time(window):
            self._clear_all(key, window, namespace, place)
            if merging is not None:
                merging.retire(window)
        if merging is not None:
            self._persist(key, merging)

    def _clear_all(self, key: UserValue, window: Window, namespace: bytes, place: bytes) -> None:
        """Delete everything of a window that has ended."""
        self._keys.enter(key, place)
        self._contents.clear()
        self._keys.enter(key, namespace)
        self._trigger.clear(window, self._trigger_context)
        if self._clear is not None:
            self._keys.slot = key
            self._window_context.enter(window, lambda: namespace)
            self._clear(self._window_context)

    # -- time --------------------------------------------------------------------------------------------------------

    def on_processing_time(self, now_ms: int) -> None:
        self._keys.time = now_ms
        super().on_processing_time(now_ms)

    def on_watermark(self, now_ms: int) -> None:
        self._pass_over(now_ms)
        super().on_watermark(now_ms)

    def end_input(self, now_ms: int) -> None:
        self._pass_over(now_ms)
        super().end_input(now_ms)

    def _pass_over(self, now_ms: int) -> None:
        """Emit the results of records before time advances."""
        self._out.flush()
        self.watermark, self._keys.time = self.input_time.watermark, now_ms

    def _cleanup_time(self, window: Window) -> int:
        last: int = window.max_timestamp()
        return min(last + self._operation.lateness, MAX_WATERMARK) if self._by_event_time else last

    def _is_late(self, window: Window) -> bool:
        return self._by_event_time and self._cleanup_time(window) <= self.watermark

    def _set_cleanup_timer(self, window: Window) -> None:
        time = self._cleanup_time(window)
        if time != MAX_WATERMARK:  # the end of time needs no cleanup
            (self._backend.event_timers if self._by_event_time else self._backend.processing_timers).register(time)

    # -- merging -----------------------------------------------------------------------------------------------------

    def _merging_windows(self) -> MergingWindows:
        return MergingWindows(self._merger, self._sets.value(), self._window)

    def _persist(self, key: UserValue, merging: MergingWindows) -> None:
        if merging.changed:
            self._keys.slot = key
            self._sets.update(merging.to_store(self._bytes))

    def _merge(self, key: UserValue, result: Window, merged: list[Window], place: bytes, others: list[bytes]) -> None:
        self._refuse_ended(result)
        self._keys.enter(key, self._bytes(result))
        self._trigger_context.merged = [self._bytes(window) for window in merged]
        self._trigger.on_merge(result, self._trigger_context)
        for window in merged:
            if window != result:
                self._keys.enter(key, self._bytes(window))
                self._trigger.clear(window, self._trigger_context)
                self._delete_cleanup_timer(window)
        self._keys.slot = key
        if others:
            self._contents.merge_namespaces(place, others)

    def _delete_cleanup_timer(self, window: Window) -> None:
        time = self._cleanup_time(window)
        (self._backend.event_timers if self._by_event_time else self._backend.processing_timers).delete(time)

    def _refuse_ended(self, window: Window) -> None:
        if self._by_event_time and self._cleanup_time(window) <= self.watermark:
            kind, now = "an event-time window cannot become earlier than the current watermark", self.watermark
        elif not self._by_event_time and window.max_timestamp() <= self.processing_time():
            kind, now = "a processing-time window cannot become earlier than the clock", self.processing_time()
        else:
            return
        raise UserCodeError(
            f"The end timestamp of {kind} by merging",
            found=f"{window!r} at {now}",
            cure="return a window from merge_windows() that covers all merged windows",
        )

    def _bytes(self, window: Window) -> bytes:
        return bytes_of(window, self._serializer)

    def _window(self, namespace: bytes) -> Window:
        return self._serializer.deserialize(BytesIO(namespace))
