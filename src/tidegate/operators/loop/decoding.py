"""Decode JSON inside of a generated loop, and only the fields that the loop uses.

A statement ``x = json.loads(text)`` of a loop becomes a call of msgspec, without a call of a Python function. The loop's text
also tells what is read of ``x``: ``x["bid"]["price"]``, ``x.get("id")``, variables set from such parts. If nothing else can see
``x``, msgspec makes dicts that have only these fields, and passes over the others. It checks the syntax of what it passes over.
A key may also be a constant of the program, or come from a tuple of texts, ``x[KINDS[x["kind"]]]``: then all of these keys are
decoded. A record for which the name stands for something else is decoded as a whole.

Whatever msgspec refuses goes to the function that the user has called, so errors are the standard library's. A number of
very many digits is the one thing that only the standard library refuses, so longer texts are not decoded in part.
``tests/unit/operators/test_decoding.py`` compares both.
"""

from __future__ import annotations

import ast
import dis
import json
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple, Optional, TypedDict

import msgspec

from tidegate.base.user_code import UserValue
from tidegate.operators.loop import fast_json

REFUSED = (msgspec.MsgspecError, UnicodeError, RecursionError, NameError, KeyError)
"""The last two: a constant of the program has been deleted."""
_MOST_FIELDS = 64
_MOST_KEYS = 16

Path = tuple[str, ...]
Paths = tuple[Path, ...]


class Relied(NamedTuple):
    """Describe a name whose value is a key, or the keys. ``text``: the name as the loop writes it. ``holds``: tells whether the
    name still stands for ``value``."""

    text: str
    value: object
    holds: Callable[[], bool]


class Decoded(NamedTuple):
    """Describe a statement ``variable = json.loads(text)``. ``line``: its index in the loop's text. ``fields``: what is used, in
    order; None: the whole value. ``parts``: variables that hold parts of the value, with their paths. ``changes``: the loop's text
    sets the variable ``text``. ``relied``: this is so while all of these names stand for what they stood for."""

    line: int
    variable: str
    text: str
    fields: Paths | None
    parts: dict[str, Path]
    changes: bool
    relied: tuple[Relied, ...] = ()


def decoded_in(text: str, names: dict[str, Any], scope: dict[str, Any], *, only_used: bool) -> list[Decoded]:
    """Return the statements of a loop that the fast ``json.loads`` answers, by line. ``names``: what the loop binds; ``scope``:
    where it finds other names."""
    tree = ast.parse(text)
    found = [parsed for node in ast.walk(tree) if (parsed := _parsed(node, names, scope)) is not None]
    if not found:
        return []
    found.sort(key=lambda each: each[0].lineno)  # ast.walk goes by depth
    uses = _Uses(tree, names, scope) if only_used else None
    changed = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    results = []
    for node, variable, argument in found:
        parts, fields = ({}, None) if uses is None else uses.of(variable, node)
        results.append(
            Decoded(
                node.lineno - 1,
                variable,
                argument,
                fields,
                parts if fields is not None else {},
                argument in changed,
                () if uses is None or fields is None else tuple(uses.relied),
            )
        )
    return results


def limit() -> int:
    """Return the length up to which no text has an integer of too many digits."""
    return sys.get_int_max_str_digits() or sys.maxsize


def still_fast() -> bool:
    """Tell whether ``json.loads`` is the fast function, and nobody has changed what it stands for."""
    return json.loads is fast_json.loads and fast_json.parses_plainly()


@lru_cache(maxsize=256)
def decoder(fields: Paths | None) -> Callable[[str], UserValue]:
    """Return the function that decodes these fields of an object, and of the objects in it. None: everything."""
    return msgspec.json.Decoder(Any if fields is None else _kind(fields)).decode


def _kind(fields: Paths) -> Any:
    heads = dict.fromkeys(path[0] for path in fields)
    kinds = {}
    for head in heads:
        below = tuple(path[1:] for path in fields if path[0] == head)
        kinds[head] = Any if () in below else _kind(below)
    return Optional.__getitem__(TypedDict("Part", kinds, total=False))  # type: ignore[operator]


