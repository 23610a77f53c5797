"""Decide what an inlined body may call: only functions that are known not to look at their caller.

In the loop a body has no frame of its own, so a callee that looks at its caller's frame sees the loop: a logger finds
the wrong file and line, a debugger stops in the wrong place, ``warnings`` and ``inspect`` report something else.
Neither the name of a function nor the name of its module tells whether the function looks. So there is a list of what
is allowed: functions and types of Python's own that do not look, methods of its types, Tidegate's states and contexts.
A user's function, or a method of ``self``, is allowed if its own source calls only what is allowed. Such a *helper* is
called from the loop as it is: it has a frame of its own, and nothing below it looks further up.

Accepted without a check: operators, attributes, iteration and ``with`` on objects of unknown class. A class whose
``__add__`` or property looks at the frames of its callers is not worth refusing every ``a + b``. And a method of an
object of unknown class is judged by its name: ``x.append(y)`` is taken for the method of a list.
"""

from __future__ import annotations

import ast
import base64
import binascii
import bisect
import builtins
import collections
import contextlib
import datetime
import decimal
import fractions
import functools
import hashlib
import heapq
import io
import itertools
import json
import math
import operator
import os.path
import random
import re
import statistics
import string
import struct
import time
import types
import unicodedata
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tidegate.base.user_code import UserFunction, UserValue
from tidegate.common.types import Row
from tidegate.graph.transformation import OutputTag
from tidegate.operators.loop import fast_json
from tidegate.operators.loop.rewrites.bodies import Body, body_of, comprehended
from tidegate.operators.loop.rewrites.rewrite import FunctionId, Refused, function_id

_BUILTINS = {
    *("abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr", "complex", "dict"),
    *("divmod", "enumerate", "filter", "float", "format", "frozenset", "getattr", "hasattr", "hash", "hex", "id"),
    *("int", "isinstance", "issubclass", "iter", "len", "list", "map", "max", "memoryview", "min", "next"),
    *("object", "oct", "open", "ord", "pow", "print", "range", "repr", "reversed", "round", "set", "slice"),
    *("sorted", "str", "sum", "tuple", "type", "zip"),
}
_MODULES = (
    *(base64, binascii, bisect, collections, datetime, decimal, fractions, functools, hashlib, heapq, itertools, json),
    *(math, operator, os.path, random, re, statistics, string, struct, time, unicodedata, uuid, zlib),
)
_DEPRECATED = ("utcnow", "utcfromtimestamp")
"""Names that warn: a warning names the file and line of the caller."""
_TYPES = (
    *(str, bytes, bytearray, int, float, complex, bool, list, tuple, dict, set, frozenset, range, re.Pattern, re.Match),
    *(datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone, decimal.Decimal),
    *(collections.deque, collections.Counter, collections.defaultdict, collections.OrderedDict, random.Random),
    *(uuid.UUID, io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.StringIO, io.BytesIO),
)
_OURS = {
    *("value", "update", "clear", "get", "add", "add_all", "put", "put_all", "contains", "remove", "keys"),
    *("values", "items", "is_empty", "timestamp", "timer_service", "get_current_key", "time_domain"),
    *("current_watermark", "current_processing_time", "register_processing_time_timer"),
    *("register_event_time_timer", "delete_processing_time_timer", "delete_event_time_timer", "as_dict"),
    *("get_fields_by_names", "set_field_names", "set_row_kind", "get_row_kind"),
}
_METHODS = {name for kind in (*_TYPES, Row) for name in dir(kind) if not name.startswith("_")} | _OURS
_METHODS -= set(_DEPRECATED)
_READABLE = {"__class__", "__name__", "__qualname__", "__module__", "__doc__"}
"""Attributes with underscores that reveal nothing about frames."""
_MISSING = object()


def _public(module: types.ModuleType) -> Iterator[object]:
    for name in getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]:
        value = getattr(module, name, None)
        if callable(value) and getattr(value, "__module__", None) != "typing":
            yield value


# Without namedtuple: it looks for the module of its caller
_ALLOWED: set[object] = {
    *(getattr(builtins, name) for name in _BUILTINS),
    *(value for module in _MODULES for value in _public(module)),
    *fast_json.FUNCTIONS,
    *(contextlib.suppress, contextlib.nullcontext, contextlib.closing, Row, OutputTag, *_TYPES),
} - {collections.namedtuple}


class _Use(NamedTuple):
    """Hold a name with the attributes after it, as the body uses them: ``math.floor`` is ``("math", ("floor",))``.
    ``called``: it is called; ``asked``: it is used where only the identity of a class counts."""

    root: str
    attributes: tuple[str, ...]
    called: bool
    asked: bool

    def __str__(self) -> str:
        return ".".join((self.root, *self.attributes))


