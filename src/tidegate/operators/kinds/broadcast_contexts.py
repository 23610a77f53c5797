"""Give functions with broadcast state a context for each side, and the state as each side may use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from tidegate.base.errors import StateAccessError
from tidegate.base.user_code import UserValue
from tidegate.operators.contracts.contexts import ProcessContext, SubtaskTimerService
from tidegate.state.backend import KeyedBackend
from tidegate.state.context import NO_KEY
from tidegate.state.descriptors import MapStateDescriptor, StateDescriptor
from tidegate.state.interfaces import MapState, ReadOnlyBroadcastState, ValueState
from tidegate.state.keys import visible
from tidegate.state.operator_state import OperatorBroadcastState, OperatorStates


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
