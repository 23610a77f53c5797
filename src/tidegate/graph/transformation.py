"""The program as frozen data: what ``DataStream`` methods build and ``graph/plan.py`` turns into chains and levels."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar


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
    """``selector``: value -> key (HASH, CUSTOM), a plain callable. A FORWARD one with a selector keys records that lie with the
    right subtask already, so they may stay in their chain. ``partitioner``: (key, n) -> index (CUSTOM).
    ``key_type``: TypeInformation of the key, or None. ``pickled``: both callables as they were when the program named them; that
    is what travels. ``keyed`` False: records are spread by key, and what receives them is not keyed by it."""

    ship: Ship
    selector: Any = None
    key_type: Any = None
    partitioner: Any = None
    pickled: bytes | None = field(default=None, repr=False, compare=False)
    keyed: bool = True

    @property
    def has_key(self) -> bool:
        """Whether records come with a key."""
        return self.ship is Ship.HASH or (self.ship is Ship.FORWARD and self.selector is not None)

    @property
    def is_keyed(self) -> bool:
        """Whether their key makes the receiving operator keyed."""
        return self.keyed and self.has_key

    def __reduce__(self) -> tuple[Any, ...]:
        if self.pickled is None:
            return Partitioning, (self.ship, self.selector, self.key_type, self.partitioner, None, self.keyed)
        return _unpickled_partitioning, (self.ship, self.key_type, self.pickled, self.keyed)


def _unpickled_partitioning(ship: Ship, key_type: Any, pickled: bytes, keyed: bool) -> Partitioning:
    selector, partitioner = pickle.loads(pickled)
    return Partitioning(ship, selector, key_type, partitioner, keyed=keyed)


@dataclass(frozen=True)
class Input:
    """One incoming edge. ``tag``: id of the side output it reads, None for the main output. ``index``: which of the operator's
    inputs it is, from 0. ``partitioning`` None: FORWARD if the parallelism is the same, else REBALANCE."""

    upstream: int
    partitioning: Partitioning | None = None
    tag: str | None = None
    index: int = 0


# -- what an operator does; ``function`` is what the user handed over: a callable or an object of PyFlink's function classes --


class Emits(Enum):
    """What an operator emits for a record."""

    ONE = "one"
    """Exactly one record, which its function returns."""
    SAME_OR_NONE = "same or none"
    """The record itself, if its function says so."""
    ANY = "any"


class OperatorSpec:
    """What an operator does, as frozen data: a subclass for each kind.

    What the graph, the driver and the API ask of a kind is answered here, by class attributes; what a subtask does for it stands
    in the class that ``operators/kinds/registry.py`` has for it. Nobody else asks which kind it is.
    """

    is_source: ClassVar[bool] = False
    is_sink: ClassVar[bool] = False
    inputs: ClassVar[int] = 1
    """How many inputs it tells apart. A union is one input with several edges."""
    method: ClassVar[str | None] = None
    """What a function object has to have; None: the kind has no function."""
    second_method: ClassVar[str | None] = None
    """What is called for the records of the second input, if it tells two apart."""
    takes_callables: ClassVar[bool] = True
    """Whether a plain callable may stand for the function object."""
    calls_only: ClassVar[bool] = False
    """The function is called by the operator itself: no rewrite can stand in the loop for it."""
    keeps_state: ClassVar[bool] = True
    """Whether it has state and timers by key where its input is keyed."""
    emits: ClassVar[Emits] = Emits.ANY
    emits_batches: ClassVar[bool] = False
    """What it takes in waits until the loop is through with a batch, and goes on as a batch of its own."""
    emits_tagged: ClassVar[bool] = False
    """Whether what it emits may go to a side output."""
    gives_time: ClassVar[bool] = True
    """Whether what it emits may have a timestamp though what it took had none."""
    needs_time: ClassVar[bool] = False
    """Whether it refuses records without a timestamp."""
    moves_time: ClassVar[bool] = False
    """Whether it makes a watermark from the records it takes, in the order in which they come."""
    is_rolling: ClassVar[bool] = False
    """Emits a result for each record where in batch mode there is one, the last."""

    broadcast_states: tuple[Any, ...] = ()
    """Descriptors of the maps that all its subtasks hold alike."""

    @property
    def connector(self) -> str | None:
        """Of a source or a sink: what it reads or writes with."""
        return None

    # of those kinds that have them
    source: Any
    watermarks: Any
    declared: Any
    sink: Any
    function: Any
    value_type: Any
    type_info: Any
    lower: int
    upper: int
    left_late: str | None
    right_late: str | None
    left_fixed: bool
    right_fixed: bool

    @property
    def kind(self) -> str:
        """A name that binds: ids of operators without uid are made of it."""
        return type(self).__name__


@dataclass(frozen=True)
class SourceSpec(OperatorSpec):
    is_source = True
    inputs = 0
    keeps_state = False

    source: Any
    watermarks: Any = None
    """A WatermarkStrategy or None."""
    declared: Any = None
    """The type that records are converted to; None: the source gives records of the stream's type itself."""

    @property
    def connector(self) -> str:
        return type(self.source).__name__

    @property
    def emits_tagged(self) -> bool:  # type: ignore[override]
        return bool(getattr(self.source, "emits_tagged", False))

    @property
    def gives_time(self) -> bool:  # type: ignore[override]
        return _assigns(self.watermarks) or bool(getattr(self.source, "gives_time", True))


@dataclass(frozen=True)
class MapSpec(OperatorSpec):
    """``function``: callable or object with ``map``. On a keyed input its runtime context offers keyed state (as for all specs)."""

    method = "map"
    gives_time = False
    emits = Emits.ONE

    function: Any