class Called(NamedTuple):
    """Hold what a body relies on. ``relied``: checks, each fails when a name stands for another object. ``helpers``: the bodies
    of the user's functions that are called from it, and from these."""

    relied: list[Callable[[], bool]]
    helpers: dict[FunctionId, Body]


_MOST_HELPERS = 16


def check(
    body: Body, function: UserFunction, *, opened: bool, body_of: Callable[[UserFunction], Body] = body_of
) -> Called:
    """Raise Refused if the body calls something that is not allowed. ``opened``: the function object has the attributes
    that its ``open`` sets. ``body_of``: returns the body of a helper, or raises Refused."""
    called = Called([], {})
    _check(body, function, called, opened, body_of)
    return called


def _check(
    body: Body, function: UserFunction, called: Called, opened: bool, body_of: Callable[[UserFunction], Body]
) -> None:
    names = _Names(body, function, called, opened, body_of)
    for use in _uses(body.statements):
        names.check(use)


class _Names:
    """Find what the names of a body stand for."""

    def __init__(
        self,
        body: Body,
        function: UserFunction,
        called: Called,
        opened: bool,
        body_of: Callable[[UserFunction], Body],
    ) -> None:
        plain: Any = getattr(function, "__func__", function)
        self._called, self._body_of = called, body_of
        self._scope: dict[str, object] = plain.__globals__
        self._closure = dict(zip(body.free, plain.__closure__ or (), strict=True))
        self._own = {*body.variables, *(name for part in body.parts() for name in comprehended(part))}
        bound = plain is not function and body.parameters and body.parameters[0] not in body.assigned
        self._self: str | None = body.parameters[0] if bound else None
        self._this: Any = getattr(function, "__self__", None)
        self._opened = opened
        self.relied = called.relied

    def check(self, use: _Use) -> None:
        hidden = next((name for name in use.attributes if name.startswith("__") and name not in _READABLE), None)
        if hidden is not None:
            raise Refused(f"uses {hidden}")
        if use.root == self._self:
            self._check_self(use)
        elif use.root in self._own or not use.root:
            self._check_unknown(use, use.attributes)
        else:
            self._check_known(use)

    def _check_unknown(self, use: _Use, attributes: tuple[str, ...]) -> None:
        """Check a variable, or the result of an expression: methods are judged by their name."""
        if use.called and not attributes:
            raise Refused(f"calls the variable {use.root}" if use.root else "calls the result of an expression")
        if use.called and attributes[-1] not in _METHODS:
            raise Refused(f"calls {use}" if use.root else f"calls a method {attributes[-1]}")

    def _check_known(self, use: _Use) -> None:
        """Check a global, a builtin, or a variable of the closure."""
        value = self._find(use.root)
        if value is _MISSING:
            if use.called:
                raise Refused(f"calls {use}, which is not known")
            return
        attributes = use.attributes
        while attributes and isinstance(value, types.ModuleType | type):
            value, attributes = self._attribute(value, attributes[0]), attributes[1:]
        self._check_value(use, value, attributes)
        if callable(value) or attributes:
            self._rely(use, value, len(use.attributes) - len(attributes))

    def _check_value(self, use: _Use, value: object, attributes: tuple[str, ...]) -> None:
        if value is _MISSING:
            self._check_unknown(use, attributes or use.attributes)
        elif not attributes:
            asked = use.asked and isinstance(value, type)
            if use.called and isinstance(value, types.FunctionType) and not _is_allowed(value):
                self._follow(use, value)
            elif use.called or (callable(value) and not asked):
                _allow(use, value)
            elif isinstance(value, types.ModuleType) and value not in _MODULES:
                raise Refused(f"uses the module {use}")
        elif len(attributes) > 1:
            self._check_unknown(use, attributes)
        elif use.called and not _is_safe_receiver(value):
            raise Refused(f"calls {use}")

    def _check_self(self, use: _Use) -> None:
        if not use.attributes:
            if use.called or callable(self._this):
                raise Refused(f"calls or passes on {use.root}")
            return
        first, rest = use.attributes[0], use.attributes[1:]
        value = getattr(type(self._this), first, _MISSING)
        if isinstance(value, property) or hasattr(value, "__set__"):
            value = _MISSING  # whatever it returns
        elif self._opened and first in getattr(self._this, "__dict__", {}):
            value = vars(self._this)[first]
            self.relied.append(lambda: type(getattr(self._this, first, None)) is type(value))
        elif not callable(value):
            value = _MISSING  # open() may replace it
        elif use.called and not rest and isinstance(_static(type(self._this), first), types.FunctionType):
            self._follow_method(use, first)
            return
        if value is not _MISSING:
            self._check_value(use, value, rest)
        elif not rest and use.called:
            raise Refused(f"calls {use}")
        elif rest:
            self._check_unknown(use, rest)

    def _follow_method(self, use: _Use, name: str) -> None:
        kind, this = type(self._this), self._this
        method = _static(kind, name)
        self._follow(use, types.MethodType(method, this))
        self.relied.append(lambda: _static(kind, name) is method and name not in getattr(this, "__dict__", {}))

    def _follow(self, use: _Use, helper: UserFunction) -> None:
        """Check a helper as this body was checked."""
        key = function_id(helper)
        if key in self._called.helpers:
            return
        try:
            body = self._body_of(helper)
            if key is None or len(self._called.helpers) == _MOST_HELPERS or use.root in _BUILTINS:
                raise Refused("is one function too many")
            self._called.helpers[key] = body
            _check(body, helper, self._called, self._opened, self._body_of)
        except Refused as refused:
            raise Refused(f"calls {use}, which {refused}") from None
        plain = helper.__func__ if isinstance(helper, types.MethodType) else helper
        self.relied.append(lambda: plain.__code__ is key[0])

    def _find(self, name: str) -> object:
        cell = self._closure.get(name)
        if cell is not None:
            try:
                return cell.cell_contents
            except ValueError:
                return _MISSING
        return self._scope.get(name, getattr(builtins, name, _MISSING))

    @staticmethod
    def _attribute(value: object, name: str) -> object:
        return getattr(value, name, _MISSING)

    def _rely(self, use: _Use, value: object, depth: int) -> None:
        def holds() -> bool:
            found = self._find(use.root)
            for attribute in use.attributes[:depth]:
                found = self._attribute(found, attribute)
            return found is value or (isinstance(value, types.BuiltinFunctionType) and bool(found == value))

        self.relied.append(holds)


