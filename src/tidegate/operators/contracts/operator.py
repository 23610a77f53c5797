"""What an operator is to the subtask it runs in: the protocol that all kinds share.

A kind is one class in ``kinds/`` and one line in ``registry.py``. An object of it lives as long as the worker keeps the subtask,
and takes part in round after round. In the order in which they are called:

- once: ``__init__``, ``open``; at the end of the job ``close``;
- in every round: ``restore``, ``open`` (does nothing where it is open), ``notify``, ``begin``;
- for every batch: ``begin_batch``, the code it has written into the loop (``write``) or ``take_batch``, then ``settle``, then
  ``on_watermark``;
- at the end of the round: ``end_round``, or ``end_input`` if no record will ever come again; ``wake_up_ms``; ``snapshot`` (step 5);
  ``end``, whatever has happened.

Nothing an operator keeps from one round to the next is state: what counts is what ``restore`` hands in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from tidegate.base.user_code import UserFunction, UserValue
from tidegate.graph.plan import ChainNode
from tidegate.graph.transformation import Partitioning
from tidegate.operators.contracts.contexts import SubtaskRuntimeContext
from tidegate.operators.contracts.distributed_cache import DistributedCache
from tidegate.operators.contracts.functions import Hooks
from tidegate.operators.contracts.metrics import SubtaskMetrics
from tidegate.operators.contracts.settings import Settings
from tidegate.operators.contracts.watermarks import Domain
from tidegate.operators.flow.column_batch import Times, Values
from tidegate.operators.flow.rows import MAX_WATERMARK, RoundContext, Status, TaskPlan
from tidegate.operators.loop.rewrites.rewrite import OfColumn
from tidegate.state.backend import KeyedBackend
from tidegate.state.context import KeyContext
from tidegate.state.refs import Misfits
from tidegate.state.snapshot import OperatorSnapshot, Part

if TYPE_CHECKING:
    from tidegate.operators.loop.codegen import LoopSource


class EndOfInput(Enum):
    """Where the end of the chain's input lies, seen from a round."""

    AHEAD = "ahead"
    NOW = "now"
    """This round has reached it."""
    BEHIND = "behind"
    """An earlier round has reached it: no timer fires any more, and functions that were closed stay closed."""


@dataclass
class OperatorRound:
    """What operators may know of the round they are in. ``token``: of this attempt of the task."""

    context: RoundContext
    plan: TaskPlan
    token: str
    clock: Callable[[], int]
    end_of_input: EndOfInput = EndOfInput.AHEAD
    holds_time: bool = False
    """What comes is not in the order in which it was sent: an assigner of watermarks looks at it, and says nothing yet."""

    def now_ms(self) -> int:
        """Processing time, never behind the driver's, which decided that a timer is due."""
        return max(self.context.now_ms, self.clock())


@dataclass(frozen=True)
class Site:
    """Where an operator lives. ``index``: of the subtask. ``above``: the watermark of its input. ``emit``: the way for records
    that it emits outside of the loop, with their timestamps or None. ``tags``: its function may emit to side outputs.
    ``advance(now_ms, exact)``: lets time go on behind it, up to its watermark ``below``, before it emits more; ``exact``: what it
    has emitted so far and what it will emit are told apart by that watermark in other chains too. ``column_of``: how a function
    of a record is evaluated for a whole batch, if there is a way."""

    index: int
    settings: Settings
    above: Domain
    emit: Callable[[Values, Times | None], None]
    tags: bool = True
    advance: Callable[[int, bool], None] = lambda now_ms, exact: None
    column_of: Callable[[UserFunction], OfColumn | None] = lambda function: None


