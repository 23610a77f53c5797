"""Errors on their way to another process: they arrive with their causes, their notes and the traceback of the user's code."""

from __future__ import annotations

import json
import pickle
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.errors import ConfigurationError, StateAccessError, TidegateError, UserCodeError
from tidegate.base.faults import Killed
from tidegate.base.portable_errors import RemoteTraceback, StandIn
from tidegate.base.user_code import CHAIN_FILE, user_line
from tidegate.operators.loop.blame import user_error


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.strip() == text)


def sent(error: BaseException) -> Any:
    return pickle.loads(pickle.dumps(error, 5))


def raised(function: Any, *arguments: Any) -> BaseException:
    try:
        function(*arguments)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def wrapped(error: BaseException) -> UserCodeError:
    def wrap() -> None:
        raise user_error(error, "operator 'Map'", "'x'") from error

    found = raised(wrap)
    assert isinstance(found, UserCodeError)
    return found


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def parse(value: str) -> Any:
    return json.loads(value)


def parse_or_fail(value: str) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise KeyError("no such order") from error


def fail_quietly(value: str) -> Any:
    try:
        return parse(value)
    except ValueError:
        raise KeyError("second") from None


class TwoArguments(Exception):
    """Pickles, and cannot be loaded: its ``__init__`` takes other arguments than it hands on."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class HoldsALock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def test_an_error_arrives_with_its_cause_and_the_traceback_of_the_user() -> None:
    error = sent(wrapped(raised(parse, "{")))
    assert isinstance(error.__cause__, json.JSONDecodeError)
    remote = error.__cause__.__cause__
    assert isinstance(remote, RemoteTraceback)
    assert f'{__file__}", line {line_of("return json.loads(value)")}, in parse' in str(remote)
    assert "return json.loads(value)" in shown(error)
    assert "blame.py" not in shown(error)


def test_raise_from_keeps_what_it_was_raised_from() -> None:
    error = sent(wrapped(raised(parse_or_fail, "{")))
    first, second = error.__cause__, error.__cause__.__cause__
    assert isinstance(first, KeyError) and isinstance(second, json.JSONDecodeError)
    assert isinstance(second.__cause__, RemoteTraceback)
    text = str(second.__cause__)
    assert text.index("JSONDecodeError") < text.index("direct cause of") < text.index("KeyError: 'no such order'")


def test_what_was_being_handled_is_the_context_unless_it_is_suppressed() -> None:
    def both() -> None:
        try:
            parse("{")
        except ValueError:
            raise KeyError("second")  # noqa: B904 - the context is the point

    error = sent(wrapped(raised(both)))
    assert isinstance(error.__cause__, KeyError)
    assert error.__cause__.__cause__ is None and not error.__cause__.__suppress_context__
    assert isinstance(error.__cause__.__context__, json.JSONDecodeError)
    assert "During handling of the above exception" in shown(error)
    suppressed = sent(wrapped(raised(fail_quietly, "{")))
    assert isinstance(suppressed.__cause__.__cause__, RemoteTraceback)
    assert "JSONDecodeError" not in shown(suppressed)


@pytest.mark.parametrize("cause", [TwoArguments(7, "gone"), HoldsALock("gone")])
def test_an_exception_that_does_not_travel_becomes_a_stand_in_of_the_same_text(cause: Exception) -> None:
    cause.add_note("seen in the morning")

    def fail() -> None:
        raise cause

    error = sent(wrapped(raised(fail)))
    stand_in = error.__cause__
    assert isinstance(stand_in, StandIn) and type(stand_in).__qualname__ == type(cause).__qualname__
    assert str(stand_in) == str(cause) and stand_in.__notes__ == ["seen in the morning"]
    assert f"{type(cause).__qualname__}: {cause}" in shown(error)
    assert type(sent(stand_in)).__qualname__ == type(cause).__qualname__


def test_notes_travel_and_a_second_journey_adds_nothing() -> None:
    cause = raised(parse, "{")
    cause.add_note("line 3 of the file")
    once = sent(wrapped(cause))
    twice = sent(once)
    assert once.__cause__.__notes__ == twice.__cause__.__notes__ == ["line 3 of the file"]
    assert shown(twice).count('"""') == 2
    assert str(twice) == str(once) and vars(twice) == vars(once)


def test_a_field_that_does_not_pickle_stays_behind() -> None:
    error = ConfigurationError("The rule", found="this", cure="that")
    error.handle = threading.Lock()  # type: ignore[attr-defined]
    arrived = sent(error)
    assert isinstance(arrived, ConfigurationError) and str(arrived) == str(error) and not hasattr(arrived, "handle")


def test_a_record_of_any_size_does_not_travel_with_its_error() -> None:
    error = sent(wrapped(UnicodeDecodeError("utf-8", b"\xff" * 3_000_000, 0, 1, "invalid start byte")))
    assert isinstance(error.__cause__, StandIn) and "invalid start byte" in str(error.__cause__)


def test_an_endless_chain_ends() -> None:
    first, second = KeyError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    assert isinstance(sent(wrapped(first)).__cause__, KeyError)


def test_the_line_of_the_user_and_not_of_the_library() -> None:
    place = user_line(raised(parse, "{"))
    assert place == f"{__file__}:{line_of('return json.loads(value)')} in parse"


def test_an_inlined_function_has_its_line_in_the_traceback() -> None:
    line = line_of("return json.loads(value)")
    loop: dict[str, Any] = {"loads": json.loads}
    exec(compile("def loop():\n    loads('{')\n", CHAIN_FILE, "exec"), loop)
    cause = raised(loop["loop"])
    error = user_error(cause, "operator 'Map'", None, f"{__file__}:{line} in parse")
    assert f"{__file__}:{line} in parse" in str(error)
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(cause.__traceback__)]
    assert (__file__, line, "parse") in frames and all(file != CHAIN_FILE for file, _, _ in frames)


def test_our_errors_keep_their_class_and_gain_the_place() -> None:
    class Listed(TidegateError):
        """An ``__init__`` of its own: run again, it would count twice."""

        made = 0

        def __init__(self, problems: list[str]) -> None:
            Listed.made += 1
            super().__init__("All problems", found=", ".join(problems))

    listed = Listed(["a", "b"])
    assert user_error(listed, "operator 'Map'", None) is listed and Listed.made == 1
    assert str(listed) == "All problems\n  where: operator 'Map'\n  found: a, b"
    assert str(user_error(listed, "elsewhere", None)) == str(listed)
    assert isinstance(user_error(StateAccessError("r"), "operator 'Map'", None), StateAccessError)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration()])
def test_what_would_end_a_process_or_a_loop_is_an_error_of_user_code(error: BaseException) -> None:
    made = user_error(error, "operator 'Map'", "1")
    assert isinstance(made, UserCodeError) and f"found: {type(error).__name__}" in str(made)


def test_the_death_of_a_process_in_a_test_is_nobodys_error() -> None:
    with pytest.raises(Killed):
        user_error(Killed(), "operator 'Map'", None)
