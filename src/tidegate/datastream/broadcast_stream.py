"""Broadcast state: a stream that every subtask receives completely, connected to a stream that is distributed over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tidegate.base.arguments import wrong
from tidegate.base.errors import ProgramError
from tidegate.common.typeinfo import TypeInformation
from tidegate.datastream.connected_streams import check_connected, expect_object
from tidegate.datastream.functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from tidegate.datastream.keyed_stream import KeyedStream
from tidegate.datastream.state import MapStateDescriptor
from tidegate.datastream.stream import DataStream, expect_type
from tidegate.datastream.typed_functions import TypedBroadcast, typed
from tidegate.graph.transformation import Input
from tidegate.operators.contracts.specs import BroadcastProcessSpec


class BroadcastStream:
    """The result of ``broadcast(descriptor, ...)``, for ``stream.connect(broadcast_stream)``."""

    def __init__(self, input_stream: DataStream, broadcast_state_descriptors: Iterable[MapStateDescriptor]) -> None:
        self.input_stream = input_stream
        self.broadcast_state_descriptors = _checked(list(broadcast_state_descriptors))


class BroadcastConnectedStream:
    """A stream, keyed or not, and a broadcast stream."""

    def __init__(
        self,
        non_broadcast_stream: DataStream,
        broadcast_stream: BroadcastStream,
        broadcast_state_descriptors: Iterable[MapStateDescriptor],
    ) -> None:
        check_connected("connect", non_broadcast_stream, broadcast_stream.input_stream)
        self.non_broadcast_stream, self.broadcast_stream = non_broadcast_stream, broadcast_stream
        self.broadcast_state_descriptors = _checked(list(broadcast_state_descriptors))

    def process(
        self,
        func: BroadcastProcessFunction | KeyedBroadcastProcessFunction,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Process the records of both streams, with the broadcast states, and on a keyed stream with state and timers of the
        key."""
        if isinstance(self.non_broadcast_stream, KeyedStream):
            name = "Keyed-Co-Process-Broadcast"
            expect_object("process of a keyed and a broadcast stream", func, KeyedBroadcastProcessFunction)
        else:
            name = "Co-Process-Broadcast"
            expect_object("process of a stream without key and a broadcast one", func, BroadcastProcessFunction)
        expect_type(name, output_type)
        spec = BroadcastProcessSpec(typed(TypedBroadcast, func, output_type), tuple(self.broadcast_state_descriptors))
        first, second = self.non_broadcast_stream, self.broadcast_stream.input_stream
        inputs = (*first._inputs, *(replace(i, index=1) for i in second._inputs))
        operator = first._env._add(name, spec, inputs, output_type=output_type)
        return DataStream(first._env, (Input(operator.id),), output_type)


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
