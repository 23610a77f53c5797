"""A program as JSON in the shape of Flink's execution plan. Only shown: ids and names that bind stand in the program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tidegate.common.options import PARALLELISM
from tidegate.graph.transformation import Input, Partitioning, Program, Role, Ship, Transformation

KEYED = "_stream_key_by_map_operator"
"""PyFlink's name of the operator that adds the key to a record. Here the key is made on the way, and that is a node as well."""

_PREFIXES = {Role.SOURCE: "Source: ", Role.SINK: "Sink: "}


def execution_plan(program: Program) -> str:
    """Nodes with their predecessors and how records reach them: sources and sinks under their own names, and a node for each
    partitioning by key."""
    return json.dumps({"nodes": list(_Plan(program).nodes())}, indent=2)


class _Plan:
    def __init__(self, program: Program) -> None:
        self._program = program
        default = program.configuration[PARALLELISM.key]
        self._degree = {t.id: t.parallelism or default for t in program.transformations}
        self._keyed: dict[tuple[int, str | None, int], int] = {}
        """What is keyed how -> the id of its node: several operators may read one keyed stream."""

    def nodes(self) -> Iterator[dict[str, Any]]:
        for t in self._program.transformations:
            predecessors = []
            for i in t.inputs:
                if i.partitioning is None or i.partitioning.ship is not Ship.HASH:
                    predecessors.append(_edge(i.upstream, self._ship(i, t.id)))
                    continue
                known = (i.upstream, i.tag, id(i.partitioning))
                if known not in self._keyed:
                    self._keyed[known] = max(self._degree) + len(self._keyed) + 1
                    above = [_edge(i.upstream, Ship.FORWARD.value)]
                    yield _node(self._keyed[known], KEYED, KEYED, "Operator", self._degree[i.upstream], above)
                predecessors.append(_edge(self._keyed[known], Ship.HASH.value))
            contents, role = t.description or shown_name(t), t.spec.role.value
            yield _node(t.id, shown_name(t), contents, role, self._degree[t.id], predecessors)

    def _ship(self, i: Input, reader: int) -> str:
        same = Partitioning(Ship.FORWARD if self._degree[i.upstream] == self._degree[reader] else Ship.REBALANCE)
        ship: str = (i.partitioning or same).ship.value
        return ship


def shown_name(t: Transformation) -> str:
    """``Source: orders``, ``Sink: totals``."""
    prefix = _PREFIXES.get(t.spec.role, "")
    return t.name if t.name.startswith(prefix) else prefix + t.name


def _edge(upstream: int, ship: str) -> dict[str, Any]:
    return {"id": upstream, "ship_strategy": ship, "side": "second"}


def _node(
    node_id: int, name: str, contents: str, pact: str, parallelism: int, predecessors: list[dict[str, Any]]
) -> dict[str, Any]:
    node = {"id": node_id, "type": name, "pact": pact, "contents": contents, "parallelism": parallelism}
    return {**node, "predecessors": predecessors} if predecessors else node
