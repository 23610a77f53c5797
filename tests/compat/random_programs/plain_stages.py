"""Stages without state: maps, filters, flat maps, process functions, side outputs, unions, partitionings, places in the plan."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.compat.random_programs.api import ROOT, OutputTag, Types, base
from tests.compat.random_programs.stage import MODULUS, Stage, Surroundings, Timed, stage

FORMS = ("lambda", "function", "class")


class Mapped(base("datastream", "MapFunction")):  # type: ignore[misc]
    def __init__(self, factor: int, summand: int) -> None:
        self.factor, self.summand = factor, summand

    def map(self, value: Any) -> Any:
        return value[0], (value[1] * self.factor + self.summand) % MODULUS


class Kept(base("datastream", "FilterFunction")):  # type: ignore[misc]
    def __init__(self, divisor: int) -> None:
        self.divisor = divisor

    def filter(self, value: Any) -> bool:
        return bool(value[1] % self.divisor)


class Several(base("datastream", "FlatMapFunction")):  # type: ignore[misc]
    def __init__(self, most: int) -> None:
        self.most = most

    def flat_map(self, value: Any) -> Iterator[Any]:
        for number in range(value[1] % self.most):
            yield value[0], (value[1] + number) % MODULUS


@stage
@dataclass(frozen=True)
class Map(Stage):
    form: str
    factor: int
    summand: int
    weight: ClassVar[int] = 2

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {"form": rng.choice(FORMS), "factor": rng.randint(1, 9), "summand": rng.randint(0, 50)}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        return [[(k, (v * self.factor + self.summand) % MODULUS, t) for k, v, t in streams[0]]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        factor, summand = self.factor, self.summand

        def function(value: Any) -> Any:
            key, number = value
            changed = number * factor + summand
            return key, changed % MODULUS

        forms = {
            "lambda": lambda value: (value[0], (value[1] * factor + summand) % MODULUS),
            "function": function,
            "class": Mapped(factor, summand),
        }
        return [streams[0].map(forms[self.form], output_type=self.record_type(around))]


@stage
@dataclass(frozen=True)
class Filter(Stage):
    form: str
    divisor: int

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {"form": rng.choice(FORMS), "divisor": rng.randint(2, 9)}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        return [[r for r in streams[0] if r[1] % self.divisor]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        divisor = self.divisor

        def function(value: Any) -> bool:
            rest = value[1] % divisor
            return rest != 0

        forms = {"lambda": lambda value: value[1] % divisor != 0, "function": function, "class": Kept(divisor)}
        return [streams[0].filter(forms[self.form])]


@stage
@dataclass(frozen=True)
class FlatMap(Stage):
    form: str
    most: int

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {"form": rng.choice(FORMS), "most": rng.randint(1, 4)}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        return [[(k, (v + n) % MODULUS, t) for k, v, t in streams[0] for n in range(v % self.most)]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        most = self.most

        def function(value: Any) -> Iterator[Any]:
            for number in range(value[1] % most):
                yield value[0], (value[1] + number) % MODULUS

        forms = {
            "lambda": lambda value: [(value[0], (value[1] + n) % MODULUS) for n in range(value[1] % most)],
            "function": function,
            "class": Several(most),
        }
        return [streams[0].flat_map(forms[self.form], output_type=self.record_type(around))]


@stage
@dataclass(frozen=True)
class Rekey(Stage):
    """Every record gets a key by its value."""

    keys: int

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {"keys": rng.randint(1, 5)}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        return [[(around.key(v % self.keys), v, t) for _, v, t in streams[0]]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        keys = self.keys
        return [streams[0].map(lambda r: (around.key(r[1] % keys), r[1]), output_type=self.record_type(around))]


class Stamped(base("datastream", "ProcessFunction")):  # type: ignore[misc]
    """The timestamp is part of what it emits."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value[0], (value[1] + ctx.timestamp()) % MODULUS


@stage
@dataclass(frozen=True)
class Process(Stage):
    keyed_input: bool

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {"keyed_input": rng.random() < 0.3}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        return [[(k, (v + t) % MODULUS, t) for k, v, t in streams[0]]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        stream = self.keyed(around, streams[0]) if self.keyed_input else streams[0]
        function = StampedByKey() if self.keyed_input else Stamped()
        return [stream.process(function, output_type=self.record_type(around))]


class StampedByKey(base("datastream", "KeyedProcessFunction")):  # type: ignore[misc]
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), (value[1] + ctx.timestamp()) % MODULUS


class Divided(base("datastream", "ProcessFunction")):  # type: ignore[misc]
    def __init__(self, divisor: int, tag: Any) -> None:
        self.divisor, self.tag = divisor, tag

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value[1] % self.divisor == 0:
            yield self.tag, (value[0], value[1] // self.divisor)
        else:
            yield value


@stage
@dataclass(frozen=True)
class SideOutput(Stage):
    divisor: int
    outputs: ClassVar[int] = 2

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {"divisor": rng.randint(2, 4)}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        d = self.divisor
        main = [r for r in streams[0] if r[1] % d]
        return [main, [(k, v // d, t) for k, v, t in streams[0] if v % d == 0]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        tag = OutputTag("divisible", around.record_type() if self.typed else Types.PICKLED_BYTE_ARRAY())
        main = streams[0].process(Divided(self.divisor, tag), output_type=self.record_type(around))
        return [main, main.get_side_output(tag)]


@stage
@dataclass(frozen=True)
class Union(Stage):
    inputs: ClassVar[int] = 2

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        return [streams[0] + streams[1]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        # PyFlink unites streams of one type only
        same = [s.map(lambda r: r, output_type=around.record_type()) for s in streams]
        return [same[0].union(same[1])]


class Spread(base("datastream", "Partitioner")):  # type: ignore[misc]
    def partition(self, key: Any, num_partitions: int) -> int:
        return int(key) % num_partitions


@stage
@dataclass(frozen=True)
class Partitioned(Stage):
    way: str

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        # PyFlink does not always tell a partitioner how many partitions there are
        ways = ["rebalance", "shuffle", "rescale", *["custom"] * (ROOT != "pyflink")]
        return {"way": rng.choice(ways)}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        return [streams[0]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        if self.way == "custom":
            spread = streams[0].partition_custom(Spread(), lambda record: record[1])
        else:
            spread = getattr(streams[0], self.way)()
        return [spread.map(lambda record: record, output_type=self.record_type(around))]


@stage
@dataclass(frozen=True)
class Placed(Stage):
    """A map with a place of its own in the plan."""

    how: str

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {"how": rng.choice(["disable_chaining", "start_new_chain", "one", "three"])}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        return [[(k, (v + 1) % MODULUS, t) for k, v, t in streams[0]]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        mapped = streams[0].map(lambda r: (r[0], (r[1] + 1) % MODULUS), output_type=self.record_type(around))
        if self.how in ("one", "three"):
            return [mapped.set_parallelism(1 if self.how == "one" else 3)]
        return [getattr(mapped, self.how)()]
