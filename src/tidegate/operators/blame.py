"""Errors of user code: which operator, which line of the user's, which record."""

from __future__ import annotations

import os
import reprlib
import traceback
from typing import Any

from tidegate.common.errors import TidegateError, UserCodeError

CHAIN_FILE = "<tidegate chain>"
"""The file name of generated code."""
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class _Cut(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200
        self.maxtuple = self.maxlist = self.maxdict = 12


def reprlib_repr(value: Any) -> str:
    """repr cut to a sane length; never raises."""
    try:
        text = _Cut().repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr fails: {error}>"
    return text if len(text) <= 500 else text[:497] + "..."


def record_in(error: Exception, file: str, name: str) -> str | None:
    """The record a loop of ours was at when user code raised: the variable ``name`` of the frame in ``file``."""
    record = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == file and name in frame.f_locals:
            record = reprlib_repr(frame.f_locals[name])
    return record


def user_line(error: Exception) -> str | None:
    """File, line and function of the user's code the error came from; None if there is none."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_user_file(f.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else None


def user_error(error: Exception, where: str, record: str | None, place: str | None = None) -> Exception:
    """Wrap what user code raised; errors of ours keep their class and gain the place. ``place``: the user's line, where the
    traceback has no frame of the user's."""
    line = user_line(error) or place
    if line is not None:
        where += f", {line}"
    if isinstance(error, TidegateError):
        error.__init__(error.rule, where=error.where or where, found=error.found, cure=error.cure)  # type: ignore[misc]
        return error
    found = f"{type(error).__name__}: {error}"
    if record is not None:
        found += f"; record {record}"
    return UserCodeError("A user function raised an exception", where=where, found=found, cure="see the cause above")


def _is_user_file(name: str) -> bool:
    return not name.startswith(_PACKAGE) and name != CHAIN_FILE
