"""Which class runs which kind of operator: the only place that asks for the kind of a spec."""

from __future__ import annotations

from tidegate.graph.plan import ChainNode
from tidegate.graph.transformation import OperatorSpec
from tidegate.operators.contracts.operator import Site, StreamOperator
from tidegate.operators.contracts.specs import (
    AsyncSpec,
    BroadcastProcessSpec,
    CoFlatMapSpec,
    CoMapSpec,
    CoProcessSpec,
    FilterSpec,
    FlatMapSpec,
    IntervalJoinSpec,
    MapSpec,
    ProcessSpec,
    ReduceSpec,
    SinkSpec,
    SlicedWindowSpec,
    SourceSpec,
    TimestampsSpec,
    WindowSpec,
)
from tidegate.operators.kinds.async_io import AsyncOperator
from tidegate.operators.kinds.broadcast_process import BroadcastProcessOperator
from tidegate.operators.kinds.co_flat_map import CoFlatMapOperator
from tidegate.operators.kinds.co_map import CoMapOperator
from tidegate.operators.kinds.co_process import CoProcessOperator
from tidegate.operators.kinds.filter import FilterOperator
from tidegate.operators.kinds.flat_map import FlatMapOperator
from tidegate.operators.kinds.interval_join import IntervalJoinOperator
from tidegate.operators.kinds.map import MapOperator
from tidegate.operators.kinds.process import ProcessOperator
from tidegate.operators.kinds.reduce import ReduceOperator
from tidegate.operators.kinds.sink import SinkOperator
from tidegate.operators.kinds.sliced_window import SlicedWindowOperator
from tidegate.operators.kinds.source import SourceOperator
from tidegate.operators.kinds.timestamps import TimestampsOperator
from tidegate.operators.kinds.window import WindowOperator

KINDS: dict[type[OperatorSpec], type[StreamOperator]] = {
    SourceSpec: SourceOperator,
    MapSpec: MapOperator,
    FlatMapSpec: FlatMapOperator,
    FilterSpec: FilterOperator,
    ProcessSpec: ProcessOperator,
    CoMapSpec: CoMapOperator,
    CoFlatMapSpec: CoFlatMapOperator,
    CoProcessSpec: CoProcessOperator,
    BroadcastProcessSpec: BroadcastProcessOperator,
    IntervalJoinSpec: IntervalJoinOperator,
    ReduceSpec: ReduceOperator,
    AsyncSpec: AsyncOperator,
    TimestampsSpec: TimestampsOperator,
    SinkSpec: SinkOperator,
    SlicedWindowSpec: SlicedWindowOperator,
    WindowSpec: WindowOperator,
}


def create(node: ChainNode, site: Site) -> StreamOperator:
    """The operator of a node, for one subtask."""
    return KINDS[type(node.operator.spec)](node, site)
