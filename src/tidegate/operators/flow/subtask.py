"""Run one parallel instance of a chain in a Python worker: its operators, its loops, its outputs.

A subtask lives as long as the worker keeps it, and is used round after round (``round.py``). It holds no durable state
between rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from tidegate.base.user_code import UserFunction
from tidegate.graph.plan import Chain, ChainNode
from tidegate.operators.contracts.batch import Batch, Keys
from tidegate.operators.contracts.operator import EndOfInput, OperatorSetup, Settings, StreamOperator
from tidegate.operators.contracts.watermarks import EventTime
from tidegate.operators.flow.inputs import ChannelSide
from tidegate.operators.flow.outputs import EdgeOutput, Receiver
from tidegate.operators.flow.rows import Row, TaskPlan
from tidegate.operators.kinds import registry
from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.loop.codegen import Loop
from tidegate.operators.loop.rewrites.rewrite import Rewrites
from tidegate.state.snapshot import EMPTY


class Subtask:
    """Run a chain (see the module's docstring). ``senders``: operator id -> its parallelism. ``targets``: edge id ->
    its target. ``rewrites``: of functions that need not be called. ``tagging``: ids of operators that may emit to side
    outputs."""

    on_failure: Callable[[Subtask, Exception], None] | None = None
    """Called where a round of the subtask has failed, before anything is cleaned up."""

    def __init__(
        self,
        chain: Chain,
        index: int,
        settings: Settings,
        senders: dict[int, int],
        targets: dict[int, Receiver],
        rewrites: Rewrites,
        tagging: Collection[int],
    ) -> None:
        self.chain, self.index, self.settings = chain, index, settings
        self.files = settings.state_files()
        self.rewrites = rewrites if settings.inline else Rewrites()
        self.side = ChannelSide.of(chain, index, senders, forced=settings.force_unaligned)
        self.outputs = {
            e.id: EdgeOutput(e, index, chain.parallelism, targets[e.id], settings.chunk_records)
            for node in chain.head.walk()
            for e in node.edges
        }
        self.operators: dict[int, StreamOperator] = {}
        """In the order of the chain: an operator comes after those it reads."""
        self._emitting: dict[int, Loop] = {}
        """Operator id -> the loop for what it emits outside of a loop, once it has emitted something."""
        self._create(tagging)
        self.head = self.operators[chain.head.operator.id]
        self._entries = [self._entry(number) for number in range(chain.head.operator.spec.inputs)]
        self._is_open = False

    # -- set-up ------------------------------------------------------------------------------------------------------

    def _create(self, tagging: Collection[int]) -> None:
        head = self.chain.head
        times = {head.operator.id: EventTime()}
        for node in head.walk():
            operator_id = node.operator.id
            from_outside = node is head and not self.chain.inputs
            setup = OperatorSetup(
                self.index,
                self.settings,
                times[operator_id],
                emit=partial(self._pass_on if from_outside else self._emit, operator_id),
                tags=operator_id in tagging,
                advance=partial(self._advance_after, node),
                column_of=self.rewrites.column_of,
            )
            operator = self.operators[operator_id] = registry.create(node, setup)
            times |= {child.operator.id: operator.output_time for _, child in node.children}

    def _entry(self, number: int) -> Callable[[Batch], None]:
        """Return the function that processes the batches of an input of the head."""
        return self.head.take_batch if self.head.collects else Loop(self.chain.head, self, into=True, input=number)

    # -- the parts of loops (codegen.ChainParts) -----------------------------------------------------------------------

    @property
    def object_reuse(self) -> bool:
        return self.settings.object_reuse

    def operator(self, operator_id: int) -> StreamOperator:
        return self.operators[operator_id]

    def function(self, operator_id: int) -> UserFunction:
        operator = self.operators[operator_id]
        assert isinstance(operator, FunctionOperator)
        return operator.function

    def output(self, edge_id: int) -> EdgeOutput:
        return self.outputs[edge_id]

    # -- rounds ------------------------------------------------------------------------------------------------------

    def fits(self, plan: TaskPlan) -> bool:
        """Tell whether the functions are as the last accepted round has left them."""
        return all(operator.fits(plan.snapshots.get(n, EMPTY)) for n, operator in self.operators.items())

    def begin(self) -> None:
        """Begin a round, and drop what a failed round has left."""
        for output in self.outputs.values():
            output.begin()

    def open(self, end: EndOfInput) -> None:
        """Open functions, once. Functions that were closed at the end of input are opened again only if that end is
        repeated."""
        if not self._is_open or end is EndOfInput.AHEAD:
            for operator in self.operators.values():
                operator.open()
        self._is_open = True

    def close(self) -> None:
        """Close the functions: the job, or this attempt of it, has finished in this worker."""
        for operator in self.operators.values():
            operator.close()

    # -- records -----------------------------------------------------------------------------------------------------

    def begin_batch(self, now_ms: int, keys: Keys | None = None) -> None:
        """Prepare the operators for a batch. ``keys``: the keys of its records, at the head of the chain."""
        for operator in self.operators.values():
            operator.begin_batch(keys if operator is self.head else None, now_ms)

    def process(self, number: int, batch: Batch, now_ms: int) -> None:
        """Process a batch that enters by an input of the head."""
        self.begin_batch(now_ms, batch.keys)
        self._entries[number](batch)

    def _pass_on(self, operator_id: int, batch: Batch) -> None:
        loop = self._emitting.get(operator_id)
        if loop is None:
            loop = self._emitting[operator_id] = Loop(self.operators[operator_id].node, self, into=False)
        loop(batch)

    def _emit(self, operator_id: int, batch: Batch) -> None:
        self._pass_on(operator_id, batch)
        self.flush()

    def advance(self, now_ms: int) -> None:
        """Bring the operators up to the event time of the head's input: the records before this time are processed."""
        for operator in self.operators.values():
            operator.on_watermark(now_ms)
        self.flush()

    def _advance_after(self, node: ChainNode, now_ms: int, exact: bool) -> None:
        """Do as ``advance`` does, for the operators downstream of one operator."""
        for other in node.walk():
            if other is not node:
                self.operators[other.operator.id].on_watermark(now_ms)
        if exact:
            for output in self.outputs.values():
                output.announce(self.operators[output.edge.source].output_time.watermark)
        else:
            self.flush()

    def flush(self, *, everything: bool = False) -> None:
        """Turn full buffers, or all of them, into chunks."""
        for output in self.outputs.values():
            output.flush(self.operators[output.edge.source].output_time.watermark, everything)

    def take_rows(self) -> list[Row]:
        """Return the chunks that were made since the last call."""
        rows: list[Row] = []
        for output in self.outputs.values():
            if output.rows:
                rows += output.rows
                output.rows.clear()
        return rows
