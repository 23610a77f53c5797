"""Answer ``json.loads`` and ``json.dumps`` of user code faster, with the same results.

``loads`` asks msgspec first, and the standard library wherever msgspec refuses a text. msgspec is the stricter parser:
a text that msgspec accepts gives the same objects in both. The refused texts are those with NaN, an infinite number, a
lone surrogate or another encoding, and invalid texts, whose errors are so the standard library's own.
``tests/unit/operators/test_fast_json.py`` compares both parsers.

``dumps`` calls the encoder of the standard library as the standard library does, but does not build a ``JSONEncoder``
and its closures for every record. msgspec writes other texts (separators, floats, escapes), so msgspec is not asked.

The two functions stand in the ``json`` module only while a task of a job runs in a worker process of Spark. So they
reach user functions of any shape, their methods, and the functions that they call. The driver, and the user's own
process, keep the standard library as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import CodeType, FunctionType, MethodType
from typing import Any

import msgspec

from tidegate.base.user_code import UserFunction, UserValue, is_the_users

_STANDARD: dict[str, Callable[..., Any]] = {"loads": json.loads, "dumps": json.dumps}
_standard_loads, _standard_dumps = json.loads, json.dumps
_module: Any = json
_decoder, _encoder = _module._default_decoder, _module._default_encoder
_encoders: Any = _module.encoder
_make_encoder, _escape = _encoders.c_make_encoder, _encoders.encode_basestring
_escape_all = _encoders.encode_basestring_ascii
_decode = msgspec.json.Decoder().decode
_join = "".join
_COMPACT = {"separators": (",", ":")}


@wraps(_standard_loads)
def loads(s: UserValue, **arguments: UserValue) -> UserValue:
    # msgspec takes any buffer and the subclasses of str. The standard library refuses the first, and calls methods of
    # the second. A program may have set another default decoder.
    if not arguments and (type(s) is str or type(s) is bytes) and _module._default_decoder is _decoder:
        try:
            return _decode(s)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            # No other error is caught: a signal handler of the user may raise here
            pass  # the standard library answers outside of this block: its error has no other error as context
    return _standard_loads(s, **arguments)


@wraps(_standard_dumps)
def dumps(obj: UserValue, **arguments: UserValue) -> str:
    # These are the calls of JSONEncoder.iterencode. A program may have set another default encoder, another
    # JSONEncoder.default, or Python's slow encoder.
    if _module._default_encoder is _encoder and _encoders.c_make_encoder is _make_encoder:
        default = _encoder.default
        if not arguments:
            return _join(_make_encoder({}, default, _escape_all, None, ": ", ", ", False, False, True)(obj, 0))
        if len(arguments) == 1 and type(arguments.get("separators")) is tuple and arguments == _COMPACT:
            return _join(_make_encoder({}, default, _escape_all, None, ":", ",", False, False, True)(obj, 0))
        if len(arguments) == 1 and arguments.get("ensure_ascii") is False:
            return _join(_make_encoder({}, default, _escape, None, ": ", ", ", False, False, True)(obj, 0))
    return _standard_dumps(obj, **arguments)


loads.__module__ = dumps.__module__ = __name__  # so that a pickle of them finds them, switched on or not
_FAST: dict[str, Callable[..., Any]] = {"loads": loads, "dumps": dumps}
FUNCTIONS = frozenset((*_STANDARD.values(), *_FAST.values()))
"""The functions of both kinds."""
LOADS = (loads, _standard_loads)
"""What ``json.loads`` is, switched on and off."""


def switch(on: bool) -> None:
    """Put the fast functions into the ``json`` module, or the standard ones. A function that the program has put there
    stays. So does a standard function that the program has changed from inside."""
    wanted, other = (_FAST, _STANDARD) if on and _is_unchanged() else (_STANDARD, _FAST)
    for name, function in wanted.items():
        if getattr(json, name) is other[name]:
            setattr(json, name, function)


@contextmanager
def switched_on() -> Iterator[None]:
    switch(True)
    try:
        yield
    finally:
        switch(False)


def _parts() -> list[object]:
    """Return what decides how the standard functions work."""
    decoder, encoder = json.JSONDecoder, json.JSONEncoder
    methods = (decoder.decode, decoder.raw_decode, encoder.encode, encoder.iterencode)
    return [*methods, *vars(_decoder).values(), *vars(_encoder).values()]


_PARTS = _parts()
_LIBRARY = os.path.dirname(json.__file__)
_PRISTINE = all(
    os.path.dirname(part.__code__.co_filename) == _LIBRARY
    for part in (*_STANDARD.values(), *_PARTS)
    if isinstance(part, FunctionType)
) and all(isinstance(function, FunctionType) for function in _STANDARD.values())
"""Whether the module was the standard library's own when this module was imported."""


def _is_unchanged() -> bool:
    found = _parts()
    same = len(found) == len(_PARTS) and all(map(lambda a, b: a is b, found, _PARTS))
    return _PRISTINE and _make_encoder is not None and same


def parses_plainly() -> bool:
    """Tell whether ``json.loads`` gives new objects of exact builtin classes: nobody has changed it, or its defaults."""
    return json.loads in FUNCTIONS and _module._default_decoder is _decoder and _is_unchanged()


# -- which functions use them ----------------------------------------------------------------------------------------------


def functions_used(function: UserFunction) -> set[str]:
    """Return the functions among ``json.loads`` and ``json.dumps`` that a function names, or a function of the program
    that it calls: as far as their code tells."""
    found: set[str] = set()
    waiting: list[Any] = [function]
    seen: set[FunctionType] = set()
    while waiting:
        each = waiting.pop()
        plain, this = (each.__func__, each.__self__) if isinstance(each, MethodType) else (each, None)
        if not isinstance(plain, FunctionType) or plain in seen:
            continue
        seen.add(plain)
        names, known = _names_in(plain.__code__), _known_to(plain)
        values = [known.get(name) for name in names]
        for name, fast in _FAST.items():
            through_module = name in names and any(value is json for value in values)
            if through_module or any(value is fast or value is _STANDARD[name] for value in values):
                found.add(f"json.{name}")
        values += [] if this is None else [getattr(type(this), name, None) for name in names]
        called = [value for value in values if isinstance(value, FunctionType)]
        users = [value for value in called if is_the_users(value.__code__.co_filename)]
        waiting.extend(users if this is None else [MethodType(value, this) for value in users])
    return found


def _names_in(code: CodeType) -> set[str]:
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    return {*code.co_names, *code.co_freevars, *(name for part in inner for name in _names_in(part))}


def _known_to(function: FunctionType) -> dict[str, object]:
    """Return the globals of a function and the variables of its closure."""
    known = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            known[name] = cell.cell_contents
        except ValueError:
            continue  # no value yet
    return known
