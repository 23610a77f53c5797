"""What operators with a user function share: its life cycle, state by key, timers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tidegate.base.user_code import UserValue
from tidegate.graph.plan import ChainNode
from tidegate.graph.transformation import Ship
from tidegate.operators.contracts.contexts import ProcessContext, SubtaskRuntimeContext, SubtaskTimerService
from tidegate.operators.contracts.functions import checkpointed
from tidegate.operators.contracts.operator import EndOfInput, OperatorRound, Site, StreamOperator
from tidegate.operators.contracts.specs import FunctionSpec
from tidegate.operators.contracts.time_domain import TimeDomain
from tidegate.operators.contracts.watermarks import Domain
from tidegate.operators.flow.rows import MAX_WATERMARK
from tidegate.operators.kinds.broadcast_contexts import BroadcastContext
from tidegate.operators.kinds.own_state import OwnState
from tidegate.operators.kinds.state_by_key import StateByKey
from tidegate.operators.loop.blame import user_error
from tidegate.operators.loop.ownership import own
from tidegate.state.context import KeyContext
from tidegate.state.snapshot import KEYED, OperatorSnapshot, Part
from tidegate.state.timers import TimerQueue

if TYPE_CHECKING:
    from tidegate.operators.loop.codegen import LoopSource

_FIRED_BATCH = 4096
"""Records of timers that are handed on together."""


class FunctionOperator(StreamOperator):
    """``functions``: what is called for a record of each input; ``function``: of the first. ``by_key``: state and timers, if an
    input is keyed. ``own_state``: what belongs to no key, if there is any.

    Where there are timers, the watermark behind advances only after those it makes due have fired: what they emit is late for
    nobody.
    """

    def __init__(self, node: ChainNode, site: Site) -> None:
        super().__init__(node, site)
        spec = self.operator.spec_as(FunctionSpec)
        self.by_key = None if self.operator.keyed is None else StateByKey(self.operator, site)
        backend = None if self.by_key is None else self.by_key.backend
        if self.by_key is not None:
            self.below = Domain()
        self.functions = spec.callables
        self.function: Callable[..., UserValue] = self.functions[0]
        self.context = ProcessContext(
            SubtaskTimerService(self.operator, self.above, backend, site.settings.now_ms), backend
        )
        self._on_timer = getattr(spec.function, "on_timer", None)
        self.hooks.insert(0, self._hooks(spec.function, f"operator '{self.operator.name}'", backend))
        self.own_state = self._own_state(None if backend is None else self.hooks[0].context)
        self.misfits = [] if backend is None else [backend.misfits]
        self.misfits += [] if self.own_state is None else [self.own_state.states.misfits]
        if self.operator.keyed is not None and self.operator.keyed.ship is Ship.FORWARD:  # keys are made in this chain
            self.hooks.extend(self._hooks_of(self.operator.keyed, "before"))

    def _own_state(self, keyed_store: SubtaskRuntimeContext | None) -> OwnState | None:
        function = checkpointed(self.operator.spec.user_function)
        return None if function is None else OwnState(self.operator, self.site, function, keyed_store)

    @property
    def key_context(self) -> KeyContext | None:
        return None if self.by_key is None else self.by_key.backend.context

    def write_time(
        self, source: LoopSource, value: str, depth: int, told: ProcessContext | BroadcastContext | None = None
    ) -> str:
        """Write the code that tells the context the record's time; returns the variable of the context."""
        context = source.bind(f"c{self.id}", told or self.context)
        if source.timed:
            source.line(depth, f"{context}.ts = tg_t", source.owner(self.node, value))
        else:
            source.once(f"{context}.ts = None")
        return context

    def begin_batch(self, keys: list[UserValue] | None, now_ms: int) -> None:
        if self.by_key is not None:
            self.by_key.backend.context.time = now_ms
            if keys is not None:
                self.by_key.backend.prefetch(keys)
            else:  # its keys are made in the chain
                self.by_key.backend.trim_caches()

    # -- a round -----------------------------------------------------------------------------------------------------

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        if self.by_key is not None:
            self.by_key.restore(snapshot, round)
        if self.own_state is not None:
            self.own_state.restore(snapshot, round)

    def fits(self, snapshot: OperatorSnapshot) -> bool:
        return self.own_state is None or self.own_state.fits(snapshot)

    def begin(self) -> None:
        if self.by_key is not None:
            self.declined = self.by_key.begin()

    def on_processing_time(self, now_ms: int) -> None:
        if self.by_key is not None:
            self._fire_due(self.by_key.backend.processing_timers, now_ms, TimeDomain.PROCESSING_TIME)

    def on_watermark(self, now_ms: int) -> None:
        if self.by_key is not None:
            if self.above.watermark > self.below.watermark:  # Flink: a timer in the past fires with the next watermark
                self._fire_due(self.by_key.backend.event_timers, self.above.watermark, TimeDomain.EVENT_TIME)
            self.on_processing_time(now_ms)
            self._pass_time_on()

    def _pass_time_on(self) -> None:
        self.below.watermark, self.below.idle = self.above.watermark, self.above.idle

    def end_of_key(self, now_ms: int) -> None:
        """Flink: with the records of a key all time ends for it. Timers set from here on are ignored, so a periodic one ends."""
        assert self.by_key is not None
        backend, above, before = self.by_key.backend, self.above, self.above.watermark
        above.watermark = MAX_WATERMARK  # the function sees it; what is behind has a domain of its own
        last = [
            (backend.event_timers.remaining(), TimeDomain.EVENT_TIME),
            (backend.processing_timers.remaining(), TimeDomain.PROCESSING_TIME),
        ]
        for timers, kind in last:
            self._fire(timers, kind)
        backend.event_timers.resume()
        backend.processing_timers.resume()
        above.watermark = before

    def end_input(self, now_ms: int) -> None:
        if self.by_key is not None:
            backend = self.by_key.backend
            self._fire_due(backend.event_timers, self.above.watermark, TimeDomain.EVENT_TIME)
            self.on_processing_time(now_ms)
            if self.site.settings.batch_mode:
                # Flink: with the input all time ends, and timers set from here on are ignored (so a periodic one ends)
                self._fire(backend.processing_timers.remaining(), TimeDomain.PROCESSING_TIME)
            self._pass_time_on()

    def wake_up_ms(self, now_ms: int) -> int | None:
        if self.by_key is None or self.round.end_of_input is not EndOfInput.AHEAD:
            return None
        return self.by_key.backend.processing_timers.next_time()

    def parts(self) -> dict[str, Part]:
        if self.own_state is not None:
            self.own_state.snapshot()
        parts: dict[str, Part] = {} if self.by_key is None else {KEYED: self.by_key.part()}
        return parts if self.own_state is None else {**parts, **self.own_state.parts()}

    def end(self, *, abort: bool) -> None:
        if self.by_key is not None:
            self.by_key.end(failed=abort)

    # -- timers ------------------------------------------------------------------------------------------------------

    def _fire_due(self, queue: TimerQueue, up_to: int, kind: TimeDomain) -> None:
        if self.round.end_of_input is EndOfInput.BEHIND:
            return  # Flink: no timer fires in a task that has ended
        due = queue.next_time()
        if due is not None and due <= up_to:
            self._fire(queue.due(up_to), kind)

    def _fire(self, timers: Iterable[tuple[int, UserValue, bytes]], kind: TimeDomain) -> None:
        assert self.by_key is not None
        context, keys = self.context, self.by_key.backend.context
        values: list[UserValue] = []
        times: list[int | None] = []
        context.domain = kind
        for moment, key, namespace in timers:
            keys.enter(key, namespace)
            context.ts = moment
            try:
                values.extend(map(own, self.on_timer(moment) or ()))
            except BaseException as error:
                where = f"on_timer({moment}) of operator '{self.operator.name}', key {key!r}"
                raise user_error(error, where, None) from error
            # Flink: what an event-time timer emits carries the timer's time, a processing-time timer's output no timestamp
            times.extend([moment if kind is TimeDomain.EVENT_TIME else None] * (len(values) - len(times)))
            if len(values) >= _FIRED_BATCH:
                self.site.emit(values, times)
                values, times = [], []
        if values:
            self.site.emit(values, times)

    def on_timer(self, moment: int) -> Iterable[UserValue] | None:
        """A timer of the current key has come due: what to emit."""
        return self._on_timer(moment, self.context) if self._on_timer is not None else None
