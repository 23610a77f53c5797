"""Stages with two inputs: connected streams, keyed and not, and the broadcast state pattern; and async functions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.compat.random_programs.api import Time, Types, base, named
from tests.compat.random_programs.keyed_stages import Descriptor
from tests.compat.random_programs.stage import END, MODULUS, Stage, Surroundings, Timed, by_key, first, stage

CONNECT = (
    ("datastream", "ConnectedStreams"),
    ("datastream", "CoMapFunction"),
    ("datastream", "KeyedCoProcessFunction"),
)
BROADCAST = (("datastream", "BroadcastProcessFunction"), ("datastream", "KeyedBroadcastProcessFunction"))


class BothMapped(base("datastream", "CoMapFunction")):  # type: ignore[misc]
    def map1(self, value: Any) -> Any:
        return value[0], (value[1] + 1) % MODULUS

    def map2(self, value: Any) -> Any:
        return value[0], (value[1] + 2) % MODULUS


class BothFlatMapped(base("datastream", "CoFlatMapFunction")):  # type: ignore[misc]
    def flat_map1(self, value: Any) -> Iterator[Any]:
        for _ in range(value[1] % 3):
            yield value

    def flat_map2(self, value: Any) -> Iterator[Any]:
        yield value[0], (value[1] * 2) % MODULUS


class BothStamped(base("datastream", "CoProcessFunction")):  # type: ignore[misc]
    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value[0], (value[1] + ctx.timestamp()) % MODULUS

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value[0], (value[1] + 3 * ctx.timestamp()) % MODULUS


@stage
@dataclass(frozen=True)
class Connected(Stage):
    way: str
    inputs: ClassVar[int] = 2
    needs: ClassVar[tuple[tuple[str, str], ...]] = CONNECT
    weight: ClassVar[int] = 2

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {"way": rng.choice(["map", "flat_map", "process"])}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        a, b = streams
        if self.way == "map":
            return [[(k, (v + n) % MODULUS, t) for n, s in ((1, a), (2, b)) for k, v, t in s]]
        if self.way == "flat_map":
            return [[r for r in a for _ in range(r[1] % 3)] + [(k, v * 2 % MODULUS, t) for k, v, t in b]]
        return [[(k, (v + n * t) % MODULUS, t) for n, s in ((1, a), (3, b)) for k, v, t in s]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        functions = {"map": BothMapped, "flat_map": BothFlatMapped, "process": BothStamped}
        connected = streams[0].connect(streams[1])
        return [getattr(connected, self.way)(functions[self.way](), output_type=self.record_type(around))]


class Matched(base("datastream", "KeyedCoProcessFunction")):  # type: ignore[misc]
    """Sums of both sides, kept apart; told together at the end of each stretch of time in which one of them had a record."""

    def __init__(self, size: int) -> None:
        self.size = size

    def open(self, runtime_context: Any) -> None:
        of = (Types.LONG(), Types.LONG())
        self.sides = [runtime_context.get_map_state(Descriptor["map"](name, *of)) for name in ("left", "right")]

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self.keep(0, value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self.keep(1, value, ctx)

    def keep(self, side: int, value: Any, ctx: Any) -> Iterator[Any]:
        end = min(ctx.timestamp() // self.size * self.size + self.size - 1, END * 2)
        self.sides[side].put(end, (self.sides[side].get(end) or 0) + value[1])
        ctx.timer_service().register_event_time_timer(end)
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        left, right = (side.get(timestamp) or 0 for side in self.sides)
        yield ctx.get_current_key(), (3 * left + 5 * right + timestamp) % MODULUS
        for side in self.sides:
            side.remove(timestamp)


@stage
@dataclass(frozen=True)
class ConnectedByKey(Stage):
    size: int
    keys_before: bool
    """``key_by`` on the two streams, not on the connected one."""
    inputs: ClassVar[int] = 2
    needs: ClassVar[tuple[tuple[str, str], ...]] = CONNECT
    weight: ClassVar[int] = 3

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {"size": rng.choice([10, 100, 1000]), "keys_before": rng.random() < 0.5}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        sums: dict[Any, int] = {}
        for factor, stream in zip((3, 5), streams, strict=True):
            for key, value, time in stream:
                end = min(time // self.size * self.size + self.size - 1, END * 2)
                sums[key, end] = sums.get((key, end), 0) + factor * value
        return [[(key, (total + end) % MODULUS, end) for (key, end), total in sums.items()]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        if self.keys_before:
            left, right = (self.keyed(around, stream) for stream in streams)
            connected = left.connect(right)
        elif self.typed:
            connected = streams[0].connect(streams[1]).key_by(first, first, around.key_type())
        else:
            connected = streams[0].connect(streams[1]).key_by(first, first)
        return [connected.process(Matched(self.size), output_type=self.record_type(around))]


def rules() -> Any:
    return Descriptor["map"]("rules", Types.PICKLED_BYTE_ARRAY(), Types.LONG())


class RuledAtTheEnd(base("datastream", "KeyedBroadcastProcessFunction")):  # type: ignore[misc]
    """A key's sum, and of the broadcast side the sums of this key and of all: at the end, when both sides are whole."""

    def open(self, runtime_context: Any) -> None:
        self.sum = runtime_context.get_state(Descriptor["value"]("sum", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.sum.update((self.sum.value() or 0) + value[1])
        ctx.timer_service().register_event_time_timer(END)
        yield from ()

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        state = ctx.get_broadcast_state(rules())
        state.put(value[0], (state.get(value[0]) or 0) + value[1])
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        state = ctx.get_broadcast_state(rules())
        key = ctx.get_current_key()
        total = sum(value for _, value in state.items())
        yield key, (self.sum.value() + 3 * (state.get(key) or 0) + 7 * total) % MODULUS


class Unruled(base("datastream", "BroadcastProcessFunction")):  # type: ignore[misc]
    """What it emits does not depend on what was broadcast: that comes before or after."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        found = ctx.get_broadcast_state(rules()).get(value[0])
        yield value[0], (value[1] + (11 if found is None or found >= 0 else 12)) % MODULUS

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.get_broadcast_state(rules()).put(value[0], value[1])
        yield from ()


@stage
@dataclass(frozen=True)
class Broadcast(Stage):
    by_key: bool
    inputs: ClassVar[int] = 2
    needs: ClassVar[tuple[tuple[str, str], ...]] = BROADCAST
    weight: ClassVar[int] = 2

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {"by_key": rng.random() < 0.7}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        data, broadcast = streams
        if not self.by_key:
            return [[(k, (v + 11) % MODULUS, t) for k, v, t in data]]
        ruled = {key: sum(v for _, v, _ in group) for key, group in by_key(broadcast).items()}
        total = sum(ruled.values())
        return [
            [
                (key, (sum(v for _, v, _ in group) + 3 * ruled.get(key, 0) + 7 * total) % MODULUS, END)
                for key, group in by_key(data).items()
            ]
        ]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        data = self.keyed(around, streams[0]) if self.by_key else streams[0]
        function = RuledAtTheEnd() if self.by_key else Unruled()
        connected = data.connect(streams[1].broadcast(rules()))
        return [connected.process(function, output_type=self.record_type(around))]


class Awaited(base("datastream", "AsyncFunction")):  # type: ignore[misc]
    async def async_invoke(self, value: Any) -> Any:
        import asyncio

        await asyncio.sleep(0)
        return [(value[0], (value[1] + 5) % MODULUS)] * (value[1] % 3)

    def timeout(self, value: Any) -> Any:
        raise TimeoutError


@stage
@dataclass(frozen=True)
class Async(Stage):
    ordered: bool
    capacity: int
    needs: ClassVar[tuple[tuple[str, str], ...]] = (("datastream", "AsyncFunction"), ("datastream", "AsyncDataStream"))

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {"ordered": rng.random() < 0.5, "capacity": rng.choice([1, 3, 100])}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        return [[(k, (v + 5) % MODULUS, t) for k, v, t in streams[0] for _ in range(v % 3)]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        waiting = named("datastream", "AsyncDataStream")
        wait = waiting.ordered_wait if self.ordered else waiting.unordered_wait
        return [wait(streams[0], Awaited(), Time.seconds(600), self.capacity, self.record_type(around))]
