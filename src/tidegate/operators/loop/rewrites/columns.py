"""Process the part of a chain that is plain arithmetic on whole batches (``arithmetic.py``), before any loop.

From its entry the path follows maps and filters that are arithmetic and have one reader, and ends in a keyed edge: the
records leave as columns without ever having been Python objects. Where a function on the way is more than arithmetic
there is no path. So nothing runs in between that could change what a function on the path reads (globals, attributes),
or that needs a current key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import numpy as np

from tidegate.base.errors import TidegateError
from tidegate.base.user_code import UserFunction
from tidegate.common.typeinfo import RowTypeInfo, TypeInformation
from tidegate.graph.plan import Chain, ChainNode, Edge
from tidegate.graph.transformation import Emits, Role, Ship
from tidegate.operators.contracts.arrow_batch import ArrowBatch
from tidegate.operators.contracts.batch import (
    HIGHEST,
    LOWEST,
    WIDEST,
    Batch,
    Column,
    ColumnBatch,
    Int64s,
    number_column,
)
from tidegate.operators.loop.rewrites.arithmetic import check_arithmetic, evaluate, mask_of, uses_names
from tidegate.operators.loop.rewrites.bodies import Body, body_of
from tidegate.operators.loop.rewrites.fields import Field, Inexact, Ints, Record, Value, field_of
from tidegate.operators.loop.rewrites.rewrite import Bindings, Findings, OfColumn, Place, Refused, Rewrite, WholeBatch

LEAST = 64
"""The least number of records in a batch that is worth the calls. Smaller batches go through the loop."""
_PATIENCE = 16
"""The number of consecutive batches that could not be evaluated on columns, after which no batch is tried."""


class Columns(Rewrite):
    """Evaluate functions on columns. ``prepare`` returns the bodies of functions that are arithmetic."""

    name = "on columns"

    def prepare(self, function: UserFunction) -> Body:
        body = body_of(function)
        check_arithmetic(body)
        return body

    def check_place(self, chain: Chain, place: Place, prepared: Findings) -> None:
        for node, into in _entries(chain):
            path = BatchPath(node, _OnDriver(chain), prepared, into=into)
            if path.useful and path.passes(place):
                return
        raise Refused("no way of arithmetic alone leads from where batches enter, past it, to a keyed edge")

    def whole_batch(self, node: ChainNode, bindings: Bindings, prepared: Findings, *, into: bool) -> WholeBatch | None:
        path = BatchPath(node, bindings, prepared, into=into)
        return path.run if path.useful else None

    def column_of(self, function: UserFunction, prepared: Body, rows: bool) -> OfColumn | None:
        return None if uses_names(prepared) and not rows else _OneColumn(function, prepared)


class _OnDriver:
    """Show functions as they are on the driver; enough to find out where a path leads."""

    def __init__(self, chain: Chain) -> None:
        self._specs = {operator.id: operator.spec for operator in chain.operators}

    def function(self, operator_id: int) -> UserFunction:
        return self._specs[operator_id].callables[0]

    def output(self, edge_id: int) -> NoReturn:
        raise AssertionError("nothing is sent on the driver")


def _entries(chain: Chain) -> Iterator[tuple[ChainNode, bool]]:
    """Yield where batches enter: nodes, and whether before or after them."""
    head = chain.head
    if head.operator.keyed is None:
        yield head, head.operator.spec.role is not Role.SOURCE
    yield from ((node, False) for node in head.walk() if node.operator.spec.emits is Emits.BATCH)


_BY_RECORD = (Emits.ONE, Emits.SAME_OR_NONE)


class _Step(NamedTuple):
    node: ChainNode
    function: UserFunction
    body: Body


class BatchPath:
    """Find the path after ``node``, or from the node on if ``into``. ``useful``: there is a path."""

    def __init__(self, node: ChainNode, bindings: Bindings, bodies: Findings, *, into: bool) -> None:
        self._bindings, self._bodies = bindings, bodies
        self._failures = 0
        first = node if into else _only_child(node)
        self._types = {} if into else _types_after(node)
        self._steps = list(self._follow(first))
        last = self._steps[-1].node if self._steps else node
        self._edge = self._keyed_edge(last) if self._steps or not into else None
        self.useful = self._edge is not None

    def _follow(self, node: ChainNode | None) -> Iterator[_Step]:
        while node is not None and node.operator.spec.emits in _BY_RECORD and node.operator.keyed is None:
            function = self._bindings.function(node.operator.id)
            body = self._bodies.of(function)
            if body is None or (uses_names(body) and not self._has_names(node)):
                return
            yield _Step(node, function, body)
            node = _only_child(node)

    def _has_names(self, node: ChainNode) -> bool:
        """Tell whether the records that enter the node are rows."""
        return isinstance(self._types.get(node.operator.id), RowTypeInfo)

    def _keyed_edge(self, node: ChainNode) -> Edge | None:
        """Return the edge after the node, if the node has no other reader and the edge's key is arithmetic."""
        if node.children or len(node.edges) != 1:
            return None
        [edge] = node.edges
        if edge.tag is not None or edge.partitioning.ship is not Ship.HASH:
            return None
        selector = edge.partitioning.selector
        body = None if selector is None else self._bodies.of(selector)
        if body is None or (uses_names(body) and not isinstance(node.operator.output_type, RowTypeInfo)):
            return None
        return edge

    def passes(self, place: Place) -> bool:
        if place.edge is not None:
            return place.edge is self._edge
        return any(step.node is place.node for step in self._steps)

    def run(self, batch: Batch) -> bool:
        """Process the batch. Return False if nothing was processed."""
        if len(batch) < LEAST or self._failures > _PATIENCE:
            return False
        try:
            with np.errstate(all="ignore"):
                self._send(*self._through(_record_of(batch), _times_of(batch)))
        except Inexact:
            self._failures += 1
            return False
        self._failures = 0
        return True

    def _through(self, record: Value, times: Int64s | None) -> tuple[Value, Int64s | None]:
        for node, function, body in self._steps:
            result = evaluate(body, function, (record,))
            if node.operator.spec.emits is Emits.SAME_OR_NONE:
                kept = np.flatnonzero(mask_of(result))
                record, times = _take(record, kept), None if times is None else times[kept]
            else:
                record = result
        return record, times

    def _send(self, record: Value, times: Int64s | None) -> None:
        count = _length(record)
        assert self._edge is not None and self._edge.partitioning.selector is not None
        selector = self._edge.partitioning.selector
        key = evaluate(self._bodies.of(selector), selector, (record,))
        if isinstance(record, Record):
            return self._send_arrow(record, key, times)
        fields = record if isinstance(record, tuple) else (record,)
        same = next((i for i, field in enumerate(fields) if field is key and isinstance(key, Field)), None)
        columns = [_column(field, count) for field in fields]
        batch = ColumnBatch(columns, len(columns) if isinstance(record, tuple) else 0, same, times)
        output = self._bindings.output(self._edge.id)
        if len(columns) > WIDEST or not output.carries(batch):
            raise Inexact
        if count:
            try:
                output.extend(batch, _column(key, count))
            except TidegateError:
                raise Inexact from None  # a key that is not of its declared type: the loop will find the record

    def _send_arrow(self, record: Record, key: Value, times: Int64s | None) -> None:
        """Send records that are as they came, in Arrow's columns."""
        assert self._edge is not None
        batch, output = record.batch, self._bindings.output(self._edge.id)
        found = range(len(batch.layout.names)) if isinstance(key, Field) else ()
        same = next((n for n in found if record.is_field(n, key)), None)
        sent = ArrowBatch(batch.arrow, batch.layout, times, key_field=same)
        if not output.carries(sent):
            raise Inexact
        if len(record):
            try:
                output.extend(sent, _column(key, len(record)))
            except TidegateError:
                raise Inexact from None  # a key that is not of its declared type: the loop will find the record


