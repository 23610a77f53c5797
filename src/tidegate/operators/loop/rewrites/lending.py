"""Find functions that only look at their record, so that several readers can share a record instead of copying it.

Two readers of a stream get records of their own: either may change its record (``ownership.py``). The copy of a parsed JSON
object costs more than most functions. Two facts make the copy unnecessary. The record is *plain*: it consists of exact builtin
classes, as ``json.loads`` returns them, so reading it changes nothing (a ``defaultdict`` changes when it is read). And the
function *looks*: its statements read parts of the record, compute and build new values, and nothing else.

The result of such a function may contain parts of the record, so the result is copied where a function that may change it, or
a buffer, comes next. Most results are numbers, texts or tuples of them, which nobody can change.
"""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Iterable
from types import FunctionType, MethodType
from typing import NamedTuple

from tidegate.base.user_code import UserFunction, UserValue
from tidegate.operators.loop import fast_json
from tidegate.operators.loop.ownership import ATOMS
from tidegate.operators.loop.rewrites.bodies import Body, body_of
from tidegate.operators.loop.rewrites.rewrite import Refused, Rewrite

_METHODS = frozenset(
    {
        *(
            "get",
            "split",
            "rsplit",
            "splitlines",
            "partition",
            "rpartition",
            "strip",
            "lstrip",
            "rstrip",
            "lower",
            "upper",
        ),
        *("title", "capitalize", "casefold", "swapcase", "startswith", "endswith", "count", "find", "rfind", "index"),
        *("rindex", "replace", "join", "removeprefix", "removesuffix", "zfill", "ljust", "rjust", "center", "isdigit"),
        *("isalpha", "isalnum", "isdecimal", "isnumeric", "isspace", "isupper", "islower", "encode", "decode"),
        *("is_integer", "bit_length"),
    }
)
"""Methods of the builtin classes that change nothing and return plain values."""
_BUILTINS = frozenset(
    {
        *(
            "len",
            "int",
            "float",
            "str",
            "bool",
            "abs",
            "min",
            "max",
            "round",
            "sum",
            "sorted",
            "tuple",
            "list",
            "dict",
            "set",
        ),
        *("frozenset", "ord", "chr", "bin", "hex", "oct", "divmod", "pow", "repr", "any", "all", "range"),
    }
)
"""Builtins that change no argument if the arguments are plain."""
_MEANT = {name: getattr(builtins, name) for name in _BUILTINS}
_OPERATIONS = (
    *(ast.Constant, ast.Load, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator),
    *(ast.Compare, ast.cmpop, ast.IfExp, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Dict, ast.JoinedStr),
    *(ast.FormattedValue, ast.Return, ast.If, ast.Pass),
)
"""Parts of a function that read and compute. ``ast.Store`` is only for names, and calls are looked at one by one."""


class Looks(NamedTuple):
    """Hold what is known of a function that looks. ``constants``: names of globals and of its closure, which must be atoms or
    tuples of atoms. ``builtins``: names that must mean Python's builtins. ``parses``: the result is ``json.loads`` of its
    argument. ``bound``: it was looked at as a method, without ``self``."""

    constants: frozenset[str]
    builtins: frozenset[str]
    parses: bool
    bound: bool


class Lending(Rewrite):
    """Know which functions look. Calls stay as they are."""

    name = "lending"
    answers_calls = False

    def prepare(self, function: UserFunction) -> Looks:
        body = body_of(function)
        if _parses(body):
            return Looks(frozenset(), frozenset(), parses=True, bound=isinstance(function, MethodType))
        found = _Reading(body, bound=isinstance(function, MethodType)).found()
        if not _means(function, found):
            raise Refused("uses an object that may change")
        return found

    def looks_only(self, function: UserFunction, prepared: Looks) -> bool:
        """Tell whether the function changes nothing, if its record is plain. The names are looked up again: here, in the
        worker, they may mean something else."""
        same_form = prepared.bound is isinstance(function, MethodType)
        return not prepared.parses and same_form and _means(function, prepared)

    def returns_parts(self, function: UserFunction, prepared: Looks) -> bool:
        """Tell whether the result is made of the record alone. A name of the module may mean another object with the next
        record, one that others hold and change."""
        return not prepared.constants

    def makes_plain(self, function: UserFunction, prepared: Looks) -> bool:
        """Tell whether the function returns a new plain value that nobody else holds."""
        return prepared.parses and _global(function, "json") is json and fast_json.parses_plainly()


def _parses(body: Body) -> bool:
    """Tell whether the body is ``return json.loads(argument)``."""
    match body.statements:
        case [
            ast.Return(
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id="json"), attr="loads"),
                    args=[ast.Name() as argument],
                    keywords=[],
                )
            )
        ]:
            return (argument.id,) == body.parameters and "json" in body.outer
    return False


class _Reading:
    """Walk over a body. Raise Refused at the first part that might change something."""

    def __init__(self, body: Body, *, bound: bool) -> None:
        self._body = body
        self._this = body.parameters[0] if bound and body.parameters else None
        self._own = {*body.variables} - {self._this}
        self._constants: set[str] = set()
        self._builtins: set[str] = set()

    def found(self) -> Looks:
        if self._body.generator or self._body.optimized is not None:
            raise Refused("yields or asserts")
        for statement in self._body.statements:
            self._look(statement)
        bound = self._this is not None
        return Looks(frozenset(self._constants), frozenset(self._builtins), parses=False, bound=bound)

    def _look(self, node: ast.AST) -> None:
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                if name not in self._own:
                    self._constants.add(name)
                return
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._store(target)
                self._look(value)
                return
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if (
                name in _BUILTINS and name not in self._own
            ):
                self._builtins.add(name)
                self._look_at(arguments)
                return
            case ast.Call(func=ast.Attribute(value=value, attr=method), args=arguments, keywords=[]) if (
                method in _METHODS
            ):
                self._look(value)
                self._look_at(arguments)
                return
        if not isinstance(node, _OPERATIONS):
            raise Refused(f"has a part that may change something: {ast.unparse(node)[:60]}")
        self._look_at(ast.iter_child_nodes(node))

    def _look_at(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self._look(node)

    def _store(self, target: ast.expr) -> None:
        """Accept a local variable, or several; a part of an object would change the object."""
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        if not all(isinstance(name, ast.Name) and name.id in self._own for name in names):
            raise Refused("assigns to a part of an object")


def _means(function: UserFunction, looks: Looks) -> bool:
    """Tell whether the names of the function mean what they have to."""
    return all(_is_constant(_global(function, name)) for name in looks.constants) and all(
        _global(function, name) is _MEANT[name] for name in looks.builtins
    )


def _is_constant(value: UserValue) -> bool:
    kind = type(value)
    return kind in _CONSTANTS or (kind in (tuple, frozenset) and _CONSTANTS.issuperset(map(type, value)))


_CONSTANTS = ATOMS - {FunctionType, type(len), type}
"""Without the atoms that can be called: a call may change its arguments."""
_MISSING = object()


def _global(function: UserFunction, name: str) -> UserValue:
    """Return what a name means in a function: in its closure, its module, or among the builtins."""
    plain: UserValue = function.__func__ if isinstance(function, MethodType) else function
    if name in plain.__code__.co_freevars:
        cell = plain.__closure__[plain.__code__.co_freevars.index(name)]
        try:
            return cell.cell_contents
        except ValueError:
            return _MISSING
    return plain.__globals__.get(name, getattr(builtins, name, _MISSING))
