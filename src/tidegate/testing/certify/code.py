"""Find lines in the source of user functions: where a field changes, where a set is walked, where a clock is read."""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import Any

from tidegate.base.user_code import is_the_users
from tidegate.operators.contracts.functions import FunctionWrapper

_MUTATORS = {
    *("append", "add", "extend", "insert", "update", "setdefault", "pop", "popitem", "popleft", "appendleft"),
    *("remove", "discard", "clear", "sort", "reverse", "increment"),
}
_LIFE_CYCLE = {"__init__", "open", "close", "__new__", "__setstate__"}


def user_objects(function: Any) -> list[Any]:
    """Return the user's objects in a function of an operator: the function; or trigger, evictor, assigner, aggregate and function
    of a window operation."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if _is_users_object(one):
            found[id(one)] = one
        elif one is function or _is_ours(one):
            waiting += getattr(one, "__dict__", {}).values()
    return list(found.values())


def _is_users_object(value: Any) -> bool:
    if isinstance(value, FunctionType):
        return is_the_users(value.__code__.co_filename)
    return any(is_the_users(code.co_filename) for code in _codes_of_class(type(value)))


def _is_ours(value: Any) -> bool:
    return type(value).__module__.startswith("tidegate.operators.windows") or isinstance(value, FunctionWrapper)


def _codes_of_class(cls: type) -> Iterator[CodeType]:
    for base in cls.__mro__:
        for value in vars(base).values():
            if isinstance(value, FunctionType):
                yield value.__code__


def functions_of(obj: Any) -> list[FunctionType]:
    """Return the user's functions that an object runs: its methods, itself, and helpers that these name."""
    waiting: list[Any] = [obj] if isinstance(obj, FunctionType) else []
    if isinstance(obj, MethodType):
        waiting = [obj.__func__]
    for base in type(obj).__mro__ if not waiting else ():
        waiting += [value for value in vars(base).values() if isinstance(value, FunctionType)]
    found: dict[int, FunctionType] = {}
    while waiting:
        function = waiting.pop(0)
        if id(function.__code__) in found or not is_the_users(function.__code__.co_filename):
            continue
        found[id(function.__code__)] = function
        for name in _names(function.__code__):
            used = function.__globals__.get(name)
            if isinstance(used, FunctionType):
                waiting.append(used)
        waiting += [cell for cell in _cells(function) if isinstance(cell, FunctionType)]
    return list(found.values())


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def globals_of(function: FunctionType) -> dict[str, Any]:
    """Return the global variables that a function names."""
    names = dict.fromkeys(_names(function.__code__))
    return {name: function.__globals__[name] for name in names if name in function.__globals__}


def _cells(function: FunctionType) -> list[Any]:
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:
            continue
    return cells


def captured_by(function: FunctionType) -> dict[str, Any]:
    """Return the variables that a function has captured."""
    return dict(zip(function.__code__.co_freevars, _cells(function), strict=False))


# -- lines -----------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _tree(file: str) -> ast.AST | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (OSError, SyntaxError, ValueError):
        return None


def node_of(function: FunctionType) -> ast.AST | None:
    """Return the syntax tree of a function."""
    code = function.__code__
    tree = _tree(code.co_filename)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    fits = []
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, kinds):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            if first == code.co_firstlineno and getattr(node, "name", "<lambda>") == code.co_name:
                fits.append(node)
    return fits[0] if fits else None


def line_text(function: FunctionType, node: ast.AST) -> str:
    """Return ``file:line in function: text``."""
    code, number = function.__code__, getattr(node, "lineno", function.__code__.co_firstlineno)
    return place_text(code.co_filename, number, code.co_name)


def place_text(file: str, number: int, name: str) -> str:
    text = linecache.getline(file, number).strip()
    return f"{short(file)}:{number} in {name}" + (f": {text}" if text else "")


def short(path: str) -> str:
    """Return a path as a person would write it here."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def line_at(place: str | None) -> str | None:
    """Return a ``file:line`` with the text of the line."""
    if place is None:
        return None
    file, _, number = place.rpartition(":")
    text = linecache.getline(file, int(number)).strip()
    return f"{short(place)}" + (f": {text}" if text else "")


def first_line(obj: Any, wanted: Callable[[ast.AST], bool], *, life_cycle: bool = False) -> str | None:
    """Return the first line of an object's functions with a node that is wanted. ``life_cycle``: also of open and the like."""
    for function in functions_of(obj):
        if not life_cycle and function.__code__.co_name in _LIFE_CYCLE:
            continue
        node = node_of(function)
        for inner in ast.walk(node) if node is not None else ():
            if wanted(inner):
                return line_text(function, inner)
    return None


def changes(base: Callable[[ast.AST], bool]) -> Callable[[ast.AST], bool]:
    """Recognize a change of what ``base`` recognizes: an assignment, or the call of a method that changes."""

    def stores(target: ast.AST) -> bool:
        while not base(target) and isinstance(target, ast.Subscript | ast.Attribute):
            target = target.value
        if isinstance(target, ast.Tuple | ast.List):
            return any(map(stores, target.elts))
        return base(target)

    def wanted(node: ast.AST) -> bool:
        if isinstance(node, ast.Assign):
            return any(map(stores, node.targets))
        if isinstance(node, ast.AugAssign | ast.AnnAssign):
            return stores(node.target)
        if isinstance(node, ast.Delete):
            return any(map(stores, node.targets))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
            return stores(node.func.value)
        return False

    return wanted


def is_field(name: str) -> Callable[[ast.AST], bool]:
    return lambda node: isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.value, ast.Name)


def is_name(name: str) -> Callable[[ast.AST], bool]:
    return lambda node: isinstance(node, ast.Name) and node.id == name


def makes_set(node: ast.AST) -> bool:
    """Recognize a set, or a hash of a text, whose order or value differs from process to process."""
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"set", "frozenset", "hash"}
    )
