"""The protocol between an operator and its subtask, which all kinds share, and the settings of a subtask.

A kind is a class in ``kinds/`` and a line in ``kinds/registry.py``. An object of the class lives as long as the worker
keeps the subtask, and takes part in round after round. The methods are called in this order:

- once: ``__init__``, ``open``; at the end of the job ``close``;
- in every round: ``restore``, ``open`` (does nothing if the operator is open), ``notify``, ``begin``;
- for every batch: ``begin_batch``, the code that ``write`` has written into the loop or ``take_batch``, then
  ``settle``, then ``on_watermark``;
- at the end of the round: ``end_round``, or ``end_input`` if no record will ever come again; ``wake_up_ms``;
  ``snapshot`` (step 5); ``end``, whatever has happened.

An operator holds no durable state from one round to the next: only the snapshot that ``restore`` hands in counts.

``Settings`` is the environment that every subtask of a job has to know.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from tidegate.base.files import Files
from tidegate.base.spooled_files import SpooledFiles
from tidegate.base.user_code import UserFunction, UserValue
from tidegate.common import options
from tidegate.graph.plan import ChainNode
from tidegate.graph.transformation import Partitioning
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.functions import DistributedCache, Hooks, SubtaskRuntimeContext
from tidegate.operators.contracts.metrics import SubtaskMetrics
from tidegate.operators.contracts.watermarks import EventTime
from tidegate.operators.flow.rows import MAX_WATERMARK, RoundContext, Status, TaskPlan
from tidegate.operators.loop.rewrites.rewrite import OfColumn
from tidegate.state.backend import KeyedBackend
from tidegate.state.context import KeyContext
from tidegate.state.local_dir import local_name
from tidegate.state.refs import Misfits
from tidegate.state.snapshot import OperatorSnapshot, Part
from tidegate.state.stores import DEFAULTS, StoreOptions

if TYPE_CHECKING:
    from tidegate.operators.loop.codegen import LoopSource

NO_LEASE = 0
"""The token of subtasks outside of a job; tokens begin with 1."""


def _system_now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Settings:
    """Hold the settings that all subtasks share. ``root``: the job's directory on checkpoint storage."""

    job_id: str
    root: str
    local_root: str
    more_roots: tuple[str, ...] = ()
    """Further directories for stores of keyed state, over which the subtasks of an operator are spread."""
    spool: str | None = None
    """Where state files wait for their checkpoint, on the host that tasks and driver share; None: they are stored with
    their round."""
    chunk_records: int = options.CHUNK_RECORDS.default
    state_backend: str = options.STATE_BACKEND.default
    stores: StoreOptions = DEFAULTS
    cache_bytes: int = options.CACHE_SIZE.default
    compressed: bool = options.COMPRESSION.default
    """State files are compressed."""
    strong_hashes: bool = False
    """References to state files carry a cryptographic hash: the metadata that holds them is signed."""
    allow_pickle: bool = options.ALLOW_PICKLE.default
    """State may be pickled."""
    parameters: dict[str, str] = field(default_factory=dict)
    cached_files: dict[str, str] = field(default_factory=dict)
    """Name -> path where the program was started."""
    object_reuse: bool = options.OBJECT_REUSE.default
    """Records are never copied: the program promises not to change records that it has emitted or received."""
    inline: bool = options.INLINE_FUNCTIONS.default
    """Small functions are written into the loop instead of called."""
    fast_json: bool = options.FAST_JSON.default
    """``json.loads`` and ``json.dumps`` of user code are answered by faster code (``loop/fast_json.py``)."""
    json_fields: bool = options.JSON_FIELDS.default
    """Only the fields of JSON texts that a loop uses are decoded (``loop/decoding.py``)."""
    sessions_in_memory: bool = options.SESSIONS_IN_MEMORY.default
    """Event-time sessions are merged in memory, and written to state once in a round."""
    heavy_keys: str = options.HEAVY_KEYS.default
    """Whether the heaviest keys are looked for, and shown (``flow/heavy_keys.py``)."""
    key_salt: str | None = None
    """Secret of the job: hides keys. None: the job hides none."""
    batch_mode: bool = False
    """There is no watermark before the end of input, where the timers of both kinds fire."""
    watermark_interval_ms: int = options.AUTO_WATERMARK_INTERVAL.default
    """How often generators of watermarks are called while no record comes; 0: only ``on_event`` emits watermarks."""
    lease: int = NO_LEASE
    """The token of the job attempt: it grows from attempt to attempt."""
    publishes_rounds: bool = False
    """Prepared output of sinks is committed with its round, and not with a checkpoint (at-least-once)."""
    force_unaligned: bool = False
    """Records that a user's partitioner has spread may wait in a checkpoint too."""
    replays: bool = False
    """A round is run again for inspection (``runtime/replay.py``): no sink is touched."""
    now_ms: Callable[[], int] = _system_now_ms

    @property
    def local_name(self) -> str:
        """Return the name of the job on a host."""
        return local_name(self.job_id, self.root)

    @property
    def local_roots(self) -> tuple[str, ...]:
        return self.local_root, *self.more_roots

    def store_root(self, operator: str, subtask: int) -> str:
        """Return the directory for the store of a subtask, the same in every round. The subtasks of an operator are
        spread over the directories."""
        roots = self.local_roots
        return roots[(zlib.crc32(operator.encode()) + subtask) % len(roots)]

    def state_files(self) -> Files:
        """Return the storage where tasks write and read state files."""
        if self.spool:
            return SpooledFiles(self.root, self.spool, strong=self.strong_hashes)
        return Files(self.root, strong=self.strong_hashes)


