"""The functions that answer ``json.loads`` and ``json.dumps`` of user code give what the standard library gives.

``python -m tests.unit.operators.test_fast_json COUNT SEED`` compares many more texts: COUNT, made by ``random``, which is
faster than Hypothesis.
"""

from __future__ import annotations

import enum
import inspect
import json
import pickle
import random
import struct
import subprocess
import sys
import threading
import traceback
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.simulation.executor import Simulated
from tests.unit.operators.test_explain import explained, graph_of
from tidegate.base.errors import JobFailedError
from tidegate.datastream import DataStream, MapFunction
from tidegate.operators.loop import fast_json
from tidegate.operators.loop.rewrites.explain import explain_functions

LOADS, DUMPS = json.loads, json.dumps


def outcome(function: Callable[..., Any], *values: Any, **arguments: Any) -> Any:
    """Return the result with the classes of its parts, or all of an error that a program can see."""
    try:
        return form(function(*values, **arguments))
    except Exception as error:
        seen = [type(error), error.args, vars(error), getattr(error, "__notes__", None)]
        return [repr(part) for part in (*seen, error.__context__, error.__cause__)]


def form(value: Any) -> Any:
    if type(value) is dict:
        return ["dict", [(form(key), form(item)) for key, item in value.items()]]
    if type(value) is list:
        return ["list", *map(form, value)]
    if type(value) is float:
        return ["float", struct.pack(">d", value)]
    return [type(value), value]


def same(text: Any) -> None:
    assert outcome(fast_json.loads, text) == outcome(LOADS, text)


# -- loads ---------------------------------------------------------------------------------------------------------------

TEXTS = [
    *(
        "NaN",
        "-Infinity",
        "[Infinity]",
        "1e400",
        "-1e400",
        "1.7976931348623159e308",
        "1e-400",
        "5e-324",
        "2e-324",
        "-0",
    ),
    *("-0.0", "1E5", "1.0E+2", "0.1000000000000000055511151231257827021181583404541015625", "9007199254740993.0"),
    *(
        "18446744073709551615",
        "18446744073709551616",
        "-9223372036854775809",
        "1" * 4300,
        "1" * 4301,
        "1" * 5000 + ".0",
    ),
    *("01", "1.", ".5", "+1", "1e", "--1", "- 1", "1_000", "1 2", "\uff11", "1\uff11", "0x10", "-", "1\0", "\x001"),
    *('{"a":1,"a":2}', '{"b":0,"a":1,"b":2}', '{"\\u0061":1,"a":2}', '{"a":1,}', "[1,]", "{1:2}", "{'a':1}", '{"a"}'),
    *(
        '"\\ud800"',
        '"\ud800"',
        '"\\ud83d\\ude00"',
        '"\\udc00\\ud800"',
        '"\\ud83d\\u0041"',
        '"\\ud83dabc"',
        '"\\uD83D"x',
    ),
    *('"a\tb"', '"a\x7fb"', '"a\0b"', '"\\u0000"', '"\\q"', '"\\u00e"', '"\\u+123"', '"\\u0x12"', '"\\/"', '"\u2028"'),
    *(
        "",
        " ",
        "tru",
        "nul",
        "true ",
        " \t\n\r1 \n",
        "\ufeff1",
        "\x0b1",
        "\xa01",
        '"a',
        '{"a":',
        "[",
        "]",
        '"\u00e9\U0001f600"',
    ),
    *("[" * 300 + "]" * 300, "[" * 100_000, '{"a":' * 100_000, '{"' + "k" * 100 + '":[{"' + "k" * 100 + '":1}]}'),
]


class Text(str):
    __slots__ = ()

    def startswith(self, *_: Any) -> bool:
        raise LookupError("asked for the text")


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text[:24]))
def test_text_in_any_form_gives_the_result_or_error_of_the_standard_library(text: str) -> None:
    same(text)
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "latin-1"):
        same(text.encode(encoding, "surrogatepass" if encoding != "latin-1" else "replace"))
    same(bytearray(text.encode("utf-8", "surrogatepass")))


