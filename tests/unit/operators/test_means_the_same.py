"""What could show that a body stands in the loop: when objects are let go, who calls, who watches, how asserts are compiled."""

# ruff: noqa: F841, B007  (variables that only hold something)

from __future__ import annotations

import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.operators.loop_bindings import SINK, Bindings, node
from tests.unit.operators.written_functions import is_inlined, written
from tidegate.base.errors import UserCodeError
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.graph.plan import ChainNode
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.specs import FlatMapSpec, MapSpec, SinkSpec, SourceSpec
from tidegate.operators.loop.codegen import Loop
from tidegate.operators.loop.rewrites.bodies import body_of
from tidegate.operators.loop.rewrites.meaning import lingering
from tidegate.operators.loop.rewrites.rewrite import is_watched

events: list[Any] = []


class Noisy:
    """Tells when it is let go."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __del__(self) -> None:
        events.append(f"released {self.n}")


def chain_of(specs: list[Any]) -> ChainNode:
    chain = node(len(specs) + 1, SinkSpec(SINK))
    for n in range(len(specs), 0, -1):
        chain = node(n, specs[n - 1], chain)
    return node(0, SourceSpec(NumberSequenceSource(1, 2)), chain)


def run(specs: list[Any], values: list[Any], inline: bool) -> list[Any]:
    root = chain_of(specs)
    bindings = Bindings(root, inline=inline)
    Loop(root, bindings, into=False)(Batch(values))
    return bindings.values[len(specs) + 1]


# -- (a) objects are let go when the function is over ------------------------------------------------------------------


def takes_one(value: list[Any]) -> int:
    taken = value.pop()
    return len(value)


def takes_early(value: list[Any]) -> int:
    first = value.pop(0)
    if len(value) > 1:
        return 1
    second = value.pop()
    return 0


def takes_its_own_name(value: Any) -> int:
    value = value.pop()
    return 1


def yields(value: list[Any]) -> Iterator[int]:
    one, *others = value.pop(), value.pop()
    yield 1
    for held in others:
        yield 2


def with_a_context(value: list[Any]) -> int:
    with value.pop() as held:
        return 7


class Holds(Noisy):
    def __enter__(self) -> Noisy:
        return self

    def __exit__(self, *error: object) -> None:
        events.append("exit")


def told(value: Any) -> Any:
    events.append(value)
    return value


@pytest.mark.parametrize("function", [takes_one, takes_early, takes_its_own_name, yields, with_a_context])
def test_what_a_variable_held_is_released_before_the_next_operator_or_record(function: Callable[..., Any]) -> None:
    def outcome(inline: bool) -> list[Any]:
        events.clear()
        spec = FlatMapSpec(function) if function is yields else MapSpec(function)
        run([spec, MapSpec(told)], [[Holds(n), Holds(n + 1), Holds(n + 2)] for n in (10, 20, 30)], inline)
        return events.copy()

    assert is_inlined(function)
    called = outcome(inline=False)
    assert outcome(inline=True) == called
    assert any(str(event).startswith("released") for event in called)


def test_a_weak_reference_dies_in_time() -> None:
    function = written("def f(value):\n    held = value.pop()\n    return None")

    def outcome(inline: bool) -> list[Any]:
        values = [[Holds(1)], [Holds(2)]]
        watched = [weakref.ref(value[0]) for value in values]
        alive: list[Any] = []
        look = lambda value: alive.append([ref() is not None for ref in watched])  # noqa: E731
        run([MapSpec(function), MapSpec(look)], values, inline)
        return alive

    assert outcome(inline=True) == outcome(inline=False) == [[False, True], [False, False]]


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("def f(self, x):\n    n = (self.count.value() or 0) + 1\n    return n", []),
        ("def f(self, x):\n    n = self.other.value()\n    return n", ["n"]),
        ("def f(self, x):\n    n = len(x)\n    t = f'{x}'\n    n += 1\n    return n, t", []),
        ("def f(self, x):\n    n = 0\n    n += x\n    return n", ["n"]),
        ("def f(self, x):\n    a, b = 1, x\n    return a", ["b"]),
        ("def f(self, x):\n    a = b = x[0]\n    return a", ["a", "b"]),
        ("def f(self, x):\n    a = b = self.record[0]\n    return a", ["a", "b"]),
        ("def f(self, x):\n    a = 1\n    b = a\n    a = x\n    return a, b", ["a", "b"]),
        ("def f(self, x):\n    for n in range(3):\n        m = str(x).split(',')\n    return 1", []),
        ("def f(self, x):\n    for n in x:\n        m = n\n    return 1", ["n", "m"]),
        ("def f(self, x):\n    x = int(x)\n    y = x\n    return x", ["y"]),
        ("def f(self, x):\n    y = [1, 2][0] if x else max(3, 4)\n    z = max(x, 1)\n    return y", ["z"]),
        ("def f(self, x):\n    y = x is None\n    z = x == 1\n    return y", ["z"]),
    ],
)
def test_numbers_and_texts_need_not_be_let_go(text: str, held: list[str]) -> None:
    assert sorted(lingering(body_of(written(text)), {"count"}, set())) == sorted(held)


def test_fields_of_a_record_in_columns_need_not_be_let_go() -> None:
    body = body_of(written("def f(x):\n    a = x[0] + x[-1]\n    return a"))
    assert lingering(body, set(), {"x"}) == [] and lingering(body, set(), set()) == ["a"]


# -- (b) who calls -------------------------------------------------------------------------------------------------------


def test_a_name_that_comes_to_stand_for_another_function_is_called_from_the_function() -> None:
    """Before a chunk: the loop does not continue with what it has relied on."""
    function = written("lambda x: measure(x)", {"measure": len})
    root = chain_of([MapSpec(function)])
    loop, seen = Loop(root, Bindings(root), into=False), []
    loop(Batch(["a"]))

    def measure(value: Any) -> Any:
        seen.append(sys._getframe(1).f_code.co_filename)

    function.__globals__["measure"] = measure
    loop(Batch(["a"]))
    assert seen == [function.__code__.co_filename]


class Delegates:
    def __init__(self) -> None:
        self.seen: Any = None

    def map(self, value: Any) -> Any:
        self.seen.append(value)
        return value


class Frames(list[Any]):
    def append(self, value: Any) -> None:
        super().append(sys._getframe(1).f_code.co_name)


@pytest.mark.parametrize("inline", [False, True])
def test_a_method_of_the_users_behind_a_name_of_ours_sees_its_caller(inline: bool) -> None:
    function = Delegates()
    function.seen = Frames()
    run([MapSpec(function)], [1, 2], inline)
    assert list(function.seen) == ["map", "map"]


# -- (c) who watches -----------------------------------------------------------------------------------------------------


def frames_of(loop: Loop, values: list[Any]) -> list[str]:
    frames: list[str] = []

    def trace(frame: Any, event: str, argument: Any) -> None:
        frames.append(frame.f_code.co_name)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        loop(Batch(values))
    finally:
        sys.settrace(before)
    return frames


def test_a_debugger_that_comes_later_sees_the_functions() -> None:
    root = chain_of([MapSpec(takes_one)])
    bindings = Bindings(root)
    loop = Loop(root, bindings, into=False)
    loop(Batch([[1, 2]]))
    assert "takes_one" in frames_of(loop, [[1], [2]])
    assert bindings.values[2] == [1, 0, 0]


def test_tools_of_sys_monitoring_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.gettrace() is not None:
        pytest.skip("somebody watches already")
    if sys.version_info >= (3, 12):
        monitoring: Any = sys.monitoring
        monitoring.use_tool_id(3, "test")
        try:
            assert is_watched()
        finally:
            monitoring.free_tool_id(3)
        assert not is_watched()
    else:
        tools = {3: "test"}
        monkeypatch.setattr(sys, "monitoring", SimpleNamespace(get_tool=tools.get), raising=False)
        assert is_watched()
        tools.clear()
        assert not is_watched()


# -- asserts -------------------------------------------------------------------------------------------------------------

PROGRAM = """
import pickle, sys
import cloudpickle
sys.path[:0] = {path!r}
import functions
cloudpickle.register_pickle_by_value(functions)
from tidegate.operators.loop.rewrites import prepare
sys.stdout.buffer.write(cloudpickle.dumps((functions.checked, prepare([functions.checked]))))
"""


@pytest.mark.parametrize("flag", ["-O", None])
def test_asserts_are_those_of_the_driver(flag: str | None, tmp_path: Path) -> None:
    """The driver runs with the flag, the worker without."""
    (tmp_path / "functions.py").write_text("def checked(value):\n    assert value > 0, 'rule'\n    return value\n")
    program = PROGRAM.format(path=[str(tmp_path), *sys.path])
    command = [sys.executable, *([flag] if flag else []), "-c", program]
    made = subprocess.run(command, capture_output=True, check=True).stdout
    function, rewrites = pickle.loads(made)
    root = chain_of([MapSpec(function)])
    bindings = Bindings(root, inline=False)
    bindings.rewrites = rewrites
    loop = Loop(root, bindings, into=False)
    if flag and not sys.flags.optimize:
        loop(Batch([1, -1]))
        assert bindings.values[2] == [1, -1]
    else:
        with pytest.raises(UserCodeError, match="rule"):
            loop(Batch([1, -1]))


# -- equal functions of two files --------------------------------------------------------------------------------------


def test_an_error_names_the_file_of_its_function(tmp_path: Path) -> None:
    functions = []
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("f = lambda value: 1 // value\n")
        names: dict[str, Any] = {}
        exec(compile((tmp_path / name).read_text(), str(tmp_path / name), "exec"), names)
        functions.append(names["f"])
    assert functions[0].__code__ == functions[1].__code__
    for values, file in (([0], "one.py"), ([2], "two.py")):
        with pytest.raises(UserCodeError, match=file):
            run([MapSpec(functions[0]), MapSpec(functions[1])], values, inline=True)
