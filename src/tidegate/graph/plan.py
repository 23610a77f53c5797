"""Turn a Program into a JobGraph: resolve parallelism and ids, fuse operators into chains, put chains into levels.

An operator that needs timestamps is refused here if a source upstream gives none. Otherwise the job would fail at its
first record.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Generic, TypeVar

from tidegate.base.errors import ProgramError
from tidegate.base.hashing import stable_hash
from tidegate.common.typeinfo import TypeInformation
from tidegate.graph.transformation import (
    ChainingStrategy,
    Input,
    OperatorSpec,
    Partitioning,
    Program,
    Role,
    Ship,
    Transformation,
)


def refuse_untimed(program: Program) -> None:
    """Refuse a program in which no path to an operator gives timestamps: every record would fail the job."""
    gives: dict[int, bool] = {}
    for t in program.transformations:  # ids grow along the inputs
        comes_with_time = any(gives[i.upstream] for i in t.inputs)
        if t.spec.needs_time and not comes_with_time:
            raise _untimed(t, program)
        gives[t.id] = t.spec.gives_time or comes_with_time


def _untimed(t: Transformation, program: Program) -> ProgramError:
    by_id = {each.id: each for each in program.transformations}
    above, waiting = set[int](), [t.id]
    while waiting:
        for i in by_id[waiting.pop()].inputs:
            if i.upstream not in above:
                above.add(i.upstream)
                waiting.append(i.upstream)
    upstream = [each for each in program.transformations if each.id in above]
    sources = ", ".join(repr(each.name) for each in upstream if each.spec.role is Role.SOURCE)
    return ProgramError(
        f"'{t.name}' uses event time, but its records have no timestamps",
        where=f"operator '{t.name}'" + (f", {t.place}" if t.place else ""),
        found=f"records of {sources} have none (Long.MIN_VALUE timestamp in Flink), and no operator on the path assigns any",
        cure="call assign_timestamps_and_watermarks(...) with a timestamp assigner before, or use processing time",
    )


UPPER_BOUND_MAX_PARALLELISM = 1 << 15

Spec = TypeVar("Spec", bound=OperatorSpec)
SpecOf = TypeVar("SpecOf", bound=OperatorSpec, covariant=True)


@dataclass(frozen=True)
class OperatorOf(Generic[SpecOf]):
    """Describe one operator with everything resolved, and with a spec of a known type. ``keyed`` says how its input is
    keyed, or is None; of several inputs the first keyed one counts. ``output_type`` is the declared type, or None."""

    id: int
    name: str
    uid: str | None
    uid_hash: str
    spec: SpecOf
    parallelism: int
    max_parallelism: int
    keyed: Partitioning | None
    output_type: TypeInformation | None = None
    pickled_spec: bytes | None = field(default=None, repr=False, compare=False)
    place: str | None = field(default=None, repr=False, compare=False)
    """``file:line`` of the program that added the operator."""
    is_named: bool = field(default=False, repr=False, compare=False)

    @property
    def label(self) -> str:
        """Return a text for people: ``KafkaSink 'orders-out'``. For a source or a sink: the connector, with the name or
        the uid that the program gave, or with the line that added the operator. A label is no key: it may change with
        the program."""
        connector = self.spec.connector
        if connector is None:
            return self.name
        given = self.name if self.is_named else self.uid
        if given is None and self.place:
            return f"{connector} at {os.path.basename(self.place)}"
        return f"{connector} '{given or self.name}'"

    def spec_as(self, kind: type[Spec]) -> Spec:
        """Return the spec as the kind for which the registry made the caller."""
        assert isinstance(self.spec, kind), f"operator {self.name!r} has no {kind.__name__}"
        return self.spec

    def __reduce__(self) -> tuple[Callable[..., Operator], tuple[object, ...]]:
        """Pickle the spec as it was when the operator was added: this spec reaches the subtasks."""
        if self.pickled_spec is None:
            return OperatorOf, tuple(getattr(self, f.name) for f in fields(self))
        operator: Operator = self
        return _with_spec, (replace(operator, spec=OperatorSpec(), pickled_spec=None), self.pickled_spec)


Operator = OperatorOf[OperatorSpec]
"""An operator of any kind."""


def _with_spec(operator: Operator, pickled_spec: bytes) -> Operator:
    return replace(operator, spec=pickle.loads(pickled_spec))


@dataclass(frozen=True)
class Edge:
    """Describe the records of the operator ``source`` (an id) that leave their chain for another chain: those of its
    side output ``tag``, or of its main output. ``record_type`` is the declared type, or None. ``input`` is the number
    of the target's input. ``name`` is the same in every run of the program."""

    id: int
    source: int
    tag: str | None
    target: int
    partitioning: Partitioning
    record_type: TypeInformation | None = None
    input: int = 0
    name: str = ""


