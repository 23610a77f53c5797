"""Chains whose arithmetic is done to whole batches: every channel gets what a loop over records would have sent."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.operators.loop_bindings import SINK, Bindings, node
from tests.unit.operators.written_functions import exact, written
from tidegate.base.errors import UserCodeError
from tidegate.common import Types
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.graph.plan import ChainNode, Edge
from tidegate.graph.transformation import Partitioning, Ship
from tidegate.operators.contracts.batch import Batch, ColumnBatch
from tidegate.operators.contracts.specs import FilterSpec, FlatMapSpec, MapSpec, SinkSpec, SourceSpec
from tidegate.operators.flow.outputs import EdgeOutput, Receiver
from tidegate.operators.flow.packing import COLUMNS, KEYS, PLAIN, Packer, packed_field
from tidegate.operators.loop.codegen import Loop
from tidegate.operators.loop.rewrites.columns import _PATIENCE, LEAST
from tidegate.state.key_groups import group_of, subtask_for
from tidegate.state.keys import visible

Given = tuple[Sequence[Any], "list[Any] | None"]
Channel = list[tuple[Any, Any, Any]]
"""Records with key and timestamp."""


class Sending(Bindings):
    def __init__(self, root: ChainNode, edge: Edge, targets: int, maximum: int, inline: bool, chunk: int) -> None:
        super().__init__(root, inline=inline)
        self.edge = EdgeOutput(edge, 0, 1, Receiver(1, 0, targets, maximum, "below"), chunk)

    def output(self, edge_id: int) -> EdgeOutput:
        return self.edge


class Sent:
    """What went through an edge. ``columns``: how many of the chunks were columns."""

    def __init__(self, edge: EdgeOutput, declared: Any) -> None:
        self.channels: dict[int, Channel] = {}
        self.chunks: dict[int, list[tuple[int, Channel]]] = {}
        self.columns = 0
        for _, target, _, _, _, number, watermark, (values, keys, times) in edge.rows:
            self.columns += values[0] == COLUMNS
            assert number == len(self.chunks.setdefault(target, []))
            rows = Packer(declared).unpack_list(values)
            records = list(zip(rows, _keys(values, keys), _times(times, len(rows)), strict=True))
            self.chunks[target].append((watermark, records))
            self.channels.setdefault(target, []).extend(records)


def _keys(values: bytes, keys: bytes) -> list[Any]:
    field = packed_field(keys)
    if field is None:
        return [visible(key) for key in KEYS.unpack_list(keys)]
    return PLAIN.unpack((values, keys, None)).keys or []


def _times(times: bytes | None, count: int) -> list[Any]:
    return [None] * count if times is None else PLAIN.unpack_list(times)


def send(
    specs: list[Any],
    selector: Any,
    batches: list[Given],
    *,
    inline: bool = True,
    targets: int = 3,
    maximum: int = 128,
    chunk: int = 100,
    declared: Any = None,
) -> Sent:
    edge = Edge(0, len(specs), None, 99, Partitioning(Ship.HASH, selector), declared)
    last = node(len(specs), specs[-1] if specs else SourceSpec(NumberSequenceSource(1, 2)))
    chain = ChainNode(last.operator, (), (edge,))
    for n in range(len(specs) - 1, -1, -1):
        chain = node(n, specs[n - 1] if n else SourceSpec(NumberSequenceSource(1, 2)), chain)
    bindings = Sending(chain, edge, targets, maximum, inline, chunk)
    loop = Loop(chain, bindings, into=False)
    for watermark, (values, times) in enumerate(batches):
        loop(Batch(values, times))
        bindings.edge.flush(watermark, everything=False)
    bindings.edge.flush(len(batches) - 1, everything=True)
    return Sent(bindings.edge, declared)


def check(specs: list[Any], selector: Any, batches: list[Given], **how: Any) -> Sent:
    """What the batch path sends, after a look at what the loop sends."""
    sent = send(specs, selector, batches, **how)
    expected = send(specs, selector, batches, inline=False, **how)
    assert not expected.columns
    found = {target: list(map(exact, records)) for target, records in sent.channels.items()}
    assert found == {target: list(map(exact, records)) for target, records in expected.channels.items()}
    return sent


# -- fixed chains ------------------------------------------------------------------------------------------------------

PAIRS = [MapSpec(lambda x: (x * 31 % 11, x))]
CHAINS: list[tuple[list[Any], Any]] = [
    ([], lambda x: x),
    ([], lambda x: x % 5),
    ([], lambda x: 3),
    (PAIRS, lambda r: r[0]),
    (PAIRS, lambda r: r[-1]),
    (PAIRS, lambda r: r[0] + r[1] * 1000),
    ([FilterSpec(lambda x: x % 3)], lambda x: -x),
    ([FilterSpec(lambda x: x > 10**9)], lambda x: x),
    ([MapSpec(lambda x: (x, x, 7, x * x)), FilterSpec(lambda r: r[1] % 2 == 0)], lambda r: r[2]),
    ([MapSpec(lambda x: (x,)), FilterSpec(lambda r: not r[0] < 50 or r[0] == 3)], lambda r: r[0]),
    ([FilterSpec(lambda x: x >= 0), MapSpec(lambda x: x // 7), MapSpec(lambda x: (x % -4, x))], lambda r: r[0]),
]


@pytest.mark.parametrize("targets", [1, 2, 3, 100])
@pytest.mark.parametrize("maximum", [128, 100, 1000])
def test_channels_get_the_same_records_in_the_same_order(targets: int, maximum: int) -> None:
    batches: list[Given] = [(range(-100, 300), None), (list(range(500, 700)), None), (range(7, 7 + LEAST), None)]
    for specs, selector in CHAINS:
        sent = check(specs, selector, batches, targets=targets, maximum=maximum)
        assert sent.columns == sum(map(len, sent.chunks.values())), "all as columns"
        for target, records in sent.channels.items():
            groups = {group_of(key, maximum) for _, key, _ in records}
            assert {subtask_for(group, targets, maximum) for group in groups} == {target}


@pytest.mark.parametrize(("specs", "selector"), CHAINS)
def test_timestamps_go_with_their_records(specs: list[Any], selector: Any) -> None:
    times = [n * n for n in range(300)]
    sent = check(specs, selector, [(range(300), times), (list(range(300)), times[::-1])])
    assert sent.columns == sum(map(len, sent.chunks.values()))


ODD_BATCHES: list[Given] = [
    (list(range(LEAST - 1)), None),
    ([*range(200), True], None),
    ([*range(100), None], None),
    ([*range(100), 1 << 63], None),
    ([*range(100), -(1 << 63)], None),
    (range((1 << 63) - 100, (1 << 63) + 100), None),
    ([1.5] * 100, None),
    ([], None),
]


@pytest.mark.parametrize("odd", ODD_BATCHES)
def test_batches_in_between_that_are_not_for_columns_keep_their_place(odd: Given) -> None:
    plain: list[Given] = [(range(n, n + 150), None) for n in range(3)]
    key = written("lambda x: 0 if x is None else x", {})
    for specs, selector in (([], key), ([], lambda x: x), ([MapSpec(lambda x: x)], lambda x: x % 3)):
        if None not in odd[0] or selector is key:
            check(specs, selector, [plain[0], odd, plain[1], odd, odd, plain[2], (range(5), None)], chunk=1000)
    sent = check([], lambda x: x, [plain[0], (list(range(3)), None), plain[1]], chunk=1000, targets=1)
    assert [len(records) for _, records in sent.chunks[0]] == [150, 3, 150]


def test_records_of_another_shape_begin_a_chunk() -> None:
    untimed: Given = (range(100), None)
    sent = check(PAIRS, lambda r: r[0], [untimed, (range(100), list(range(100))), untimed], chunk=1000, targets=2)
    assert sent.columns == 6
    edge = EdgeOutput(Edge(0, 0, None, 9, Partitioning(Ship.HASH)), 0, 1, Receiver(1, 0, 1, 128, "below"), 1000)
    ones, twos = np.full(3, 1), np.full(3, 2)
    edge.extend(ColumnBatch([ones], 0, 0), ones)
    edge.extend(ColumnBatch([ones, twos], 2, 0), ones)
    edge.extend(ColumnBatch([ones, twos], 2, 1), ones)
    edge.extend(ColumnBatch([ones, twos], 2), twos)
    edge.extend(ColumnBatch([ones, twos], 2, None, twos), twos)
    edge.extend(ColumnBatch([ones, twos], 2, None, ones), ones)
    edge.flush(1, everything=True)
    pair = (1, 2)
    assert Sent(edge, None).channels[0] == [
        *[(1, 1, None)] * 3,
        *[(pair, 1, None)] * 3,
        *[(pair, 2, None)] * 6,
        *[(pair, 2, 2)] * 3,
        *[(pair, 1, 1)] * 3,
    ]
    assert len(edge.rows) == 5


def test_timestamps_some_of_which_are_missing_are_left_to_the_loop() -> None:
    times: list[Any] = [*range(99), None]
    sent = check(PAIRS, lambda r: r[0], [(range(100), times), (range(100), list(range(100)))], chunk=1000)
    assert 0 < sent.columns < sum(map(len, sent.chunks.values()))


def test_a_watermark_is_never_ahead_of_a_record() -> None:
    """Record n * 1000 + i is of batch n, after which the watermark is n."""
    odd: list[Given] = [([*range(3000, 3100), True], None), ([5000], None)]
    plain: list[Given] = [(range(n * 1000, n * 1000 + 90), None) for n in (0, 1, 2, 4, 6, 7)]
    batches = [*plain[:3], odd[0], plain[3], odd[1], *plain[4:]]
    for chunk in (1, 50, 10_000):
        sent = check([], lambda x: x % 7, batches, chunk=chunk)
        for chunks in sent.chunks.values():
            for index, (watermark, _) in enumerate(chunks):
                later = [record for _, records in chunks[index + 1 :] for record, _, _ in records if record is not True]
                assert all(record // 1000 > watermark for record in later)


@pytest.mark.parametrize(
    ("declared", "as_columns"),
    [
        (Types.TUPLE([Types.LONG(), Types.LONG()]), True),
        (Types.TUPLE([Types.INT(), Types.SHORT()]), True),
        (None, True),
        (Types.TUPLE([Types.LONG(), Types.STRING()]), False),
        (Types.TUPLE([Types.LONG(), Types.DOUBLE()]), False),
        (Types.TUPLE([Types.LONG()]), False),
        (Types.LONG(), False),
        (Types.PICKLED_BYTE_ARRAY(), True),
    ],
)
def test_records_declared_as_something_else_do_not_travel_as_columns(declared: Any, as_columns: bool) -> None:
    def outcome(inline: bool) -> Any:
        try:
            return send(PAIRS, lambda r: r[0], [(range(100), None)], declared=declared, inline=inline)
        except UserCodeError as error:
            return str(error)

    found, expected = outcome(inline=True), outcome(inline=False)
    if isinstance(expected, str):
        assert (found, as_columns) == (expected, False)
    else:
        assert (found.channels, bool(found.columns)) == (expected.channels, as_columns)


@pytest.mark.parametrize(("width", "as_columns"), [(254, True), (255, False)])
def test_tuples_of_any_width(width: int, as_columns: bool) -> None:
    fields = ", ".join(["x"] * 10 + ["1"] * (width - 10))
    wide = written(f"lambda x: ({fields})")
    again = written("lambda r: r[0] % 5")
    assert bool(check([MapSpec(wide)], again, [(range(100), None)]).columns) == as_columns


def test_it_stops_trying_after_many_batches_in_vain() -> None:
    vain: list[Given] = [(["1.5"] * 100, None)]
    good: list[Given] = [(range(100), None)]
    assert check([], lambda x: x, [*vain * _PATIENCE, *good]).columns
    assert not check([], lambda x: x, [*vain * (_PATIENCE + 1), *good]).columns
    assert check([], lambda x: x, [*vain * _PATIENCE, *good, *vain, *good]).columns


class Changing(list[Any]):
    """Batches; before each a global of the function gets another value."""

    def __init__(self, function: Any, values: list[Any]) -> None:
        super().__init__([(range(100), None)] * len(values))
        self._globals, self._values = function.__globals__, values

    def __iter__(self) -> Any:
        for value, batch in zip(self._values, super().__iter__(), strict=True):
            self._globals["G"] = value
            yield batch


def test_a_global_may_change_from_batch_to_batch() -> None:
    add = written("lambda x: x + G", {"G": 0})
    sent = check([MapSpec(add)], lambda x: x, Changing(add, [1, 2, 2.5, True, 3]))
    assert sent.columns


# -- chains that end in something else ---------------------------------------------------------------------------------


def collect(root: ChainNode, batches: list[Given], inline: bool) -> tuple[list[Any], list[Any]]:
    bindings = Bindings(root, inline=inline)
    loop = Loop(root, bindings, into=False)
    for values, times in batches:
        loop(Batch(values, times))
    return list(map(exact, bindings.values[9])), bindings.times[9]


def test_what_is_behind_gets_records_as_ever() -> None:
    sink = node(9, SinkSpec(SINK))
    root = node(3, FlatMapSpec(lambda r: [r, (r[1], str(r[0]))]), sink)
    root = node(
        0,
        SourceSpec(NumberSequenceSource(1, 2)),
        node(1, MapSpec(lambda x: (x % 7, x)), node(2, FilterSpec(lambda r: r[0]), root)),
    )
    batches: list[Given] = [(range(200), list(range(200))), (list(range(3)), [1, 2, 3]), (range(100), [None] * 100)]
    assert collect(root, batches, inline=True) == collect(root, batches, inline=False)


class Adds:
    def __init__(self) -> None:
        self.n = 0

    def add(self, x: int) -> int:
        return x + self.n

    def grow(self, x: int) -> int:
        self.n += x
        return x


def test_what_a_function_downstream_changes_is_seen_at_the_next_record() -> None:
    """A global, or an attribute of an object that two functions share."""

    def run(inline: bool) -> Any:
        add = written("lambda x: x + total", {"total": 0})
        counted = written("def f(x):\n    global total\n    total += x\n    return x")
        counted = FunctionType(counted.__code__, add.__globals__)
        one, both = node(9, SinkSpec(SINK)), Adds()
        root = node(0, SourceSpec(NumberSequenceSource(1, 2)), node(1, MapSpec(add), node(2, MapSpec(counted), one)))
        other = node(1, MapSpec(both.add), node(2, MapSpec(both.grow), node(9, SinkSpec(SINK))))
        batches: list[Given] = [(range(1, 70), None)]
        return collect(root, batches, inline), collect(
            node(0, SourceSpec(NumberSequenceSource(1, 2)), other), batches, inline
        )

    assert run(inline=True) == run(inline=False)


def test_what_a_key_selector_changes_is_seen_at_the_next_record() -> None:
    def run(inline: bool) -> Any:
        both = Adds()
        return send([MapSpec(both.add)], both.grow, [(range(1, 70), None)], inline=inline).channels

    assert run(inline=True) == run(inline=False)


# -- random chains -----------------------------------------------------------------------------------------------------

MAPS = ["x + 1", "-x", "x * 31 % 7", "x // -3", "(x, x % 5)", "(x, 1, x * x)", "x * 4611686018427387904", "x % x", "7"]
TUPLE_MAPS = ["r[0]", "(r[1], r[0])", "(r[-1], r[0] + r[1], 5)", "r", "r[0] - r[1]", "(r,)", "r[1] / 2"]
FILTERS = ["x", "x % 2 == 0", "x > 5 and x < 80", "x < 0", "not x % 3"]
TUPLE_FILTERS = ["r[1]", "r[0] <= r[1] < 50", "r", "r[0] != r[-1]"]


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[Any], Any]:
    specs: list[Any] = []
    wide = False
    for _ in range(draw(st.integers(0, 3))):
        parameter = "r" if wide else "x"
        if draw(st.booleans()):
            text = draw(st.sampled_from(TUPLE_FILTERS if wide else FILTERS))
            specs.append(FilterSpec(written(f"lambda {parameter}: {text}")))
        else:
            text = draw(st.sampled_from(TUPLE_MAPS if wide else MAPS))
            specs.append(MapSpec(written(f"lambda {parameter}: {text}")))
            wide = text.startswith("(") or text == "r"
    keys = ["r[0]", "r[-1]", "r", "r[0] % 3", "1"] if wide else ["x", "x % 3", "(x, 1)", "-x", "x > 3", "0"]
    return specs, written(f"lambda {'r' if wide else 'x'}: {draw(st.sampled_from(keys))}")


@st.composite
def some_batches(draw: st.DrawFn) -> list[Given]:
    made: list[Given] = []
    for _ in range(draw(st.integers(1, 5))):
        start, size = draw(st.integers(-100, 100)), draw(st.sampled_from([0, 1, 63, 64, 65, 130]))
        values: Any = range(start, start + size)
        odd = draw(st.sampled_from([None, None, None, "odd", 1 << 62, 1 << 63, 0]))
        if odd is not None and size:
            values = [*values[:-1], odd]
        times = draw(st.sampled_from([None, None, list(range(size)), [*range(size - 1), None][-size:]]))
        made.append((values, times if times is None or len(times) == size else None))
    return made


@settings(max_examples=150, deadline=None)
@given(
    chains(), some_batches(), st.sampled_from([1, 2, 3]), st.sampled_from([3, 128, 100]), st.sampled_from([1, 70, 999])
)
def test_random_chains(
    chain: tuple[list[Any], Any], batches: list[Given], targets: int, maximum: int, chunk: int
) -> None:
    how: dict[str, Any] = {"targets": targets, "maximum": maximum, "chunk": chunk}
    if (failure := failure_of(*chain, batches, inline=False, **how)) is None:
        check(*chain, batches, **how)
    else:
        assert failure_of(*chain, batches, **how) == failure


def failure_of(*what: Any, **how: Any) -> str | None:
    try:
        send(*what, **how)
    except UserCodeError as error:
        return str(error)
    return None
