"""The program as frozen data: what ``DataStream`` methods build and ``graph/plan.py`` turns into chains and levels."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class ChainingStrategy(Enum):
    ALWAYS = "always"
    HEAD = "head"
    """Starts a chain, others may be chained behind it."""
    NEVER = "never"


class Ship(Enum):
    """How records are spread over the subtasks of the next operator."""

    FORWARD = "FORWARD"
    REBALANCE = "REBALANCE"
    RESCALE = "RESCALE"
    SHUFFLE = "SHUFFLE"
    BROADCAST = "BROADCAST"
    GLOBAL = "GLOBAL"
    HASH = "HASH"
    """By key group: makes the receiving operator keyed."""
    CUSTOM = "CUSTOM"


@dataclass(frozen=True)
class Partitioning:
    """``selector``: value -> key (HASH, CUSTOM), a plain callable. ``partitioner``: (key, n) -> index (CUSTOM).
    ``key_type``: TypeInformation of the key, or None. ``pickled``: both callables as they were when the program named them; that
    is what travels."""

    ship: Ship
    selector: Any = None
    key_type: Any = None
    partitioner: Any = None
    pickled: bytes | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.pickled is None:
            return Partitioning, (self.ship, self.selector, self.key_type, self.partitioner)
        return _unpickled_partitioning, (self.ship, self.key_type, self.pickled)


def _unpickled_partitioning(ship: Ship, key_type: Any, pickled: bytes) -> Partitioning:
    selector, partitioner = pickle.loads(pickled)
    return Partitioning(ship, selector, key_type, partitioner)


@dataclass(frozen=True)
class Input:
    """One incoming edge. ``tag``: id of the side output it reads, None for the main output.
    ``partitioning`` None: FORWARD if the parallelism is the same, else REBALANCE."""

    upstream: int
    partitioning: Partitioning | None = None
    tag: str | None = None


# -- what an operator does; ``function`` is what the user handed over: a callable or an object of PyFlink's function classes --


@dataclass(frozen=True)
class SourceSpec:
    source: Any
    watermarks: Any = None
    """A WatermarkStrategy or None."""


@dataclass(frozen=True)
class MapSpec:
    """``function``: callable or object with ``map``. On a keyed input its runtime context offers keyed state (as for all specs)."""

    function: Any


@dataclass(frozen=True)
class FlatMapSpec:
    function: Any


@dataclass(frozen=True)
class FilterSpec:
    function: Any


@dataclass(frozen=True)
class ProcessSpec:
    """``function``: object with ``process_element(value, ctx)`` and maybe ``on_timer``; yields values or ``(OutputTag, value)``."""

    function: Any


@dataclass(frozen=True)
class ReduceSpec:
    """Rolling reduce per key: emits the new aggregate for every record. ``function``: (a, b) -> c, or object with ``reduce``."""

    function: Any
    value_type: Any = None


@dataclass(frozen=True)
class TimestampsSpec:
    watermarks: Any


@dataclass(frozen=True)
class SinkSpec:
    sink: Any


OperatorSpec = SourceSpec | MapSpec | FlatMapSpec | FilterSpec | ProcessSpec | ReduceSpec | TimestampsSpec | SinkSpec


@dataclass(frozen=True)
class Transformation:
    """One operator of the program. ``id`` is its number in the program, inputs have smaller ones."""

    id: int
    name: str
    spec: OperatorSpec
    inputs: tuple[Input, ...] = ()
    parallelism: int | None = None
    """None: the environment's."""
    max_parallelism: int | None = None
    uid: str | None = None
    uid_place: str | None = field(default=None, compare=False)
    """``file:line`` of the program that gave the uid."""
    uid_hash: str | None = None
    """Set by the user (``set_uid_hash``), else made from the uid or the position in the graph."""
    chaining: ChainingStrategy = ChainingStrategy.ALWAYS
    output_type: Any = None
    description: str | None = None
    slot_sharing_group: str | None = None
    buffer_timeout_ms: int | None = None
    pickled_spec: bytes | None = field(default=None, repr=False, compare=False)
    """The spec as it was when the operator was added, which is what travels; None: as it is when the job starts."""


@dataclass(frozen=True)
class Program:
    """Everything ``execute`` hands to the executor. ``configuration``: effective Flink keys -> values (strings or builtins)."""

    name: str
    transformations: tuple[Transformation, ...]
    configuration: dict[str, Any]
    chaining_enabled: bool = True