class StreamOperator:
    """One operator in one subtask. Everything but ``write`` or ``take_batch`` may be left as it is here."""

    collects: ClassVar[bool] = False
    """It takes whole batches (``take_batch``, ``settle``) and what it is handed in a loop is collected for it."""
    emits_fresh: ClassVar[bool] = False
    """What it emits is nobody else's: the first reader need not be given a copy."""
    follows_input: ClassVar[bool] = True
    """Whether the watermark behind it has to do with that of its input."""

    def __init__(self, node: ChainNode, site: Site) -> None:
        self.node, self.site, self.operator = node, site, node.operator
        self.above = site.above
        self.below = site.above
        """The watermark behind it. An operator that has an own time, or that has to act before time goes on behind it, puts a
        domain of its own here."""
        self.metrics = SubtaskMetrics(self.operator.name)
        self.tags = site.tags and node.operator.spec.emits_tagged
        self.declined: str | None = None
        """Why this round's snapshot may not become a part of a checkpoint; reset by ``restore``."""
        self.misfits: list[Misfits] = []
        """Of its states, by key and of its own."""
        self.hooks = [hooks for edge in node.edges for hooks in self._hooks_of(edge.partitioning, "behind")]

    @property
    def id(self) -> int:
        return self.operator.id

    @property
    def key_context(self) -> KeyContext | None:
        """What has the current key as its ``key``, set for every record; None where the operator is not keyed."""
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
        settings = self.site.settings
        cache = DistributedCache(settings.job_id, settings.cached_files)
        context = SubtaskRuntimeContext(
            self.operator, self.site.index, backend, settings.parameters, self.metrics, cache
        )
        return kind(function, where, context)

    def open(self) -> None:
        for hooks in self.hooks:
            hooks.open()

    def notify(self, completed: tuple[int, ...], aborted: tuple[int, ...]) -> None:
        """Checkpoints of earlier rounds are complete, or were given up."""
        for hooks in self.hooks:
            hooks.notify(completed, aborted)

    def close_at_end(self, end: EndOfInput) -> None:
        """The input has ended: functions are closed, those that wait for the last checkpoint when they have heard of it."""
        for hooks in self.hooks:
            if end is EndOfInput.BEHIND or not hooks.listens:
                hooks.close()

    def close(self) -> None:
        """The job, or this attempt of it, is over in this worker."""
        for hooks in self.hooks:
            hooks.close()

    # -- records -----------------------------------------------------------------------------------------------------

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        """Write the code that handles the record in the variable ``value``. ``keyed``: its key is in ``tg_k``. ``input``: which
        of its inputs the record belongs to, from 0."""
        raise NotImplementedError

    def begin_batch(self, keys: list[UserValue] | None, now_ms: int) -> None:
        """A batch is about to enter the chain. ``keys``: of its records, at the head of the chain."""

    def take_batch(self, values: Values, timestamps: list[Any] | None) -> None:
        """Take a batch as the head of the chain (if it ``collects``)."""
        raise NotImplementedError

    def settle(self) -> None:
        """The loop is through with a batch: do what is to be done with what was collected."""

    # -- a round -----------------------------------------------------------------------------------------------------

    def fits(self, snapshot: OperatorSnapshot) -> bool:
        """Whether its functions may go on from there. If not, the subtask is made anew before the round."""
        return True

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        """A round begins on what the last accepted one has left. Functions may not be open yet."""
        self.round, self.declined = round, None
        self.metrics.begin()
        if self.below is not self.above:
            self.below.watermark, self.below.idle = snapshot.watermark, snapshot.idle

    def rehearse(self, snapshot: OperatorSnapshot, round: OperatorRound) -> list[str]:
        """Ahead of the first round: which of the states that are known now, or that functions ask for as they open, are declared
        otherwise than they are stored."""
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
        """Functions are open and have been notified: bring up the state."""

    def on_processing_time(self, now_ms: int) -> None:
        """Time has passed since the last round."""

    def on_watermark(self, now_ms: int) -> None:
        """Records have passed, and maybe the watermark ``above`` has advanced: let time go on ``below``."""

    def end_of_key(self, now_ms: int) -> None:
        """Batch mode, at the head of a chain: the last record of the current key has passed, and the next one's come."""

    def end_input(self, now_ms: int) -> None:
        """The last record of all has passed, and the watermark ``above`` is the last one."""
        self.on_watermark(now_ms)

    def end_round(self, now_ms: int) -> None:
        """No record comes any more in this round, but in later ones."""
        self.on_watermark(now_ms)

    def wake_up_ms(self, now_ms: int) -> int | None:
        """When it wants another round even if there is no record."""
        return None

    def prepare_commit(self) -> list[object] | None:
        """Step 5 of a sink, before ``snapshot``: what is to be committed with the checkpoint. None: it is no sink."""
        return None

    def snapshot(self) -> OperatorSnapshot:
        """Step 5: what the operator is now, durable. Whoever runs the next round, anywhere, is handed it by ``restore``."""
        return OperatorSnapshot(self.parts(), *self.status(self.round.end_of_input))

    def status(self, end: EndOfInput) -> Status:
        """How it leaves its output, which is how the next round starts."""
        return Status(self.below.watermark if end is EndOfInput.AHEAD else MAX_WATERMARK, self.below.idle)

    def parts(self) -> dict[str, Part]:
        """What the operator has to keep, by name."""
        return {}

    def end(self, *, abort: bool) -> None:
        """The ack is out. ``abort``: the round will not be accepted."""