@pytest.mark.parametrize(
    "value", [b'"\xff"', b'{"\xff":1}', b'"\xc0\x80"', b'["\xe9"]', memoryview(b"1"), None, 5, {}, Text("1")]
)
def test_other_values_give_the_result_or_error_of_the_standard_library(value: Any) -> None:
    same(value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"parse_float": str},
        {"parse_int": float},
        {"parse_constant": str},
        {"object_hook": sorted},
        {"object_pairs_hook": OrderedDict},
        {"cls": json.JSONDecoder},
        {"strict": False},
        {"unknown": 1},
        {"cls": None},
    ],
    ids=str,
)
def test_arguments_of_loads_are_for_the_standard_library(arguments: dict[str, Any]) -> None:
    for text in ('{"a": 1.50, "b": [NaN, 2]}', '"a\tb"', "{"):
        assert outcome(fast_json.loads, text, **arguments) == outcome(LOADS, text, **arguments)


def test_wrong_calls_give_the_error_of_the_standard_library() -> None:
    for values in ((), ("1", 2)):
        assert outcome(fast_json.loads, *values) == outcome(LOADS, *values)
        assert outcome(fast_json.dumps, *values) == outcome(DUMPS, *values)
    assert outcome(fast_json.loads, s="[1]") == outcome(LOADS, s="[1]")
    assert outcome(fast_json.dumps, obj=[1]) == outcome(DUMPS, obj=[1])


def test_lower_limit_of_digits_holds() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        same("1" * 641)
        same("1" * 640)
    finally:
        sys.set_int_max_str_digits(before)


NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text(st.characters(categories=["Cs", "Ll"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3) | st.text(), inner, max_size=4),
    max_leaves=12,
)
STYLES: list[dict[str, Any]] = [
    {},
    {"separators": (",", ":")},
    {"ensure_ascii": False},
    {"indent": 1},
    {"sort_keys": True},
]


@given(VALUES, st.sampled_from(STYLES))
def test_written_values_are_read_as_the_standard_library_reads_them(value: Any, style: dict[str, Any]) -> None:
    text = DUMPS(value, **style)
    same(text)
    same(text.encode("utf-8", "surrogatepass"))


@given(NUMBERS)
@example("2.2250738585072011e-308")
@example("179769313486231580793728971405301e276")
def test_numbers_have_the_same_bits(text: str) -> None:
    same(text)
    same(f"[{text}]".encode())


@given(VALUES, st.sampled_from(STYLES), st.data())
def test_damaged_texts_give_the_same_error(value: Any, style: dict[str, Any], data: Any) -> None:
    text = DUMPS(value, **style)
    at = data.draw(st.integers(0, len(text)))
    gone = data.draw(st.integers(0, 3))
    put = data.draw(st.text(st.sampled_from('{}[]",:\\/0123456789.eE+-tfnuNI \n\t\x00\ud800\u00e9'), max_size=3))
    same(text[:at] + put + text[at + gone :])


@given(st.text(st.sampled_from('{}[]",:\\01.eE-tfnu "'), max_size=12))
def test_any_text_gives_the_same(text: str) -> None:
    same(text)


@given(
    st.binary(max_size=12)
    | st.text(max_size=6).map(lambda text: DUMPS(text, ensure_ascii=False).encode("utf-8", "surrogatepass"))
)
def test_any_bytes_give_the_same(data: bytes) -> None:
    same(data)


# -- dumps ---------------------------------------------------------------------------------------------------------------


class Color(enum.IntEnum):
    RED = 1


