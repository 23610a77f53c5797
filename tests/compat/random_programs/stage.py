"""What a program is made of: a stage takes and gives streams of ``(key, value)`` and knows, as plain Python, what it must give.

The result of every stage depends on its input as a multiset of records with timestamps, and not on the order in which they arrive:
so all engines, rounds, parallelisms and restarts have to agree. Nothing is ever late: see ``generator.Source``.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from tests.compat.random_programs.api import Types, named

Timed = tuple[Any, int, int]
"""Key, value, timestamp."""
MODULUS = 1009
"""Values are 0 to 1008: sums stay small, and running sums grow."""
END = 1_000_000
"""A time after all data: timers there fire at the end of the input."""


@dataclass(frozen=True)
class Surroundings:
    """What stages of one program share. ``keys``: int or str, the type of all keys in it."""

    keys: type

    def key(self, number: int) -> Any:
        return number if self.keys is int else f"key-{number}"

    def key_type(self) -> Any:
        return Types.LONG() if self.keys is int else Types.STRING()

    def record_type(self) -> Any:
        return Types.TUPLE([self.key_type(), Types.LONG()])


@dataclass(frozen=True)
class Stage:
    """A step of a program; its fields are drawn by ``drawn``. ``typed``: record and key types are declared."""

    typed: bool

    inputs: ClassVar[int] = 1
    outputs: ClassVar[int] = 1
    keeps_time: ClassVar[bool] = True
    """False: what comes out has no time of its own, and is only collected."""
    needs: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Module and name of what the engine's API must have."""
    weight: ClassVar[int] = 1

    @classmethod
    def possible(cls) -> bool:
        return all(named(*need) is not None for need in cls.needs)

    @classmethod
    def drawn(cls, rng: random.Random) -> Stage:
        return cls(rng.random() < 0.5, **cls.parameters(rng))

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        """The fields besides ``typed``."""
        return {}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        """What each output gives, in any order."""
        raise NotImplementedError

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        """The same as streams of the engine."""
        raise NotImplementedError

    def is_ambiguous(self, *streams: list[Timed]) -> bool:
        """Whether this input would make the result depend on when records arrive."""
        return False

    def __str__(self) -> str:
        values = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
        return f"{type(self).__name__}({values})"

    def record_type(self, around: Surroundings) -> Any:
        return around.record_type() if self.typed else None

    def keyed(self, around: Surroundings, stream: Any) -> Any:
        return stream.key_by(first, key_type=around.key_type()) if self.typed else stream.key_by(first)


def first(record: Any) -> Any:
    return record[0]


def by_key(records: Iterable[Timed]) -> dict[Any, list[Timed]]:
    groups: dict[Any, list[Timed]] = defaultdict(list)
    for record in records:
        groups[record[0]].append(record)
    return groups


STAGES: list[type[Stage]] = []


def stage(cls: type[Stage]) -> type[Stage]:
    """Enter the class into the list programs are drawn from."""
    STAGES.append(cls)
    return cls
