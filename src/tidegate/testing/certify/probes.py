"""Probes: fields of functions that change, calls that give another result each time, keys that depend on an order.

``stand_ins`` must be installed before the user's program is loaded: the program then imports a clock that can be set.
"""

from __future__ import annotations

import datetime as real_module
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import cloudpickle

from tidegate.base.user_code import is_the_users
from tidegate.graph.transformation import Partitioning
from tidegate.operators.contracts.operator import StreamOperator
from tidegate.state.descriptors import State
from tidegate.state.keys import encode_key, key_identity
from tidegate.testing.certify import code
from tidegate.testing.certify.code import place_text

# -- clocks --------------------------------------------------------------------------------------------------------------

_real_time, _real_time_ns = time.time, time.time_ns
_real_datetime, _real_date = real_module.datetime, real_module.date
NOON = 1_700_000_000.0
"""What user code reads from every clock, unless a probe moves it."""


class WallClock:
    """The clock of user code. ``now`` None: real time."""

    now: float | None = None

    @classmethod
    def read(cls) -> float:
        frame = sys._getframe(2)
        if cls.now is None or not is_the_users(frame.f_code.co_filename):
            return _real_time()
        return cls.now


def _time() -> float:
    return WallClock.read()


def _time_ns() -> int:
    return int(WallClock.read() * 1_000_000_000)


class _StandIn(type):
    """Stands for a class of ``datetime``, and gives everything of it but the present time."""

    real: type

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        return cls.real(*arguments, **named)

    def __getattr__(cls, name: str) -> Any:
        return getattr(type.__getattribute__(cls, "real"), name)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.real)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or issubclass(subclass, cls.real)


class ClockedDatetime(metaclass=_StandIn):
    """``datetime.datetime`` as the user's program imports it."""

    real = _real_datetime

    @staticmethod
    def now(tz: Any = None) -> Any:
        return _real_datetime.fromtimestamp(WallClock.read(), tz)

    @staticmethod
    def today() -> Any:
        return _real_datetime.fromtimestamp(WallClock.read())

    @staticmethod
    def utcnow() -> Any:
        return _real_datetime.fromtimestamp(WallClock.read(), real_module.UTC).replace(tzinfo=None)


class ClockedDate(metaclass=_StandIn):
    """``datetime.date`` as the user's program imports it."""

    real = _real_date

    @staticmethod
    def today() -> Any:
        return _real_datetime.fromtimestamp(WallClock.read()).date()


@contextmanager
def stand_ins() -> Iterator[None]:
    """Let a program that is loaded now import clocks that can be set."""
    time.time, time.time_ns = _time, _time_ns
    real_module.datetime, real_module.date = ClockedDatetime, ClockedDate  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        time.time, time.time_ns = _real_time, _real_time_ns
        real_module.datetime, real_module.date = _real_datetime, _real_date  # type: ignore[misc]


def seed_everything(seed: int) -> None:
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


@contextmanager
def time_zone(name: str) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


# -- calls -----------------------------------------------------------------------------------------------------------------

RANDOM, CLOCK, ZONE = "random", "clock", "zone"
_RANDOM_FILES = ("random.py", "uuid.py", "secrets.py")
_RANDOM_CALLS = {"urandom", "getrandom", "uuid1", "uuid4", "token_hex", "token_bytes", "token_urlsafe"}
_CLOCK_CALLS = {"now", "today", "utcnow", "time", "time_ns", "_time", "_time_ns", "monotonic", "monotonic_ns"}
_ZONE_CALLS = {
    *("fromtimestamp", "timestamp", "localtime", "mktime", "astimezone", "ctime", "now", "today"),
}
Call = tuple[str, str, int, str]
"""A kind of call, and the user's file, line and function."""


class CallWatcher:
    """A profiler that notes the lines of user code that ask for randomness, the clock or the time zone."""

    def __init__(self) -> None:
        self.calls: dict[Call, None] = {}

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event == "c_call":
            kinds, caller = _kinds_of_builtin(argument), frame
        elif event == "call":
            kinds, caller = _kinds_of_function(frame.f_code), frame.f_back
        else:
            return
        if kinds and caller is not None and is_the_users(caller.f_code.co_filename):
            for kind in kinds:
                self.calls[kind, caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_name] = None

    def lines(self, kind: str) -> list[tuple[str, str]]:
        """Return the lines of a kind, each with the file and line alone."""
        return [(f"{file}:{line}", place_text(file, line, name)) for own, file, line, name in self.calls if own == kind]


def _kinds_of_builtin(function: Any) -> list[str]:
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(owner, random.Random) or name in ("urandom", "getrandom"):
        return [RANDOM]
    if type(owner).__module__.startswith("numpy.random"):
        return [RANDOM]
    # Compared by identity: an array of numpy has no single answer to ==, and a profiler that raises is switched off.
    of_time = isinstance(owner, _real_date) or any(owner is known for known in (_real_datetime, _real_date, time))
    return [kind for kind, names in ((CLOCK, _CLOCK_CALLS), (ZONE, _ZONE_CALLS)) if of_time and name in names]


def _kinds_of_function(called: Any) -> list[str]:
    file, name = os.path.basename(called.co_filename), called.co_name
    if called.co_filename == __file__:
        naive = name in ("now", "today") or (name in _ZONE_CALLS)
        return [kind for kind, fits in ((CLOCK, name in _CLOCK_CALLS), (ZONE, naive)) if fits]
    if file in _RANDOM_FILES and not called.co_filename.startswith("<"):
        return [RANDOM] if name in _RANDOM_CALLS or file == "random.py" or name.startswith("uuid") else []
    return []


