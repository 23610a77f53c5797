"""One parallel instance of a chain in a Python worker: its operators, its loops, its outputs.

It lives as long as the worker keeps it and is used round after round (``round.py``); nothing it keeps in between is state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

from tidegate.graph.plan import Chain, ChainNode
from tidegate.operators.contracts.operator import EndOfInput, OperatorRound, Site, StreamOperator
from tidegate.operators.contracts.settings import Settings
from tidegate.operators.contracts.watermarks import Domain
from tidegate.operators.flow.column_batch import Times, Values
from tidegate.operators.flow.feeds import ChannelFeed, Feed, SplitFeed
from tidegate.operators.flow.outputs import EdgeOutput, Target
from tidegate.operators.flow.packing import Packer
from tidegate.operators.flow.round import SubtaskRound
from tidegate.operators.flow.rows import Ack, RoundContext, Row, TaskPlan
from tidegate.operators.flow.sorted_feed import KeyedBatchFeed
from tidegate.operators.kinds import registry
from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.kinds.source import SourceOperator
from tidegate.operators.loop.codegen import Loop
from tidegate.operators.loop.rewrites.rewrite import Rewrites
from tidegate.state.key_groups import range_for
from tidegate.state.snapshot import EMPTY


class Subtask:
    """See the module's docstring. ``senders``: operator id -> its parallelism, ``targets``: edge id -> where it leads,
    ``rewrites``: of functions that need not be called, ``tagging``: ids of operators that may emit to side outputs."""

    on_failure: Callable[[Subtask, Exception], None] | None = None
    """Called where a round of it has failed, while everything still stands as it did."""

    def __init__(
        self,
        chain: Chain,
        index: int,
        settings: Settings,
        senders: dict[int, int],
        targets: dict[int, Target],
        rewrites: Rewrites,
        tagging: Collection[int],
    ) -> None:
        self.chain, self.index, self.settings = chain, index, settings
        self.files = settings.state_files()
        self.rewrites = rewrites if settings.inline else Rewrites()
        self.channels = [(e, s) for e in chain.inputs for s in range(senders[e.source])]
        self.packers = {e.id: Packer(e.record_type, chain.head.place) for e in chain.inputs}
        self.inputs = {e.id: e.input for e in chain.inputs}
        self.edges = {e.name: e.id for e in chain.inputs}
        self.kept = {e.id: e.name for e in chain.inputs if chain.may_keep(e, forced=settings.force_unaligned)}
        """Edges whose records may wait for a later round."""
        head = chain.head.operator
        self.groups = range_for(index, chain.parallelism, head.max_parallelism) if chain.has_keys else None
        self.moves_time = any(operator.spec.moves_time for operator in chain.operators)
        """Records are given a watermark here, in the order in which they are taken."""
        self.pinned = frozenset(e.name for e in chain.inputs if chain.pins(e))
        """Of these, those whose records cannot go to another subtask."""
        self.outputs = {
            e.id: EdgeOutput(e, index, chain.parallelism, targets[e.id], settings.chunk_records)
            for node in chain.head.walk()
            for e in node.edges
        }
        self.operators: dict[int, StreamOperator] = {}
        """In the order of the chain: whoever reads an operator comes behind it."""
        self._behind: dict[int, _Passage] = {}
        """Operator id -> the way of what it emits outside of the loops, once it has."""
        self._create(tagging)
        self.head = self.operators[chain.head.operator.id]
        self._entries = [self._entry(n) for n in range(max(1, chain.head.operator.spec.inputs))]
        self._is_open = False

    # -- set-up ------------------------------------------------------------------------------------------------------

    def _create(self, tagging: Collection[int]) -> None:
        above = {self.chain.head.operator.id: Domain()}
        for node in self.chain.head.walk():
            operator_id = node.operator.id
            emit, advance = partial(self._emit, operator_id), partial(self._advance_behind, node)
            column_of = self.rewrites.column_of
            site = Site(self.index, self.settings, above[operator_id], emit, operator_id in tagging, advance, column_of)
            operator = self.operators[operator_id] = registry.create(node, site)
            above |= {child.operator.id: operator.below for _, child in node.children}

    def _entry(self, number: int) -> _Passage:
        """The way of records that come in by an input of the head. A source's are those it has emitted."""
        head = self.chain.head
        if self.head.collects:
            return _Passage(lambda values, timestamps, keys: self.head.take_batch(values, timestamps), [], [self.head])
        return self._passage(Loop(head, self, into=bool(self.chain.inputs), input=number), head)

    def _passage(self, loop: Loop, node: ChainNode) -> _Passage:
        outputs: list[EdgeOutput] = []
        collecting: list[StreamOperator] = []
        waiting = [node]
        while waiting:
            reached = waiting.pop()
            operator = self.operators[reached.operator.id]
            if reached is not node and operator.collects:
                collecting.append(operator)
            else:
                outputs.extend(self.outputs[edge.id] for edge in reached.edges)
                waiting.extend(child for _, child in reversed(reached.children))
        return _Passage(loop, outputs, collecting)

    # -- what loops are made of (codegen.ChainParts) -----------------------------------------------------------------

    @property
    def object_reuse(self) -> bool:
        return self.settings.object_reuse

    def operator(self, operator_id: int) -> StreamOperator:
        return self.operators[operator_id]

    def function(self, operator_id: int) -> Callable[..., Any]:
        operator = self.operators[operator_id]
        assert isinstance(operator, FunctionOperator)
        return operator.function

    def output(self, edge_id: int) -> EdgeOutput:
        return self.outputs[edge_id]

    # -- rounds ------------------------------------------------------------------------------------------------------

    def run(self, context: RoundContext, plan: TaskPlan, rows: Iterator[Row]) -> Iterator[Row]:
        """Yields chunks, then barriers and the ack. Always drains ``rows``; a failure travels in the ack."""
        return SubtaskRound(self, context, plan).run(rows)

    def feed(self, round: OperatorRound, ack: Ack) -> Feed:
        """Where the records of a round come from."""
        if isinstance(self.head, SourceOperator):
            return SplitFeed(self, self.head, round, ack)
        if self.settings.batch_mode and self.head.key_context is not None:
            return KeyedBatchFeed(self, round, ack)
        return ChannelFeed(self, round, ack)

    def fits(self, plan: TaskPlan) -> bool:
        """Whether its functions are as the last accepted round has left them."""
        return all(operator.fits(plan.snapshots.get(n, EMPTY)) for n, operator in self.operators.items())

    def begin(self) -> None:
        """A new round: whatever a failed one left is dropped."""
        for output in self.outputs.values():
            output.begin()

    def open(self, end: EndOfInput) -> None:
        """Functions open once. Those that were closed at the end of input are opened again only if that end is repeated."""
        if not self._is_open or end is EndOfInput.AHEAD:
            for operator in self.operators.values():
                operator.open()
        self._is_open = True

    def close(self) -> None:
        """The job, or this attempt of it, is over in this worker."""
        for operator in self.operators.values():
            operator.close()

    # -- records -----------------------------------------------------------------------------------------------------

    def process(
        self, number: int, values: Values, timestamps: Times | None, keys: list[Any] | None, now_ms: int
    ) -> None:
        """A batch comes in by an input of the head."""
        for operator in self.operators.values():
            operator.begin_batch(keys if operator is self.head else None, now_ms)
        self._entries[number](values, timestamps, keys)

    def _emit(self, operator_id: int, values: Values, timestamps: Times | None) -> None:
        if operator_id not in self._behind:
            node = self.operators[operator_id].node
            self._behind[operator_id] = self._passage(Loop(node, self, into=False), node)
        self._behind[operator_id](values, timestamps, None)
        self.cut(everything=False)

    def advance(self, now_ms: int) -> None:
        """The records before the watermark of the head's input are through."""
        for operator in self.operators.values():
            operator.on_watermark(now_ms)
        self.cut(everything=False)

    def _advance_behind(self, node: ChainNode, now_ms: int, exact: bool) -> None:
        """As ``advance``, for the operators behind one."""
        for below in node.walk():
            if below is not node:
                self.operators[below.operator.id].on_watermark(now_ms)
        if exact:
            self.announce()
        else:
            self.cut(everything=False)

    def announce(self) -> None:
        """What has left the chain so far stands before its watermark, what comes stands behind it: for all receivers."""
        for output in self.outputs.values():
            output.announce(self.operators[output.edge.source].below.watermark)

    def cut(self, *, everything: bool) -> None:
        """Turn full buffers, or all, into chunks."""
        for output in self.outputs.values():
            output.cut(self.operators[output.edge.source].below.watermark, everything)

    def take_rows(self) -> Iterator[Row]:
        for output in self.outputs.values():
            if output.rows:
                yield from output.rows
                output.rows.clear()


class _Passage:
    """One way into a chain: a loop, the outputs it reaches, and the operators that it collects for."""

    def __init__(self, take: Callable[..., None], outputs: list[EdgeOutput], collecting: list[StreamOperator]) -> None:
        self._take, self._outputs, self._collecting = take, outputs, collecting

    def __call__(self, values: Values, timestamps: Times | None, keys: list[Any] | None) -> None:
        for output in self._outputs:
            output.carry(timestamps is not None)
        self._take(values, timestamps, keys)
        for operator in self._collecting:
            operator.settle()
