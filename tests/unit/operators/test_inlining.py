"""Functions written into the loop give what calling them gives, results and errors; what is not certain to is called."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.operators.loop_bindings import SINK, Bindings, node
from tests.unit.operators.written_functions import is_inlined
from tidegate.base.errors import UserCodeError
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.graph.transformation import OutputTag
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.specs import FilterSpec, FlatMapSpec, MapSpec, ProcessSpec, SinkSpec, SourceSpec
from tidegate.operators.loop.codegen import Loop

FACTOR = 3
counted = 0
shared = "global"
LOGGER = logging.getLogger("user")
LATE = OutputTag("late")


def outcome(specs: list[Any], values: list[Any], inline: bool) -> tuple[list[Any], str]:
    """What reaches the sink, and the message of the error if there is one."""
    chain = node(len(specs) + 1, SinkSpec(SINK))
    for n in range(len(specs), 0, -1):
        chain = node(n, specs[n - 1], chain)
    root = node(0, SourceSpec(NumberSequenceSource(1, 2)), chain)
    bindings = Bindings(root, inline=inline)
    reached = bindings.values[len(specs) + 1]
    try:
        Loop(root, bindings, into=False)(Batch(list(values), list(range(len(values)))))
    except UserCodeError as error:
        return reached, str(error)
    return reached, ""


def same(specs: list[Any], values: list[Any]) -> list[Any]:
    called, inlined = outcome(specs, values, False), outcome(specs, values, True)
    assert inlined == called
    return inlined[0]


# -- what is inlined ---------------------------------------------------------------------------------------------------


def several_statements(value: int) -> Any:
    """A docstring."""
    total = 0
    for digit in str(value):
        if digit == "7":
            continue
        total += int(digit)
    parts: list[int] = [total * k for k in range(3)]
    value = value + FACTOR
    return value, parts


def early_returns(value: int) -> str | None:
    if value < 2:
        return "small"
    if value == 3:
        return None
    try:
        text = {4: "four"}[value]
    except KeyError as error:
        return f"missing {error.args[0]!r:>{4}}"
    finally:
        ended = "."
    return text + ended


def no_return(value: int) -> None:
    value * 2


def while_loop(value: int) -> int:
    while value % 2 == 0 and value:
        value //= 2
    return value


def uses_module(value: int) -> float:
    return math.floor(value / 2) + len(json.dumps(value))


def either_branch(value: int) -> Any:
    if value > 2:
        size = "big"
    else:
        size = "small"
    with open(__file__) as file:
        return size, file.readline(), {k: v + 1 for k, v in [(size, value)]}, [*range(value)]


def error_named_like_the_record(value: Any) -> bool:
    try:
        return 4 // value > 1
    except ZeroDivisionError as value:
        kept = True
    return kept


def closure(factor: int) -> Callable[[int], int]:
    return lambda value: value * factor


INLINED = [
    several_statements,
    early_returns,
    no_return,
    while_loop,
    uses_module,
    either_branch,
    error_named_like_the_record,
    closure(5),
    lambda value: (value * 2654435761) % FACTOR,
    lambda value: "a" if value else 'b"\n',
    lambda value: f"{value!r} {value:>5}",
]


@pytest.mark.parametrize("function", INLINED, ids=lambda f: f.__qualname__)
def test_functions_that_return_a_value(function: Callable[..., Any]) -> None:
    assert is_inlined(function)
    assert len(same([MapSpec(function)], [0, 1, 2, 3, 4, 10, 77])) == 7
    same([MapSpec(function), FilterSpec(lambda v: v), MapSpec(lambda v: [v])], [0, 1, 2, 3, 4, 10, 77])


def test_an_error_named_like_the_record_does_not_take_its_place() -> None:
    assert same([FilterSpec(error_named_like_the_record)], [0, 1, 9]) == [0, 1]


class Generators:
    def __init__(self) -> None:
        self.seen = 0

    def several(self, value: int, ctx: Any) -> Iterator[Any]:
        self.seen += 1
        yield value
        if value % 2:
            return
        yield from range(value)
        yield ctx.ts, self.seen

    def in_loops(self, value: int, ctx: Any) -> Iterator[Any]:
        for n in range(value):
            if n == 1:
                continue
            if n == 5:
                break
            yield n
        yield None

    def tagged(self, value: int, ctx: Any) -> Iterator[Any]:
        yield (LATE, value) if value > 2 else value

    def nothing(self, value: int, ctx: Any) -> Iterator[Any]:
        return
        yield

    def a_list(self, value: int, ctx: Any) -> Any:
        if value == 2:
            return None
        return [value, ctx.ts]


GENERATORS = ["several", "in_loops", "tagged", "nothing", "a_list"]


class Process:
    """An object whose process_element is one of the generators above."""

    def __init__(self, name: str) -> None:
        self.process_element = getattr(Generators(), name)


@pytest.mark.parametrize("name", GENERATORS)
def test_process_functions(name: str) -> None:
    assert is_inlined(getattr(Generators(), name))
    early = MapSpec(early_returns)
    for behind in ([], [early], [FlatMapSpec(lambda v: [v, v])], [FilterSpec(lambda v: v != 2), early]):
        called, inlined = (
            outcome([ProcessSpec(Process(name)), *behind], [0, 1, 2, 3, 4, 8], way) for way in (False, True)
        )
        assert called == inlined


def test_a_process_function_inside_the_loop_of_another() -> None:
    specs = [ProcessSpec(Process("in_loops")), FilterSpec(lambda v: v is not None), ProcessSpec(Process("in_loops"))]
    assert same(specs, [3, 4]) == [None, 0, None, None, 0, None, 0, 2, None]


def test_globals_are_read_when_the_record_is_processed() -> None:
    def bump(value: int) -> int:
        global counted
        counted += 1
        return value

    assert not is_inlined(bump)
    read = lambda value: (value, counted)  # noqa: E731
    assert is_inlined(read)
    before = counted
    called = outcome([MapSpec(bump), MapSpec(read)], [7, 7, 7], True)[0]
    assert [count - before for _, count in called] == [1, 2, 3]


def test_an_error_names_the_users_line_and_the_record() -> None:
    def boom(value: int) -> float:
        half = value / 2
        return 1 / half

    values, message = outcome([MapSpec(boom)], [1, 0, 2], inline=True)
    assert values == [2.0]
    line = boom.__code__.co_firstlineno + 2
    assert f"operator 'op1', {__file__}:{line} in boom" in message
    assert "ZeroDivisionError" in message and "record 0" in message


def test_an_error_after_an_inlined_function_is_the_others() -> None:
    def fails(value: int) -> int:
        return value["x"]  # type: ignore[index,no-any-return]

    _, message = outcome([MapSpec(lambda v: v + 1), MapSpec(fails)], [1], inline=True)
    assert "operator 'op2'" in message and "record 2" in message


# -- what is called ----------------------------------------------------------------------------------------------------


def maybe_unset(value: int) -> int:
    if value > 1:
        result = value
    return result


def unset_after_loop(value: int) -> int:
    for n in range(value):
        value = n
    return n


def keeps_a_lambda(value: int) -> Any:
    return lambda: value


def lazy(value: int) -> Any:
    return (value + n for n in range(2))


def walrus(value: int) -> Any:
    return (half := value // 2), half


def frame(value: int) -> Any:
    return locals()


def logs(value: int) -> int:
    logging.getLogger("x").info("seen")
    return value


def with_default(value: int, more: int = 1) -> int:
    return value + more


def return_in_loop(value: int) -> Any:
    for n in range(value):
        if n == 2:
            return n
    return None


def guarded_yield(value: int) -> Iterator[int]:
    try:
        yield value
    except ValueError:
        yield -1


def sent(value: int) -> Any:
    got = yield value
    yield got


def same_name_twice(value: int) -> Any:
    n = 5
    return [n + 1 for n in range(value)], n


def global_named_like_a_comprehended(value: int) -> Any:
    return [shared + 1 for shared in [value]], shared


def error_named_like_a_comprehended(value: int) -> Any:
    try:
        value = 10 // value
    except ZeroDivisionError as error:
        value = len(error.args)
    return [error + 1 for error in range(value)]


def unset_behind_with(value: int) -> Any:
    with contextlib.suppress(ZeroDivisionError), contextlib.nullcontext(1 // value) as one:
        pass
    return one


def uppercase_logs(value: int) -> int:
    LOGGER.info("seen")
    return value


def many_blocks(value: int) -> Any:
    found = []
    for a in range(value):
        try:
            for b in range(a):
                with contextlib.nullcontext(), contextlib.nullcontext():
                    for c in range(b):
                        found.append((a, b, c))
        except ValueError:
            found.clear()
    return found


class Decorated:
    """Shows the attributes of the function inside, as the objects of many decorators do."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__qualname__ = "Decorated"

    def __getattr__(self, name: str) -> Any:
        if name not in ("__code__", "__defaults__", "__kwdefaults__", "__closure__", "__globals__"):
            raise AttributeError(name)
        return getattr(self._function, name)

    def __call__(self, value: int) -> Any:
        return "decorated", self._function(value)


