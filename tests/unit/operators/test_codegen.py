"""Generated loops: what they compute, and what their errors say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.operators.loop_bindings import SINK, Bindings, node
from tidegate.base.errors import StateAccessError, UserCodeError
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.graph.plan import ChainNode
from tidegate.graph.transformation import OutputTag
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.specs import FilterSpec, FlatMapSpec, MapSpec, ProcessSpec, SinkSpec, SourceSpec
from tidegate.operators.loop.codegen import Loop

LATE = OutputTag("late")


def run(root: ChainNode, values: list[Any], times: list[Any] | None = None) -> Bindings:
    bindings = Bindings(root)
    Loop(root, bindings, into=False)(Batch(values, times))
    return bindings


def test_a_chain_of_all_kinds_computes_what_it_says() -> None:
    class Twice:
        def process_element(self, value: int, ctx: Any) -> Any:
            yield value
            yield value + ctx.ts

    sink = node(5, SinkSpec(SINK))
    chain = node(4, ProcessSpec(Twice()), sink)
    chain = node(3, FlatMapSpec(lambda v: range(v)), chain)
    chain = node(2, FilterSpec(lambda v: v % 2 == 0), chain)
    root = node(0, SourceSpec(NumberSequenceSource(1, 2)), node(1, MapSpec(lambda v: v + 1), chain))
    got = run(root, [1, 2, 3], [10, 20, 30])
    assert got.values[5] == [0, 10, 1, 11, 0, 30, 1, 31, 2, 32, 3, 33]
    assert got.times[5] == [10] * 4 + [30] * 8


def test_a_stream_without_timestamps_has_none() -> None:
    root = node(0, SourceSpec(NumberSequenceSource(1, 2)), node(1, SinkSpec(SINK)))
    got = run(root, [1, 2])
    assert (got.values[1], got.times[1]) == ([1, 2], [])


def test_a_fan_out_gives_every_branch_all_records() -> None:
    root = node(
        0,
        SourceSpec(NumberSequenceSource(1, 2)),
        node(1, SinkSpec(SINK)),
        node(2, MapSpec(str), node(3, SinkSpec(SINK))),
    )
    got = run(root, [1, 2])
    assert (got.values[1], got.values[3]) == ([1, 2], ["1", "2"])


def test_a_record_stays_as_it_was_emitted() -> None:
    """A function may continue changing what it has emitted, and a reader what it was given."""
    kept: list[Any] = []

    def keep(value: Any) -> list[Any]:
        kept.append(value)
        return kept

    def change(value: list[Any]) -> list[Any]:
        value.append("changed")
        return value

    chain = node(2, MapSpec(keep), node(3, SinkSpec(SINK)), node(4, MapSpec(change), node(5, SinkSpec(SINK))))
    result = run(node(1, SourceSpec(NumberSequenceSource(1, 2)), chain), [1, 2])
    assert result.values[3] == [[1], [1, 2]]
    assert result.values[5] == [[1, "changed"], [1, 2, "changed"]]


def test_a_function_that_is_the_only_reader_is_handed_the_object_itself() -> None:
    emitted: list[Any] = []
    seen: list[Any] = []

    def make(value: Any) -> list[Any]:
        emitted.append([value])
        return emitted[-1]

    run(node(1, SourceSpec(NumberSequenceSource(1, 2)), node(2, MapSpec(make), node(3, MapSpec(seen.append)))), [1])
    assert seen[0] is emitted[0]


def test_side_outputs_go_to_their_readers_and_are_dropped_without_one() -> None:
    class Split:
        def process_element(self, value: int, ctx: Any) -> Any:
            yield (LATE if value % 2 else OutputTag("nobody reads this")), value
            if value > 2:
                yield value

    process = node(1, ProcessSpec(Split()), node(2, SinkSpec(SINK)), ("late", node(3, SinkSpec(SINK))))
    got = run(node(0, SourceSpec(NumberSequenceSource(1, 2)), process), [1, 2, 3, 4])
    assert (got.values[2], got.values[3]) == ([3, 4], [1, 3])


def test_a_process_function_may_return_nothing() -> None:
    class Silent:
        def process_element(self, value: int, ctx: Any) -> None:
            return None

    root = node(0, SourceSpec(NumberSequenceSource(1, 2)), node(1, ProcessSpec(Silent()), node(2, SinkSpec(SINK))))
    assert run(root, [1]).values[2] == []


def test_an_error_names_operator_user_line_and_record() -> None:
    def boom(value: dict[str, int]) -> int:
        return value["missing"]

    root = node(
        0, SourceSpec(NumberSequenceSource(1, 2)), node(1, MapSpec(boom), node(2, SinkSpec(SINK)), name="enrich")
    )
    with pytest.raises(UserCodeError) as caught:
        run(root, [{"present": 1}])
    message = str(caught.value)
    assert "operator 'enrich'" in message
    assert f"{__file__}:" in message and "in boom" in message
    assert "KeyError: 'missing'" in message
    assert "record {'present': 1}" in message
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_error_names_the_operator_that_raised_not_the_one_before() -> None:
    root = node(
        0,
        SourceSpec(NumberSequenceSource(1, 2)),
        node(1, MapSpec(lambda v: v * 10), node(2, FlatMapSpec(lambda v: (1 / 0,)), name="second")),
    )
    with pytest.raises(UserCodeError, match=r"'second'[\s\S]*ZeroDivisionError[\s\S]*record 70"):
        run(root, [7])


def test_a_long_record_is_cut_in_the_message() -> None:
    root = node(0, SourceSpec(NumberSequenceSource(1, 2)), node(1, MapSpec(lambda v: v.nothing)))
    with pytest.raises(UserCodeError) as caught:
        run(root, ["x" * 100_000])
    assert len(str(caught.value)) < 2_000


def test_a_record_whose_repr_fails_does_not_hide_the_error() -> None:
    class Nasty:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    root = node(0, SourceSpec(NumberSequenceSource(1, 2)), node(1, MapSpec(lambda v: v.nothing)))
    with pytest.raises(UserCodeError, match="AttributeError"):
        run(root, [Nasty()])


def test_errors_of_ours_keep_their_class_and_gain_the_place() -> None:
    def asks(value: int) -> int:
        raise StateAccessError("no key here")

    root = node(0, SourceSpec(NumberSequenceSource(1, 2)), node(1, MapSpec(asks), name="asking"))
    with pytest.raises(StateAccessError, match=r"no key here[\s\S]*operator 'asking'"):
        run(root, [1])


def test_a_tag_made_on_the_way_works_like_any_other() -> None:
    class Sneaky:
        def process_element(self, value: int, ctx: Any) -> Any:
            yield OutputTag("made here"), value

    unread = node(0, SourceSpec(NumberSequenceSource(1, 2)), node(1, ProcessSpec(Sneaky()), node(2, SinkSpec(SINK))))
    assert run(unread, [1]).values[2] == []
    read = node(1, ProcessSpec(Sneaky()), node(2, SinkSpec(SINK)), ("made here", node(3, SinkSpec(SINK))))
    assert run(node(0, SourceSpec(NumberSequenceSource(1, 2)), read), [1]).values[3] == [1]
