"""What the driver tells of the functions of a job: called, inlined, on columns, and why not."""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.programs import program_of
from tests.unit.operators.written_functions import written
from tidegate.common import Configuration, Types, WatermarkStrategy
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.connectors.values.sinks import DiscardingSink
from tidegate.datastream import CoMapFunction, KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.graph.plan import JobGraph, build
from tidegate.operators.flow.decoded import decoded_fields
from tidegate.operators.loop.rewrites.explain import Explained, explain_functions
from tidegate.operators.loop.rewrites.inline import Inline
from tidegate.operators.loop.rewrites.rewrite import Refused

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
LOG = logging.getLogger("user")


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: tuple[int, int], ctx: Any) -> Iterator[tuple[int, int]]:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        yield value[0], n


def graph_of(add: Callable[[Any], Any]) -> JobGraph:
    env = StreamExecutionEnvironment(Configuration())
    numbers = env.from_source(NumberSequenceSource(0, 9), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    add(numbers).sink_to(DiscardingSink())
    return build(program_of(env, "job"), 1, None, {})


def explained(add: Callable[[Any], Any]) -> list[Explained]:
    return explain_functions(graph_of(add))


def keyed_count(numbers: Any, keys: int = 10) -> Any:
    """The program of bench/tidegate_jobs.py."""
    pairs = numbers.map(lambda x: ((x * 2654435761) % keys, x), output_type=PAIR)
    return pairs.key_by(lambda pair: pair[0], key_type=Types.LONG()).process(Count(), output_type=PAIR)


def text_count(numbers: Any) -> Any:
    pairs = numbers.map(lambda x: (f"user-{x % 10}", x))
    return pairs.key_by(lambda pair: pair[0], key_type=Types.STRING()).process(Count())


def test_the_keyed_count_is_on_columns_up_to_the_shuffle_and_inlined_after_it() -> None:
    assert [(e.operator, e.how) for e in explained(keyed_count)] == [
        ("Map", "on columns"),
        ("key of 'Map'", "on columns"),
        ("KEYED PROCESS", "inlined"),
    ]


def test_texts_of_numbers_are_on_columns() -> None:
    assert [e.how for e in explained(text_count)] == ["on columns", "on columns", "inlined"]


def test_other_texts_are_inlined() -> None:
    def upper(numbers: Any) -> Any:
        pairs = numbers.map(lambda x: ("user-" + str(x), x))
        return pairs.key_by(lambda pair: pair[0], key_type=Types.STRING()).process(Count())

    found = explained(upper)
    assert [e.how for e in found] == ["inlined"] * 3
    assert found[0].reason == "not on columns: more than arithmetic: 'user-'"
    assert found[1].reason.startswith("not on columns: no way of arithmetic alone leads")


def test_what_is_called_has_a_reason_for_each_rewrite() -> None:
    def logs(value: int) -> int:
        LOG.info("seen %s", value)
        return value

    [found] = explained(lambda numbers: numbers.map(logs))
    assert found.function.endswith("logs") and found.how == "called"
    assert (
        found.reason == "not on columns: more than arithmetic: LOG.info('seen %s', value); not inlined: calls LOG.info"
    )


def test_functions_of_two_inputs_are_looked_at_one_by_one() -> None:
    class Sides(CoMapFunction):
        def map1(self, value: int) -> int:
            return value + 1

        def map2(self, value: int) -> int:
            return max(f(value) for f in (abs, hash))

    found = explained(lambda numbers: numbers.connect(numbers).map(Sides()))
    assert [(f.operator, f.function.rpartition(".")[2], f.how) for f in found if f.operator == "Co-Map"] == [
        ("Co-Map", "map1", "inlined"),
        ("Co-Map", "map2", "called"),
    ]


def test_it_is_logged_when_a_job_starts(caplog: pytest.LogCaptureFixture) -> None:
    from tidegate.operators.contracts.operator import Settings
    from tidegate.operators.flow.level import job_spec

    with caplog.at_level(logging.DEBUG, logger="tidegate.operators.loop.rewrites.explain"):
        job_spec(graph_of(keyed_count), "attempt", Settings("job", "root", "local"))
    assert "operator 'KEYED PROCESS', function Count.process_element: inlined" in caplog.text


def test_fields_of_json_that_are_decoded() -> None:
    def events(numbers: Any) -> Any:
        parsed = numbers.map(str).map(json.loads)
        return parsed.filter(lambda e: e["kind"] == 1).map(lambda e: (e["bid"]["price"], e.get("id")))

    def whole(numbers: Any) -> Any:
        return numbers.map(str).map(json.loads).map(lambda e: (e["kind"], e))

    line = "operator 'Map': json.loads decodes"
    assert list(decoded_fields(graph_of(events), only_used=True)) == [f"{line} only bid.price, id, kind"]
    assert list(decoded_fields(graph_of(events), only_used=False)) == [f"{line} everything"]
    assert list(decoded_fields(graph_of(whole), only_used=True)) == [f"{line} everything"]
    assert list(decoded_fields(graph_of(keyed_count), only_used=True)) == []


def helper(value: int) -> int:
    return value


def logs(value: int) -> int:
    LOG.info("seen %s", value)
    return value


def calls_one_that_logs(value: int) -> int:
    return helper(value) + logs(value)


def with_default(value: int, more: int = 1) -> int:
    return value + more


class Plain(Exception):
    pass


class Told(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text.upper())


NAMES = {
    "LOG": LOG,
    "warn": warnings.warn,
    "helper": helper,
    "logs": logs,
    "calls_one_that_logs": calls_one_that_logs,
    "with_default": with_default,
    "logging": logging,
    "math": math,
    "Plain": Plain,
    "Told": Told,
}
REASONS = {
    "lambda x: LOG.info(x)": "calls LOG.info",
    "lambda x: logging.getLogger('x').info(x)": "calls a method info",
    "lambda x: warn(x)": "calls warn",
    "lambda x: logs(x)": "calls logs, which calls LOG.info",
    "lambda x: calls_one_that_logs(x)": "calls calls_one_that_logs, which calls logs, which calls LOG.info",
    "lambda x: with_default(x)": "calls with_default, which has default arguments",
    "lambda x: list(map(helper, x))": "calls or passes on helper",
    "lambda x: sorted(x, key=helper)": "calls or passes on helper",
    "lambda x: inner(x)": "calls inner, which calls LOG.info",
    "lambda x: x.emit(1)": "calls x.emit",
    "lambda x: x(1)": "calls the variable x",
    "lambda x: x[0](1)": "calls the result of an expression",
    "lambda x: breakpoint()": "calls breakpoint",
    "lambda x: locals()": "calls locals",
    "lambda x: missing(x)": "calls missing, which is not known",
    "lambda x: math.nothing(x)": "calls math.nothing",
    "lambda x: x.__traceback__": "uses __traceback__",
    "lambda x: getattr(logging, x)": "uses the module logging",
    "def f(x):\n    raise Told('no')": "calls Told",
    "def f(x):\n    raise Told": "calls or passes on Told",
    "def f(x):\n    if x:\n        y = 1\n    return y": "reads a variable that may be unset: y",
    "def f(x):\n    yield 1\n    yield 2\n    yield 3\n    yield x": "4 yields",
    "def f(x):\n    for n in x:\n        return n": "returns from inside a loop",
    "def f(x):\n    import math\n    return x": "has a statement that is not inlined: import",
    "def f(x):\n    try:\n        yield x\n    finally:\n        pass": "yields inside try or with",
    "lambda x: lambda: x": "makes a lambda",
    "lambda x: (x for x in x)": "makes a generator",
    "lambda x, y=1: x": "has default arguments",
    "lambda *x: x": "has parameters that are not plain",
}


def refusal(function: Callable[..., Any]) -> str | None:
    try:
        Inline().prepare(function)
    except Refused as refused:
        return str(refused)
    return None


@pytest.mark.parametrize("text", REASONS)
def test_every_refusal_says_why(text: str) -> None:
    assert refusal(written(text, NAMES, inner=logs)) == REASONS[text]


def test_refusals_of_what_has_no_source() -> None:
    names: dict[str, Any] = {}
    exec("f = lambda x: x", names)
    assert refusal(names["f"]) == "source not found"
    assert refusal(len) == "is not a Python function"


@pytest.mark.parametrize(
    "text",
    [
        "lambda x: math.floor(x) + len(str(x)) + max(x, 1)",
        "lambda x: x.split(',')[0].strip().lower()",
        "lambda x: isinstance(x, (Told, int)) or x.__class__ is Told",
        "def f(x):\n    raise Plain('no')",
        "def f(x):\n    try:\n        return int(x)\n    except (ValueError, Told):\n        return None",
        "lambda x: inner.get(x, inner)",
        "lambda x: parse(x)",
        "lambda x: helper(x) + helper(1)",
    ],
)
def test_what_is_known_to_be_safe_is_inlined(text: str) -> None:
    assert refusal(written(text, NAMES, inner={1: 2}, parse=math.floor)) is None


class Asks:
    """Its methods, and its attributes that are functions, are the user's."""

    rank = None

    def __init__(self) -> None:
        self.found: Any = []

    def own(self, value: Any) -> Any:
        return value

    def calls_its_own(self, value: Any) -> Any:
        return self.own(value)

    def told(self, value: Any) -> Any:
        LOG.info("told %s", value)

    def calls_one_that_logs(self, value: Any) -> Any:
        return self.told(value)

    def hands_it_on(self, value: Any) -> Any:
        return sorted(value, key=self.own)

    def calls_an_attribute(self, value: Any) -> Any:
        return self.unknown(value)  # type: ignore[attr-defined]

    def fills(self, value: Any) -> Any:
        self.found.append(value)
        self.rank.update(value)  # type: ignore[attr-defined]


def test_methods() -> None:
    asks = Asks()
    assert refusal(asks.calls_its_own) is None
    assert refusal(asks.calls_one_that_logs) == "calls self.told, which calls LOG.info"
    assert refusal(asks.hands_it_on) == "calls or passes on self.own"
    assert refusal(asks.calls_an_attribute) == "calls self.unknown"
    assert refusal(asks.fills) is None