class Items(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        return [("own", json.dumps({"a": 1}))]


Pair = namedtuple("Pair", "a b")
ROUND: list[Any] = []
ROUND.append(ROUND)
WRITTEN = [
    *(
        1,
        1.0,
        -0.0,
        1e16,
        1e-7,
        float("nan"),
        float("inf"),
        None,
        True,
        "\u00e9\ud800\n",
        Text("x"),
        2**70,
        Color.RED,
        [],
    ),
    *(
        {},
        {1: 2, None: 3, False: 4, 1.5: 5},
        {(1, 2): 3},
        {"a": object},
        [b"bytes"],
        {1, 2},
        ROUND,
        Pair(1, "x"),
        Items(a=1),
    ),
    *(OrderedDict(b=1, a=2), [{"a": [1, {"b": []}]}], {Color.RED: Color.RED}),
]
WAYS: list[dict[str, Any]] = [
    *(
        *STYLES,
        {"separators": [",", ":"]},
        {"separators": (";", "=")},
        {"default": repr},
        {"skipkeys": True},
        {"cls": None},
    ),
    *(
        {"allow_nan": False},
        {"check_circular": False},
        {"ensure_ascii": False, "separators": (",", ":")},
        {"unknown": 1},
    ),
    *({"ensure_ascii": 0}, {"ensure_ascii": True}, {"separators": None}, {"separators": (",",)}),
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_value_is_written_as_the_standard_library_writes_it(way: dict[str, Any]) -> None:
    for value in WRITTEN:
        if value is not ROUND or way != {"check_circular": False}:
            assert outcome(fast_json.dumps, value, **way) == outcome(DUMPS, value, **way)


@given(VALUES, st.sampled_from(WAYS[:3]))
def test_values_are_written_as_the_standard_library_writes_them(value: Any, way: dict[str, Any]) -> None:
    assert outcome(fast_json.dumps, value, **way) == outcome(DUMPS, value, **way)


def test_default_that_a_program_gave_to_all_encoders_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json.JSONEncoder, "default", lambda self, value: sorted(value))
    assert fast_json.dumps({"a": {2, 1}}) == '{"a": [1, 2]}'
    assert fast_json.dumps({"a": {2, 1}}, separators=(",", ":")) == '{"a":[1,2]}'


# -- while a task runs -----------------------------------------------------------------------------------------------------


@pytest.fixture
def fast() -> Iterator[None]:
    with fast_json.switched_on():
        yield
    assert (json.loads, json.dumps) == (LOADS, DUMPS)


@pytest.mark.usefixtures("fast")
def test_the_module_looks_the_same() -> None:
    assert json.loads is fast_json.loads and json.dumps is fast_json.dumps
    assert inspect.signature(json.loads) == inspect.signature(LOADS)
    assert (json.loads.__name__, json.loads.__doc__) == ("loads", LOADS.__doc__)
    assert pickle.loads(pickle.dumps(json.loads)) is json.loads


def test_functions_of_the_program_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(text: str) -> Any:
        return text

    mine: Any = own
    monkeypatch.setattr(json, "loads", mine)
    with fast_json.switched_on():
        assert json.loads is mine and json.dumps is fast_json.dumps
    assert json.loads is mine and json.dumps is DUMPS
    monkeypatch.undo()
    with fast_json.switched_on():
        json.loads = mine
    assert json.loads is mine
    json.loads = LOADS


@pytest.mark.parametrize("name", ["_default_decoder", "_default_encoder"])
def test_another_default_of_the_program_decides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"_default_decoder": json.JSONDecoder(parse_int=str), "_default_encoder": json.JSONEncoder(sort_keys=True)}
    with fast_json.switched_on():
        monkeypatch.setattr(json, name, other[name])
        assert json.loads("1") == LOADS("1")
        assert json.dumps({"b": 1, "a": 2}) == DUMPS({"b": 1, "a": 2})


