"""Pickles of functions for the executors, pickles in snapshots, and the check for plain data.

If a function cannot be pickled, the report names the part that prevents it. Pickles in snapshots can be refused.

Every version can read plain data. The positions, committables and states of connectors consist of plain data.
"""

from __future__ import annotations

import builtins
import functools
import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, BinaryIO

import cloudpickle

from tidegate.base.errors import PickleRefusedError

_Cached = type(functools.lru_cache(lambda: None))
_DEEPEST = 6


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        """Pickle a cached function of the main program by value: by name no worker could find it."""
        if isinstance(value, _Cached) and (value.__module__ == "__main__" or "<locals>" in value.__qualname__):
            return _cached, (value.__wrapped__, value.cache_parameters())
        return super().reducer_override(value)


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def dumps(value: Any) -> bytes:
    """Pickle as ``cloudpickle.dumps`` does, and also functions with ``functools.lru_cache``, with an empty cache."""
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def pickled(part: Any) -> bytes | None:
    """Pickle a part of an operator when the operator is added, as PyFlink does; None if the part cannot be pickled.

    So a lambda in a loop sees the loop's variable of that moment, and later changes to a list do not count. ``execute`` reports
    parts that cannot be pickled, with the operator's name.
    """
    try:
        return dumps(part)
    except Exception:  # pickling runs user code, which may raise anything
        return None


def cure_of(error: BaseException, otherwise: str) -> str:
    """Return the cure for a value that cannot be pickled: ``otherwise``, unless the value is nested too deeply for Python."""
    deep = isinstance(error, RecursionError) or "excessively deep recursion" in str(error)
    return _FLATTEN if deep else otherwise


_FLATTEN = "nest the data less deeply: use a flat list of its parts, or a text that holds it"


# -- pickles in snapshots ------------------------------------------------------------------------------------------------------


_stored_allowed = True


def allow_stored(allowed: bool) -> None:
    """Set whether this process may load pickles from snapshots. A pickle runs code of its writer.

    The driver calls this when a job starts, and a worker for each of its tasks.
    """
    global _stored_allowed
    _stored_allowed = allowed


def stored_allowed() -> bool:
    return _stored_allowed


def load_stored(data: bytes) -> Any:
    """Load a pickle from a snapshot, or raise ``PickleRefusedError``."""
    return stored_loader()(data)


def load_stored_from(stream: BinaryIO) -> Any:
    """Load the next pickle of a stream, as ``load_stored`` does."""
    return pickle.load(stream) if _stored_allowed else _refuse(b"")


def stored_loader() -> Callable[[bytes], Any]:
    """Return a function that loads stored pickles, for many of them: the rule is looked up once."""
    return pickle.loads if _stored_allowed else _refuse


def _refuse(data: bytes) -> Any:
    raise PickleRefusedError(
        "Stored data is pickled, and pickles are refused here (--no-pickle, tidegate.state.allow-pickle: false)",
        found=f"{len(data)} pickled bytes",
        cure="declare the types of keys and states; allow pickles only for snapshots of programs you would run",
    )


def why_not(value: Any, error: BaseException) -> str:
    """Return the text of the error, with the variable or attribute that causes it."""
    text = f"{type(error).__name__}: {error}"
    path = _culprit(value, 0)
    return f"{text} ({', in '.join(reversed(path))})" if path else text


def _culprit(value: Any, depth: int) -> list[str]:
    """Return the names that lead to a part that cannot be pickled, from the outside in; empty if all named parts can."""
    for name, part in _parts(value) if depth < _DEEPEST else ():
        if pickled(part) is None:
            return ([name] if name else []) + _culprit(part, depth + 1)
    return []


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts that are pickled with a value, each with the user's name for it."""
    if isinstance(value, MethodType):
        yield "", value.__self__
        yield "", value.__func__
    elif isinstance(value, FunctionType):
        yield from _variables(value)
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield from ((f"argument {n + 1} of a partial", part) for n, part in enumerate(value.args))
        yield from ((f"argument '{name}' of a partial", part) for name, part in value.keywords.items())
    elif isinstance(value, dict):
        yield from ((f"entry {key!r:.50}", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"item {n}", part) for n, part in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type) and type(value).__module__.startswith("tidegate."):
        yield from (("", getattr(value, field.name)) for field in fields(value))
    elif not isinstance(value, type | ModuleType) and hasattr(value, "__dict__"):
        kind = type(value).__qualname__
        yield from ((f"attribute '{name}' of {kind}", part) for name, part in vars(value).items())


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    place = f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})"
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"variable '{name}' of {place}", cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    for name in sorted(_global_names(code)):
        if name in function.__globals__ and not hasattr(builtins, name):
            yield f"global variable '{name}' in {place}", function.__globals__[name]
    yield from ((f"a default of {place}", part) for part in function.__defaults__ or ())


def _global_names(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_global_names, inner))


def is_encodable(text: str) -> bool:
    """Return whether a text can be encoded: lone surrogates cannot."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_other(data: Any, *, allow_bytes: bool) -> Any | None:
    """Return the first part of ``data`` that is not plain; None if all parts are."""
    if data is None or type(data) in (bool, float) or (allow_bytes and type(data) is bytes):
        return None
    if type(data) is str:
        return None if is_encodable(data) else data
    if type(data) is int:
        return None if -(1 << 63) <= data < 1 << 64 else data
    if type(data) is list:
        items: list[Any] = data
    elif type(data) is dict:
        items = [*data.keys(), *data.values()]
    else:
        return data
    return next((other for item in items if (other := find_other(item, allow_bytes=allow_bytes)) is not None), None)
