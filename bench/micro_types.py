"""Micro-benchmark of records without a type and with one: us of processor time a record, packed and unpacked.

Run: python -m bench.micro_types. ``kept``: the copy of a record that waits in a buffer. A type from an annotation is a declared
type, so it has the same figures.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic

from tidegate.common.object_types import type_of
from tidegate.operators.flow.packing import Packer
from tidegate.operators.loop.ownership import own

RECORDS, ROUNDS = 500, 60


@dataclass
class Plain:
    name: str
    amount: int
    price: float


@dataclass(slots=True)
class Slots:
    name: str
    amount: int
    price: float


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    name: str
    amount: int
    price: float


class Named(NamedTuple):
    name: str
    amount: int
    price: float


class Struct(msgspec.Struct):
    name: str
    amount: int
    price: float


class Typed(TypedDict):
    name: str
    amount: int
    price: float


class Model(pydantic.BaseModel):
    name: str
    amount: int
    price: float


def least(work: Callable[[], Any]) -> float:
    found = []
    for _ in range(ROUNDS):
        start = time.process_time_ns()
        work()
        found.append(time.process_time_ns() - start)
    return min(found) / RECORDS / 1000


def both_ways(packer: Packer, values: list[Any]) -> float:
    packed = packer.pack(values)
    assert packer.unpack_list(packed) == values
    return least(lambda: packer.pack(values)) + least(lambda: packer.unpack_list(packed))


def main() -> None:
    kinds: list[Any] = [Plain, Slots, FrozenSlots, Named, Struct, Typed, Model]
    records = {kind: [kind(name=f"name{n % 100}", amount=n, price=n * 0.5) for n in range(RECORDS)] for kind in kinds}
    records[tuple[str, int, float]] = [(f"name{n % 100}", n, n * 0.5) for n in range(RECORDS)]
    print(f"{'':24}{'no type':>9}{'declared':>10}{'pickle':>9}{'kept':>9}")
    for kind, values in records.items():
        data = pickle.dumps(values, 5)
        figures = (
            both_ways(Packer(None), values),
            both_ways(Packer(type_of("bench", kind)), values),
            least(lambda values=values: pickle.dumps(values, 5)) + least(lambda data=data: pickle.loads(data)),  # type: ignore[misc]
            least(lambda values=values: [own(value) for value in values]),  # type: ignore[misc]
        )
        print(f"{getattr(kind, '__name__', kind)!s:24}" + "".join(f"{figure:9.2f}" for figure in figures))


if __name__ == "__main__":
    main()