def part_of(value: UserValue, path: Path) -> UserValue:
    """Return a part of a whole value, for messages."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


# -- which statements ------------------------------------------------------------------------------------------------------


def _parsed(node: ast.AST, names: dict[str, Any], scope: dict[str, Any]) -> tuple[ast.Assign, str, str] | None:
    """Return the statement, its variable and the variable with the text, if the node is such a statement."""
    match node:
        case ast.Assign(
            targets=[ast.Name(id=variable)], value=ast.Call(func=function, args=[ast.Name(id=argument)], keywords=[])
        ) if any(_meant(function, names, scope) is loads for loads in fast_json.LOADS):
            return node, variable, argument
    return None


def _meant(node: ast.expr, names: dict[str, Any], scope: dict[str, Any]) -> object:
    match node:
        case ast.Name(id=name):
            return names[name] if name in names else scope.get(name)
        case ast.Attribute(value=value, attr="loads") if _meant(value, names, scope) is json:
            return json.loads
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)) if type(names.get(name)) is dict:
            return names[name].get(key)
    return None


# -- what is used ----------------------------------------------------------------------------------------------------------


class _Uses:
    """Find what a text reads of a variable. Whatever is not a read of a field by its name uses the whole value."""

    def __init__(self, tree: ast.AST, names: dict[str, Any], scope: dict[str, Any]) -> None:
        self._names_bound, self._scope = names, scope
        self.relied: list[Relied] = []
        self._parent: dict[ast.AST, ast.AST] = {}
        self._names: dict[str, list[ast.Name]] = {}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self._parent[child] = node
            if isinstance(node, ast.Name):
                self._names.setdefault(node.id, []).append(node)
        self._set = {name for name, found in self._names.items() if any(isinstance(n.ctx, ast.Store) for n in found)}
        self._set |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}

    def of(self, variable: str, made: ast.AST) -> tuple[dict[str, Path], Paths | None]:
        """Return the variables with parts of the value that the statement ``made`` puts into a variable, and the fields that are
        used; None: the value as a whole may be used."""
        opaque: set[str] = set()
        while True:
            parts, fields = self._read_of(variable, made, opaque)
            if fields is None:
                return {}, None
            mixed = {name for name, path in parts.items() if not self._holds_only(name, path, parts, made)}
            if not mixed:
                return parts, fields
            if variable in mixed:
                return {}, None
            opaque |= mixed

    def _read_of(self, variable: str, made: ast.AST, opaque: set[str]) -> tuple[dict[str, Path], Paths | None]:
        """Do as ``of`` does. ``opaque``: variables that also hold other values: what they get is used as a whole."""
        parts: dict[str, Path] = {}
        fields: dict[Path, None] = {}
        waiting: list[tuple[str, Path]] = [(variable, ())]
        while waiting:
            name, path = waiting.pop()
            if name in parts:
                if parts[name] != path:
                    return {}, None
                continue
            parts[name] = path
            for used in self._names[name]:
                for field, alias in self._use(used, path, made):
                    if not field or len(fields) > _MOST_FIELDS:
                        return {}, None  # something sees the whole value
                    if alias is None or alias in opaque:
                        fields[field] = None
                    else:
                        waiting.append((alias, field))
        for path in parts.values():  # a part of which nothing is used must be there too
            if path and not any(field[: len(path)] == path for field in fields):
                fields[path] = None
        # a part that is used as a whole includes its own parts
        return parts, tuple(f for f in fields if not any(f[:n] in fields for n in range(1, len(f)))) or None

    def _use(self, node: ast.Name, path: Path, made: ast.AST) -> Iterator[tuple[Path, str | None]]:
        """Yield the field that is read where a variable stands, with the variable that it is put into."""
        if isinstance(node.ctx, ast.Store):
            return
        part: ast.AST = node
        paths = [path]
        while (read := self._read(part)) is not None:
            keys, part, sure = read
            paths = [(*path, key) for path in paths for key in keys]
            if not sure:
                break
        parent = self._parent[part]
        if len(paths) > 1:  # no variable stands for several parts
            yield from ((path, None) for path in paths)
            return
        [path] = paths
        match parent:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is part and part is not node:
                yield path, name
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]) if (
                left is part and part is node
            ):
                return  # a value is None or not, whichever of its fields are decoded
            case ast.Compare(left=ast.Constant(value=str(key)), ops=[ast.In() | ast.NotIn()], comparators=[whole]) if (
                whole is part
            ):
                yield (*path, key), None
            case _:
                yield path, None

    def _read(self, node: ast.AST) -> tuple[tuple[str, ...], ast.AST, bool] | None:
        """Return the key that is read of the expression, or all keys that it may be; the expression that reads it; and whether
        the result can only be the field, or None."""
        parent = self._parent[node]
        match parent:
            case ast.Subscript(value=value, slice=ast.Constant(value=str(key)), ctx=ast.Load()) if value is node:
                return (key,), parent, True
            case ast.Subscript(value=value, slice=index, ctx=ast.Load()) if value is node:
                keys = self._keys(index)
                return None if keys is None else (keys, parent, True)
            case ast.Attribute(value=value, attr="get", ctx=ast.Load()) if value is node:
                call = self._parent[parent]
                match call:
                    case ast.Call(func=function, args=[ast.Constant(value=str(key)), *others], keywords=[]) if (
                        function is parent and len(others) <= 1 and not any(isinstance(o, ast.Starred) for o in others)
                    ):
                        return (key,), call, not others
        return None

    def _keys(self, index: ast.expr) -> tuple[str, ...] | None:
        """Return what an index may be, if it is a name for a text, or for a tuple of texts with an index of its own. Nobody can
        change either, and a check tells whether the name still stands for it. A variable of the loop, or of a comprehension in
        it, may have the name of a constant."""
        found = self._constant(index)
        if type(found) is str:
            self._rely(index, found)
            return (found,)
        if not isinstance(index, ast.Subscript):
            return None
        found = self._constant(index.value)
        if type(found) is not tuple or not 0 < len(found) <= _MOST_KEYS or set(map(type, found)) != {str}:
            return None
        self._rely(index.value, found)
        return found

    def _constant(self, node: ast.expr) -> object:
        if any(isinstance(part, ast.Name) and part.id in self._set for part in ast.walk(node)):
            return None
        match node:
            case ast.Name(id=name) if name not in self._names_bound and _sets_global(self._scope, name):
                return None
            case ast.Subscript(value=ast.Name(id=other), slice=ast.Constant(value=str(name))):
                scope = self._names_bound.get(other)
                if type(scope) is dict and _sets_global(scope, name):
                    return None
        return _meant(node, self._names_bound, self._scope)

    def _rely(self, node: ast.expr, found: object) -> None:
        holds = lambda: _meant(node, self._names_bound, self._scope) is found  # noqa: E731
        self.relied.append(Relied(ast.unparse(node), found, holds))

    def _holds_only(self, name: str, path: Path, parts: dict[str, Path], made: ast.AST) -> bool:
        """Tell whether nothing but the part is put into a variable, or None when it is released."""
        for node in self._names[name]:
            if isinstance(node.ctx, ast.Load):
                continue
            statement = self._parent[node]
            if not isinstance(statement, ast.Assign) or node not in statement.targets:
                return False
            if statement is made or (isinstance(statement.value, ast.Constant) and statement.value.value is None):
                continue
            if len(statement.targets) != 1 or self._path_of(statement.value, parts) != path:
                return False
        return True

    def _path_of(self, node: ast.expr, parts: dict[str, Path]) -> Path | None:
        match node:
            case ast.Subscript(value=value, slice=ast.Constant(value=str(key))):
                pass
            case ast.Call(
                func=ast.Attribute(value=value, attr="get"), args=[ast.Constant(value=str(key))], keywords=[]
            ):
                pass
            case _:
                return None
        before = parts.get(value.id) if isinstance(value, ast.Name) else self._path_of(value, parts)
        return None if before is None else (*before, key)


def _sets_global(scope: dict[str, Any], name: str) -> bool:
    """Tell whether a function or method of the module sets the name: it could do so between the text and its use."""
    found = [value for value in scope.values() if isinstance(value, FunctionType | type)]
    every = [part for value in found for part in (vars(value).values() if isinstance(value, type) else [value])]
    waiting = [part.__code__ for part in every if isinstance(part, FunctionType) and part.__globals__ is scope]
    while waiting:
        code = waiting.pop()
        if name in code.co_names and any(i.opname in _SETS and i.argval == name for i in dis.get_instructions(code)):
            return True
        waiting += [const for const in code.co_consts if isinstance(const, CodeType)]
    return False


_SETS = ("STORE_GLOBAL", "DELETE_GLOBAL")
