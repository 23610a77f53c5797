"""Errors of user code: which operator, which line of the user's, which record."""

from __future__ import annotations

import reprlib
import traceback
from collections.abc import Iterable
from typing import TypeGuard

from tidegate.base.errors import StorageError, TextError, TidegateError, UserCodeError
from tidegate.base.faults import Killed
from tidegate.base.user_code import user_line, with_user_frame

SEE_CAUSE = "see the cause of this error, which has the traceback of your code (tidegate run -v shows it)"

_YIELD = "yield each result, or return a list of results or None; return a single result as [result]"
"""For what a loop of ours, or a function of Python's, could not go through."""


class _Cut(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200
        self.maxtuple = self.maxlist = self.maxdict = 12


def reprlib_repr(value: object) -> str:
    """Repr cut to a sane length; never raises."""
    try:
        text = _Cut().repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr fails: {error}>"
    return text if len(text) <= 500 else text[:497] + "..."


def record_in(error: BaseException, file: str, name: str) -> str | None:
    """The record a loop of ours was at when user code raised: the variable ``name`` of the frame in ``file``."""
    record = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == file and name in frame.f_locals:
            record = reprlib_repr(frame.f_locals[name])
    return record


def is_for_good(error: BaseException) -> TypeGuard[TidegateError]:
    """Whether trying the same again cannot help: then a round fails, and is not declined. Storage may be another the next time."""
    return isinstance(error, TidegateError) and not (error.restart_helps or isinstance(error, StorageError))


def not_encodable(error: UnicodeEncodeError, where: str, records: Iterable[object]) -> TextError:
    """A text of one of the records could not be written; writers encode whole batches, so which one is found here."""
    record = next((reprlib_repr(record) for record in records if not _fits(record, error.encoding)), None)
    around = ascii(error.object[max(0, error.start - 20) : error.end + 20])
    return TextError(
        f"Text cannot be encoded in its character set, {error.encoding}",
        where=where,
        found=f"{error.reason}: " + (f"record {record}" if record is not None else f"in {around}"),
        cure=f"replace the characters in a map: text.encode({error.encoding!r}, 'replace').decode({error.encoding!r})",
    )


def _fits(record: object, charset: str) -> bool:
    try:
        str(record).encode(charset)
    except UnicodeEncodeError:
        return False
    return True


def user_error(
    error: BaseException, where: str, record: str | None, place: str | None = None, added: str | None = None
) -> Exception:
    """Wrap what user code raised, ``sys.exit`` and the like too; errors of ours keep their class and gain the place.

    ``place``: the user's line, where the user's function was inlined and has no frame. ``added``: the line that has added the
    operator, for what comes out of no function of the user's.
    """
    if isinstance(error, Killed):
        raise error
    if place is not None and not (isinstance(error, TidegateError) and error.where):
        with_user_frame(error, place)
    line = user_line(error) or place or (added and f"added at {added}")
    if line is not None:
        where += f", {line}"
    if isinstance(error, TidegateError):
        return error.located(where)
    text = str(error)
    found = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if record is not None:
        found += f"; record {record}"
    no_results = isinstance(error, TypeError) and text.endswith("object is not iterable") and user_line(error) is None
    return UserCodeError(
        "A user function raised an exception", where=where, found=found, cure=_YIELD if no_results else SEE_CAUSE
    )
