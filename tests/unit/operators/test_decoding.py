"""A loop that decodes only the fields it uses gives what calling ``json.loads`` and the functions gives, results and errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.operators.loop_bindings import SINK, Bindings, node
from tidegate.base.errors import UserCodeError
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.specs import FilterSpec, FlatMapSpec, MapSpec, SinkSpec, SourceSpec
from tidegate.operators.loop import fast_json
from tidegate.operators.loop.codegen import Loop

WANTED = "x"
CHOSEN = "p"
TABLE = ("other", "p")


def parsed(line: str) -> Any:
    return json.loads(line)


def in_the_body(line: str) -> Any:
    event = json.loads(line)
    part = event["p"]
    if part is None:
        return "none"
    return part["x"], event.get("b", 7)


def yields(line: str) -> Any:
    event = json.loads(line)
    for each in event["b"]:
        yield each, event.get("a")


def into_the_texts_variable(line: Any) -> Any:
    line = json.loads(line)
    return line["a"], line.get("b")


def guarded(line: str) -> Any:
    event = {"a": "default"}
    try:  # noqa: SIM105 - as programs have it
        event = json.loads(line)
    except ValueError:
        pass
    return event["a"]


def guarded_with_parts(line: str) -> Any:
    try:
        event = json.loads(line)
    except ValueError:
        return "refused"
    return event["p"]["x"]


def of_a_part(line: str) -> Any:
    for text in line.split("|"):
        yield json.loads(text)


def of_a_released_text(line: str) -> Any:
    text = line.strip()
    return json.loads(text)


def twice(line: str) -> Any:
    first = None
    if len(line) > 20:
        first = json.loads(line)
    found = "nothing" if first is None else first["a"]
    found = [found]
    second = json.loads(line)
    return found, second["p"]["x"]


def changes(event: Any) -> Any:
    event["new"] = 1
    return len(event)


def keeps(event: Any) -> Any:
    return event


def comprehends(line: str) -> Any:
    event = json.loads(line)
    return [event[WANTED] for WANTED in ("a", "b")]


def set_by_a_helper(line: str) -> Any:
    event = json.loads(line)
    set_chosen(event["a"])
    return event[CHOSEN]


def set_chosen(number: int) -> None:
    global CHOSEN
    CHOSEN = "b" if number else "p"


Spec = Callable[[], list[Any]]
PROGRAMS: dict[str, tuple[Spec, list[Any]]] = {
    "a field": (lambda: [MapSpec(json.loads), MapSpec(lambda e: e["a"])], [[("a",)]]),
    "fields": (
        lambda: [MapSpec(json.loads), FilterSpec(lambda e: e["a"] == 1), MapSpec(lambda e: (e["p"]["x"], e.get("b")))],
        [[("a",), ("p", "x"), ("b",)]],
    ),
    "a part": (
        lambda: [MapSpec(parsed), MapSpec(lambda e: e["p"]), MapSpec(lambda p: f"{p['x']},{p.get('y', 0)}")],
        [[("p", "x"), ("p", "y")]],
    ),
    "a key that is asked for": (
        lambda: [
            MapSpec(json.loads),
            FilterSpec(lambda e: "a" in e and "y" not in e["p"]),
            MapSpec(lambda e: e["p"]["x"]),
        ],
        [[("a",), ("p", "y"), ("p", "x")]],
    ),
    "a key from outside": (lambda: [MapSpec(json.loads), MapSpec(lambda e: e["p"][WANTED])], [[("p", "x")]]),
    "a key from a table": (
        lambda: [MapSpec(json.loads), FilterSpec(lambda e: e[TABLE[e["a"]]]["x"] > 0), MapSpec(lambda e: e["p"]["y"])],
        [[("other", "x"), ("p", "x"), ("a",), ("p", "y")]],
    ),
    "a part from a table": (
        lambda: [MapSpec(json.loads), MapSpec(lambda e: e[TABLE[1]]), MapSpec(lambda p: p["y"])],
        [[("other",), ("p",)]],
    ),
    "a key that a function of the program sets": (lambda: [MapSpec(set_by_a_helper)], [None]),
    "in a body": (lambda: [MapSpec(in_the_body)], [[("b",), ("p", "x")]]),
    "a generator": (lambda: [FlatMapSpec(yields)], [[("b",), ("a",)]]),
    "a part of a get": (lambda: [MapSpec(json.loads), MapSpec(lambda e: e.get("p")["x"])], [[("p", "x")]]),
    "into the text's variable": (lambda: [MapSpec(into_the_texts_variable)], [None]),
    "guarded": (lambda: [MapSpec(guarded)], [None]),
    "guarded, with parts": (lambda: [MapSpec(guarded_with_parts)], [[("p", "x")]]),
    "of a part of the text": (lambda: [FlatMapSpec(of_a_part), MapSpec(lambda e: e["p"]["x"])], [[("p", "x")]]),
    "of a released text": (lambda: [MapSpec(of_a_released_text), MapSpec(lambda e: e["p"]["x"])], [[("p", "x")]]),
    "twice, the first time deeper": (lambda: [MapSpec(twice)], [[("a",)], [("p", "x")]]),
    "the whole": (lambda: [MapSpec(json.loads), MapSpec(lambda e: (e["a"], e))], [None]),
    "a change": (lambda: [MapSpec(json.loads), MapSpec(changes)], [None]),
    "passed on": (lambda: [MapSpec(json.loads), MapSpec(keeps), MapSpec(lambda e: e["a"])], [None]),
    "a truth": (
        lambda: [MapSpec(json.loads), FilterSpec(lambda e: e["p"]), MapSpec(lambda e: e["p"]["x"])],
        [[("p",)]],
    ),
}


def outcome(specs: list[Any], values: list[Any], *, inline: bool) -> tuple[list[Any], str, Any]:
    """What reaches the sink, the error if there is one with its cause, and the fields that were decoded."""
    chain = node(len(specs) + 1, SinkSpec(SINK))
    for n in range(len(specs), 0, -1):
        chain = node(n, specs[n - 1], chain)
    root = node(0, SourceSpec(NumberSequenceSource(1, 2)), chain)
    bindings = Bindings(root, inline=inline)
    loop, error = Loop(root, bindings, into=False), ""
    try:
        loop(Batch(list(values)))
    except UserCodeError as found:
        error = f"{found}; {found.__cause__!r}; {found.__cause__.__context__!r}" if found.__cause__ else str(found)
    [source] = [source for _, source in loop._variants.values()]
    return bindings.values[len(specs) + 1], error, [fields for _, fields in source.decoded]


def same(program: str, values: list[Any]) -> Any:
    specs = PROGRAMS[program][0]
    called = outcome(specs(), values, inline=False)
    with fast_json.switched_on():
        loops = outcome(specs(), values, inline=True)
    assert repr(loops[:2]) == repr(called[:2])  # repr: nan is not equal to itself, and 1 equals True
    return loops[2]


LINE = '{"a":1,"b":[2,3],"p":{"x":4,"y":5,"z":6},"other":{"a":[]}}'


@pytest.mark.parametrize("program", PROGRAMS)
def test_only_the_fields_that_are_used_are_decoded(program: str) -> None:
    fields = [None if each is None else sorted(each) for each in same(program, [LINE])]
    assert fields == [None if each is None else sorted(each) for each in PROGRAMS[program][1]]


ODD = [
    '{"a":1,"p":{"x":NaN},"b":NaN}',
    '{"a":1,"p":{"x":2},"skip":NaN}',
    '{"a":1,"p":{"x":2},"skip":"\\ud800"}',
    '{"a":1,"p":{"x":"\\ud800"}}',
    '{"a":1,"p":{"x":2},"skip":"\\x"}',
    '{"a":1,"p":{"x":2},"skip":"\t"}',
    '{"a":1,"p":{"x":2},"skip":01}',
    '{"a":1,"p":{"x":2},"skip":[1,]}',
    '{"a":1,"p":{"x":2},"skip":1e999}',
    '{"a":1e999,"p":{"x":-1e999}}',
    '{"a":1,"p":{"x":123456789012345678901234567890},"skip":123456789012345678901234567890}',
    '{"a":1,"p":{"x":2},"skip":' + "9" * 5000 + "}",
    '{"a":1,"p":{"x":2},"skip":' + "[" * 900 + "]" * 900 + "}",
    '{"a":1,"p":{"x":2,"x":3},"p":{"x":4,"y":5,"y":6}}',
    '{"a":1,"p":5,"p":{"x":4}}',
    '{"a":1,"p":{"x":4},"p":null}',
    '{"\\u0061":1,"p":{"\\u0078":4}}',
    '{"a":1,"p":[1]}',
    '{"a":1,"p":"x"}',
    '{"a":1,"p":null}',
    '{"a":1}',
    '{"p":{}}',
    "[]",
    "1",
    "null",
    '"a"',
    "",
    "{",
    '\ufeff{"a":1}',
    '{"a":1} trailing',
    '{"a":1,"p":{"x":2},"b":["\u2028", "\U0001f600"]}',
    '{"a":1,"p":{"x":2},"\\ud800":1}',
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("text", ODD)
def test_texts_that_are_odd(program: str, text: str) -> None:
    same(program, [LINE, text, LINE])


class Text(str):
    """A text that msgspec would take as any other."""

    def startswith(self, *arguments: Any) -> bool:
        return True  # the standard library asks this, and refuses the text


@pytest.mark.parametrize(
    "value", [LINE.encode(), LINE.encode("utf-16"), bytearray(LINE.encode()), Text(LINE), 5, None, b"\xff"]
)
def test_values_that_are_no_texts(value: Any) -> None:
    same("fields", [value])


def test_a_lower_limit_of_digits_counts_from_the_next_batch() -> None:
    text = '{"a":1,"skip":' + "9" * 1000 + "}"
    same("a field", [text])
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        same("a field", [text])
    finally:
        sys.set_int_max_str_digits(before)


def test_switched_off_the_whole_value_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bindings, "json_fields", False)
    assert same("fields", [LINE]) == [None]


@pytest.mark.parametrize("name", ["WANTED", "TABLE"])
def test_another_key_of_the_program_counts_from_the_next_batch(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    specs = [MapSpec(json.loads), MapSpec(lambda e: (e["p"][WANTED], e[TABLE[1]]["z"]))]
    root = node(
        0, SourceSpec(NumberSequenceSource(1, 2)), node(1, specs[0], node(2, specs[1], node(3, SinkSpec(SINK))))
    )
    with fast_json.switched_on():
        bindings = Bindings(root, inline=True)
        loop = Loop(root, bindings, into=False)
        loop(Batch([LINE]))
        monkeypatch.setitem(globals(), name, {"WANTED": "z", "TABLE": ("", "p2")}[name])
        loop(Batch([LINE.replace('"other"', '"p2":{"z":7},"other"')]))
    assert bindings.values[3] == [(4, 6), (6, 6) if name == "WANTED" else (4, 7)]


def test_a_key_of_the_program_that_changes_within_a_batch_counts_from_the_next_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sets(given: Any) -> Any:
        if given[0] == 1:
            globals()["WANTED"] = "z"
        elif given[0] == 2:
            del globals()["WANTED"]
        return given

    specs = [MapSpec(json.loads), MapSpec(lambda e: (e["a"], e["p"][WANTED])), MapSpec(sets)]
    lines = [LINE.replace('"a":1', f'"a":{n}') for n in range(4)]
    found = []
    for inline in (False, True):
        monkeypatch.setitem(globals(), "WANTED", "x")
        with fast_json.switched_on() if inline else nullcontext():
            found.append(outcome(specs, lines, inline=inline))
    assert found[0][:2] == found[1][:2]
    assert found[1][0] == [(0, 4), (1, 4), (2, 6)]
    assert "NameError: name 'WANTED' is not defined" in found[1][1]
    assert found[1][2] == [(("a",), ("p", "x"))]


def test_variables_of_comprehensions_are_no_constants_of_the_program() -> None:
    called, error, _ = outcome([MapSpec(comprehends)], [LINE], inline=False)
    assert _with_fast([MapSpec(comprehends)], [LINE]) == (called, error, [None])
    assert called and not error


def test_without_the_fast_functions_nothing_is_decoded_in_the_loop() -> None:
    assert outcome(PROGRAMS["fields"][0](), [LINE], inline=True)[2] == []


def test_a_text_written_by_the_program_stays_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda line: {"a": "mine"})
    with fast_json.switched_on():
        assert outcome([MapSpec(parsed), MapSpec(lambda e: e["a"])], [LINE], inline=True)[::2] == (["mine"], [])


KEYS = st.sampled_from(["a", "b", "p", "x", "y", "other", "\u00e9", "\\u0061", "\\ud83d\\ude00", "\\ud800", ""])
SCALARS = st.one_of(
    st.sampled_from(
        ["null", "true", "false", "NaN", "Infinity", "-Infinity", "-0", "-0.0", "1e400", "1E+2", "01", "1.", "-"]
    ),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(json.dumps),
    st.text(max_size=4).map(json.dumps),
    st.text(max_size=4).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(['"\\ud800"', '"\\x"', '"\\u12g4"', '"\x01"', '"\\/"', '"']),
)


def _object(pairs: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}"


VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
        st.lists(st.tuples(KEYS, inner), max_size=4).map(_object),
    ),
    max_leaves=8,
)
OBJECTS = st.lists(st.tuples(KEYS, VALUES), max_size=6).map(_object)


@st.composite
def texts(draw: st.DrawFn) -> str:
    text = draw(st.one_of(OBJECTS, OBJECTS, OBJECTS, VALUES))
    if draw(st.integers(0, 3)) == 0 and text:  # broken somewhere
        at, kind = draw(st.integers(0, len(text) - 1)), draw(st.integers(0, 2))
        other = draw(st.sampled_from(list('{}[]",:\\ 0a\n')))
        text = text[:at] + (other if kind else "") + text[at + (kind != 1) :]
    return text


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(PROGRAMS)), texts())
def test_any_text(program: str, text: str) -> None:
    same(program, [text])


def test_the_record_of_an_error_is_whole() -> None:
    _, error, fields = _with_fast(PROGRAMS["a part"][0](), ['{"p":{"y":1,"z":2}}'])
    assert "KeyError: 'x'; record {'y': 1, 'z': 2}" in error and fields == [(("p", "x"), ("p", "y"))]


def _with_fast(specs: list[Any], values: list[Any]) -> tuple[list[Any], str, Any]:
    with fast_json.switched_on():
        return outcome(specs, values, inline=True)


def test_the_lines_that_decode_have_the_place_of_the_call() -> None:
    _, error, _ = _with_fast([MapSpec(parsed), MapSpec(lambda e: e["a"])], [LINE, "{"])
    assert "test_decoding.py" in error and "in parsed" in error
