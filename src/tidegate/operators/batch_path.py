"""The part of a chain that is plain arithmetic on ints, done to whole batches (``arithmetic.py``) before any loop.

From its entry on the path follows maps and filters as long as each has one reader and is arithmetic. It ends in a keyed edge, and
then the records leave as columns without ever having been Python objects, or at anything else, which is
handed the records as a loop over records would hand them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

import numpy as np

from tidegate.graph.plan import ChainNode, Edge
from tidegate.graph.transformation import FilterSpec, MapSpec, Ship
from tidegate.operators.arithmetic import Inexact, Ints, Value, evaluate, is_arithmetic, mask_of, reads_outside
from tidegate.operators.bodies import Body
from tidegate.operators.vectors import WIDEST, Int64s, IntColumns, int_column

LEAST = 64
"""Records of a batch that is worth the calls. A trickle goes through the loop."""
_PATIENCE = 16
"""Batches in a row that turned out not to be for columns, after which none is tried."""

Rest = Callable[[list[Any], "list[Any] | None"], None]


class Bindings(Protocol):
    """What a path needs to know of the subtask it runs in; a part of ``codegen.Bindings``."""

    def function(self, operator_id: int) -> Callable[..., Any]: ...

    def output(self, edge_id: int) -> Any: ...

    def body(self, function: Callable[..., Any]) -> Body | None: ...


class _Step(NamedTuple):
    node: ChainNode
    function: Callable[..., Any]
    body: Body


class BatchPath:
    """The path behind ``node``, or from it on if ``into``. ``rest(node)`` makes the loop behind the last node of the path."""

    def __init__(self, node: ChainNode, bindings: Bindings, *, into: bool, rest: Callable[[ChainNode], Rest]) -> None:
        self._bindings = bindings
        self._failures = 0
        steps = list(self._follow(node if into else _only_child(node)))
        last = steps[-1].node if steps else node
        self._edge = self._keyed_edge(last) if steps or not into else None
        if self._edge is None:
            steps = _before_called_functions(steps, keyed=into and node.operator.keyed is not None)
        self._steps = steps
        self.useful = bool(steps) or self._edge is not None
        self._rest = rest(steps[-1].node) if steps and self._edge is None else None

    def _follow(self, node: ChainNode | None) -> Iterator[_Step]:
        while node is not None and isinstance(node.operator.spec, MapSpec | FilterSpec):
            function = self._bindings.function(node.operator.id)
            body = self._bindings.body(function)
            if body is None or not is_arithmetic(body):
                return
            yield _Step(node, function, body)
            node = _only_child(node)

    def _keyed_edge(self, node: ChainNode) -> Edge | None:
        """The edge behind the node, if nobody else reads it and its key is arithmetic."""
        if node.children or len(node.edges) != 1:
            return None
        [edge] = node.edges
        if edge.tag is not None or edge.partitioning.ship is not Ship.HASH:
            return None
        selector: Any = edge.partitioning.selector
        return edge if is_arithmetic(self._bindings.body(selector)) else None

    def run(self, values: Any, timestamps: list[Any] | None) -> bool:
        """Whether the batch was processed. If not, nothing has happened."""
        if len(values) < LEAST or self._failures > _PATIENCE:
            return False
        try:
            self._through(values, timestamps)
        except Inexact:
            self._failures += 1
            return False
        self._failures = 0
        return True

    def _through(self, values: Any, timestamps: list[Any] | None) -> None:
        record, times = _record_of(values), _times_of(timestamps)
        for node, function, body in self._steps:
            result = evaluate(body, function, (record,))
            if isinstance(node.operator.spec, FilterSpec):
                kept = np.flatnonzero(mask_of(result))
                record, times = _take(record, kept), None if times is None else times[kept]
            else:
                record = result
        count = _length(record)
        if not count:
            return
        if self._edge is None:
            assert self._rest is not None
            rows = _columns_of(record, count).rows()  # the last thing that can be Inexact: from here on, effects
            self._rest(rows, None if times is None else times.tolist())
        else:
            self._send(self._edge, record, count, times)

    def _send(self, edge: Edge, record: Value, count: int, times: Int64s | None) -> None:
        selector: Any = edge.partitioning.selector
        body = self._bindings.body(selector)
        assert body is not None
        key = evaluate(body, selector, (record,))
        fields = record if isinstance(record, tuple) else (record,)
        same = next((i for i, field in enumerate(fields) if field is key and isinstance(key, Ints)), None)
        columns, keys = _columns_of(record, count), _column(key, count)
        output = self._bindings.output(edge.id)
        if not output.carries(columns):
            raise Inexact
        output.extend(columns, keys, same, times)


def _before_called_functions(steps: list[_Step], keyed: bool) -> list[_Step]:
    """The steps that may be done to a batch before what is behind them is done to its records one by one. Functions there may
    change what a step reads, between two records; and may use the state of the current key (``keyed``), which only a loop sets.
    """
    return [] if keyed else list(takewhile(lambda step: not reads_outside(step.body), steps))


def _only_child(node: ChainNode) -> ChainNode | None:
    if node.edges or len(node.children) != 1 or node.children[0][0] is not None:
        return None
    return node.children[0][1]


def _record_of(values: Any) -> Value:
    if isinstance(values, IntColumns):
        fields = tuple(map(Ints.of, values.columns))
        return fields if values.width else fields[0]
    column = int_column(values)
    if column is None:
        raise Inexact
    return Ints.of(column)


def _times_of(timestamps: list[Any] | None) -> Int64s | None:
    times = None if timestamps is None else int_column(timestamps)
    if timestamps is not None and times is None:
        raise Inexact
    return times


def _take(record: Value, kept: Any) -> Value:
    if isinstance(record, tuple):
        return tuple(field.take(kept) if isinstance(field, Ints) else field for field in record)
    return record.take(kept)


def _length(record: Value) -> int:
    for field in record if isinstance(record, tuple) else (record,):
        if isinstance(field, Ints):
            return len(field.column)
    raise Inexact  # the same record for every input


def _columns_of(record: Value, count: int) -> IntColumns:
    if not isinstance(record, tuple):
        return IntColumns([_column(record, count)], 0)
    if len(record) > WIDEST:
        raise Inexact
    return IntColumns([_column(field, count) for field in record], len(record))


def _column(value: Value, count: int) -> Int64s:
    if isinstance(value, Ints):
        return value.column
    if not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise Inexact
    return np.full(count, value, dtype=np.int64)