class EndOfInput(Enum):
    """Say where the end of the chain's input lies, relative to a round."""

    AHEAD = "ahead"
    NOW = "now"
    """This round has reached the end."""
    PAST = "past"
    """An earlier round has reached the end: no timer fires any more, and closed functions stay closed."""


@dataclass
class OperatorRound:
    """Hold what operators may know of their round. ``token``: of this attempt of the task."""

    context: RoundContext
    plan: TaskPlan
    token: str
    clock: Callable[[], int]
    end_of_input: EndOfInput = EndOfInput.AHEAD
    holds_time: bool = False
    """Records do not arrive in the order in which they were sent: an assigner of watermarks looks at them, and emits
    nothing yet."""

    def now_ms(self) -> int:
        """Return processing time, never earlier than the time of the driver, which decided that a timer is due."""
        return max(self.context.now_ms, self.clock())


@dataclass(frozen=True)
class OperatorSetup:
    """Hold what a subtask gives an operator. ``index``: of the subtask. ``input_time``: event time at the operator's
    input. ``emit``: takes batches that the operator emits outside of the loop. ``tags``: the operator's function may
    emit to side outputs. ``advance(now_ms, exact)``: brings the operators downstream up to the operator's
    ``output_time`` before it emits more; ``exact``: other chains, too, see that watermark between what was emitted and
    what will be emitted. ``column_of``: how a function
    of a record, which is a row or not, is evaluated for a whole batch, if there is a way.
    """

    index: int
    settings: Settings
    input_time: EventTime
    emit: Callable[[Batch], None]
    tags: bool = True
    advance: Callable[[int, bool], None] = lambda now_ms, exact: None
    column_of: Callable[[UserFunction, bool], OfColumn | None] = lambda function, rows: None


