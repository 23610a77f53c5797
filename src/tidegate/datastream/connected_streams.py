"""ConnectedStreams and broadcast state: one function for two streams.

The function has a method for each of the connected streams, and shares its state between them.

Every subtask receives a broadcast stream completely. It is connected to a stream that is distributed over the subtasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidegate.base.arguments import wrong
from tidegate.base.errors import ProgramError
from tidegate.base.generics import Generic, TypeVar
from tidegate.common.object_types import Declared
from tidegate.datastream.annotations import Result, result_type
from tidegate.datastream.functions import (
    BaseBroadcastProcessFunction,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    Function,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeySelector,
)
from tidegate.datastream.keyed_stream import KeyedStream
from tidegate.datastream.state import MapStateDescriptor
from tidegate.datastream.stream import DataStream
from tidegate.datastream.typed_functions import TypedBroadcast, TypedCoFlatMap, TypedCoMap, TypedCoProcess, typed
from tidegate.graph.transformation import Input, OperatorSpec
from tidegate.operators.contracts.specs import BroadcastProcessSpec, CoFlatMapSpec, CoMapSpec, CoProcessSpec
from tidegate.state.keys import key_identity

if TYPE_CHECKING:
    from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment

T1 = TypeVar("T1", covariant=True, default=Any)
T2 = TypeVar("T2", covariant=True, default=Any)
K = TypeVar("K", default=Any)
R = TypeVar("R", default=Any)


class ConnectedStreams(Generic[T1, T2]):
    """The result of ``connect``. With two keyed streams the function has state by key, shared by both: their keys have one type.

    If only one stream is keyed, each keeps its partitioning, and the function has no state by key (as in Flink).
    """

    def __init__(self, stream1: DataStream[T1], stream2: DataStream[T2]) -> None:
        check_connected("connect", stream1, stream2)
        self.stream1, self.stream2 = stream1, stream2

    def key_by(
        self,
        key_selector1: Callable[[T1], K] | KeySelector[T1, K],
        key_selector2: Callable[[T2], K] | KeySelector[T2, K],
        key_type: Declared = None,
    ) -> ConnectedStreams[T1, T2]:
        """Partition both streams by key, each with its own selector. Equal keys of both go to the same subtask."""
        first = self.stream1.key_by(key_selector1, key_type)
        return ConnectedStreams(first, self.stream2.key_by(key_selector2, key_type))

    def map(self, func: CoMapFunction[T1, T2, R], output_type: Declared = None) -> DataStream[R]:
        """Emit at most one record for each record."""
        expect_object("map of connected streams", func, CoMapFunction)
        result = result_type(self._env, "map", output_type, func, "map1", "map2", many=False)
        return self._then("Co-Map", CoMapSpec(typed(TypedCoMap, func, result.type)), result)

    def flat_map(self, func: CoFlatMapFunction[T1, T2, R], output_type: Declared = None) -> DataStream[R]:
        """Emit any number of records for each record."""
        expect_object("flat_map of connected streams", func, CoFlatMapFunction)
        result = result_type(self._env, "flat_map", output_type, func, "flat_map1", "flat_map2")
        return self._then("Co-Flat Map", CoFlatMapSpec(typed(TypedCoFlatMap, func, result.type)), result)

    def process(
        self,
        func: CoProcessFunction[T1, T2, R] | KeyedCoProcessFunction[T1, T2, R, Any],
        output_type: Declared = None,
    ) -> DataStream[R]:
        """Process records with timestamps, watermark and side outputs; on keyed streams also with state and timers."""
        keyed = isinstance(self.stream1, KeyedStream) and isinstance(self.stream2, KeyedStream)
        if isinstance(func, KeyedCoProcessFunction) and not keyed:
            cure = "call key_by(selector1, selector2) on the connected streams"
            raise wrong("process of connected streams that are not both keyed", "a CoProcessFunction", func, cure)
        if isinstance(func, BaseBroadcastProcessFunction):
            cure = "pass descriptors of the states to broadcast(...), and connect what it returns"
            raise wrong("process of two streams none of which has broadcast state", "a CoProcessFunction", func, cure)
        expect_object("process of connected streams", func, CoProcessFunction, KeyedCoProcessFunction)
        name = "Keyed Co-Process" if keyed else "Co-Process"
        gives = "process_element1", "process_element2", "on_timer"
        result = result_type(self._env, "process", output_type, func, *gives)
        return self._then(name, CoProcessSpec(typed(TypedCoProcess, func, result.type)), result)

    @property
    def _env(self) -> StreamExecutionEnvironment:
        return self.stream1._env

    def _then(self, name: str, spec: OperatorSpec, result: Result) -> DataStream:
        return two_inputs(name, spec, self.stream1, self.stream2, result)


def two_inputs(name: str, spec: OperatorSpec, first: DataStream, second: DataStream, result: Result) -> DataStream:
    """Return the stream of an operator that reads both. It is keyed if both are, by keys of one type."""
    both = isinstance(first, KeyedStream) and isinstance(second, KeyedStream)
    inputs = [(0, i) for i in (first._inputs if both else first._unkeyed())]
    inputs += [(1, i) for i in (second._inputs if both else second._unkeyed())]
    if both:
        _check_key_types(name, first, second)
    indexed = tuple(replace(i, index=index) for index, i in inputs)
    operator = first._env._add(name, spec, indexed, output_type=result.type, annotated=result.annotated)
    return DataStream(first._env, (Input(operator.id),), result.type)


def check_connected(method: str, first: Any, second: Any) -> None:
    for stream in (first, second):
        if not isinstance(stream, DataStream):
            raise wrong(method, "streams", stream, "pass a DataStream")
    if first._env is not second._env:
        raise ProgramError(
            "The connected streams belong to different environments",
            where=method,
            found="streams of two environments",
            cure="make both sources with one StreamExecutionEnvironment",
        )


def expect_object(method: str, function: Any, *classes: type[Function]) -> None:
    """Check that the argument is an object of one of the function classes."""
    if not isinstance(function, classes):
        names = " or ".join(f"a {cls.__name__}" for cls in classes)
        raise wrong(method, f"{names} object", function, f"extend {classes[-1].__name__} and pass an object of it")


def _check_key_types(name: str, *streams: DataStream) -> None:
    """Refuse keys of different types: the declared type defines the bytes of a key, and the bytes decide about equality."""
    first, second = (_key_type(stream) for stream in streams)
    if first != second:
        raise ProgramError(
            "The keys of the connected streams have different types, but the streams share their state",
            where=name,
            found=f"{first} and {second}",
            cure="declare the same key_type in both key_by(...), or in none of them",
        )


def _key_type(stream: DataStream) -> str:
    partitioning = stream._inputs[0].partitioning
    return key_identity(partitioning.key_type if partitioning else None).describe


class BroadcastStream(Generic[T2]):
    """The result of ``broadcast(descriptor, ...)``, for ``stream.connect(broadcast_stream)``."""

    def __init__(self, input_stream: DataStream[T2], broadcast_state_descriptors: Iterable[MapStateDescriptor]) -> None:
        self.input_stream = input_stream
        self.broadcast_state_descriptors = _checked(list(broadcast_state_descriptors))


class BroadcastConnectedStream(Generic[T1, T2]):
    """A stream, keyed or not, and a broadcast stream."""

    def __init__(
        self,
        non_broadcast_stream: DataStream[T1],
        broadcast_stream: BroadcastStream[T2],
        broadcast_state_descriptors: Iterable[MapStateDescriptor],
    ) -> None:
        check_connected("connect", non_broadcast_stream, broadcast_stream.input_stream)
        self.non_broadcast_stream, self.broadcast_stream = non_broadcast_stream, broadcast_stream
        self.broadcast_state_descriptors = _checked(list(broadcast_state_descriptors))

    def process(
        self,
        func: BroadcastProcessFunction[T1, T2, R] | KeyedBroadcastProcessFunction[T1, T2, R, Any],
        output_type: Declared = None,
    ) -> DataStream[R]:
        """Process the records of both streams, with the broadcast states, and on a keyed stream with state and timers of the
        key."""
        if isinstance(self.non_broadcast_stream, KeyedStream):
            name = "Keyed-Co-Process-Broadcast"
            expect_object("process of a keyed and a broadcast stream", func, KeyedBroadcastProcessFunction)
        else:
            name = "Co-Process-Broadcast"
            expect_object("process of a stream without key and a broadcast one", func, BroadcastProcessFunction)
        first = self.non_broadcast_stream
        gives = "process_element", "process_broadcast_element", "on_timer"
        result = result_type(first._env, name, output_type, func, *gives)
        spec = BroadcastProcessSpec(typed(TypedBroadcast, func, result.type), tuple(self.broadcast_state_descriptors))
        second = self.broadcast_stream.input_stream
        inputs = (*first._inputs, *(replace(i, index=1) for i in second._inputs))
        operator = first._env._add(name, spec, inputs, output_type=result.type, annotated=result.annotated)
        return DataStream(first._env, (Input(operator.id),), result.type)


def _checked(descriptors: list[Any]) -> list[MapStateDescriptor]:
    cure = 'broadcast(MapStateDescriptor("rules", Types.STRING(), Types.LONG()))'
    if not descriptors:
        raise ProgramError(
            "The broadcast stream has no broadcast state", where="broadcast", found="no descriptor", cure=cure
        )
    for descriptor in descriptors:
        if not isinstance(descriptor, MapStateDescriptor):
            raise wrong("broadcast", "map state descriptors", descriptor, cure)
        if descriptor.ttl is not None:
            raise ProgramError(
                "Broadcast state does not support a time to live",
                where="broadcast",
                found=repr(descriptor),
                cure="leave enable_time_to_live() out, and remove old entries in the function",
            )
    names = [descriptor.get_name() for descriptor in descriptors]
    if len(set(names)) < len(names):
        raise ProgramError(
            "Two broadcast states have the same name",
            where="broadcast",
            found=", ".join(names),
            cure="rename one of them",
        )
    return descriptors
