"""Errors that cross processes. Pickle drops the causes of an exception and its traceback; here both are kept.

On arrival the chain of causes is restored. Its last cause is a ``RemoteTraceback`` with the original traceback as text.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tidegate.base.user_code import is_ours, is_the_users

_LONGEST_CHAIN = 16
_LARGEST = 1 << 20
"""Most bytes of a pickled exception and most characters of a traceback: an error may contain a record of any size."""


class RemoteTraceback(Exception):
    """The traceback of an error, as text from the process that raised it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class StandIn(Exception):
    """Replaces an exception that cannot be pickled or loaded here, with the same name and text.

    ``stand_in`` makes it, with a class for each.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return stand_in, (type(self).__module__, type(self).__qualname__, str(self))


def stand_in(module: str, name: str, text: str, kinds: tuple[str, ...] = ()) -> StandIn:
    attributes = {"__module__": module, "__qualname__": name, "kinds": kinds}
    made: type[StandIn] = type(name.rpartition(".")[2], (StandIn,), attributes)
    return made(text)


def kinds_of(error: BaseException) -> tuple[str, ...]:
    """Return the names of the error's class and of its base classes, also for the error that a stand-in replaces."""
    return getattr(error, "kinds", ()) or tuple(kind.__name__ for kind in type(error).__mro__)


class PortableError(Exception):
    """An error that pickles with all attributes of its subclass, its causes, notes and traceback."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (Departure.of(self),)


@dataclass(frozen=True)
class _Link:
    """One exception of a chain. ``is_cause``: the previous one was raised ``from`` it, else while it was handled."""

    pickled: bytes | None
    module: str
    name: str
    text: str
    notes: tuple[str, ...]
    is_cause: bool
    kinds: tuple[str, ...] = ()

    @staticmethod
    def of(error: BaseException, is_cause: bool) -> _Link:
        kind, notes = type(error), tuple(map(str, getattr(error, "__notes__", ())))
        name, text = kind.__qualname__, _text(error)
        return _Link(_pickled(error), kind.__module__, name, text, notes, is_cause, kinds_of(error))

    def load(self) -> BaseException:
        error = self._loaded() or stand_in(self.module, self.name, self.text, self.kinds)
        if self.notes and not hasattr(error, "__notes__"):
            error.__notes__ = list(self.notes)
        return error

    def _loaded(self) -> BaseException | None:
        try:
            loaded = pickle.loads(self.pickled) if self.pickled is not None else None
            loaded = loaded.error() if isinstance(loaded, _Bare) else loaded
        except Exception:  # its class is unknown here, or its __init__ takes other arguments
            return None
        return loaded if isinstance(loaded, BaseException) else None


@dataclass(frozen=True)
class _Bare:
    """A PortableError without its chain. Loading does not run its ``__init__`` again."""

    kind: type[PortableError]
    arguments: tuple[Any, ...]
    fields: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(error: PortableError) -> _Bare:
        fields = {name: value for name, value in error.__dict__.items() if _dumped(value) is not None}
        return _Bare(type(error), error.args, fields)

    def error(self) -> PortableError:
        error = self.kind.__new__(self.kind)
        error.args = self.arguments
        error.__dict__.update(self.fields)
        return error


@dataclass(frozen=True)
class Departure:
    """A chain of exceptions as bytes and text. ``trace``: None if the chain comes from another process and ends in its trace."""

    links: tuple[_Link, ...]
    trace: str | None

    @staticmethod
    def of(error: BaseException) -> Departure:
        links = list(with_causes(error))
        travelled = any(isinstance(link, RemoteTraceback) for link, _ in links)
        return Departure(tuple(_Link.of(*link) for link in links), None if travelled else _trace(error))


def _arrived(departure: Departure) -> BaseException:
    errors = [link.load() for link in departure.links]
    if departure.trace is not None:
        errors.append(RemoteTraceback(departure.trace))
    for n, (error, below) in enumerate(pairwise(errors), 1):
        if n < len(departure.links) and not departure.links[n].is_cause:
            error.__context__ = below
        else:
            error.__cause__ = below
    return errors[0]


def with_causes(error: BaseException) -> Iterator[tuple[BaseException, bool]]:
    """Yield the error and its causes as Python shows them, each with whether the previous one was raised ``from`` it."""
    seen: set[int] = set()
    link: BaseException | None = error
    is_cause = True
    while link is not None and id(link) not in seen and len(seen) < _LONGEST_CHAIN:
        seen.add(id(link))
        yield link, is_cause
        is_cause = link.__cause__ is not None
        link = link.__cause__ if is_cause else None if link.__suppress_context__ else link.__context__


def _pickled(error: BaseException) -> bytes | None:
    data = _dumped(_Bare.of(error) if isinstance(error, PortableError) else error)
    return data if data is not None and len(data) <= _LARGEST else None


def _dumped(value: Any) -> bytes | None:
    try:
        return pickle.dumps(value, 5)
    except Exception:  # pickling runs user code, which may raise anything
        return None


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_LARGEST]
    except Exception as second:
        return f"<its text cannot be made: {type(second).__name__}>"


def _trace(error: BaseException) -> str:
    """Return the tracebacks of the causes, or of an error without causes. The error's own text is not repeated."""
    below = list(with_causes(error))[1:2]
    return trace(below[0][0] if below else error)


def trace_of(error: BaseException) -> str:
    """Return the traceback of user code: as it came from another process, or that of an error of this process."""
    came = [link.text for link, _ in with_causes(error) if isinstance(link, RemoteTraceback)]
    return came[-1] if came else trace(error)


def trace(error: BaseException) -> str:
    """Return the tracebacks of an error and its causes, each from the user's first frame on."""
    try:
        shown = traceback.TracebackException.from_exception(error)
        _drop_our_frames(shown)
        return "".join(shown.format())[-_LARGEST:]
    except Exception as second:
        return f"<its traceback cannot be shown: {type(second).__name__}>\n"


def _drop_our_frames(shown: traceback.TracebackException) -> None:
    link: traceback.TracebackException | None = shown
    while link is not None:
        files = [frame.filename for frame in link.stack]
        first = next((n for n, file in enumerate(files) if is_the_users(file)), None)
        if first is None:  # the loop called a library directly, or there is no user code
            first = next((n for n, file in enumerate(files) if not is_ours(file)), 0)
        link.stack = traceback.StackSummary.from_list(link.stack[first:])
        link = link.__cause__ or link.__context__
