"""Report errors of user code: the operator, the user's line, the record."""

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
"""The cure where the loop, or a function of Python, cannot iterate over a result."""


class _Cut(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200
        self.maxtuple = self.maxlist = self.maxdict = 12


def reprlib_repr(value: object) -> str:
    """Return a repr of limited length; never raise."""
    try:
        text = _Cut().repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr fails: {error}>"
    return text if len(text) <= 500 else text[:497] + "..."


def record_in(error: BaseException, file: str, name: str) -> str | None:
    """Return the record that Tidegate's loop processed when user code raised: the variable ``name`` of the frame in
    ``file``."""
    record = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == file and name in frame.f_locals:
            record = reprlib_repr(frame.f_locals[name])
    return record


def is_for_good(error: BaseException) -> TypeGuard[TidegateError]:
    """Tell whether a retry cannot help: the round then fails, and is not declined. Storage may recover, so its errors
    are retried."""
    return isinstance(error, TidegateError) and not (error.restart_helps or isinstance(error, StorageError))


def not_encodable(error: UnicodeEncodeError, where: str, records: Iterable[object]) -> TextError:
    """Return the error for a text that cannot be encoded. Writers encode whole batches, so the record is found here."""
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
    error: BaseException,
    where: str,
    record: str | None,
    place: str | None = None,
    added: str | None = None,
    key: str | None = None,
) -> Exception:
    """Wrap an exception of user code, also ``sys.exit`` and the like. Errors of Tidegate keep their class and gain the
    place.

    ``place``: the user's line, where the user's function was inlined and has no frame. ``added``: the line that added
    the operator, for an error outside of user functions. ``key``: of the record.
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
        if key is not None:
            found += f"; key {key}"
    no_results = isinstance(error, TypeError) and text.endswith("object is not iterable") and user_line(error) is None
    raised = UserCodeError(
        "A user function raised an exception", where=where, found=found, cure=_YIELD if no_results else SEE_CAUSE
    )
    raised.record, raised.key = record, key
    return raised
