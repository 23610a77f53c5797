"""Hold the state of an operator's subtask that belongs to no key, between snapshots and the functions that use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidegate.base.errors import StateAccessError
from tidegate.graph.plan import Operator
from tidegate.operators.contracts.functions import CheckpointedFunction, SubtaskRuntimeContext
from tidegate.operators.contracts.operator import OperatorRound, OperatorSetup
from tidegate.operators.loop.blame import user_error
from tidegate.state.descriptors import StateDescriptor
from tidegate.state.operator_state import OperatorBroadcastState, OperatorListState, OperatorStates
from tidegate.state.snapshot import OperatorSnapshot, Part, Redistribution

C = TypeVar("C", "InitializationContext", "SnapshotContext")


class OwnState:
    """Own the states. The calls of every round are ``restore``, ``snapshot`` (step 5), ``parts``. ``function``: the
    user function, if it has state of its own."""

    def __init__(
        self,
        operator: Operator,
        setup: OperatorSetup,
        function: CheckpointedFunction | None,
        keyed_store: SubtaskRuntimeContext | None,
    ) -> None:
        self._operator, self._index, self._function = operator, setup.index, function
        self._keyed_store = keyed_store
        self._where = f"operator '{operator.name}'"
        self._is_initialized = False
        self.states = OperatorStates(setup.settings.state_files(), operator.name, compressed=setup.settings.compressed)

    def fits(self, snapshot: OperatorSnapshot) -> bool:
        return self._function is None or self.states.fits(snapshot)

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        self._round = round
        self.states.restore(snapshot)
        if self._function is not None and not self._is_initialized:
            self._is_initialized = True
            restored = self._operator.id in round.plan.snapshots
            context = InitializationContext(self._where, self.states, self._keyed_store, restored)
            self._call(self._function.initialize_state, context)

    def snapshot(self) -> None:
        """Let functions bring their states up to date."""
        if self._function is not None:
            context = SnapshotContext(self._round.context.checkpoint_id, self._round.now_ms())
            self._call(self._function.snapshot_state, context)

    def parts(self) -> dict[str, Part]:
        context = self._round.context
        name = f"{self._operator.uid_hash[:12]}-{self._index}-{context.round}-{self._round.token}"
        return {**self.states.parts(f"shared/{name}", context.version)}

    def _call(self, method: Callable[[C], None], context: C) -> None:
        try:
            method(context)
        except BaseException as error:
            raise user_error(error, f"{method.__name__}() of {self._where}", None) from error


class SubtaskOperatorStateStore:
    """Hold the states of the operator itself, by descriptor."""

    def __init__(self, states: OperatorStates) -> None:
        self._states = states

    def get_list_state(self, state_descriptor: StateDescriptor) -> OperatorListState:
        return self._states.list_state(state_descriptor, Redistribution.EVEN_SPLIT)

    def get_union_list_state(self, state_descriptor: StateDescriptor) -> OperatorListState:
        return self._states.list_state(state_descriptor, Redistribution.UNION)

    def get_broadcast_state(self, state_descriptor: StateDescriptor) -> OperatorBroadcastState:
        return self._states.broadcast_state(state_descriptor)


class InitializationContext:
    """Be the context of ``initialize_state``."""

    def __init__(
        self, where: str, states: OperatorStates, keyed_store: SubtaskRuntimeContext | None, restored: bool
    ) -> None:
        self._where, self._store, self._keyed_store = where, SubtaskOperatorStateStore(states), keyed_store
        self._restored = restored

    def is_restored(self) -> bool:
        return self._restored

    def get_operator_state_store(self) -> SubtaskOperatorStateStore:
        return self._store

    def get_keyed_state_store(self) -> SubtaskRuntimeContext:
        if self._keyed_store is None:
            raise StateAccessError(
                "Keyed state can only be used in a function on a keyed stream",
                where=self._where,
                found="the operator's input is not keyed",
                cure="call key_by(...) before this operator",
            )
        return self._keyed_store


class SnapshotContext:
    """Be the context of ``snapshot_state``."""

    def __init__(self, checkpoint_id: int | None, now_ms: int) -> None:
        self._checkpoint_id, self._now_ms = checkpoint_id, now_ms

    def get_checkpoint_id(self) -> int | None:
        return self._checkpoint_id

    def get_checkpoint_timestamp(self) -> int:
        return self._now_ms
