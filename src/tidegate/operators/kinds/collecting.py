"""Operators that work on whole batches inside a chain: the loop collects for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tidegate.base.user_code import UserValue
from tidegate.graph.plan import ChainNode
from tidegate.operators.contracts.operator import OperatorRound, Site, StreamOperator
from tidegate.operators.flow.column_batch import ColumnBatch, Values
from tidegate.state.snapshot import OperatorSnapshot

if TYPE_CHECKING:
    from tidegate.operators.loop.codegen import LoopSource


class CollectingOperator(StreamOperator):
    """``values`` and ``timestamps`` are what has been collected; a subclass handles them in ``settle`` and clears them."""

    collects: ClassVar[bool] = True

    def __init__(self, node: ChainNode, site: Site) -> None:
        super().__init__(node, site)
        self.values: list[UserValue] = []
        self.timestamps: list[Any] = []

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        self.clear()  # whatever a failed round has left

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        owner = source.owner(self.node, value)
        source.line(depth, f"{source.bind(f'w{self.id}', self.values.append)}({value})", owner)
        if source.timed:
            source.line(depth, f"{source.bind(f'q{self.id}', self.timestamps.append)}(tg_t)", owner)

    def take_batch(self, values: Values, timestamps: list[Any] | None) -> None:
        self.values.extend(values.rows() if isinstance(values, ColumnBatch) else values)
        if timestamps is not None:
            self.timestamps.extend(timestamps)

    def clear(self) -> None:
        self.values.clear()
        self.timestamps.clear()