@contextmanager
def watched(watcher: CallWatcher) -> Iterator[None]:
    sys.setprofile(watcher)
    try:
        yield
    finally:
        sys.setprofile(None)


# -- what a function remembers ------------------------------------------------------------------------------------------

Fingerprint = dict[tuple[str, str], bytes]
"""Kind and name of something a function can remember -> its contents."""
FIELD, CLASS, DEFAULT, GLOBAL, CAPTURED = (
    "field",
    "class attribute",
    "mutable default",
    "global variable",
    "captured variable",
)


def fingerprint(obj: Any) -> Fingerprint:
    """Return everything that a function remembers outside of state."""
    found: Fingerprint = {}

    def note(kind: str, name: str, value: Any) -> None:
        content = _content(value)
        if content is not None:
            found[kind, name] = content

    if not isinstance(obj, FunctionType):
        for name, value in getattr(obj, "__dict__", {}).items():
            note(FIELD, name, value)
        for base in type(obj).__mro__:
            if any(is_the_users(f.__code__.co_filename) for f in vars(base).values() if isinstance(f, FunctionType)):
                for name, value in vars(base).items():
                    if not name.startswith("__") and not callable(value):
                        note(CLASS, name, value)
    for function in code.functions_of(obj):
        for names, values in _defaults(function):
            for name, value in zip(names, values, strict=False):
                note(DEFAULT, f"{function.__code__.co_name}({name})", value)
        for name, value in code.globals_of(function).items():
            note(GLOBAL, name, value)
        for name, value in code.captured_by(function).items():
            note(CAPTURED, name, value)
    return found


def _defaults(function: FunctionType) -> Iterator[tuple[list[str], list[Any]]]:
    own = function.__code__
    given = list(function.__defaults__ or ())
    names = list(own.co_varnames[: own.co_argcount])
    yield names[len(names) - len(given) :], given
    named = function.__kwdefaults__ or {}
    yield list(named), list(named.values())


def _content(value: Any) -> bytes | None:
    """Return the content of a value; None: it is no data, or it is the engine's."""
    kind = type(value)
    if (
        isinstance(value, State)
        or kind.__module__.startswith("tidegate.")
        or callable(value)
        or kind.__name__ == "module"
    ):
        return None
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception:
        return None


def line_of(obj: Any, kind: str, name: str) -> str | None:
    """Return the line that changes something that a function remembers."""
    if kind == DEFAULT:
        name = name.partition("(")[2].removesuffix(")")
    base = code.is_field(name) if kind in (FIELD, CLASS) else code.is_name(name)
    return code.first_line(obj, code.changes(base))


def remembered(operators: list[StreamOperator]) -> dict[tuple[str, int, int], tuple[Any, Fingerprint]]:
    """Return the fingerprints of the functions of operators, by operator, subtask and number."""
    found = {}
    for operator in operators:
        for number, obj in enumerate(code.user_objects(operator.operator.spec.user_function)):
            found[operator.operator.name, operator.setup.index, number] = obj, fingerprint(obj)
    return found


# -- keys --------------------------------------------------------------------------------------------------------------------


class CheckedSelector:
    """A key selector that also computes the key of the same record with its dicts in another order."""

    def __init__(self, selector: Callable[[Any], Any], key_type: Any, operator: str) -> None:
        self.selector, self.key_type, self.operator = selector, key_type, operator

    def __call__(self, value: Any) -> Any:
        key = self.selector(value)
        if self.operator not in unordered_keys:
            other, turned = reordered(value), reordered(key)
            for again in ([self.selector(other)] if other is not None else []) + (
                [turned] if turned is not None else []
            ):
                if self._differ(key, again):
                    unordered_keys[self.operator] = selector_line(self.selector), f"keys {key!r} and {again!r}"
        return key

    def _differ(self, key: Any, again: Any) -> bool:
        identify = key_identity(self.key_type).identify
        try:
            return bool(encode_key(identify(key)) != encode_key(identify(again)))
        except Exception:  # the job reports it
            return False


unordered_keys: dict[str, tuple[str | None, str]] = {}
"""Operator -> the line of its key selector, and two keys of equal records."""


def selector_line(selector: Any) -> str | None:
    obj = getattr(selector, "__self__", None) or selector
    functions = code.functions_of(obj)
    if not functions:
        return None
    own = next((f for f in functions if f.__code__.co_name in ("get_key", "<lambda>")), functions[0])
    return place_text(own.__code__.co_filename, own.__code__.co_firstlineno, own.__code__.co_name)


def reordered(value: Any) -> Any:
    """Return an equal value whose dicts have another order; None: there is no dict with two entries."""
    changed = False

    def turned(item: Any) -> Any:
        nonlocal changed
        if type(item) is dict:
            changed = changed or len(item) > 1
            return {k: turned(v) for k, v in reversed(item.items())}
        if type(item) in (list, tuple):
            return type(item)(map(turned, item))
        if type(item) is str and item[:1] == "{":
            try:
                return json.dumps(turned(json.loads(item)))
            except ValueError:
                return item
        return item

    other = turned(value)
    return other if changed else None


def with_checked_keys(partitioning: Partitioning, operator: str) -> Partitioning:
    """Return a partitioning whose selector is checked."""
    assert partitioning.selector is not None
    checked = CheckedSelector(partitioning.selector, partitioning.key_type, operator)
    return Partitioning(
        partitioning.ship, checked, partitioning.key_type, partitioning.partitioner, keyed=partitioning.keyed
    )
