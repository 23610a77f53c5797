"""The program as frozen data: transformations, their inputs and specs, and the tags of side outputs.

``DataStream`` methods build the program, and ``graph/plan.py`` turns it into chains and levels.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from tidegate.base.errors import ArgumentTypeError
from tidegate.base.generics import Generic, TypeVar
from tidegate.base.user_code import UserFunction, UserValue
from tidegate.common.job_client import RunningJob
from tidegate.common.object_types import type_of
from tidegate.common.typeinfo import TypeInformation
from tidegate.common.watermark_strategy import TimestampAssigner

Side = TypeVar("Side", default=Any)

KeySelector = Callable[[UserValue], UserValue]
"""Record -> key."""
Partitioner = Callable[[UserValue, int], int]
"""Key and number of subtasks -> index of the subtask."""


class ChainingStrategy(Enum):
    ALWAYS = "always"
    HEAD = "head"
    """Starts a chain. Operators downstream may be chained to it."""
    NEVER = "never"


class Ship(Enum):
    """Say how records are spread over the subtasks of the next operator."""

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
    """Say how records reach the subtasks of an operator.

    ``selector`` is a plain callable, for HASH and CUSTOM. A FORWARD partitioning with a selector keys records that are
    in the right subtask already, so these records may stay in their chain. ``partitioner`` is for CUSTOM. ``pickled``
    holds both callables as they were when the program named them; workers receive this copy. ``keyed`` False: records
    are spread by key, but the receiving operator is not keyed.
    """

    ship: Ship
    selector: KeySelector | None = None
    key_type: TypeInformation | None = None
    partitioner: Partitioner | None = None
    pickled: bytes | None = field(default=None, repr=False, compare=False)
    keyed: bool = True

    @property
    def has_key(self) -> bool:
        """Tell whether records come with a key."""
        return self.ship is Ship.HASH or (self.ship is Ship.FORWARD and self.selector is not None)

    @property
    def is_keyed(self) -> bool:
        """Tell whether the key of the records makes the receiving operator keyed."""
        return self.keyed and self.has_key

    def __reduce__(self) -> tuple[Callable[..., Partitioning], tuple[object, ...]]:
        if self.pickled is None:
            return Partitioning, (self.ship, self.selector, self.key_type, self.partitioner, None, self.keyed)
        return _unpickled_partitioning, (self.ship, self.key_type, self.pickled, self.keyed)


def _unpickled_partitioning(ship: Ship, key_type: TypeInformation | None, pickled: bytes, keyed: bool) -> Partitioning:
    selector, partitioner = pickle.loads(pickled)
    return Partitioning(ship, selector, key_type, partitioner, keyed=keyed)


@dataclass(frozen=True)
class Input:
    """Describe one incoming edge. ``tag`` is the id of the side output that the edge reads, None for the main output.
    ``index`` is the number of the operator's input, from 0. ``partitioning`` None: FORWARD if the parallelism is the
    same, otherwise REBALANCE."""

    upstream: int
    partitioning: Partitioning | None = None
    tag: str | None = None
    index: int = 0


class Role(Enum):
    """Name the role of an operator in the job. The value is Flink's word for the role in an execution plan."""

    SOURCE = "Data Source"
    SINK = "Data Sink"
    OPERATOR = "Operator"


class Emits(Enum):
    """Say what an operator emits for a record."""

    ONE = "one"
    """Exactly one record, which the function returns."""
    SAME_OR_NONE = "same or none"
    """The record itself, if the function returns true."""
    BATCH = "batch"
    """Records that wait until the loop has processed a batch, and then continue as a batch of their own."""
    ANY = "any"


