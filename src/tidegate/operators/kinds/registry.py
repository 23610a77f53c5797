"""Map each kind of operator to the class that runs it. This is the only place that asks for the kind of a spec."""

from __future__ import annotations

from tidegate.graph.plan import ChainNode
from tidegate.graph.transformation import OperatorSpec
from tidegate.operators.contracts.operator import OperatorSetup, StreamOperator
from tidegate.operators.contracts.specs import (
    AsyncSpec,
    BatchSpec,
    BroadcastProcessSpec,
    CoFlatMapSpec,
    CoMapSpec,
    CoProcessSpec,
    FilterSpec,
    FlatMapSpec,
    IntervalJoinSpec,
    KeyedBatchSpec,
    MapSpec,
    ProcessSpec,
    ReduceSpec,
    SessionWindowSpec,
    SinkSpec,
    SlicedWindowSpec,
    SourceSpec,
    TimestampsSpec,
    WindowSpec,
)
from tidegate.operators.kinds.async_io import AsyncOperator
from tidegate.operators.kinds.functions import (
    BatchOperator,
    BroadcastProcessOperator,
    CoMapOperator,
    FilterOperator,
    FlatMapOperator,
    KeyedBatchOperator,
    MapOperator,
    ProcessOperator,
    ReduceOperator,
)
from tidegate.operators.kinds.interval_join import IntervalJoinOperator
from tidegate.operators.kinds.session_window import SessionWindowOperator
from tidegate.operators.kinds.sink import SinkOperator
from tidegate.operators.kinds.sliced_window import SlicedWindowOperator
from tidegate.operators.kinds.source import SourceOperator, TimestampsOperator
from tidegate.operators.kinds.window import WindowOperator

KINDS: dict[type[OperatorSpec], type[StreamOperator]] = {
    SourceSpec: SourceOperator,
    MapSpec: MapOperator,
    FlatMapSpec: FlatMapOperator,
    FilterSpec: FilterOperator,
    ProcessSpec: ProcessOperator,
    CoMapSpec: CoMapOperator,
    CoFlatMapSpec: FlatMapOperator,
    CoProcessSpec: ProcessOperator,
    BroadcastProcessSpec: BroadcastProcessOperator,
    IntervalJoinSpec: IntervalJoinOperator,
    ReduceSpec: ReduceOperator,
    AsyncSpec: AsyncOperator,
    BatchSpec: BatchOperator,
    KeyedBatchSpec: KeyedBatchOperator,
    TimestampsSpec: TimestampsOperator,
    SinkSpec: SinkOperator,
    SlicedWindowSpec: SlicedWindowOperator,
    SessionWindowSpec: SessionWindowOperator,
    WindowSpec: WindowOperator,
}


def create(node: ChainNode, setup: OperatorSetup) -> StreamOperator:
    """Return the operator of a node, for one subtask."""
    return KINDS[type(node.operator.spec)](node, setup)