class StreamOperator:
    """Run one operator in one subtask. A subclass must define ``write`` or ``take_batch``; everything else may stay as
    it is here."""

    collects: ClassVar[bool] = False
    """The operator takes whole batches (``take_batch``, ``settle``), and a loop collects its records."""
    takes_columns: ClassVar[bool] = False
    """``take_batch`` may also be called inside of a chain, with a batch of columns."""
    emits_fresh: ClassVar[bool] = False
    """No one else holds the emitted records: the first reader needs no copy."""
    follows_input: ClassVar[bool] = True
    """Whether the output watermark depends on the watermark of the input."""

    def __init__(self, node: ChainNode, setup: OperatorSetup) -> None:
        self.node, self.setup, self.operator = node, setup, node.operator
        self.input_time = setup.input_time
        self.output_time = setup.input_time
        """Event time downstream. An operator that makes event time, or that has to act before event time advances, sets
        its own ``EventTime`` here."""
        self.metrics = SubtaskMetrics(self.operator.name)
        self.tags = setup.tags and node.operator.spec.emits_tagged
        self.declined: str | None = None
        """Why this round's snapshot must not become a part of a checkpoint; reset by ``restore``."""
        self.misfits: list[Misfits] = []
        """Misfits of the operator's states, keyed and not keyed."""
        self.hooks = [hooks for edge in node.edges for hooks in self._hooks_of(edge.partitioning, "after")]
        self.taken: Any = None
        """What is known of the records that the loop hands to the operator (``loop/codegen.py``, ``Held``)."""

    @property
    def id(self) -> int:
        return self.operator.id

    @property
    def key_context(self) -> KeyContext | None:
        """Return the object whose ``key`` is the current key, set for every record; None where the operator is not
        keyed."""
        return None

    # -- as long as the worker lives ---------------------------------------------------------------------------------

    def _hooks_of(self, partitioning: Partitioning, where: str) -> list[Hooks]:
        found = []
        for function in (partitioning.selector, partitioning.partitioner):
            owner = getattr(function, "__self__", None)  # a bound method of a KeySelector or Partitioner
            if owner is not None:
                found.append(self._hooks(owner, f"partitioning {where} operator '{self.operator.name}'"))
        return found

    def _hooks(
        self, function: object, where: str, backend: KeyedBackend | None = None, kind: type[Hooks] = Hooks
    ) -> Hooks:
        settings = self.setup.settings
        cache = DistributedCache(settings.job_id, settings.cached_files)
        context = SubtaskRuntimeContext(
            self.operator, self.setup.index, backend, settings.parameters, self.metrics, cache
        )
        return kind(function, where, context)

    def open(self) -> None:
        for hooks in self.hooks:
            hooks.open()

    def notify(self, completed: tuple[int, ...], aborted: tuple[int, ...]) -> None:
        """Report checkpoints of earlier rounds that are complete, or were aborted."""
        for hooks in self.hooks:
            hooks.notify(completed, aborted)

    def close_at_end(self, end: EndOfInput) -> None:
        """Close functions after the end of input. A function that waits for the last checkpoint is closed after its
        notification."""
        for hooks in self.hooks:
            if end is EndOfInput.PAST or not hooks.listens:
                hooks.close()

    def close(self) -> None:
        """Close the functions: the job, or this attempt of it, has finished in this worker."""
        for hooks in self.hooks:
            hooks.close()

    # -- records -----------------------------------------------------------------------------------------------------

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        """Write the code that handles the record in the variable ``value``. ``keyed``: its key is in ``tg_k``.
        ``input``: the number of the record's input, from 0."""
        raise NotImplementedError

    def looks_with(self, looks: Callable[[UserFunction], bool]) -> bool:
        """Tell whether the operator does nothing with a record but call a function that ``looks`` at it. Such an operator
        may get a record that others read too."""
        return False

    @property
    def in_loop(self) -> bool:
        """Tell whether an operator that collects does its work on a record inside of the loop around it, and passes the record
        on there. ``settle`` then follows the operators after it."""
        return False

    @property
    def needs_rows(self) -> bool:
        """Tell whether the operator, which takes columns, would make rows of them."""
        return False

    @property
    def passes_through(self) -> list[UserFunction] | None:
        """Return the functions that see the records, if the operator emits the very records it has taken; otherwise None."""
        return None

    def begin_batch(self, keys: list[UserValue] | None, now_ms: int) -> None:
        """Prepare for a batch that is about to enter the chain. ``keys``: of its records, at the head of the chain."""

    def take_batch(self, batch: Batch) -> None:
        """Process a batch as the head of the chain (if the operator ``collects``)."""
        raise NotImplementedError

    def fold_batch(self, batch: Batch) -> bool:
        """Process a keyed batch of columns as a whole, at the head of the chain. False: nothing has happened, and the
        loop processes the records."""
        return False

    def settle(self) -> None:
        """Process what was collected: the loop has finished a batch."""

    # -- a round -----------------------------------------------------------------------------------------------------

    def fits(self, snapshot: OperatorSnapshot) -> bool:
        """Tell whether the functions may continue from the snapshot. If not, the subtask is made again before the
        round."""
        return True

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        """Begin a round with the snapshot of the last accepted round. Functions may not be open yet."""
        self.round, self.declined = round, None
        self.metrics.begin()
        if self.output_time is not self.input_time:
            self.output_time.watermark, self.output_time.idle = snapshot.watermark, snapshot.idle

    def rehearse(self, snapshot: OperatorSnapshot, round: OperatorRound) -> list[str]:
        """Return the states that are declared otherwise than they are stored, before the first round. This covers the
        states that are known now and the states that functions ask for as they open."""
        found: list[str] = []
        for misfits in self.misfits:
            misfits.kept = found
        try:
            self.restore(snapshot, round)
            self.open()
        finally:
            for misfits in self.misfits:
                misfits.kept = None
        return found

    def begin(self) -> None:
        """Bring up the state: functions are open and have been notified."""

    def on_processing_time(self, now_ms: int) -> None:
        """Handle the time that has passed since the last round."""

    def on_watermark(self, now_ms: int) -> None:
        """Bring ``output_time`` up to ``input_time``: records have passed, and ``input_time`` may have advanced."""

    def end_of_key(self, now_ms: int) -> None:
        """End the current key in batch mode, at the head of a chain: its last record has passed, and the records of the
        next key follow."""

    def end_input(self, now_ms: int) -> None:
        """End the input: the last record of all has passed, and ``input_time`` has the last watermark."""
        self.on_watermark(now_ms)

    def end_round(self, now_ms: int) -> None:
        """End the round: no more records come in this round, but in later rounds."""
        self.on_watermark(now_ms)

    def wake_up_ms(self, now_ms: int) -> int | None:
        """Return when the operator wants another round even without a record."""
        return None

    def prepare_commit(self) -> list[object] | None:
        """Step 5 of a sink, before ``snapshot``: return what has to be committed with the checkpoint. None: the
        operator is not a sink."""
        return None

    def snapshot(self) -> OperatorSnapshot:
        """Step 5: return the durable state of the operator. ``restore`` hands it to the next round, on any host."""
        return OperatorSnapshot(self.parts(), *self.status(self.round.end_of_input))

    def state_shares(self) -> dict[str, dict[str, int]]:
        """Return, after ``snapshot``, how many bytes of each file that this round has written belong to which state, about:
        path -> name -> bytes. Files with one state are left out."""
        return {}

    def status(self, end: EndOfInput) -> Status:
        """Return the status of the output, with which the next round starts."""
        return Status(self.output_time.watermark if end is EndOfInput.AHEAD else MAX_WATERMARK, self.output_time.idle)

    def parts(self) -> dict[str, Part]:
        """Return the state that the operator has to keep, by name."""
        return {}

    def end(self, *, abort: bool) -> None:
        """Finish the round: the ack is sent. ``abort``: the round will not be accepted."""


class CollectingOperator(StreamOperator):
    """Run an operator that works on whole batches: the loop collects ``values`` and ``timestamps`` for it. A subclass
    processes both in ``settle`` and clears them."""

    collects: ClassVar[bool] = True

    def __init__(self, node: ChainNode, setup: OperatorSetup) -> None:
        super().__init__(node, setup)
        self.values: list[Any] = []
        self.timestamps: list[Any] = []

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        self.clear()  # drop what a failed round has left

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        owner = source.owner(self.node, value)
        source.line(depth, f"{source.bind(f'w{self.id}', self.values.append)}({value})", owner)
        if source.timed:
            source.line(depth, f"{source.bind(f'q{self.id}', self.timestamps.append)}(tg_t)", owner)

    def take_batch(self, batch: Batch) -> None:
        self.values.extend(batch.rows())
        self.timestamps.extend(batch.time_list() or ())
        self.settle()

    def clear(self) -> None:
        self.values.clear()
        self.timestamps.clear()
