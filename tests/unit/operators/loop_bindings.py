"""Chains without a subtask around them: nodes, and their operators; what sinks are handed stays with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tidegate.connectors.values.sinks import DiscardingSink
from tidegate.graph.plan import ChainNode, Operator
from tidegate.operators.contracts.operator import CollectingOperator, OperatorSetup, Settings, StreamOperator
from tidegate.operators.contracts.watermarks import EventTime
from tidegate.operators.kinds import registry
from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.loop.rewrites import prepare
from tidegate.operators.loop.rewrites.rewrite import Rewrites

SINK = DiscardingSink()


class Bindings:
    """What a loop is made of. ``inline`` False: every function is called. ``tags``: outputs may be tagged."""

    object_reuse = False
    json_fields = True

    def __init__(self, root: ChainNode, tags: bool = True, inline: bool = True) -> None:
        self.rewrites = prepare(functions(root)) if inline else Rewrites()
        setup = OperatorSetup(0, Settings("job", "storage", "local"), EventTime(), emit=lambda batch: None, tags=tags)
        self.operators = {node.operator.id: registry.create(node, setup) for node in root.walk()}
        collecting = {n: o for n, o in self.operators.items() if isinstance(o, CollectingOperator)}
        self.values = {n: operator.values for n, operator in collecting.items()}
        self.times = {n: operator.timestamps for n, operator in collecting.items()}
        for operator in collecting.values():
            operator.settle = lambda: None  # type: ignore[method-assign]  # what was collected stays

    def operator(self, operator_id: int) -> StreamOperator:
        return self.operators[operator_id]

    def function(self, operator_id: int) -> Callable[..., Any]:
        operator = self.operators[operator_id]
        assert isinstance(operator, FunctionOperator)
        return operator.function

    def output(self, edge_id: int) -> Any:
        raise AssertionError


def functions(root: ChainNode) -> Iterator[Callable[..., Any]]:
    for node in root.walk():
        yield from node.operator.spec.callables[:1]
        yield from (edge.partitioning.selector for edge in node.edges if edge.partitioning.selector is not None)


def node(n: int, spec: Any, *children: ChainNode | tuple[str, ChainNode], name: str = "") -> ChainNode:
    below = tuple(c if isinstance(c, tuple) else (None, c) for c in children)
    return ChainNode(Operator(n, name or f"op{n}", None, str(n), spec, 1, 128, None), below, ())