class _OneColumn:
    """Return the ints that a function gives for a batch."""

    def __init__(self, function: UserFunction, body: Body) -> None:
        self._function, self._body = function, body
        self._failures = 0

    def __call__(self, batch: Batch, number: int) -> Int64s | None:
        if len(batch) < LEAST or self._failures > _PATIENCE:
            return None
        try:
            with np.errstate(all="ignore"):
                result = evaluate(self._body, self._function, (_record_of(batch), number))
            if not isinstance(result, Ints):
                raise Inexact
        except Inexact:
            self._failures += 1
            return None
        self._failures = 0
        return result.column


def _types_after(node: ChainNode) -> dict[int, TypeInformation | None]:
    """Return the types of the records that enter each operator after the node, by the operator's id."""
    return {child.operator.id: parent.operator.output_type for parent in node.walk() for _, child in parent.children}


def _only_child(node: ChainNode) -> ChainNode | None:
    if node.edges or len(node.children) != 1 or node.children[0][0] is not None:
        return None
    return node.children[0][1]


def _record_of(batch: Batch) -> Value:
    batch = batch.as_columns()
    if isinstance(batch, ArrowBatch):
        return Record(batch)
    if batch.columns:
        fields = tuple(map(field_of, batch.columns))
        return fields if batch.width else fields[0]
    column = number_column(batch.rows())
    if column is None:
        raise Inexact
    return field_of(column)


def _times_of(batch: Batch) -> Int64s | None:
    times = batch.time_column()
    if times is None and batch.times is not None:
        raise Inexact
    return times


def _take(record: Value, kept: Int64s) -> Value:
    if isinstance(record, tuple):
        return tuple(field.take(kept) if isinstance(field, Field) else field for field in record)
    return record.take(kept)


def _length(record: Value) -> int:
    if isinstance(record, Record):
        return len(record)
    for field in record if isinstance(record, tuple) else (record,):
        if isinstance(field, Field):
            return len(field.column)
    raise Inexact  # the same record for every input


def _column(value: Value, count: int) -> Column:
    if isinstance(value, Field):
        return value.column
    if isinstance(value, float):
        return np.full(count, value, dtype=np.float64)
    if not isinstance(value, int) or not LOWEST <= value <= HIGHEST:
        raise Inexact
    return np.full(count, value, dtype=np.int64)
