"""The leaving end of edges: who gets which records, how they are cut and numbered."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.base.errors import UserCodeError
from tidegate.graph.plan import Edge
from tidegate.graph.transformation import Partitioning, Ship
from tidegate.operators.flow.outputs import EdgeOutput, Receiver
from tidegate.operators.flow.packing import PLAIN
from tidegate.operators.flow.rows import BARRIER, Barrier
from tidegate.state.key_groups import group_of, subtask_for

TARGET = Receiver(level=1, offset=10, parallelism=3, max_parallelism=128, place="operator 'below'")


def output(
    ship: Ship, *, subtask: int = 0, senders: int = 2, chunk: int = 4, target: Receiver = TARGET, **how: Any
) -> EdgeOutput:
    return EdgeOutput(Edge(5, 1, None, 2, Partitioning(ship, **how)), subtask, senders, target, chunk)


def fill(edge: EdgeOutput, values: list[Any]) -> dict[int, list[Any]]:
    """Target subtask -> values, everything cut."""
    append, _, _ = edge.appends
    for value in values:
        append(value)
    edge.flush(7, everything=True)
    return received(edge)


def received(edge: EdgeOutput) -> dict[int, list[Any]]:
    got: dict[int, list[Any]] = {}
    numbers: dict[int, int] = {}
    for level, partition, _, edge_id, _, number, watermark, payload in edge.rows:
        assert (level, edge_id, watermark) == (1, 5, 7)
        assert number == numbers.get(partition, 0), "chunks of a channel are numbered from 0"
        numbers[partition] = number + 1
        got.setdefault(partition - 10, []).extend(PLAIN.unpack_list(payload[0]))
    return got


def test_rebalance_spreads_evenly_and_continues_where_it_stopped() -> None:
    edge = output(Ship.REBALANCE)
    got = fill(edge, list(range(10)))
    assert sorted(len(v) for v in got.values()) == [3, 3, 4]
    again = fill(edge, [10, 11])
    assert sorted(len(v) for v in again.values()) == [4, 4, 4]


def test_broadcast_sends_everything_to_everybody() -> None:
    assert fill(output(Ship.BROADCAST), [1, 2]) == {0: [1, 2], 1: [1, 2], 2: [1, 2]}


def test_global_sends_to_the_first_subtask_and_forward_to_the_own() -> None:
    assert fill(output(Ship.GLOBAL), [1, 2]) == {0: [1, 2]}
    assert fill(output(Ship.FORWARD, subtask=1), [1, 2]) == {1: [1, 2]}


def test_shuffle_loses_nothing_and_uses_all() -> None:
    got = fill(output(Ship.SHUFFLE), list(range(100)))
    assert sorted(v for row in got.values() for v in row) == list(range(100))
    assert set(got) == {0, 1, 2}


@pytest.mark.parametrize(
    ("subtask", "senders", "n", "expected"), [(0, 2, 4, {0, 1}), (1, 2, 4, {2, 3}), (3, 4, 2, {1})]
)
def test_rescale_stays_in_its_part(subtask: int, senders: int, n: int, expected: set[int]) -> None:
    target = Receiver(1, 10, n, 128, "below")
    assert set(fill(output(Ship.RESCALE, subtask=subtask, senders=senders, target=target), list(range(8)))) == expected


def test_hash_routes_by_key_group_and_ships_the_keys() -> None:
    edge = output(Ship.HASH, selector=lambda v: v)
    for key in range(50):
        append_value, append_key, _ = edge.router[key]
        append_value(str(key))
        append_key(key)
    edge.flush(7, everything=True)
    for row in edge.rows:
        values, keys, times = (column and PLAIN.unpack_list(column) for column in row[7])
        assert [str(k) for k in keys] == values
        assert times is None
        owners = {subtask_for(group_of(k, 128), 3, 128) for k in keys}
        assert owners == {row[1] - 10}


def test_only_full_buffers_are_cut_before_the_end() -> None:
    edge = output(Ship.GLOBAL, chunk=4)
    append, _, _ = edge.appends
    for value in range(3):
        append(value)
    edge.flush(7, everything=False)
    assert edge.rows == []
    append(3)
    edge.flush(7, everything=False)
    assert received(edge) == {0: [0, 1, 2, 3]}


def test_barriers_go_to_every_subtask_and_count_the_chunks() -> None:
    edge = output(Ship.GLOBAL)
    fill(edge, [1, 2])
    barrier = Barrier("token", False, False, False)
    rows = edge.barrier_rows(9, barrier)
    assert [(row[1] - 10, row[2], row[5], row[6]) for row in rows] == [
        (0, BARRIER, 1, 9),
        (1, BARRIER, 0, 9),
        (2, BARRIER, 0, 9),
    ]


def test_a_new_round_starts_empty_and_counts_from_zero() -> None:
    edge = output(Ship.GLOBAL)
    fill(edge, [1])
    edge.appends[0]("left over from a failed round")
    edge.begin()
    assert fill(edge, [2]) == {0: [2]}


def test_records_that_cannot_be_pickled_are_refused_with_the_receiver_named() -> None:
    edge = output(Ship.GLOBAL)
    edge.appends[0](lambda: None)
    with pytest.raises(UserCodeError, match=r"must be picklable[\s\S]*'below'"):
        edge.flush(7, everything=True)