@dataclass(frozen=True)
class FlatMapSpec(OperatorSpec):
    method = "flat_map"
    gives_time = False

    function: Any


@dataclass(frozen=True)
class FilterSpec(OperatorSpec):
    method = "filter"
    gives_time = False
    emits = Emits.SAME_OR_NONE

    function: Any


@dataclass(frozen=True)
class ProcessSpec(OperatorSpec):
    """``function``: object with ``process_element(value, ctx)`` and maybe ``on_timer``; yields values or ``(OutputTag, value)``."""

    method = "process_element"
    takes_callables = False
    emits_tagged = True

    function: Any


@dataclass(frozen=True)
class CoMapSpec(OperatorSpec):
    """``function``: object with ``map1`` and ``map2``. None as a result is no record."""

    inputs = 2
    method, second_method = "map1", "map2"
    takes_callables = False

    function: Any


@dataclass(frozen=True)
class CoFlatMapSpec(OperatorSpec):
    inputs = 2
    method, second_method = "flat_map1", "flat_map2"
    takes_callables = False

    function: Any


@dataclass(frozen=True)
class CoProcessSpec(OperatorSpec):
    """As ``ProcessSpec``, with a method for each of two inputs."""

    inputs = 2
    method, second_method = "process_element1", "process_element2"
    takes_callables = False
    emits_tagged = True

    function: Any


@dataclass(frozen=True)
class BroadcastProcessSpec(OperatorSpec):
    """As ``ProcessSpec``; of the second input, which is broadcast, ``process_broadcast_element`` makes the broadcast states."""

    inputs = 2
    method, second_method = "process_element", "process_broadcast_element"
    takes_callables = False
    emits_tagged = True

    function: Any
    broadcast_states: tuple[Any, ...] = ()


@dataclass(frozen=True)
class IntervalJoinSpec(OperatorSpec):
    """``function``: object with ``process_element(left, right, ctx)``. A right record joins a left one from ``lower`` to ``upper``
    milliseconds behind it, both included. ``left_late``, ``right_late``: ids of the side outputs for late records, or None.
    ``left_fixed``, ``right_fixed``: records cannot change, by their declared type."""

    inputs = 2
    method = "process_element"
    takes_callables = False
    needs_time = True
    emits_tagged = True

    function: Any
    lower: int
    upper: int
    left_late: str | None = None
    right_late: str | None = None
    left_fixed: bool = False
    right_fixed: bool = False


@dataclass(frozen=True)
class ReduceSpec(OperatorSpec):
    """Rolling reduce per key: emits the new aggregate for every record. ``function``: (a, b) -> c, or object with ``reduce``."""

    method = "reduce"
    gives_time = False
    is_rolling = True

    function: Any
    value_type: Any = None


@dataclass(frozen=True)
class WindowSpec(OperatorSpec):
    """Windows of any kind. ``function``: a WindowOperation (operators/windows/operation.py)."""

    method = "add"
    takes_callables = False
    calls_only = True
    emits_tagged = True

    function: Any

    @property
    def needs_time(self) -> bool:  # type: ignore[override]
        return _needs_time(self.function.assigner)


@dataclass(frozen=True)
class SlicedWindowSpec(OperatorSpec):
    """Aligned event-time windows that fire when the watermark passes them; ``function`` as above."""

    method = "add"
    takes_callables = False
    emits_tagged = True

    function: Any

    @property
    def needs_time(self) -> bool:  # type: ignore[override]
        return _needs_time(self.function.assigner)


@dataclass(frozen=True)
class AsyncSpec(OperatorSpec):
    """``function``: object with the coroutine ``async_invoke`` and with ``timeout``. ``retry``: a retry strategy or None."""

    method = "async_invoke"
    takes_callables = False
    keeps_state = False
    emits_batches = True

    function: Any
    ordered: bool
    timeout_ms: int
    capacity: int
    retry: Any = None


@dataclass(frozen=True)
class TimestampsSpec(OperatorSpec):
    keeps_state = False
    emits_batches = True

    watermarks: Any

    @property
    def gives_time(self) -> bool:  # type: ignore[override]
        return _assigns(self.watermarks)

    @property
    def moves_time(self) -> bool:  # type: ignore[override]
        return self.watermarks is not None and self.watermarks.kind != "none"


@dataclass(frozen=True)
class SinkSpec(OperatorSpec):
    is_sink = True
    keeps_state = False

    sink: Any
    type_info: Any = None
    """The declared type of the records: what does not fit never reaches the sink."""

    @property
    def connector(self) -> str:
        """Of a sink that calls a function of the user's, that function."""
        function = getattr(self.sink, "function", None)
        if function is None:
            return type(self.sink).__name__
        name = getattr(function, "__name__", None)
        return type(function).__name__ if name is None else "lambda" if name == "<lambda>" else f"function {name}"


def _assigns(strategy: Any) -> bool:
    """Whether it gives timestamps; else it reads those that are there."""
    return getattr(strategy, "timestamp_assigner", None) is not None


def _needs_time(assigner: Any) -> bool:
    return bool(getattr(type(assigner).assign_windows, "needs_time", False))


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
    is_named: bool = False
    """Whether the program has given the name; else it is one for all operators of the kind."""
    place: str | None = field(default=None, compare=False)
    """``file:line`` of the program that has added it."""
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
    """Everything ``execute`` hands to the executor. ``configuration``: effective Flink keys -> values (strings or builtins).
    ``told``: called with the job when all checks have passed and before it does anything."""

    name: str
    transformations: tuple[Transformation, ...]
    configuration: dict[str, Any]
    chaining_enabled: bool = True
    told: Callable[[Any], None] | None = field(default=None, repr=False, compare=False)