@dataclass(frozen=True)
class ChainNode:
    """Hold an operator inside a chain with the readers of its outputs: nodes that are chained to it, and edges that
    leave the chain."""

    operator: Operator
    children: tuple[tuple[str | None, ChainNode], ...]
    edges: tuple[Edge, ...]

    @property
    def place(self) -> str:
        """Return the operator for messages, with the line of the program that added it."""
        operator = self.operator
        return f"operator '{operator.name}'" + (f", added at {operator.place}" if operator.place else "")

    def walk(self) -> Iterator[ChainNode]:
        """Yield this node and all nodes downstream, every node before its readers. A chain may be longer than Python's
        recursion limit."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(child for _, child in reversed(node.children))

    def __reduce__(self) -> tuple[Callable[..., ChainNode], tuple[object, ...]]:
        """Pickle a flat list: pickle would recurse once for each node."""
        nodes = list(self.walk())
        number = {id(node): n for n, node in enumerate(nodes)}
        flat = [(n.operator, [(tag, number[id(child)]) for tag, child in n.children], n.edges) for n in nodes]
        return _unflattened, (flat,)


def _unflattened(flat: list[tuple[Operator, list[tuple[str | None, int]], tuple[Edge, ...]]]) -> ChainNode:
    nodes: dict[int, ChainNode] = {}
    for n, (operator, children, edges) in reversed(list(enumerate(flat))):  # readers come after the node they read
        nodes[n] = ChainNode(operator, tuple((tag, nodes[child]) for tag, child in children), edges)
    return nodes[0]


@dataclass(frozen=True)
class Chain:
    """A tree of operators run as one loop. Its subtasks are the partitions ``offset ..`` of its level's Spark stage."""

    id: int
    head: ChainNode
    inputs: tuple[Edge, ...]
    level: int
    offset: int

    @property
    def parallelism(self) -> int:
        return self.head.operator.parallelism

    @property
    def operators(self) -> list[Operator]:
        return [node.operator for node in self.head.walk()]

    @property
    def name(self) -> str:
        return " -> ".join(operator.name for operator in self.operators)

    @property
    def has_keys(self) -> bool:
        """Tell whether input records come with keys."""
        return any(edge.partitioning.has_key for edge in self.inputs)

    def may_keep(self, edge: Edge, *, forced: bool) -> bool:
        """Tell whether records of an input may be part of a checkpoint before they are processed. Broadcast records may
        not: all subtasks must have seen the same ones. Records without a key may not if other inputs have keys. Pinned
        records may not, unless ``forced``."""
        if edge.partitioning.ship is Ship.BROADCAST or (self.pins(edge) and not forced):
            return False
        return edge.partitioning.has_key or not self.has_keys

    @staticmethod
    def pins(edge: Edge) -> bool:
        """Tell whether records of an input belong to their subtask at this parallelism only. A user function has spread
        these records, or all of them come from one subtask, as their successors do. At another parallelism their
        subtask is unknown, and their successors would overtake them."""
        ship = edge.partitioning.ship
        return ship is Ship.CUSTOM or (ship in (Ship.FORWARD, Ship.RESCALE) and not edge.partitioning.has_key)


