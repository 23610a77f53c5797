"""Programs become chains and levels."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tidegate.base.errors import ProgramError
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.connectors.values.sinks import DiscardingSink
from tidegate.graph.plan import JobGraph, build
from tidegate.graph.transformation import ChainingStrategy, Input, Partitioning, Program, Ship, Transformation
from tidegate.operators.contracts.specs import FilterSpec, MapSpec, SinkSpec, SourceSpec

KEYED = Partitioning(Ship.HASH, selector=lambda v: v)


def graph(*transformations: Transformation, parallelism: int = 2, chaining: bool = True) -> JobGraph:
    return build(Program("job", transformations, {}, chaining), parallelism, None, {})


def source(n: int, **more: Any) -> Transformation:
    return Transformation(n, f"source{n}", SourceSpec(NumberSequenceSource(1, 2)), **more)


def step(n: int, *upstream: int | Input, spec: Any = None, **more: Any) -> Transformation:
    inputs = tuple(i if isinstance(i, Input) else Input(i) for i in upstream)
    return Transformation(n, f"op{n}", spec or MapSpec(str), inputs, **more)


def names(g: JobGraph) -> list[list[str]]:
    return [[chain.name for chain in level] for level in g.levels]


def test_forward_neighbours_are_fused_into_one_chain() -> None:
    assert names(graph(source(1), step(2, 1), step(3, 2, spec=SinkSpec(DiscardingSink())))) == [
        ["source1 -> op2 -> op3"]
    ]


def test_a_key_by_starts_a_chain_on_the_next_level() -> None:
    g = graph(source(1), step(2, Input(1, KEYED)), step(3, 2))
    assert names(g) == [["source1"], ["op2 -> op3"]]
    assert g.chains[1].head.operator.keyed is KEYED
    assert g.operator(3).keyed is None


def test_a_fan_out_is_one_chain_with_two_branches() -> None:
    g = graph(source(1), step(2, 1), step(3, 1, spec=FilterSpec(bool)))
    (chain,) = g.chains
    assert [child.operator.name for _, child in chain.head.children] == ["op2", "op3"]


def test_a_union_is_not_fused_and_lies_below_its_deepest_input() -> None:
    g = graph(source(1), source(2), step(3, Input(2, KEYED)), step(4, 1, 3))
    assert names(g) == [["source1", "source2"], ["op3"], ["op4"]]
    assert [chain.offset for chain in g.levels[0]] == [0, 2]
    assert g.width(0) == 4


def test_another_parallelism_means_rebalance() -> None:
    g = graph(source(1), step(2, 1, parallelism=3))
    assert g.chains[1].inputs[0].partitioning.ship is Ship.REBALANCE


@pytest.mark.parametrize(
    ("upstream", "own"),
    [(ChainingStrategy.NEVER, ChainingStrategy.ALWAYS), (ChainingStrategy.ALWAYS, ChainingStrategy.HEAD)],
)
def test_chaining_controls_cut_chains(upstream: ChainingStrategy, own: ChainingStrategy) -> None:
    assert len(graph(source(1, chaining=upstream), step(2, 1, chaining=own)).chains) == 2


def test_chaining_can_be_switched_off() -> None:
    assert len(graph(source(1), step(2, 1), chaining=False).chains) == 2


def test_a_chain_of_any_length_walks_and_pickles() -> None:
    g = graph(source(1), *[step(n, n - 1) for n in range(2, 3_001)])
    (chain,) = g.chains
    copy = pickle.loads(pickle.dumps(chain))
    assert [o.id for o in copy.operators] == [o.id for o in chain.operators] == list(range(1, 3_001))


def test_duplicate_uids_are_refused_and_both_operators_named() -> None:
    with pytest.raises(ProgramError, match=r"have the same uid[\s\S]*'source1' and 'op2'[\s\S]*'same'"):
        graph(source(1, uid="same"), step(2, 1, uid="same"))


def test_parallelism_above_the_maximum_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"between 1 and its maximum[\s\S]*'op2'[\s\S]*parallelism 9, maximum 8"):
        graph(source(1), step(2, 1, parallelism=9, max_parallelism=8))


def test_forward_between_different_parallelisms_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"different parallelism[\s\S]*'source1' to 'op2'[\s\S]*2 and 3"):
        graph(source(1), step(2, Input(1, Partitioning(Ship.FORWARD)), parallelism=3))


def test_an_empty_program_is_refused() -> None:
    with pytest.raises(ProgramError, match="at least one operator"):
        graph()


def test_ids_without_uid_are_the_same_in_every_build_and_differ_by_place() -> None:
    first, second = graph(source(1), step(2, 1)), graph(source(1), step(2, 1))
    assert [o.uid_hash for o in first.operators] == [o.uid_hash for o in second.operators]
    assert len({o.uid_hash for o in first.operators}) == 2


@pytest.mark.parametrize(("parallelism", "expected"), [(1, 128), (85, 128), (86, 256), (200, 512)])
def test_default_maximum_parallelism_is_flinks(parallelism: int, expected: int) -> None:
    assert graph(source(1), parallelism=parallelism).operator(1).max_parallelism == expected


def test_a_restored_maximum_holds_where_the_program_sets_none() -> None:
    program = Program("job", (source(1, uid="a"),), {})
    first = build(program, 2, None, {}).operator(1)
    assert build(program, 2, None, {first.uid_hash: 256}).operator(1).max_parallelism == 256
