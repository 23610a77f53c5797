"""Chains without a subtask around them: nodes, and bindings whose sinks collect into lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.graph.plan import ChainNode, Operator
from tidegate.operators.bodies import bodies_of
from tidegate.operators.functions import callable_of


class Bindings:
    """Functions are taken from the specs. ``inline`` False: every function is called."""

    backend = None
    object_reuse = False

    def __init__(self, root: ChainNode, side_outputs: bool = True, inline: bool = True) -> None:
        self.side_outputs, self._inline = side_outputs, inline
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

    def body(self, function: Callable[..., Any]) -> Any:
        return next(iter(bodies_of([function]).values()), None) if self._inline else None


def node(n: int, spec: Any, *children: ChainNode | tuple[str, ChainNode], name: str = "") -> ChainNode:
    below = tuple(c if isinstance(c, tuple) else (None, c) for c in children)
    return ChainNode(Operator(n, name or f"op{n}", None, str(n), spec, 1, 128, None), below, ())
