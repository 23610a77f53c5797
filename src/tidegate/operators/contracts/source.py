"""Define the source protocol: an enumerator on the driver plans intervals, readers on the executors read them.

A position is plain data (None, bool, int, float, str, list, dict), because it goes into checkpoint metadata.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from tidegate.base.generics import Generic, TypeVar
from tidegate.operators.contracts.batch import Batch as Batch
from tidegate.operators.contracts.batch import Given

Read = TypeVar("Read", covariant=True, default=Any)


class Boundedness(Enum):
    BOUNDED = "bounded"
    CONTINUOUS_UNBOUNDED = "unbounded"


@dataclass(frozen=True)
class SplitInterval:
    """What one subtask reads of one split in one round: ``[start, end)``.

    ``split`` is stable over the life of the split (watermarks are kept per split). ``units`` is the size in the
    source's own unit (records, bytes), comparable with the ``limit`` of ``plan``. ``last`` says that no record of the
    split follows.
    """

    split: str
    subtask: int
    start: Any
    end: Any
    units: int = 0
    last: bool = False


@dataclass(frozen=True)
class SourcePlan:
    """The result of ``SplitEnumerator.plan``.

    ``backlog``: more could be read right now, but the limit held it back. ``wake_up_ms``: when nothing (more) is
    available, the wall clock time at which planning again makes sense; None: only the end of input or new outside data
    changes anything. ``finished``: with these intervals the whole (bounded) source is read. An empty plan with
    ``finished`` is legal. ``held``: set by the planner: the enumerator was not asked, because its records would only
    wait. ``awaited``: set by the planner: ``SplitEnumerator.awaited`` after this plan.
    """

    intervals: list[SplitInterval] = field(default_factory=list)
    backlog: bool = False
    wake_up_ms: int | None = None
    finished: bool = False
    held: bool = False
    awaited: frozenset[int] = frozenset()


class Lag(NamedTuple):
    """Say how much a source knows of and has not planned yet, for each subtask that has something left. ``unit``: what is
    counted, ``records`` or ``bytes``."""

    by_subtask: Mapping[int, int]
    unit: str = "records"


class SplitEnumerator(ABC):
    """Plan the intervals of a source on the driver. Deterministic: the same position gives the same records again, for
    as long as the source can replay."""

    @abstractmethod
    def plan(self, limit: int, now_ms: int, /) -> SourcePlan:
        """Plan the next intervals, about ``limit`` units in total over all splits, and advance past them.

        Event time waits for a split from its first interval on. So a source whose splits are read at the same time
        returns an interval of each split in the first plan: an empty interval (``start == end``) if the split has no
        record yet.

        If the round is discarded, the engine makes a new enumerator from the snapshot it took before this call.
        """

    @abstractmethod
    def snapshot(self) -> Any:
        """Return plain data from which ``Source.create_enumerator`` continues after everything planned so far, at any
        parallelism."""

    @property
    def behind(self) -> int | None:
        """Return the number of available records after everything planned so far, as the latest ``plan`` has found it:
        no request is made for it. None: the source cannot tell."""
        return None

    @property
    def lag(self) -> Lag | None:
        """Return what ``behind`` returns, by subtask, also if the source counts something else than records. Called after
        every round: it must be quick, and no request is made for it. None: the source cannot tell."""
        return None

    @property
    def awaited(self) -> frozenset[int]:
        """Return the subtasks that get another split when the split they read has ended, or have had none. Between two
        splits, and before the first split, such a subtask is not idle: otherwise others could move event time past the
        records it reads next."""
        return frozenset()

    def checkpoint_complete(self, position: Any, /) -> None:
        """Handle a complete and committed checkpoint with this snapshot: report to the outside how far the job is, if
        the outside wants to know. Best effort, and quick: it runs between two rounds."""

    def rewind(self, position: Any, /) -> bool:
        """Go back to a snapshot that this enumerator gave before a round which was discarded. Return False if the
        enumerator cannot: it is then closed, and a new enumerator is made from the snapshot."""
        return False

    can_hold: bool = False
    """Whether ``hold`` has an effect. Otherwise either all splits of a source wait for others, or none."""

    def hold(self, splits: frozenset[str], /) -> None:
        """Leave these splits out of ``plan`` until the next call: their event time is too far ahead of other splits."""

    def close(self) -> None:
        """Release what the enumerator holds on the driver."""


class SplitReader(ABC):
    """Read splits in a Python worker. A reader is cached for one source subtask, and used by one round after
    another."""

    interleaves: bool = False
    """Another split may be read before an iterator of ``read`` has ended. The splits of a round are then read side by
    side: first the split with the lowest event time, and without watermarks the split of which the smallest part is
    read. Otherwise they are read one after the other, and event time advances when the last one is read."""

    @abstractmethod
    def read(self, interval: SplitInterval, /) -> Iterator[Given]:
        """Yield the records of the interval in order, in batches of at most some thousand. Each is a ``Batch``, or a
        pair of its records (a list, a range or a ``ColumnBatch``) and their event timestamps, or None where the source
        knows no timestamps."""

    def close(self) -> None:
        """Release what the reader holds."""


@dataclass(frozen=True)
class SourceContext:
    """Hold what a job gives its source on the driver."""

    directory: str
    """The directory on checkpoint storage for files of this source (``taskowned/<uid hash>``); create it before use."""
    lease: int
    """The token of the job attempt, which grows."""
    retained: int
    """The number of checkpoints that are kept."""


class Source(Generic[Read], ABC):
    """Read records from the outside: the argument of ``env.from_source``. Pickled once to the executors."""

    boundedness: Boundedness = Boundedness.BOUNDED
    can_replay: bool = True
    """False (socket): after a failure records are lost, the job's guarantee is at-most-once."""
    to_raise: str = "read from a source that can be read again (Kafka, files ...)"
    """What a user can do about a job that promises less because of this source."""
    can_stop: bool = True
    """False (socket): records that the source has taken from outside and not handed over yet are lost when it ends. So
    a job that reads the source can be cancelled, but not stopped."""
    initial_limit: int = 50_000
    """Units of the first round; the planner adapts from there."""
    maximum_limit: int | None = None
    """Units that no round should exceed, if the source has a reason."""
    emits_tagged: bool = False
    """Whether a value ``(OutputTag, record)`` goes to a side output. An assigner of timestamps does not see such
    records."""
    gives_time: bool = True
    """Whether a record may come with a timestamp. False where no record has one: operators that need timestamps are
    then refused early."""
    splits_in_turn: bool = False
    """A subtask reads its splits one after the other, each to its end (files), so a split counts for event time from
    its start. False: all splits of a subtask advance at the same time (partitions of a queue), and the slowest decides.
    """

    announces_batches: bool = False
    """All subtasks downstream of the source's chain see the event time after each batch of a reader, and not only once
    in a while. It costs a chunk for each batch: for tests."""

    @abstractmethod
    def create_enumerator(self, parallelism: int, restored: Any | None, /) -> SplitEnumerator:
        """Return an enumerator. ``restored``: a snapshot, possibly of another parallelism, or None at the first start.
        Raise before anything is read if the source is not usable (missing path ...)."""

    def create_enumerator_in(
        self, context: SourceContext, parallelism: int, restored: Any | None, /
    ) -> SplitEnumerator:
        """Return an enumerator as ``create_enumerator`` does, for a source that keeps files on checkpoint storage."""
        return self.create_enumerator(parallelism, restored)

    @abstractmethod
    def create_reader(self, subtask: int, /) -> SplitReader:
        """Return the reader of splits for a subtask; called once in each worker that runs the subtask."""