@dataclass(frozen=True)
class JobGraph:
    """Hold the whole job. ``chain_of`` maps operator ids to chain ids. ``operators/contracts/specs.py`` gives its
    sources and sinks with their types."""

    name: str
    chains: tuple[Chain, ...]
    levels: tuple[tuple[Chain, ...], ...]
    chain_of: Mapping[int, int] = field(repr=False)

    @property
    def operators(self) -> list[Operator]:
        return [operator for chain in self.chains for operator in chain.operators]

    def width(self, level: int) -> int:
        """Return the number of partitions of the level's stage."""
        return sum(chain.parallelism for chain in self.levels[level])

    def operator(self, operator_id: int) -> Operator:
        return next(operator for operator in self.operators if operator.id == operator_id)


def build(
    program: Program,
    parallelism: int,
    max_parallelism: int | None,
    restored_max: Mapping[str, int],
    heads: Collection[str] = (),
) -> JobGraph:
    """Build the graph of a program. ``restored_max`` is the maximum parallelism per uid hash that a checkpoint has; it
    applies where the program sets none. ``heads`` are uid hashes of operators that must start a chain, because records
    wait before them."""
    if not program.transformations:
        raise ProgramError("A job needs at least one operator", cure="add a source and a sink before calling execute()")
    refuse_untimed(program)
    operators = _resolve(program, parallelism, max_parallelism, restored_max)
    inputs = {t.id: [_resolve_input(i, t, operators) for i in t.inputs] for t in program.transformations}
    chained = _chained_inputs(program, operators, inputs)
    chained = {n: only for n, only in chained.items() if operators[n].uid_hash not in heads}
    return _assemble(program, operators, inputs, chained)


def _resolve(
    program: Program, parallelism: int, max_parallelism: int | None, restored_max: Mapping[str, int]
) -> dict[int, Operator]:
    operators: dict[int, Operator] = {}
    by_hash: dict[str, Transformation] = {}
    for position, t in enumerate(program.transformations):
        own = t.parallelism or parallelism
        uid_hash = t.uid_hash or (stable_hash(t.uid) if t.uid else _position_hash(t, position, operators))
        if uid_hash in by_hash:
            raise ProgramError(
                "Two operators have the same uid",
                where=f"operators '{by_hash[uid_hash].name}' and '{t.name}'",
                found=f"both have uid {t.uid or uid_hash!r}{_set_at(by_hash[uid_hash], t)}",
                cure="give one of them another uid(...)",
            )
        by_hash[uid_hash] = t
        limit = t.max_parallelism or max_parallelism or restored_max.get(uid_hash) or _default_maximum(own)
        _check_parallelism(t, own, limit)
        operators[t.id] = Operator(
            t.id,
            t.name,
            t.uid,
            uid_hash,
            t.spec,
            own,
            limit,
            _keyed(t),
            t.output_type,
            t.pickled_spec,
            t.place,
            t.is_named,
        )
    return operators


def _set_at(*same: Transformation) -> str:
    places = [t.uid_place for t in same if t.uid_place is not None]
    return f", set at {' and at '.join(places)}" if places else ""


def _position_hash(t: Transformation, position: int, operators: Mapping[int, Operator]) -> str:
    inputs = [operators[i.upstream].uid_hash + (i.tag or "") for i in t.inputs]
    return stable_hash("|".join([str(position), t.spec.kind, *inputs]))