class OperatorSpec:
    """Describe an operator as frozen data: a subclass for each kind, in ``operators/contracts/specs.py``.

    Each subclass has the typed fields of its kind. The graph and the loops ask the questions below of every kind. Only
    ``operators/kinds/registry.py`` asks which kind a spec is.
    """

    role: ClassVar[Role] = Role.OPERATOR
    inputs: ClassVar[int] = 1
    """The number of inputs that the operator distinguishes. A union is one input with several edges."""
    emits: ClassVar[Emits] = Emits.ANY
    takes_columns: ClassVar[bool] = False
    """The operator takes whole batches of columns, and emits columns then. An operator with a function over batches always
    emits columns."""
    calls_only: ClassVar[bool] = False
    """The operator itself calls the user function, so no rewrite can replace the call in the loop."""

    @property
    def kind(self) -> str:
        """Return a name that must never change: ids of operators without a uid are derived from it."""
        return type(self).__name__

    @property
    def connector(self) -> str | None:
        """Return the name of the connector of a source or a sink; None for every other role."""
        return None

    @property
    def is_bounded(self) -> bool:
        """Tell whether the operator's output ends when its inputs end. False for an unbounded source alone."""
        return True

    @property
    def user_function(self) -> object:
        """Return the user function of the operator; None: the kind has none. The function of a sink belongs to the
        sink."""
        return None

    @property
    def callables(self) -> list[UserFunction]:
        """Return the functions that the loop calls for each record, for one input after the other. Empty: the kind has
        no user function."""
        return []

    @property
    def emits_tagged(self) -> bool:
        """Tell whether an emitted record may go to a side output."""
        return False

    @property
    def gives_time(self) -> bool:
        """Tell whether an emitted record may have a timestamp although the input record had none."""
        return True

    @property
    def needs_time(self) -> bool:
        """Tell whether the operator refuses records without a timestamp."""
        return False

    @property
    def moves_time(self) -> bool:
        """Tell whether the operator makes a watermark from its input records, in the order of their arrival."""
        return False

    @property
    def timestamp_assigner(self) -> TimestampAssigner | Callable[[UserValue, int], int] | None:
        """Return the assigner of timestamps; None: records keep their timestamps."""
        return None

    @property
    def folds_columns(self) -> bool:
        """Tell whether records that arrive as columns are added as a whole, without a call for each record."""
        return False

    def in_batch_mode(self) -> OperatorSpec:
        """Return the spec that takes this one's place in batch mode."""
        return self


@dataclass(frozen=True)
class Transformation:
    """Describe one operator of the program. ``id`` is its number in the program; its inputs have smaller numbers."""

    id: int
    name: str
    spec: OperatorSpec
    inputs: tuple[Input, ...] = ()
    parallelism: int | None = None
    """None: the environment's."""
    max_parallelism: int | None = None
    uid: str | None = None
    is_named: bool = False
    """Whether the program gave the name; else all operators of the kind have the same name."""
    place: str | None = field(default=None, compare=False)
    """``file:line`` of the program that added the operator."""
    uid_place: str | None = field(default=None, compare=False)
    """``file:line`` of the program that gave the uid."""
    uid_hash: str | None = None
    """Set by the user (``set_uid_hash``); None: derived from the uid or from the position in the graph."""
    chaining: ChainingStrategy = ChainingStrategy.ALWAYS
    output_type: TypeInformation | None = None
    annotated: str | None = field(default=None, compare=False)
    """The user function whose annotation gave ``output_type``; None: the program declared the type, or there is none."""
    description: str | None = None
    slot_sharing_group: str | None = None
    buffer_timeout_ms: int | None = None
    pickled_spec: bytes | None = field(default=None, repr=False, compare=False)
    """The spec as it was when the operator was added. Workers receive this copy; None: they receive the spec as it is
    when the job starts."""


@dataclass(frozen=True)
class Program:
    """Hold everything that ``execute`` hands to the executor. ``configuration`` maps effective Flink keys to values
    (strings or builtins). ``told`` is called with the job after all checks have passed and before the job does
    anything."""

    name: str
    transformations: tuple[Transformation, ...]
    configuration: dict[str, Any]
    chaining_enabled: bool = True
    told: Callable[[RunningJob], None] | None = field(default=None, repr=False, compare=False)


class OutputTag(Generic[Side]):
    """Name a side output. A process function emits to it with ``yield tag, value``; ``DataStream.get_side_output(tag)``
    reads it.

    Two tags with the same id are the same side output. A side output without a reader is dropped.
    """

    __slots__ = ("tag_id", "type_info")

    def __init__(self, tag_id: str, type_info: TypeInformation[Side] | type[Side] | None = None) -> None:
        if not isinstance(tag_id, str) or not tag_id:
            raise ArgumentTypeError(
                "The id of an OutputTag must be a non-empty text",
                found=repr(tag_id),
                cure='OutputTag("late-orders", Types.STRING())',
            )
        self.tag_id = tag_id
        self.type_info: TypeInformation[Side] | None = type_of("OutputTag", type_info)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and other.tag_id == self.tag_id

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r})"
