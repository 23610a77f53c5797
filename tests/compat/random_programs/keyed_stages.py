"""Stages with keyed state of every kind, timers and time to live; and the running aggregations of keyed streams."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.compat.random_programs.api import Time, Types, base, named
from tests.compat.random_programs.stage import END, MODULUS, Stage, Surroundings, Timed, by_key, stage

Descriptor = {
    kind: named("datastream.state", f"{kind.capitalize()}StateDescriptor")
    for kind in ("value", "list", "map", "reducing", "aggregating")
}
StateTtlConfig = named("datastream.state", "StateTtlConfig")


def add(a: int, b: int) -> int:
    return a + b


class Sum(base("datastream", "AggregateFunction")):  # type: ignore[misc]
    """Of values; the accumulator is not the result."""

    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: int, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> int:
        return int(accumulator[0])

    def merge(self, a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1]


def with_ttl(descriptor: Any, ttl: bool) -> Any:
    """A time to live that nothing outlives: another form of the entries, the same result."""
    if ttl:
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(7)).build())
    return descriptor


class SumAtTheEnd(base("datastream", "KeyedProcessFunction")):  # type: ignore[misc]
    """The sum of a key's values, kept in a state of the given kind, when the input has ended. Deleted timers do not fire."""

    def __init__(self, kind: str, typed: bool, ttl: bool) -> None:
        self.kind, self.typed, self.ttl = kind, typed, ttl

    def open(self, runtime_context: Any) -> None:
        of = Types.LONG() if self.typed else Types.PICKLED_BYTE_ARRAY()
        further = {
            "map": (Types.LONG(), of),
            "reducing": (add, of),
            "aggregating": (Sum(), Types.PICKLED_BYTE_ARRAY()),
        }.get(self.kind, (of,))
        descriptor = with_ttl(Descriptor[self.kind]("sum", *further), self.ttl)
        methods = {"value": "get_state"}
        self.state = getattr(runtime_context, methods.get(self.kind, f"get_{self.kind}_state"))(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        number = value[1]
        if self.kind == "value":
            self.state.update((self.state.value() or 0) + number)
        elif self.kind == "map":
            self.state.put(number % 3, (self.state.get(number % 3) or 0) + number)
        else:
            self.state.add(number)
        timers = ctx.timer_service()
        timers.register_event_time_timer(END)
        timers.register_event_time_timer(END + 1 + number)
        timers.delete_event_time_timer(END + 1 + number)
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), (self.total() + timestamp) % MODULUS
        self.state.clear()

    def total(self) -> int:
        if self.kind == "value":
            return int(self.state.value())
        if self.kind == "map":
            return sum(value for _, value in self.state.items())
        return sum(self.state.get()) if self.kind == "list" else int(self.state.get())


@stage
@dataclass(frozen=True)
class StateAtTheEnd(Stage):
    kind: str
    ttl: bool
    weight: ClassVar[int] = 4

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {"kind": rng.choice(list(Descriptor)), "ttl": rng.random() < 0.3}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        return [[(k, (sum(v for _, v, _ in group) + END) % MODULUS, END) for k, group in by_key(streams[0]).items()]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        function = SumAtTheEnd(self.kind, self.typed, self.ttl)
        return [self.keyed(around, streams[0]).process(function, output_type=self.record_type(around))]


class SumByTime(base("datastream", "KeyedProcessFunction")):  # type: ignore[misc]
    """Sums of a key's values by stretches of time, each emitted by a timer at the end of its stretch, and then forgotten."""

    def __init__(self, kind: str, size: int, ttl: bool) -> None:
        self.kind, self.size, self.ttl = kind, size, ttl

    def open(self, runtime_context: Any) -> None:
        if self.kind == "map":
            descriptor = Descriptor["map"]("sums", Types.LONG(), Types.LONG())
            self.state = runtime_context.get_map_state(with_ttl(descriptor, self.ttl))
        elif self.kind == "list":
            descriptor = Descriptor["list"]("waiting", Types.TUPLE([Types.LONG(), Types.LONG()]))
            self.state = runtime_context.get_list_state(with_ttl(descriptor, self.ttl))
        else:
            descriptor = Descriptor["value"]("sums", Types.PICKLED_BYTE_ARRAY())
            self.state = runtime_context.get_state(with_ttl(descriptor, self.ttl))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        end = ctx.timestamp() // self.size * self.size + self.size - 1
        ctx.timer_service().register_event_time_timer(end)
        if self.kind == "map":
            self.state.put(end, (self.state.get(end) or 0) + value[1])
        elif self.kind == "list":
            self.state.add((end, value[1]))
        else:
            sums = self.state.value() or {}
            self.state.update({**sums, end: sums.get(end, 0) + value[1]})
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), self.take(timestamp) % MODULUS

    def take(self, end: int) -> int:
        if self.kind == "map":
            total = self.state.get(end)
            self.state.remove(end)
            return int(total)
        if self.kind == "list":
            waiting = list(self.state.get())
            self.state.update([entry for entry in waiting if entry[0] != end])
            return sum(number for time, number in waiting if time == end)
        sums = dict(self.state.value())
        total = sums.pop(end)
        self.state.update(sums)
        return int(total)


@stage
@dataclass(frozen=True)
class StateByTime(Stage):
    kind: str
    size: int
    ttl: bool
    weight: ClassVar[int] = 3

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {
            "kind": rng.choice(["map", "list", "value"]),
            "size": rng.choice([1, 7, 50, 1000]),
            "ttl": rng.random() < 0.3,
        }

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        sums: dict[Any, int] = {}
        for key, value, time in streams[0]:
            end = time // self.size * self.size + self.size - 1
            sums[key, end] = sums.get((key, end), 0) + value
        return [[(key, total % MODULUS, end) for (key, end), total in sums.items()]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        function = SumByTime(self.kind, self.size, self.ttl)
        return [self.keyed(around, streams[0]).process(function, output_type=self.record_type(around))]


class Largest(base("datastream", "KeyedProcessFunction")):  # type: ignore[misc]
    """Of a running result that grows, the last: at the end of the input. ``sign`` -1: of one that falls."""

    def __init__(self, sign: int) -> None:
        self.sign = sign

    def open(self, runtime_context: Any) -> None:
        sign = self.sign
        descriptor = Descriptor["reducing"]("largest", lambda a, b: a if sign * a >= sign * b else b, Types.LONG())
        self.state = runtime_context.get_reducing_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.state.add(value[1])
        ctx.timer_service().register_event_time_timer(END)
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), self.state.get() % MODULUS


@stage
@dataclass(frozen=True)
class Running(Stage):
    """A result for every record; the last one of each key counts."""

    aggregation: str
    weight: ClassVar[int] = 2

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {"aggregation": rng.choice(["reduce", "sum", "min", "max", "min_by", "max_by"])}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        functions = {"min": min, "min_by": min, "max": max, "max_by": max}
        function = functions.get(self.aggregation, sum)
        return [[(k, function([v for _, v, _ in g]) % MODULUS, END) for k, g in by_key(streams[0]).items()]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        same = streams[0].map(lambda r: r, output_type=around.record_type())  # fields by position need a type
        keyed = self.keyed(around, same)
        if self.aggregation == "reduce":
            running = keyed.reduce(lambda a, b: (a[0], a[1] + b[1]))
        else:
            running = getattr(keyed, self.aggregation)(1)
        sign = -1 if self.aggregation.startswith("min") else 1
        return [self.keyed(around, running).process(Largest(sign), output_type=self.record_type(around))]
