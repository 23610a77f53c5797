"""Chains without a subtask around them: nodes, and bindings whose sinks collect into lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tidegate.graph.plan import ChainNode, Operator
from tidegate.graph.transformation import SinkSpec, SourceSpec
from tidegate.operators.functions import callable_of
from tidegate.operators.rewrites import prepare
from tidegate.operators.rewrites.rewrite import Rewrites


class Bindings:
    """Functions are taken from the specs. ``inline`` False: every function is called."""

    backend = None
    object_reuse = False

    def __init__(self, root: ChainNode, side_outputs: bool = True, inline: bool = True) -> None:
        self.side_outputs = side_outputs
        self.rewrites = prepare(functions(root)) if inline else Rewrites()
        self.nodes = {node.operator.id: node for node in root.walk()}
        self.values: dict[int, list[Any]] = {n: [] for n in self.nodes}
        self.times: dict[int, list[Any]] = {n: [] for n in self.nodes}
        self.contexts: dict[int, Any] = {n: type("Context", (), {"ts": None})() for n in self.nodes}

    def function(self, operator_id: int) -> Callable[..., Any]:
        return callable_of(self.nodes[operator_id].operator.spec)

    def context(self, operator_id: int) -> Any:
        return self.contexts[operator_id]

    def reduce_state(self, operator_id: int) -> Any:
        raise AssertionError

    def collector(self, operator_id: int) -> Any:
        return self.values[operator_id].append, self.times[operator_id].append

    def output(self, edge_id: int) -> Any:
        raise AssertionError


def functions(root: ChainNode) -> Iterator[Callable[..., Any]]:
    for node in root.walk():
        if not isinstance(node.operator.spec, SourceSpec | SinkSpec):
            yield callable_of(node.operator.spec)
        yield from (edge.partitioning.selector for edge in node.edges if edge.partitioning.selector is not None)


def node(n: int, spec: Any, *children: ChainNode | tuple[str, ChainNode], name: str = "") -> ChainNode:
    below = tuple(c if isinstance(c, tuple) else (None, c) for c in children)
    return ChainNode(Operator(n, name or f"op{n}", None, str(n), spec, 1, 128, None), below, ())