def tg_reserved(value: int) -> int:
    tg_v = value
    return tg_v


def imports(value: int) -> int:
    import math as m

    return m.floor(value)


def changed_closure() -> tuple[Callable[[int], int], Callable[[int], int]]:
    total = 0

    def add(value: int) -> int:
        nonlocal total
        total += value
        return value

    return add, lambda value: value + total


CALLED = [
    maybe_unset, unset_after_loop, keeps_a_lambda, lazy, walrus, frame, logs, with_default, return_in_loop, guarded_yield, sent,
    same_name_twice, global_named_like_a_comprehended, error_named_like_a_comprehended, unset_behind_with, uppercase_logs,
    many_blocks, Decorated(no_return), tg_reserved, imports, *changed_closure(), len, int, math.floor,
]  # fmt: skip


@pytest.mark.parametrize("function", CALLED, ids=lambda f: f.__qualname__)
def test_what_depends_on_a_frame_of_its_own_is_called(function: Callable[..., Any]) -> None:
    assert not is_inlined(function)


@pytest.mark.parametrize(
    "function",
    [global_named_like_a_comprehended, error_named_like_a_comprehended, unset_behind_with, many_blocks, Decorated(len)],
    ids=lambda f: f.__qualname__,
)
def test_what_is_called_gives_the_same_beside_inlined_functions(function: Callable[..., Any]) -> None:
    same([MapSpec(lambda v: v + 1), MapSpec(function), MapSpec(lambda v: [v])], [3, 4, -1, 2])


