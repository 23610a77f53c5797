"""User code: the type of its values and functions, which frames of a traceback are the user's, tracebacks that show them."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any

UserValue = Any
"""A value of the user's program: a record, a key, an accumulator, the content of a state. The engine stores it and hands it to user
functions; only the user knows its type. Use ``object`` instead where a function merely passes something through."""
UserFunction = Callable[..., UserValue]
"""A callable of the user's program. Its parameters depend on the kind of operator that calls it."""

CHAIN_FILE = "<tidegate chain>"
CONVERSION_FILE = "<tidegate conversion>"
"""The file names of generated code."""
PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STANDARD = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_PLACE = re.compile(r"(?P<file>.*):(?P<line>\d+) in (?P<name>\w+|<\w+>)", re.DOTALL)


def is_ours(file: str) -> bool:
    """Return whether a frame belongs to Tidegate: to its package, or to generated code."""
    return file.startswith(PACKAGE) or file in (CHAIN_FILE, CONVERSION_FILE)


def is_the_users(file: str) -> bool:
    """Return whether a frame belongs to the user's program: not to Tidegate, Python or an installed library."""
    if is_ours(file) or file.startswith(("<frozen ", "<__array_function__")):
        return False
    return not file.startswith(_STANDARD) and not _INSTALLED.search(file)


def user_line(error: BaseException) -> str | None:
    """Return ``file:line in function`` of the last frame of user code, else of the library that raised the error. A library that
    only passes on an error of Tidegate (``contextlib``) is not named."""
    frames = [(tb.tb_frame.f_code, tb.tb_lineno) for tb in _walk(error.__traceback__)]
    users = [frame for frame in frames if is_the_users(frame[0].co_filename)]
    for code, line in (users or frames)[-1:]:
        if is_ours(code.co_filename):
            break
        return f"{code.co_filename}:{line} in {code.co_name}"
    return None


def users_line(error: BaseException) -> str | None:
    """Return ``user_line``, or None if no frame is the user's."""
    line = user_line(error)
    return line if line is not None and is_the_users(line.rpartition(":")[0]) else None


def calling_line() -> str | None:
    """Return ``file:line`` of the code that called into Tidegate; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def with_user_frame(error: BaseException, place: str) -> None:
    """Put the user's line into the traceback, after the generated code: an inlined function has no frame.

    ``place``: in the form of ``user_line``.
    """
    found, entries = _PLACE.fullmatch(place), list(_walk(error.__traceback__))
    last = max((n for n, tb in enumerate(entries) if tb.tb_frame.f_code.co_filename == CHAIN_FILE), default=None)
    if found is None or last is None:
        return
    line = int(found["line"])
    user = _frame(found["file"], line, found["name"])
    below = entries[last].tb_next
    tb: TracebackType | None = TracebackType(below, user.tb_frame, user.tb_lasti, line)
    for entry in reversed(entries[:last]):
        tb = TracebackType(tb, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = tb


def _walk(tb: TracebackType | None) -> list[TracebackType]:
    entries = []
    while tb is not None:
        entries.append(tb)
        tb = tb.tb_next
    return entries


def _frame(file: str, line: int, name: str) -> TracebackType:
    """Make a frame that claims to be at the user's line: a traceback takes only frames that ran."""
    code: CodeType = compile("\n" * (line - 1) + "raise Exception", file, "exec").replace(co_name=name)
    try:
        exec(code, {})
    except Exception as error:
        tb = error.__traceback__
        assert tb is not None and tb.tb_next is not None
        return tb.tb_next
    raise AssertionError("unreachable")
