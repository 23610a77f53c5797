"""Run kinds of operators that do little more than call a function for each record: map, filter, process, reduce ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from tidegate.base.user_code import UserFunction, UserValue
from tidegate.graph.plan import ChainNode
from tidegate.operators.contracts.arrow_batch import ArrowBatch
from tidegate.operators.contracts.batch import Batch, Keys
from tidegate.operators.contracts.functions import ProcessContext, SubtaskRuntimeContext, checkpointed
from tidegate.operators.contracts.operator import CollectingOperator, OperatorRound, OperatorSetup
from tidegate.operators.contracts.specs import BatchSpec, BroadcastProcessSpec, KeyedBatchSpec, ReduceSpec
from tidegate.operators.kinds.function_operator import BroadcastContext, FunctionOperator, ReadOnlyContext
from tidegate.operators.kinds.own_state import OwnState
from tidegate.operators.kinds.sliced_window import keys_of
from tidegate.operators.loop.blame import user_error
from tidegate.operators.loop.codegen import LoopSource
from tidegate.state.descriptors import ValueStateDescriptor
from tidegate.state.keys import visible
from tidegate.state.snapshot import OperatorSnapshot, Redistribution


class MapOperator(FunctionOperator):
    """Emit one record for each input record."""

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        out = f"tg_v{self.id}"
        source.call(f"{self.id}", self.function, [value], out, depth, source.owner(self.node, value), keyed)
        source.looked_at(self.function, value, out)
        source.consumers(self, None, out, depth)

    def looks_with(self, looks: Callable[[UserFunction], bool]) -> bool:
        return looks(self.function)


class CoMapOperator(FunctionOperator):
    """Call a function for each of two inputs, and emit at most one record for each input record. As in PyFlink, a
    result of None is no record: a function that only changes state returns nothing."""

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        out, owner = f"tg_v{self.id}", source.owner(self.node, value)
        source.call(f"{self.id}", self.functions[input], [value], out, depth, owner, keyed)
        source.line(depth, f"if {out} is not None:", owner)
        source.consumers(self, None, out, depth + 1)


class FilterOperator(FunctionOperator):
    """Emit the records for which the function is true."""

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        passes, owner = f"tg_v{self.id}", source.owner(self.node, value)
        source.call(f"{self.id}", self.function, [value], passes, depth, owner, keyed)
        source.line(depth, f"if {passes}:", owner)
        source.looked_at(self.function, value, value)
        source.consumers(self, None, value, depth + 1)

    def looks_with(self, looks: Callable[[UserFunction], bool]) -> bool:
        return looks(self.function)


class FlatMapOperator(FunctionOperator):
    """Emit any number of records for each input record. With several inputs, each input has its own function."""

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        owner = source.owner(self.node, value)
        source.call_each(f"{self.id}", self.functions[input], [value], depth, owner, keyed, source.emitter(self))


class ProcessOperator(FunctionOperator):
    """Emit any number of records, also to side outputs. The context gives time, state and timers. With several inputs,
    each input has its own method, and all inputs share state and timers."""

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        context = self.write_time(source, value, depth, self.context_of(input))
        function, owner = self.functions[input], source.owner(self.node, value)
        source.call_each(f"{self.id}", function, [value, context], depth, owner, keyed, source.emitter(self))

    def context_of(self, input: int) -> ProcessContext | BroadcastContext:
        """Return the context that the function gets with a record of the input."""
        return self.context


class BroadcastProcessOperator(ProcessOperator):
    """Run a process function whose second input is broadcast: every subtask sees all its records and builds the
    broadcast state from them. The first input may be keyed. The second input then has no current key, and timers belong
    to the first."""

    def __init__(self, node: ChainNode, setup: OperatorSetup) -> None:
        self._declared = node.operator.spec_as(BroadcastProcessSpec).broadcast_states
        super().__init__(node, setup)
        assert self.own_state is not None
        states, declared = self.own_state.states, self._declared
        timers = self.context.timer_service()
        self.context = ReadOnlyContext(timers, self.backend, states, declared)
        self._broadcast_context = BroadcastContext(timers, self.backend, states, declared)

    def _own_state(self, keyed_store: SubtaskRuntimeContext | None) -> OwnState:
        return OwnState(self.operator, self.setup, checkpointed(self.operator.spec.user_function), keyed_store)

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        assert self.own_state is not None
        for descriptor in self._declared:
            self.own_state.states.check(descriptor, Redistribution.BROADCAST)

    def context_of(self, input: int) -> ProcessContext | BroadcastContext:
        return self._broadcast_context if input else self.context


class ReduceOperator(FunctionOperator):
    """Reduce the records of each key, and emit the new result for every record."""

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        self._state()  # as functions do in open: a state that does not fit is found before the first record

    def _state(self) -> UserValue:
        assert self.backend is not None
        return self.backend.state(ValueStateDescriptor("_reduce", self.operator.spec_as(ReduceSpec).value_type))

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        state = self._state()
        before, out, owner = f"tg_a{self.id}", f"tg_v{self.id}", source.owner(self.node, value)
        source.line(depth, f"{before} = {source.bind(f's{self.id}', state.value)}()", owner)
        source.line(depth, f"if {before} is None:", owner)
        source.line(depth + 1, f"{out} = {value}", owner)
        source.line(depth, "else:", owner)
        source.call(f"{self.id}", self.function, [before, value], out, depth + 1, owner)
        source.line(depth, f"{source.bind(f'u{self.id}', state.update)}({out})", owner)
        source.consumers(self, None, out, depth)


class BatchOperator(CollectingOperator, FunctionOperator):
    """Call a function over whole batches. A batch of columns is handed over as it is; records of a loop are collected
    first."""

    takes_columns: ClassVar[bool] = True
    emits_fresh: ClassVar[bool] = True

    def take_batch(self, batch: Batch) -> None:
        most = self.operator.spec_as(BatchSpec).most or len(batch)
        for start in range(0, len(batch), most):
            self._process(batch.part(start, min(start + most, len(batch))))

    def settle(self) -> None:
        if self.values:
            batch = Batch(self.values.copy(), self.timestamps.copy() or None)
            self.clear()
            self.take_batch(batch)

    def _process(self, batch: Batch) -> None:
        try:
            result: Batch = self.function(batch)
        except BaseException as error:
            where = f"operator '{self.operator.name}', batch of {len(batch)} records"
            raise user_error(error, where, None, added=self.operator.place) from error
        if len(result):
            self.setup.emit(result)


class KeyedBatchOperator(CollectingOperator, FunctionOperator):
    """Call a function over the records that each key has in a batch, with the state and the timers of the key.

    The results of all keys of a batch are emitted together, so the operators downstream get columns too.
    """

    emits_fresh: ClassVar[bool] = True

    def __init__(self, node: ChainNode, setup: OperatorSetup) -> None:
        super().__init__(node, setup)
        self._prepare: Callable[[Batch], ArrowBatch] = self.operator.spec_as(KeyedBatchSpec).prepare
        self._keys: Keys = []

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        super().write(source, value, depth, keyed=keyed, input=input)
        key = "tg_k" if keyed else f"{source.bind(f'B{self.id}', self.key_context)}.slot"
        source.line(depth, f"{source.bind(f'k{self.id}', self._keys.append)}({key})", None)

    def clear(self) -> None:
        super().clear()
        self._keys.clear()

    def settle(self) -> None:
        if self.values:
            batch = Batch(self.values.copy(), self.timestamps.copy() or None, self._keys.copy())
            self.clear()
            self.take_batch(batch)

    def take_batch(self, batch: Batch) -> None:
        try:
            records = self._prepare(batch)
        except BaseException as error:
            where = f"operator '{self.operator.name}', batch of {len(batch)} records"
            raise user_error(error, where, None, added=self.operator.place) from error
        keys, numbers = keys_of(batch)
        ends = np.bincount(numbers, minlength=len(keys)).cumsum().tolist()
        if len(keys) > 1:
            records = records.take(np.argsort(numbers, kind="stable"))
        made: list[ArrowBatch] = []
        start = 0
        for key, end in zip(keys, ends, strict=True):
            made += self._process(key, records.part(start, end))
            start = end
        if made:
            self.setup.emit(ArrowBatch.joined(made))

    def _process(self, key: UserValue, records: Batch) -> list[ArrowBatch]:
        assert self.backend is not None
        self.backend.context.slot, self.context.ts = key, None
        try:
            found: list[ArrowBatch] = self.function(records, self.context)
        except BaseException as error:
            where = f"operator '{self.operator.name}', batch of {len(records)} records of key {visible(key)!r}"
            raise user_error(error, where, None, added=self.operator.place, key=repr(visible(key))) from error
        return found