def test_an_unset_variable_is_an_error_also_after_a_record_that_set_it() -> None:
    values, message = outcome([MapSpec(maybe_unset)], [5, 0], inline=True)
    assert values == [5] and "UnboundLocalError" in message


def test_the_changed_closure_is_seen() -> None:
    add, read = changed_closure()
    assert outcome([MapSpec(add), MapSpec(read)], [1, 1], inline=True)[0] == [2, 3]


def test_an_error_after_a_yield_is_not_caught_by_the_function_that_yielded() -> None:
    def fails(value: int) -> int:
        raise ValueError(value)

    values, message = outcome([FlatMapSpec(guarded_yield), MapSpec(fails)], [1], inline=True)
    assert not values and "operator 'op2'" in message


def test_a_source_that_is_not_the_functions_is_not_used(tmp_path: Any) -> None:
    file = tmp_path / "program.py"
    file.write_text("f = lambda value: value + 1\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    file.write_text("f = lambda value: value + 2\n")
    assert not is_inlined(names["f"])
    assert outcome([MapSpec(names["f"])], [1], inline=True)[0] == [2]


def test_two_lambdas_on_one_line_are_told_apart() -> None:
    one, two = (lambda value: value + 1), (lambda value: value * 10)
    assert same([MapSpec(one), MapSpec(two)], [1, 2]) == [20, 30]
    assert is_inlined(one) and is_inlined(two)


def test_functions_of_two_modules_each_see_their_own_names(tmp_path: Any) -> None:
    (tmp_path / "other.py").write_text("FACTOR = 100\nf = lambda value: value * FACTOR\n")
    names: dict[str, Any] = {}
    exec(compile((tmp_path / "other.py").read_text(), str(tmp_path / "other.py"), "exec"), names)
    assert is_inlined(names["f"])
    assert same([MapSpec(lambda v: v * FACTOR), MapSpec(names["f"])], [1]) == [300]


def test_a_name_one_module_gets_later_is_looked_up_there(tmp_path: Any) -> None:
    """Not in the module of the function before it."""
    source = "def make(value):\n    globals()['late'] = value\n    return value\n\nread = lambda value: (value, late)\n"
    (tmp_path / "third.py").write_text(source)
    names: dict[str, Any] = {}
    exec(compile(source, str(tmp_path / "third.py"), "exec"), names)
    assert is_inlined(names["read"])
    specs = [MapSpec(lambda v: v * FACTOR), MapSpec(names["make"]), MapSpec(names["read"])]
    assert outcome(specs, [1, 2], inline=True)[0] == [(3, 3), (6, 6)]


# -- long chains -------------------------------------------------------------------------------------------------------


def nested_loops(value: Any) -> Iterator[Any]:
    if value is None:
        return
    for one in [value]:
        yield one or one


seen: list[int] = []


def helper(value: int) -> int:
    return value + 1


def three_yields(value: int) -> Iterator[int]:
    yield value
    if value == 7:
        yield 1
    if value == 7:
        yield 2


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("function", [nested_loops, lambda v: [v]], ids=["generator", "list"])
def test_flat_maps_deeper_than_python_nests_blocks(function: Callable[..., Any], inline: bool) -> None:
    assert outcome([FlatMapSpec(function)] * 40, [1, 2], inline) == ([1, 2], "")


@pytest.mark.parametrize("inline", [True, False])
def test_filters_deeper_than_python_indents(inline: bool) -> None:
    assert outcome([FilterSpec(lambda v: v)] * 130, [1, 0, 2], inline) == ([1, 2], "")


def test_an_error_deep_in_a_chain_is_still_located() -> None:
    specs = [*[FlatMapSpec(nested_loops)] * 30, MapSpec(lambda v: 1 // v)]
    values, message = outcome(specs, [1, 0], inline=True)
    assert values == [1] and "operator 'op31'" in message and "record 0" in message
    assert "ZeroDivisionError" in message


def test_an_error_deep_in_a_chain_keeps_its_cause() -> None:
    specs = [*[FlatMapSpec(nested_loops)] * 30, MapSpec(lambda v: 1 // v)]
    chain = node(len(specs) + 1, SinkSpec(SINK))
    for n in range(len(specs), 0, -1):
        chain = node(n, specs[n - 1], chain)
    root = node(0, SourceSpec(NumberSequenceSource(1, 2)), chain)
    with pytest.raises(UserCodeError) as caught:
        Loop(root, Bindings(root), into=False)(Batch([0]))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_chain_of_a_thousand_operators_runs() -> None:
    assert outcome([FlatMapSpec(nested_loops)] * 1_000, [1, 2], inline=True) == ([1, 2], "")


def test_helper_that_is_replaced_is_seen_by_the_next_batch_deep_in_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [*[FlatMapSpec(nested_loops)] * 30, MapSpec(lambda v: helper(v)), FilterSpec(lambda v: seen.append(v))]
    chain = node(len(specs), specs[-1])
    for n in range(len(specs) - 1, 0, -1):
        chain = node(n, specs[n - 1], chain)
    root = node(0, SourceSpec(NumberSequenceSource(1, 2)), chain)
    loop = Loop(root, Bindings(root), into=False)
    monkeypatch.setitem(globals(), "seen", [])
    loop(Batch([1]))
    # The caller's frame matters to the new one: the loop may not be its caller.
    monkeypatch.setitem(globals(), "helper", lambda value: sys._getframe(1).f_code.co_name)
    loop(Batch([1]))
    assert seen == [2, "<lambda>"]


def test_the_code_after_yields_does_not_grow_without_end() -> None:
    specs = [FlatMapSpec(three_yields)] * 25
    assert outcome(specs, [5], inline=True) == ([5], "")
    assert len(same(specs, [7])) == 51
