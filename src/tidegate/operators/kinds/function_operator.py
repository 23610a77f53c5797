"""The base of all operators with a user function (life cycle, keyed state, timers), and contexts for broadcast state.

A function with broadcast state gets a context for each side. The context gives the state as this side may use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NoReturn

from tidegate.base.errors import StateAccessError, StorageError
from tidegate.base.user_code import UserFunction, UserValue
from tidegate.graph.plan import ChainNode
from tidegate.graph.transformation import Ship
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.functions import (
    ProcessContext,
    SubtaskRuntimeContext,
    SubtaskTimerService,
    TimeDomain,
    checkpointed,
)
from tidegate.operators.contracts.operator import EndOfInput, OperatorRound, OperatorSetup, StreamOperator
from tidegate.operators.contracts.specs import FunctionSpec
from tidegate.operators.contracts.watermarks import EventTime
from tidegate.operators.flow.rows import MAX_WATERMARK
from tidegate.operators.kinds.own_state import OwnState
from tidegate.operators.loop.blame import user_error
from tidegate.operators.loop.ownership import own
from tidegate.state.backend import KeyedBackend
from tidegate.state.context import NO_KEY, KeyContext
from tidegate.state.descriptors import MapState, MapStateDescriptor, ReadOnlyBroadcastState, StateDescriptor, ValueState
from tidegate.state.key_groups import range_for
from tidegate.state.keys import visible
from tidegate.state.local_dir import store_path
from tidegate.state.operator_state import OperatorBroadcastState, OperatorStates
from tidegate.state.snapshot import KEYED, KeyedPart, OperatorSnapshot, Part, merged_schemas
from tidegate.state.stores import opener
from tidegate.state.timers import TimerQueue

if TYPE_CHECKING:
    from tidegate.operators.loop.codegen import LoopSource


class ReadOnlyView(ReadOnlyBroadcastState[UserValue, UserValue]):
    """Show a broadcast state on the side that must not write: every subtask sees other records there, but all subtasks
    hold one state."""

    __slots__ = ("_state",)

    def __init__(self, state: OperatorBroadcastState) -> None:
        self._state = state

    def get(self, key: UserValue) -> UserValue:
        return self._state.get(key)

    def contains(self, key: UserValue) -> bool:
        return self._state.contains(key)

    def items(self) -> list[tuple[UserValue, UserValue]]:
        return self._state.items()

    def keys(self) -> list[UserValue]:
        return self._state.keys()

    def values(self) -> list[UserValue]:
        return self._state.values()

    def is_empty(self) -> bool:
        return self._state.is_empty()

    def _refuse(self, *arguments: object) -> NoReturn:
        raise StateAccessError(
            "Broadcast state is read-only on the other side: only the broadcast side sees the same records everywhere",
            found=f"a change of state {self._state.schema.name!r} on the other side",
            cure="change the state in process_broadcast_element",
        )

    clear = put = put_all = remove = __setitem__ = __delitem__ = _refuse


class _BroadcastStates:
    """Hold the states that ``broadcast(...)`` has declared, by name."""

    def __init__(self, states: OperatorStates, declared: tuple[StateDescriptor, ...]) -> None:
        self._states, self._declared = states, {descriptor.name: descriptor for descriptor in declared}

    def of(self, descriptor: MapStateDescriptor) -> OperatorBroadcastState:
        name = descriptor.get_name() if isinstance(descriptor, StateDescriptor) else descriptor
        if name not in self._declared:
            raise StateAccessError(
                "The broadcast state was not declared in broadcast(...)",
                found=f"{name!r}; there are {', '.join(map(repr, self._declared))}",
                cure="pass the MapStateDescriptor of the state to broadcast(...) too",
            )
        return self._states.broadcast_state(descriptor)


class BroadcastContext:
    """Be the context of ``process_broadcast_element``. The loop sets ``ts`` for every record."""

    def __init__(
        self,
        timer_service: SubtaskTimerService,
        backend: KeyedBackend | None,
        states: OperatorStates,
        declared: tuple[StateDescriptor, ...],
    ) -> None:
        self._backend, self._states = backend, _BroadcastStates(states, declared)
        self.current_processing_time = timer_service.current_processing_time
        self.current_watermark = timer_service.current_watermark
        self.ts: int | None = None

    def timestamp(self) -> int | None:
        return self.ts

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> OperatorBroadcastState:
        return self._states.of(state_descriptor)

    def apply_to_keyed_state(
        self, state_descriptor: StateDescriptor, function: Callable[[UserValue, UserValue], object]
    ) -> None:
        """Call ``function(key, state)`` for every key of this subtask that has an entry in the state."""
        if self._backend is None:
            raise StateAccessError(
                "Keyed state is not available, because the other stream is not keyed",
                cure="call key_by(...) on the other stream, and use a KeyedBroadcastProcessFunction",
            )
        state, context = self._backend.state(state_descriptor), self._backend.context
        call = getattr(function, "process", function)
        try:
            for key in state.all_keys():
                context.enter(key, b"")
                if _has_entry(state):
                    call(visible(key), state)
        finally:
            context.slot = NO_KEY


def _has_entry(state: UserValue) -> bool:
    if isinstance(state, MapState):
        return not state.is_empty()
    found = state.value() if isinstance(state, ValueState) else state.get()
    return found is not None and found != []


class ReadOnlyContext(ProcessContext):
    """Be the context of ``process_element`` and ``on_timer``."""

    __slots__ = ("_states", "_views", "current_processing_time", "current_watermark")

    def __init__(
        self,
        timer_service: SubtaskTimerService,
        backend: KeyedBackend | None,
        states: OperatorStates,
        declared: tuple[StateDescriptor, ...],
    ) -> None:
        super().__init__(timer_service, backend)
        self._states = _BroadcastStates(states, declared)
        self._views: dict[str, ReadOnlyView] = {}
        self.current_processing_time = timer_service.current_processing_time
        self.current_watermark = timer_service.current_watermark

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyView:
        view = self._views.get(state_descriptor.name) if isinstance(state_descriptor, StateDescriptor) else None
        if view is None:
            view = ReadOnlyView(self._states.of(state_descriptor))
            self._views[state_descriptor.name] = view
        return view


_FIRED_BATCH = 4096
"""Records of timers that are handed on together."""


class FunctionOperator(StreamOperator):
    """Run a user function. ``functions``: called for a record of each input; ``function``: of the first input.
    ``backend``: keyed state and timers, if an input is keyed. ``own_state``: state that belongs to no key, if there is
    any.

    Where there are timers, the output watermark advances only after the timers that it makes due have fired: their
    output is never late.
    """

    windows = ""
    """The kind of windows in the operator's state: see ``KeyedPart``."""

    def __init__(self, node: ChainNode, setup: OperatorSetup) -> None:
        super().__init__(node, setup)
        spec = self.operator.spec_as(FunctionSpec)
        backend = self.backend = self._keyed_backend()
        if backend is not None:
            self.output_time = EventTime()
        self.functions = spec.callables
        self.function: UserFunction = self.functions[0]
        self.context = ProcessContext(
            SubtaskTimerService(self.operator, self.input_time, backend, setup.settings.now_ms), backend
        )
        self._on_timer = getattr(spec.function, "on_timer", None)
        self.hooks.insert(0, self._hooks(spec.function, f"operator '{self.operator.name}'", backend))
        self.own_state = self._own_state(None if backend is None else self.hooks[0].context)
        self.misfits = [] if backend is None else [backend.misfits]
        self.misfits += [] if self.own_state is None else [self.own_state.states.misfits]
        if self.operator.keyed is not None and self.operator.keyed.ship is Ship.FORWARD:  # keys are made in this chain
            self.hooks.extend(self._hooks_of(self.operator.keyed, "before"))

    def _keyed_backend(self) -> KeyedBackend | None:
        operator, index, settings = self.operator, self.setup.index, self.setup.settings
        if operator.keyed is None:
            return None
        root = settings.store_root(operator.uid_hash, index)
        return KeyedBackend(
            operator=operator.uid_hash,
            operator_name=operator.name,
            groups=range_for(index, operator.parallelism, operator.max_parallelism),
            max_parallelism=operator.max_parallelism,
            key_type=operator.keyed.key_type,
            local_path=store_path(root, settings.local_name, operator.uid_hash, index),
            files=settings.state_files(),
            open_store=opener(settings.state_backend, settings.stores),
            cache_bytes=settings.cache_bytes,
            compressed=settings.compressed,
        )

    def _own_state(self, keyed_store: SubtaskRuntimeContext | None) -> OwnState | None:
        function = checkpointed(self.operator.spec.user_function)
        return None if function is None else OwnState(self.operator, self.setup, function, keyed_store)

    @property
    def key_context(self) -> KeyContext | None:
        return None if self.backend is None else self.backend.context

    def write_time(
        self, source: LoopSource, value: str, depth: int, given: ProcessContext | BroadcastContext | None = None
    ) -> str:
        """Write the code that sets the record's time in the context, or in the context that is ``given``. Return the
        context's variable."""
        context = source.bind(f"c{self.id}", given or self.context)
        if source.timed:
            source.line(depth, f"{context}.ts = tg_t", source.owner(self.node, value))
        else:
            source.once(f"{context}.ts = None")
        return context

    def begin_batch(self, keys: list[UserValue] | None, now_ms: int) -> None:
        if self.backend is not None:
            self.backend.context.time = now_ms
            if keys is not None:
                self.backend.prefetch(keys)
            else:  # its keys are made in the chain
                self.backend.trim_caches()

    # -- a round -----------------------------------------------------------------------------------------------------

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        if self.backend is not None:  # functions may ask for their states from now on
            self._keyed = snapshot.keyed or KeyedPart(self.backend.groups)
            self._files = list(self._keyed.files)
            self.backend.stored = list(self._keyed.schemas)
        if self.own_state is not None:
            self.own_state.restore(snapshot, round)

    def fits(self, snapshot: OperatorSnapshot) -> bool:
        return self.own_state is None or self.own_state.fits(snapshot)

    def begin(self) -> None:
        """Open the round on exactly the accepted files, and merge some of these files if the plan says so."""
        if self.backend is not None:
            plan = self.round.plan
            self.backend.begin(self._files, plan.replaced.get(self.id, ()))
            self.backend.context.time = self.round.now_ms()
            if (run := plan.compact.get(self.id)) is not None:
                self._compact(self.backend, run)

    def _compact(self, backend: KeyedBackend, run: tuple[int, int]) -> None:
        try:
            merged = backend.compact(list(self._files), run, self._path("base"))
        except StorageError as error:
            # The old files are as good, and a later round tries again. But files of another job's directory must not
            # get into a checkpoint of this job.
            if self.round.plan.whole or any(file.root for file in self._files):
                place = f"'{self.operator.name}' ({self.setup.index + 1}/{self.operator.parallelism})"
                self.declined = f"snapshot of {place}: {type(error).__name__}: {error}"
        else:
            self._files[run[0] : run[1]] = [merged]

    def _path(self, ending: str) -> str:
        """Return a path that is unique for every attempt: a zombie can never overwrite the file of another attempt."""
        name = f"{self.operator.uid_hash[:12]}-{self.setup.index}-{self.round.context.round}-{self.round.token}"
        return f"shared/{name}.{ending}"

    def on_processing_time(self, now_ms: int) -> None:
        if self.backend is not None:
            self.backend.context.time = now_ms  # a timer sees no expired state, however long the last batch is ago
            self._fire_due(self.backend.processing_timers, now_ms, TimeDomain.PROCESSING_TIME)

    def on_watermark(self, now_ms: int) -> None:
        if self.backend is not None:
            self.backend.context.time = now_ms
            # Flink: a timer in the past fires with the next watermark
            if self.input_time.watermark > self.output_time.watermark:
                self._fire_due(self.backend.event_timers, self.input_time.watermark, TimeDomain.EVENT_TIME)
            self.on_processing_time(now_ms)
            self._pass_time_on()

    def _pass_time_on(self) -> None:
        self.output_time.watermark, self.output_time.idle = self.input_time.watermark, self.input_time.idle

    def end_of_key(self, now_ms: int) -> None:
        """End all time for the current key with its last record, as Flink does. Timers that are set from here on are
        ignored, so a periodic timer ends."""
        assert self.backend is not None
        backend, now, before = self.backend, self.input_time, self.input_time.watermark
        now.watermark = MAX_WATERMARK  # the function sees it; the operators downstream do not
        last = [
            (backend.event_timers.remaining(), TimeDomain.EVENT_TIME),
            (backend.processing_timers.remaining(), TimeDomain.PROCESSING_TIME),
        ]
        for timers, kind in last:
            self._fire(timers, kind)
        backend.event_timers.resume()
        backend.processing_timers.resume()
        now.watermark = before

    def end_input(self, now_ms: int) -> None:
        if self.backend is not None:
            backend = self.backend
            backend.context.time = now_ms
            self._fire_due(backend.event_timers, self.input_time.watermark, TimeDomain.EVENT_TIME)
            self.on_processing_time(now_ms)
            if self.setup.settings.batch_mode:
                # Flink: all time ends with the input. Timers set from here on are ignored, so a periodic timer ends.
                self._fire(backend.processing_timers.remaining(), TimeDomain.PROCESSING_TIME)
            self._pass_time_on()

    def wake_up_ms(self, now_ms: int) -> int | None:
        if self.backend is None or self.round.end_of_input is not EndOfInput.AHEAD:
            return None
        return self.backend.processing_timers.next_time()

    def parts(self) -> dict[str, Part]:
        if self.own_state is not None:
            self.own_state.snapshot()
        parts: dict[str, Part] = {} if self.backend is None else {KEYED: self._keyed_part(self.backend)}
        return parts if self.own_state is None else {**parts, **self.own_state.parts()}

    def _keyed_part(self, backend: KeyedBackend) -> KeyedPart:
        """Step 5: write the changes of the round as a segment file, the last in the list of files."""
        segment = backend.write_segment(self.round.context.version, self._path("seg"))
        files = (*self._files, segment) if segment is not None else tuple(self._files)
        schemas = merged_schemas([self._keyed.schemas, backend.schemas()])
        return KeyedPart(self._keyed.groups, files, schemas, backend.key_schema, self.windows)

    def state_shares(self) -> dict[str, dict[str, int]]:
        return {} if self.backend is None else self.backend.shares

    def end(self, *, abort: bool) -> None:
        if self.backend is not None:
            self.backend.end(failed=abort)

    # -- timers ------------------------------------------------------------------------------------------------------

    def _fire_due(self, queue: TimerQueue, up_to: int, kind: TimeDomain) -> None:
        if self.round.end_of_input is EndOfInput.PAST:
            return  # Flink: no timer fires in a task that has ended
        due = queue.next_time()
        if due is not None and due <= up_to:
            self._fire(queue.due(up_to), kind)

    def _fire(self, timers: Iterable[tuple[int, UserValue, bytes]], kind: TimeDomain) -> None:
        assert self.backend is not None
        context, keys = self.context, self.backend.context
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
                raise user_error(error, where, None, key=repr(key)) from error
            # Flink: the output of an event-time timer has the timer's time, the output of a processing-time timer no
            # timestamp
            times.extend([moment if kind is TimeDomain.EVENT_TIME else None] * (len(values) - len(times)))
            if len(values) >= _FIRED_BATCH:
                self.setup.emit(Batch(values, times))
                values, times = [], []
        if values:
            self.setup.emit(Batch(values, times))

    def on_timer(self, moment: int) -> Iterable[UserValue] | None:
        """Call the function for a due timer of the current key, and return the results to emit."""
        return self._on_timer(moment, self.context) if self._on_timer is not None else None