def _static(kind: type, name: str) -> Any:
    """Return an attribute of a class as it is stored there."""
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), _MISSING)


def _allow(use: _Use, value: object) -> None:
    if not _is_allowed(value):
        what = use if use.called else f"or passes on {use}"
        raise Refused(f"calls {what}")


def _is_allowed(value: UserValue) -> bool:
    try:
        if value in _ALLOWED:
            return getattr(value, "__name__", "") not in _DEPRECATED
    except TypeError:
        return False  # cannot be hashed
    if isinstance(value, type):
        return _is_made_by_python(value)
    kind = getattr(value, "__objclass__", getattr(value, "__self__", None))  # a method of a type, or of the type itself
    kind = kind if isinstance(kind, type) else type(kind)
    return not isinstance(value, types.MethodType) and kind in _TYPES and value.__name__ not in _DEPRECATED


def _is_made_by_python(kind: type) -> bool:
    """Tell whether making an instance runs no user's function: exceptions and the like."""
    makers = (kind.__init__, kind.__new__)  # type: ignore[misc]
    return type(kind) is type and not any(isinstance(maker, types.FunctionType) for maker in makers)


def _is_safe_receiver(value: object) -> bool:
    return type(value) in _TYPES or type(value).__module__.startswith("tidegate.")


# -- how names are used ------------------------------------------------------------------------------------------------


def _uses(nodes: Iterable[ast.AST], asked: bool = False) -> Iterator[_Use]:
    for node in nodes:
        yield from _uses_in(node, asked)


def _uses_in(node: ast.AST, asked: bool) -> Iterator[_Use]:
    if isinstance(node, ast.Call):
        yield from _chain(node.func, called=True, asked=False)
        is_question = isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass")
        for index, argument in enumerate(node.args):
            yield from _uses_in(argument, is_question and index == 1)
        yield from _uses(node.keywords)
    elif isinstance(node, ast.Attribute | ast.Name):
        yield from _chain(node, called=False, asked=asked)
    elif isinstance(node, ast.Compare):
        yield from _uses([node.left, *node.comparators], True)
    elif isinstance(node, ast.ExceptHandler):
        yield from _uses([node.type] if node.type else [], True)
        yield from _uses(node.body)
    elif isinstance(node, ast.AnnAssign):
        # Annotations are not evaluated
        yield from _uses([part for part in (node.target, node.value) if part is not None])
    else:
        yield from _uses(ast.iter_child_nodes(node), asked and isinstance(node, ast.Tuple))


def _chain(node: ast.expr, *, called: bool, asked: bool) -> Iterator[_Use]:
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.insert(0, node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        yield _Use(node.id, tuple(attributes), called, asked)
    else:
        yield _Use("", tuple(attributes), called, asked)
        yield from _uses_in(node, False)
