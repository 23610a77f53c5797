"""Random functions, called and inlined: the same records, errors, releases and callers."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from tests.unit.operators.loop_bindings import SINK, Bindings, node
from tests.unit.operators.written_functions import is_inlined, written
from tidegate.base.errors import UserCodeError
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.specs import FilterSpec, FlatMapSpec, MapSpec, SinkSpec, SourceSpec
from tidegate.operators.loop.codegen import Loop

pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning")
EVENTS: list[Any] = []


@pytest.fixture(autouse=True, scope="module")
def frozen() -> Iterator[None]:
    """What the tests before have left is not searched again for every example."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Noisy:
    """Tells when it is let go, and who works with it."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __del__(self) -> None:
        EVENTS.append(("released", self.n))

    def __repr__(self) -> str:
        return f"Noisy({self.n})"


def who(*seen: Any) -> str:
    """The function that calls it, which is never the loop."""
    caller = sys._getframe(1).f_code
    return f"{caller.co_filename} {caller.co_name}"


def note(value: Any) -> Any:
    EVENTS.append(("noted", repr(value)))
    return value


NAMES = {"who": who, "note": note, "math": math, "LIMIT": 3, "Noisy": Noisy}
ATOMS = ["x", "x", "a", "b", "1", "2", "'t'", "None", "LIMIT", "k", "x[0]", "x[-1]", "[]"]

CALLS = [
    *("len({})", "str({})", "max({}, 1)", "int({})", "math.floor({})", "who({})", "note({})", "isinstance({}, Noisy)"),
    *(
        "({}).pop()",
        "({}).append(x)",
        "list(map(who, {}))",
        "sorted({}, key=str)",
        "[n for n in {}]",
        'f"{{{}}}"',
        "-{}",
    ),
]


def _inner(e: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.sampled_from(["+", "-", "*", "%", "==", "<", "and", "or", "is"])
    call = st.sampled_from(CALLS)
    return st.one_of(
        st.builds("({} {} {})".format, e, binary, e),
        st.builds(lambda form, one: form.format(one), call, e),
        st.builds("[{}, {}]".format, e, e),
        st.builds("({} if {} else {})".format, e, e, e),
    )


EXPRESSIONS = st.recursive(st.sampled_from(ATOMS), _inner, max_leaves=4)


def _block(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines] or ["    pass"]


@st.composite
def statements(draw: st.DrawFn, depth: int, yields: bool) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        e, v = draw(EXPRESSIONS), draw(st.sampled_from(["a", "b", "x"]))
        kind = draw(st.integers(0, 11 if depth else 5))
        simple = [f"{v} = {e}", f"{v} += {e}", e, f"a, b = {e}, x", f"return{'' if yields else ' ' + e}", f"{v} = {e}"]
        if yields and kind in (2, 4):
            lines.append(f"yield {e}")
        elif kind < len(simple):
            lines.append(simple[kind])
        elif kind in (6, 7):
            lines += [f"if {e}:", *_block(draw(statements(depth - 1, yields)))]
            lines += ["else:", *_block(draw(statements(depth - 1, yields)))] if kind == 7 else []
        elif kind == 8:
            lines += [f"for {v} in {e}:", *_block(draw(statements(depth - 1, yields)))]
        elif kind == 9:
            lines += ["try:", *_block(draw(statements(depth - 1, yields)))]
            lines += ["except (TypeError, ValueError) as error:", *_block(draw(statements(depth - 1, yields)))]
        elif kind == 10:
            lines += [f"assert {e}, 'said'"]
        else:
            lines += [f"while len(str({v})) < 3:", f"    {v} = str({e}) + 'tt'"]
    return lines


@st.composite
def functions(draw: st.DrawFn) -> tuple[Any, bool]:
    yields = draw(st.booleans())
    lines = [
        *draw(statements(2, yields)),
        *([f"yield {draw(EXPRESSIONS)}"] if yields else [f"return {draw(EXPRESSIONS)}"]),
    ]
    text = "\n".join(["def f(x):", *_block(["a = x", "b = 0", *lines] if draw(st.booleans()) else lines)])
    try:
        return written(text, NAMES, k=5), yields
    except SyntaxError:
        return reject(), yields


def records() -> list[Any]:
    return [0, 1, 7, "text", [1, 2], [Noisy(1), Noisy(2), 3], (Noisy(4), "u"), [[Noisy(5)], 6], None, "77"]


def outcome(specs: list[Any], value: Any, inline: bool) -> tuple[list[str], str, list[Any]]:
    chain = node(len(specs) + 1, SinkSpec(SINK))
    for n in range(len(specs), 0, -1):
        chain = node(n, specs[n - 1], chain)
    root = node(0, SourceSpec(NumberSequenceSource(1, 2)), chain)
    bindings, message = Bindings(root, inline=inline), ""
    gc.collect()
    EVENTS.clear()
    events: list[Any] = []  # of a failure none: a traceback holds what it holds
    try:
        Loop(root, bindings, into=False)(Batch(records() if value is None else [value, 1, value]))
        events = EVENTS.copy()
    except UserCodeError as error:
        message = str(error)
    return [repr(found) for found in bindings.values[len(specs) + 1]], message, events


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(functions(), functions(), st.sampled_from([None, 1, "text", 77]))
def test_called_and_inlined_are_the_same(one: tuple[Any, bool], two: tuple[Any, bool], value: Any) -> None:
    specs: list[Any] = [FlatMapSpec(one[0]) if one[1] else MapSpec(one[0])]
    specs.append(MapSpec(note))
    specs.append(FlatMapSpec(two[0]) if two[1] else FilterSpec(two[0]))
    assert outcome(specs, value, inline=True) == outcome(specs, value, inline=False)


def test_the_generator_makes_functions_of_both_kinds() -> None:
    found: set[bool] = set()

    @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(functions())
    def look(function: tuple[Any, bool]) -> None:
        found.add(is_inlined(function[0]))

    look()
    assert found == {True, False}
