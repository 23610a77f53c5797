"""Readers of one stream share a record only if no reader can change it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.executor import Simulated
from tests.unit.operators.loop_bindings import SINK, Bindings, node
from tidegate.common import WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.graph.plan import ChainNode
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.specs import FilterSpec, MapSpec, SinkSpec
from tidegate.operators.loop import codegen
from tidegate.operators.loop.codegen import Loop
from tidegate.operators.loop.rewrites import prepare


class _Text:
    """The text of a loop, as far as it is asked here."""

    def holds_while(self, check: Callable[[], bool]) -> None:
        assert check()


TEXT: Any = _Text()


def looks(function: Any) -> bool:
    return prepare([function]).looks_only(TEXT, function)


BID = 2
NAMES = ("person", "auction", "bid")
CHANGING = {"a": 1}


def _two_steps(event: Any) -> Any:
    bid = event["bid"]
    if bid["price"] > 10:
        return bid["auction"], bid["price"]
    return None


class Assigner:
    scale = 2

    def extract_timestamp(self, value: Any, timestamp: int) -> Any:
        return value[NAMES[value["kind"]]]["time"]

    def scaled(self, value: Any) -> Any:
        return value["time"] * self.scale


def _closure() -> Callable[[Any], Any]:
    least = 5
    return lambda e: e["price"] >= least


@pytest.mark.parametrize(
    "function",
    [
        lambda e: e["kind"] == BID,
        lambda e: e["bid"],
        lambda e: (e["bid"]["auction"], e["bid"].get("price", 0)),
        lambda e: f"{e['bid']['auction']},{e['bid']['price'] * 0.908:.3f}",
        lambda e: e["kind"] in NAMES and len(e["name"].strip().lower()) > 3,
        lambda e: [e["a"]][0] if not e else {"x": e["a"], "y": -e["b"]},
        lambda e: e["items"][1:3] + e["more"],
        _two_steps,
        Assigner().extract_timestamp,
        _closure(),
    ],
)
def test_function_that_reads_and_computes_only_looks(function: Any) -> None:
    assert looks(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda e: e.update(a=1),
        lambda e: e.setdefault("a", 1),
        lambda e: e["items"].append(1),
        lambda e: e.pop("a"),
        lambda e: CHANGING["a"] == e["a"],
        lambda e: sorted(e["items"], key=lambda x: x),
        lambda e: (lambda x: x)(e),
        lambda e: [x for x in e["items"] if x],
        lambda e: print(e),
        lambda e: NAMES.index(e["name"]) if e else Assigner,
        lambda e: isinstance(e, dict),
        lambda e: e.kind,
        Assigner().scaled,
        json.loads,
        len,
    ],
)
def test_function_that_may_change_or_keep_its_record_does_not_only_look(function: Any) -> None:
    assert not looks(function)


def _assigns(event: Any) -> Any:
    event["a"] = 1
    return event


def _adds_in_place(event: Any) -> Any:
    items = event["items"]
    items += [1]
    return items


def _deletes(event: Any) -> Any:
    del event["a"]
    return event


@pytest.mark.parametrize("function", [_assigns, _adds_in_place, _deletes])
def test_statement_that_changes_a_part_of_the_record_does_not_only_look(function: Any) -> None:
    assert not looks(function)


def test_builtin_that_the_module_replaces_is_not_trusted() -> None:
    function = lambda e: len(e["items"])  # noqa: E731 - a function with its own globals is made of it
    rewrites = prepare([function])
    assert rewrites.looks_only(TEXT, function)
    assert not rewrites.looks_only(TEXT, FunctionType(function.__code__, {"len": lambda items: items.clear()}))


@pytest.mark.parametrize("function", [json.loads, lambda line: json.loads(line)])
def test_parser_makes_a_plain_record_that_nobody_else_holds(function: Any) -> None:
    assert prepare([function]).makes_plain(TEXT, function)


@pytest.mark.parametrize(
    "function",
    [lambda line: json.loads(line, object_hook=lambda d: defaultdict(int, d)), lambda line: json.dumps(line), str],
)
def test_other_function_makes_no_plain_record(function: Any) -> None:
    assert not prepare([function]).makes_plain(TEXT, function)


# -- chains --------------------------------------------------------------------------------------------------------------


def _run(root: ChainNode, lines: list[str], *, inline: bool) -> dict[int, list[Any]]:
    parts = Bindings(root, inline=inline)
    Loop(root, parts, into=True)(Batch(lines))
    return parts.values


LINES = [json.dumps({"kind": n % 3, "time": n, "bid": {"price": n * 7 % 20, "tags": [n]}}) for n in range(40)]


def _forked(first: Any, second: Any) -> ChainNode:
    return node(
        0,
        MapSpec(json.loads),
        node(1, FilterSpec(lambda e: e["kind"] != 1), node(2, MapSpec(first), node(3, SinkSpec(SINK)))),
        node(4, FilterSpec(lambda e: e["time"] > 3), node(5, MapSpec(second), node(6, SinkSpec(SINK)))),
    )


def test_readers_that_look_share_the_record_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[Any] = []
    monkeypatch.setattr(codegen, "own", lambda value: copied.append(value) or value)
    root = _forked(lambda e: (e["time"], e["bid"]["price"]), lambda e: f"{e['bid']['price']}")
    found = _run(root, LINES, inline=True)
    assert [type(value) for value in copied] == [tuple] * len(found[3])
    assert found == _run(root, LINES, inline=False)


def test_reader_that_changes_its_record_gets_a_copy() -> None:
    def change(event: Any) -> Any:
        event["bid"]["price"] = -1
        event["bid"]["tags"].append("changed")
        return event

    for root in (_forked(change, lambda e: e["bid"]), _forked(lambda e: e["bid"], change)):
        found = _run(root, LINES, inline=True)
        assert found == _run(root, LINES, inline=False)
        assert any("changed" in repr(values) for values in found.values())
        assert any("changed" not in repr(values) for values in found.values())


_POOL: list[Any] = [
    MapSpec(lambda e: e.get("bid", e)),
    MapSpec(lambda e: {"bid": e, "kind": 0, "time": 9}),
    MapSpec(lambda e: e),
    FilterSpec(lambda e: len(e) > 1),
    FilterSpec(lambda e: e.get("kind", 0) != 1),
]


class Changing:
    """Functions that change the record at once, or the record before it."""

    def __init__(self) -> None:
        self.last: Any = {}

    def at_once(self, event: Any) -> Any:
        event["seen"] = event.get("seen", 0) + 1
        return event

    def later(self, event: Any) -> Any:
        self.last["late"] = True
        self.last = event
        return event

    def filters(self, event: Any) -> bool:
        for part in event.values():
            if isinstance(part, dict):
                part["filtered"] = True
        return True


def _specs() -> st.SearchStrategy[Callable[[], Any]]:
    changing: list[Callable[[], Any]] = [
        lambda: MapSpec(Changing().at_once),
        lambda: MapSpec(Changing().later),
        lambda: FilterSpec(Changing().filters),
    ]
    return st.sampled_from([*((lambda spec=spec: spec) for spec in _POOL), *changing])


_TREES = st.recursive(
    st.just(()), lambda below: st.lists(st.tuples(_specs(), below), min_size=1, max_size=3).map(tuple), max_leaves=6
)


def _tree(branches: Any) -> ChainNode:
    """Build a chain: a parser, then the branches. A branch ends in a sink."""
    numbers = iter(range(1, 1000))

    def built(spec: Callable[[], Any], below: Any) -> ChainNode:
        n = next(numbers)
        children = [built(*branch) for branch in below] or [node(next(numbers), SinkSpec(SINK))]
        return node(n, spec(), *children)

    return node(0, MapSpec(json.loads), *([built(*branch) for branch in branches] or [node(1, SinkSpec(SINK))]))


@given(_TREES)
def test_any_tree_of_functions_gives_the_same_records_as_with_a_copy_for_each_reader(branches: Any) -> None:
    assert _run(_tree(branches), LINES[:6], inline=True) == _run(_tree(branches), LINES[:6], inline=False)


def test_reader_of_a_record_that_reading_changes_gets_a_copy() -> None:
    def parsed(line: str) -> Any:
        return {"kind": 0, "time": 9, "bid": defaultdict(int, price=len(line))}

    root = node(
        0,
        MapSpec(parsed),
        node(1, MapSpec(lambda e: e["bid"]["missing"]), node(2, SinkSpec(SINK))),
        node(3, MapSpec(lambda e: e["bid"]), node(4, SinkSpec(SINK))),
    )
    assert _run(root, ["a"], inline=True) == {2: [0], 4: [{"price": 1}]}


class Kept(dict[str, Any]):
    """A record that keeps itself when it is read, and changes when the next one is read."""

    last: Any = None

    def __getitem__(self, name: str) -> Any:
        if Kept.last is not None:
            Kept.last["n"] = 100
        Kept.last = self
        return super().__getitem__(name)


def test_record_that_is_not_plain_is_copied_after_timestamps_that_look(simulated: Simulated) -> None:
    def run(inline: bool) -> list[Any]:
        Kept.last = None
        env = simulated(**{"tidegate.functions.inline": inline, "parallelism.default": 1})
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Looking())
        stream = env.from_collection([1, 2, 3]).map(lambda n: Kept(t=n, n=0)).assign_timestamps_and_watermarks(strategy)
        found: Any = stream.map(lambda e: dict(e)).execute_and_collect()
        with found:
            return list(found)

    assert run(inline=True) == run(inline=False)


class Looking(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        time: int = value["t"]
        return time


shared: Any = None


def _counts(line: str) -> str:
    global shared
    shared = shared or {"n": 0}
    shared["n"] += 1
    return line


def test_result_with_a_global_that_changes_is_copied() -> None:
    def run(inline: bool) -> Any:
        global shared
        shared = None
        parse = node(1, MapSpec(json.loads), node(2, MapSpec(lambda e: (e["time"], shared)), node(3, SinkSpec(SINK))))
        return _run(node(0, MapSpec(_counts), parse), LINES[:4], inline=inline)

    assert run(inline=True) == run(inline=False) == {3: [(n, {"n": n + 1}) for n in range(4)]}


@pytest.mark.parametrize("how", ["function", "cache", "decoder"])
def test_parser_that_the_program_has_replaced_is_not_trusted(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    standard, hook = json.loads, lambda pairs: defaultdict(int, pairs)
    if how == "function":
        monkeypatch.setattr(json, "loads", lambda line: standard(line, object_hook=hook))
    elif how == "cache":
        monkeypatch.setattr(json, "loads", lru_cache(None)(standard))
    else:
        monkeypatch.setattr(json, "_default_decoder", json.JSONDecoder(object_hook=hook))
    for function in (json.loads, lambda line: json.loads(line)):
        assert not prepare([function]).makes_plain(TEXT, function)


def test_unbound_method_is_not_taken_for_a_bound_one() -> None:
    class Reads:
        def look(self, event: Any) -> Any:
            return self.get(event)  # type: ignore[attr-defined]

    rewrites = prepare([Reads.look])
    assert rewrites.looks_only(TEXT, Reads.look)
    assert not rewrites.looks_only(TEXT, Reads().look)