@pytest.mark.parametrize("of", [(json.JSONDecoder, "decode"), (json.JSONEncoder, "iterencode")])
def test_changed_standard_library_is_left_alone(of: tuple[Any, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*of, lambda *_, **__: ["other"])
    with fast_json.switched_on():
        assert (json.loads, json.dumps) == (LOADS, DUMPS)


@pytest.mark.usefixtures("fast")
def test_threads_may_write_the_same_object() -> None:
    value, found = {"a": [{"b": list(range(50))}] * 50}, list[str]()
    threads = [threading.Thread(target=lambda: found.extend(json.dumps(value) for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {DUMPS(value)} and len(found) == 80


# -- programs --------------------------------------------------------------------------------------------------------------


def price(line: str) -> Any:
    return json.loads(line)["price"]


def through_helper(line: str) -> Any:
    return price(line)


class Reads(MapFunction):  # type: ignore[misc]
    def map(self, value: str) -> Any:
        return self.read(value)

    def read(self, value: str) -> Any:
        return json.dumps(json.loads(value))


LINES = ['{"price": 1}', '{"price": NaN}', '{"price": 123456789012345678901234567890}', '{"price": "\\ud800"}']


def results(simulated: Simulated, function: Any, inline: bool) -> list[str]:
    env = simulated(**{"tidegate.functions.inline": inline, "parallelism.default": 1})
    return [ascii(value) for value in env.from_collection(LINES).map(function).execute_and_collect()]


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("function", [price, through_helper, Reads()], ids=["plain", "helper", "method"])
def test_program_gives_the_same(function: Any, inline: bool, simulated: Simulated) -> None:
    expected = results(simulated, function, inline)
    with fast_json.switched_on():
        assert results(simulated, function, inline) == expected


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("function", [price, through_helper, Reads()], ids=["plain", "helper", "method"])
def test_broken_line_is_reported_with_the_same_error_line_and_record(
    function: Any, inline: bool, simulated: Simulated
) -> None:
    def failure() -> tuple[str, str, list[str]]:
        env = simulated(**{"tidegate.functions.inline": inline, "parallelism.default": 1})
        env.from_collection(['{"price": 1}', '{"price": oops}']).map(function).print()
        with pytest.raises(JobFailedError) as failed:
            env.execute()
        reported = failed.value.__cause__
        assert reported is not None
        shown = "".join(traceback.format_exception(failed.value)).splitlines()
        return str(reported), repr(reported.__cause__), [line for line in shown if f'File "{__file__}"' in line]

    expected = failure()
    assert "Expecting value: line 1 column 11 (char 10)" in expected[0] and "oops" in expected[0]
    assert expected[1].startswith("JSONDecodeError") and expected[2]
    with fast_json.switched_on():
        assert failure() == expected


def test_function_with_fast_json_is_inlined_in_the_worker(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(
        fast_json, "_decode", lambda _: seen.append(sys._getframe(2).f_code.co_filename) or {"price": 1}
    )
    with fast_json.switched_on():
        results(simulated, price, True)
    assert seen == ["<tidegate chain>"] * len(LINES)


def test_explain_names_the_functions_that_are_fast() -> None:
    from json import dumps

    cases: list[tuple[Any, tuple[str, ...]]] = [
        (price, ("json.loads",)),
        (through_helper, ("json.loads",)),
        (Reads(), ("json.dumps", "json.loads")),
        (lambda value: dumps(value), ("json.dumps",)),
        (lambda value: [json.loads(part) for part in value], ("json.loads",)),
        (lambda value: value.loads(json.JSONDecodeError), ("json.loads",)),
        (lambda value: value.loads(), ()),
    ]
    for function, expected in cases:
        [found] = explained(partial(DataStream.map, func=function))
        assert found.fast == expected
    assert str(found) == f"inlined ({found.reason})" or found.how == "called"
    graph = graph_of(lambda numbers: numbers.map(price))
    assert str(explain_functions(graph)[0]).startswith("inlined, with fast json.loads (not on columns: ")
    assert explain_functions(graph, fast_json=False)[0].fast == ()


# -- many texts ------------------------------------------------------------------------------------------------------------

_CHARACTERS = 'abcXYZ01 "\\/\n\t\b\x00\x1f\x7f\u00e9\u20ac\u2028\ud800\udc00\U0001f600'
_DAMAGE = '{}[]",:\\/0123456789.eE+-tfnuNI \n\t\x00\ud800\u00e9'


class Texts:
    """Makes texts of all kinds, the same for a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def one(self) -> str | bytes:
        r = self._random
        kind = r.random()
        text = self.number() if kind < 0.3 else DUMPS(self.value(3), **r.choice(STYLES))
        if kind > 0.6:
            for _ in range(r.randint(1, 2)):
                at = r.randint(0, len(text))
                put = "".join(r.choices(_DAMAGE, k=r.randint(0, 3)))
                text = text[:at] + put + text[at + r.randint(0, 2) :]
        if r.random() < 0.3:
            return text.encode(
                r.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32-be")), "surrogatepass"
            )
        return text

    def number(self) -> str:
        r = self._random
        if r.random() < 0.4:  # any double, in its shortest form or with a few digits more or less
            value = struct.unpack(">d", r.randbytes(8))[0]
            text = repr(value) if r.random() < 0.5 else f"{value:.{r.randint(0, 25)}e}"
            return text if r.random() < 0.9 else f"[{text}]"
        digits = "".join(r.choices("0123456789", k=r.choice((1, 2, 8, 16, 17, 18, 19, 20, 21, 40, 400))))
        fraction = (
            "." + "".join(r.choices("0123456789", k=r.choice((1, 3, 15, 17, 25, 300)))) if r.random() < 0.6 else ""
        )
        exponent = (
            r.choice("eE")
            + r.choice(("", "+", "-"))
            + str(r.choice((0, 1, 9, 22, 23, 290, 308, 309, 324, 400, 10**20)))
        )
        whole = digits.lstrip("0") or "0"
        return ("-" if r.random() < 0.3 else "") + whole + fraction + (exponent if r.random() < 0.5 else "")

    def value(self, depth: int) -> Any:
        r = self._random
        kind = r.randint(0, 8 if depth else 5)
        if kind < 2:
            return r.choice((None, True, False, 0, -1, 2**63, 2**64, -(2**63) - 1, r.getrandbits(r.randint(1, 200))))
        if kind == 2:
            return r.choice((r.random(), r.uniform(-1e9, 1e9), 1e22, -0.0, 1e308, float("nan"), float("inf")))
        if kind < 6:
            return self.text()
        parts = [self.value(depth - 1) for _ in range(r.randint(0, 4))]
        return parts if kind == 6 else {self.text(): part for part in parts}

    def text(self) -> str:
        r = self._random
        return "".join(r.choices(_CHARACTERS[: r.choice((7, 7, 9, len(_CHARACTERS)))], k=r.choice((0, 1, 2, 5, 40))))


@pytest.mark.parametrize("seed", range(4))
def test_random_texts_give_the_same(seed: int) -> None:
    compare(500, seed)


def compare(count: int, seed: int) -> int:
    """Return the number of texts that have a value."""
    texts, valid = Texts(seed), 0
    for _ in range(count):
        text = texts.one()
        found = outcome(fast_json.loads, text)
        assert found == outcome(LOADS, text), ascii(text)
        valid += not isinstance(found[0], str) or found[0] in ("dict", "list", "float")
    return valid


if __name__ == "__main__":
    print(compare(int(sys.argv[1]), int(sys.argv[2])), "of", sys.argv[1], "texts are valid, and all give the same")


def test_exception_of_a_signal_handler_is_not_swallowed() -> None:
    """In a process of its own: a signal that arrives in a callback of the garbage collector, which Hypothesis has, is lost."""
    program = """
import json, signal
from tidegate.operators.loop import fast_json

class TimedOut(Exception):
    pass

def raise_timed_out(*_):
    raise TimedOut

signal.signal(signal.SIGALRM, raise_timed_out)
text = json.dumps([{"a": n} for n in range(20_000)])
fast_json.switch(True)
caught = 0
for _ in range(20):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.004)
        for _ in range(5_000):
            json.loads(text)
    except TimedOut:
        caught += 1
print(caught)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["20"]


@pytest.mark.parametrize("function", [fast_json.loads, fast_json.dumps])
def test_fast_function_can_be_pickled_whether_it_is_switched_on_or_not(function: Any) -> None:
    assert pickle.loads(pickle.dumps(function)) is function
    with fast_json.switched_on():
        assert pickle.loads(pickle.dumps(function)) is function


def test_module_that_was_changed_before_the_import_is_left_alone() -> None:
    program = """
import json
standard = json.loads
json.loads = lambda text, **more: standard(text, parse_float=str, **more)
from tidegate.operators.loop import fast_json
with fast_json.switched_on():
    print(json.loads("1.5") == "1.5", fast_json.parses_plainly())
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "False"]