def _default_maximum(parallelism: int) -> int:
    """Return the default maximum by Flink's rule: 1.5 times the parallelism, up to the next power of two, at least
    128."""
    wanted = 1 << max(0, parallelism + parallelism // 2 - 1).bit_length()
    return min(max(wanted, 128), UPPER_BOUND_MAX_PARALLELISM)


def _check_parallelism(t: Transformation, parallelism: int, limit: int) -> None:
    if not 1 <= parallelism <= limit:
        raise ProgramError(
            "The parallelism of an operator is not between 1 and its maximum parallelism",
            where=f"operator '{t.name}'",
            found=f"parallelism {parallelism}, maximum {limit}",
            cure="lower the parallelism, or raise the maximum with set_max_parallelism() or pipeline.max-parallelism (before"
            " the first start: state is bound to the maximum)",
        )


def _keyed(t: Transformation) -> Partitioning | None:
    """Return how the operator is keyed. An input is keyed if all its edges are; an operator is keyed if one of its
    inputs is."""
    for index in range(max(t.spec.inputs, 1)):
        edges = [i.partitioning for i in t.inputs if i.index == index]
        if edges and all(p is not None and p.is_keyed for p in edges):
            return edges[0]
    return None


def _resolve_input(i: Input, t: Transformation, operators: Mapping[int, Operator]) -> Input:
    same = operators[i.upstream].parallelism == operators[t.id].parallelism
    if i.partitioning is None:
        return replace(i, partitioning=Partitioning(Ship.FORWARD if same else Ship.REBALANCE))
    if i.partitioning.ship is Ship.FORWARD and not same:
        raise ProgramError(
            "forward() connects operators of different parallelism",
            where=f"from '{operators[i.upstream].name}' to '{t.name}'",
            found=f"{operators[i.upstream].parallelism} and {operators[t.id].parallelism}",
            cure="use rebalance() or rescale(), or set the same parallelism",
        )
    return i


def _chained_inputs(
    program: Program, operators: Mapping[int, Operator], inputs: Mapping[int, list[Input]]
) -> dict[int, Input]:
    """Return operator id -> the input along which the operator is fused to its upstream operator."""
    strategy = {t.id: t.chaining for t in program.transformations}
    chained = {}
    for t in program.transformations:
        if not program.chaining_enabled or len(inputs[t.id]) != 1 or t.chaining is not ChainingStrategy.ALWAYS:
            continue
        (only,) = inputs[t.id]
        up, own = operators[only.upstream], operators[t.id]
        forward = only.partitioning is not None and only.partitioning.ship is Ship.FORWARD
        if forward and up.parallelism == own.parallelism and strategy[up.id] is not ChainingStrategy.NEVER:
            chained[t.id] = only
    return chained


def _assemble(
    program: Program,
    operators: Mapping[int, Operator],
    inputs: Mapping[int, list[Input]],
    chained: Mapping[int, Input],
) -> JobGraph:
    edges: list[Edge] = []
    for t in program.transformations:
        if t.id not in chained:
            for i in inputs[t.id]:
                assert i.partitioning is not None
                declared = operators[i.upstream].output_type if i.tag is None else None
                name = f"{operators[i.upstream].uid_hash}/{i.index}/{i.tag or ''}"
                edges.append(Edge(len(edges), i.upstream, i.tag, t.id, i.partitioning, declared, i.index, name))
    heads = [t.id for t in program.transformations if t.id not in chained]
    nodes = _nodes(operators, chained, edges)
    chain_of = {node.operator.id: n for n, head in enumerate(heads) for node in nodes[head].walk()}
    level: dict[int, int] = {}
    for head in heads:  # ids grow along the edges, so upstream chains come first
        above = [level[chain_of[e.source]] for e in edges if e.target == head]
        level[chain_of[head]] = 1 + max(above, default=-1)
    chains, levels = [], [[] for _ in range(max(level.values()) + 1)]  # type: list[Chain], list[list[Chain]]
    for n, head in enumerate(heads):
        row = levels[level[n]]
        offset = sum(chain.parallelism for chain in row)
        chain = Chain(n, nodes[head], tuple(e for e in edges if e.target == head), level[n], offset)
        chains.append(chain)
        row.append(chain)
    return JobGraph(program.name, tuple(chains), tuple(map(tuple, levels)), chain_of)


def _nodes(operators: Mapping[int, Operator], chained: Mapping[int, Input], edges: list[Edge]) -> dict[int, ChainNode]:
    """Return the node of every operator, with its readers in the chain. Ids grow along the inputs, so readers are made
    first."""
    nodes: dict[int, ChainNode] = {}
    children: dict[int, list[tuple[str | None, int]]] = {}
    leaving: dict[int, list[Edge]] = {}
    for child, i in chained.items():
        children.setdefault(i.upstream, []).append((i.tag, child))
    for edge in edges:
        leaving.setdefault(edge.source, []).append(edge)
    for operator_id in sorted(operators, reverse=True):
        fused = tuple((tag, nodes[child]) for tag, child in children.get(operator_id, ()))
        nodes[operator_id] = ChainNode(operators[operator_id], fused, tuple(leaving.get(operator_id, ())))
    return nodes
