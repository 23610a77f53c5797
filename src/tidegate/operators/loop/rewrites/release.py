"""Find the variables of an inlined body that have to be released after it.

A function's variables die with its frame; variables of a loop live until the next record sets them. The point where the
last reference to an object dies can be observed: a file is closed, a lock released, ``__del__`` or a weak reference's
callback runs. So after a body the loop sets the variables of the body to None, in the order in which a frame releases
them. Variables that certainly hold only numbers, texts or containers of them are left out: no one can observe when
these die, and a store for each record is not free.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator

from tidegate.operators.loop.rewrites.bodies import Body, constant_index, own_attribute

_ATOMS_OF_ANYTHING = {
    *("len", "int", "float", "str", "bool", "ord", "chr", "hash", "repr", "format", "isinstance", "issubclass"),
    *("hasattr", "callable", "id", "hex", "bin", "oct"),
}
_AS_THEIR_ARGUMENTS = {
    *("abs", "dict", "divmod", "enumerate", "frozenset", "list", "max", "min", "pow", "range", "reversed"),
    *("round", "set", "sorted", "sum", "tuple", "zip"),
}
_Assignment = tuple[str, ast.expr | None]
"""A variable and its new value; None: an unknown value."""


_LAST_FIRST = sys.version_info >= (3, 14)
"""The order in which a frame releases its variables when it ends."""


def lingering(body: Body, states: Collection[str], fields: Collection[str]) -> list[str]:
    """Return the variables to release. ``states``: attributes of ``self`` that are value states of numbers, texts or
    bytes; ``fields``: parameters that are tuples of numbers."""
    assignments = [pair for statement in body.statements for pair in _assignments(statement)]
    plain = {name for name, _ in assignments}
    seen = _Seen(body, states, fields)
    while True:
        # the assumption about the others decides about each variable, so repeat until no variable has to be taken out
        readable = plain - set(body.parameters)
        wrong = {name for name, value in assignments if value is None or not seen.is_plain(value, readable)} & plain
        if not wrong:
            found = [name for name in body.variables if name in body.assigned and name not in plain]
            return found[::-1] if _LAST_FIRST else found
        plain -= wrong


class _Seen:
    def __init__(self, body: Body, states: Collection[str], fields: Collection[str]) -> None:
        self._body, self._states, self._fields = body, states, fields

    def is_plain(self, node: ast.expr, readable: set[str]) -> bool:
        """Tell whether an expression certainly returns numbers, texts, None, or containers of them."""
        match node:
            case ast.Constant() | ast.JoinedStr() | ast.UnaryOp(op=ast.Not()):
                return True
            case ast.Name(id=name):
                # a variable of the closure, which holds it all the time
                return name in readable or name in self._body.free
            case ast.Compare(ops=ops) if all(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in ops):
                return True
            case ast.Subscript(value=ast.Name(id=name), slice=index) if name in self._fields:
                return constant_index(index) is not None
            case ast.Call():
                return self._call(node, readable)
            case ast.IfExp(body=one, orelse=other):
                return self.is_plain(one, readable) and self.is_plain(other, readable)
            case ast.Subscript(value=value):
                return self.is_plain(value, readable)
            case ast.BinOp() | ast.BoolOp() | ast.UnaryOp() | ast.Compare() | ast.Tuple() | ast.List() | ast.Set():
                return all(self.is_plain(part, readable) for part in _operands(node))
        return False

    def _call(self, node: ast.Call, readable: set[str]) -> bool:
        match node:
            case ast.Call(func=ast.Attribute(value=state, attr="value"), args=[], keywords=[]) if self._is_state(state):
                return True
            case ast.Call(func=ast.Name(id=name)) if name in self._body.outer and name in _ATOMS_OF_ANYTHING:
                return True
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in self._body.outer:
                return name in _AS_THEIR_ARGUMENTS and all(self.is_plain(a, readable) for a in arguments)
            case ast.Call(func=ast.Attribute(value=value), args=arguments, keywords=[]):
                return all(self.is_plain(part, readable) for part in (value, *arguments))
        return False

    def _is_state(self, node: ast.expr) -> bool:
        return bool(self._body.parameters) and own_attribute(node, self._body.parameters[0]) in self._states


def _operands(node: ast.expr) -> Iterator[ast.expr]:
    return (part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))


def _assignments(statement: ast.AST) -> Iterator[_Assignment]:
    match statement:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _set(target, value)
        case ast.AnnAssign(target=target, value=value):
            yield from _set(target, value)
        case ast.AugAssign(target=ast.Name(id=name) as target, value=value):
            yield name, ast.Tuple([ast.Name(name, ast.Load()), value], ast.Load())
        case ast.For(target=target, iter=every):
            yield from _set(target, every)  # the contents of a container are as plain as the container
        case ast.With(items=items):
            for item in items:
                yield from _set(item.optional_vars, None) if item.optional_vars else ()
    for part in ast.iter_child_nodes(statement):
        if isinstance(part, ast.stmt | ast.ExceptHandler):
            yield from _assignments(part)


def _set(target: ast.AST, value: ast.expr | None) -> Iterator[_Assignment]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        values = value.elts if isinstance(value, ast.Tuple) else None
        fits = values is not None and len(values) == len(target.elts)
        for index, part in enumerate(target.elts):
            if isinstance(part, ast.Starred):
                yield from _set(part.value, value)
            else:
                yield from _set(part, values[index] if fits and values is not None else value)
