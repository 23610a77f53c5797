"""Evaluate functions of plain arithmetic on ints and floats for a whole batch at once.

``lambda x: (x * 31 % keys, x)`` does the same thing to every record, so it can be done to a column. The tree of the
function (``bodies.py``) is walked once a batch with columns in place of numbers. Python's ints have no limit, but a
column's ints do. So every column has bounds of its values, and the bounds of each result are computed first. Where a
result does not surely fit (or a divisor may be 0) the batch is ``Inexact`` and is left to the loop over records. So a
result is either Python's result, or none. Floats are the same doubles in both, and so are the results of ``+ - * /``
and comparisons. But Python compares and divides ints exactly, and a double holds 53 bits: larger ints are left to
Python too. Texts are not inspected: they pass through, or are put into an f-string with others (``fields.py``).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import reduce
from types import CellType
from typing import Any, TypeGuard

import numpy as np

from tidegate.base.user_code import UserValue
from tidegate.common.types import Row
from tidegate.operators.contracts.batch import HIGHEST, LOWEST, Column
from tidegate.operators.loop.rewrites.bodies import Body
from tidegate.operators.loop.rewrites.fields import Field, Floats, Hole, Inexact, Ints, Mask, Record, Value, text_of
from tidegate.operators.loop.rewrites.rewrite import Refused

Number = int | float | Ints | Floats
# As tuples: a check against a union costs three times as much, and there are many checks a batch.
_NUMBERS, _REALS = (int, float, Ints, Floats), (float, Floats)


def evaluate(body: Body, function: UserValue, arguments: tuple[Value, ...]) -> Value:
    """Return the function's results for every record of the batch. Raise Inexact. Call it with numpy's warnings off:
    Python does not report an overflow to inf, or nan."""
    plain: UserValue = getattr(function, "__func__", None) or function
    if plain is not function:
        arguments = (_This(function.__self__), *arguments)
    if body.generator or body.early or len(arguments) != len(body.parameters):
        raise Inexact
    names: dict[str, Value] = dict(zip(body.parameters, arguments, strict=True))
    walk = _Walk(names, body, dict(zip(body.free, plain.__closure__ or (), strict=True)), plain.__globals__)
    for statement in body.statements[:-1]:
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else getattr(statement, "targets", [])
        value = getattr(statement, "value", None)
        variables = [target.id for target in targets if isinstance(target, ast.Name)]
        if not variables or value is None or len(variables) < len(targets):
            raise Inexact
        result = walk.value(value)
        names.update((variable, result) for variable in variables)
    last = body.statements[-1]
    if not isinstance(last, ast.Return) or last.value is None:
        raise Inexact
    return walk.value(last.value)


def check_arithmetic(body: Body) -> None:
    """Raise Refused unless ``evaluate`` knows everything in the body. The values of the names show only in a batch."""
    if body.generator:
        raise Refused("yields")
    if body.early or not isinstance(body.statements[-1], ast.Return):
        raise Refused("returns before its end")
    written = {id(piece) for part in body.parts() if isinstance(part, ast.JoinedStr) for piece in part.values}
    written |= {id(part.slice) for part in _by_name(body)}
    notes = [part.annotation for part in body.parts() if isinstance(part, ast.AnnAssign)]  # nobody evaluates them
    unread = {id(inner) for note in notes for inner in ast.walk(note)}
    for part in body.parts():
        if id(part) not in unread and not (_is_known(part) or (isinstance(part, ast.Constant) and id(part) in written)):
            raise Refused(f"more than arithmetic: {_text(part)}")


def uses_names(body: Body) -> bool:
    """Tell whether the function reads fields by name, ``row["price"]``: of rows, as far as columns go."""
    return bool(_by_name(body))


def _by_name(body: Body) -> list[ast.Subscript]:
    return [part for part in body.parts() if isinstance(part, ast.Subscript) and _is_text(part.slice)]


def _is_text(node: ast.expr) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _text(part: ast.AST) -> str:
    try:
        text = ast.unparse(part)
    except Exception:
        text = ""
    return text.partition("\n")[0] or type(part).__name__


def mask_of(value: Value) -> Column:
    """Return for which records a filter's result is true."""
    if isinstance(value, Ints | Floats):
        return np.not_equal(value.column, 0)
    if isinstance(value, Mask):
        return value.column
    raise Inexact


class _This:
    """Stand for ``self`` of a method: whatever its class, only its attributes are known."""

    __slots__ = ("object",)

    def __init__(self, this: object) -> None:
        self.object = this


class _Walk:
    """Walk a function. ``names``: the function's parameters and variables. Of everything else it sees, in its closure,
    its module and its object, only plain numbers are values."""

    def __init__(
        self, names: dict[str, Value], body: Body, closure: dict[str, CellType], outer: dict[str, object]
    ) -> None:
        self._names, self._body, self._closure, self._outer = names, body, closure, outer

    def value(self, node: ast.expr) -> Value:
        step = _STEPS.get(type(node))
        if step is None:
            raise Inexact
        return step(self, node)

    def constant(self, node: ast.Constant) -> Value:
        return _plain_number(node.value)

    def name(self, node: ast.Name) -> Value:
        if node.id in self._names:
            return self._names[node.id]
        if node.id in self._body.variables:
            raise Inexact  # has no value yet: the user's error
        if node.id in self._closure:
            return _plain_number(_contents(self._closure[node.id]))
        return _plain_number(self._outer.get(node.id))

    def attribute(self, node: ast.Attribute) -> Value:
        """Return ``row.price``, or ``self.factor``: a number in the function object itself, which no method or property
        hides."""
        value = self.value(node.value)
        if isinstance(value, Record) and not hasattr(Row, node.attr):
            return value.field(node.attr)
        if not isinstance(value, _This):
            raise Inexact
        this = value.object
        if hasattr(type(this), node.attr) or _looks_up_itself(type(this)):
            raise Inexact
        return _plain_number(getattr(this, "__dict__", {}).get(node.attr))

    def tuple(self, node: ast.Tuple) -> Value:
        fields = tuple(map(self.value, node.elts))
        if not fields or not all(isinstance(field, (Field, int, float)) for field in fields):
            raise Inexact
        return fields

    def subscript(self, node: ast.Subscript) -> Value:
        record = self.value(node.value)
        if isinstance(record, Record) and _is_text(node.slice):
            return record.field(str(node.slice.value))
        index = self.value(node.slice)
        if isinstance(record, Record) and isinstance(index, int):
            return record.field(index)
        if not isinstance(record, tuple) or not isinstance(index, int) or not -len(record) <= index < len(record):
            raise Inexact
        return record[index]

    def call(self, node: ast.Call) -> Value:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _CALLS or node.keywords or len(node.args) != 1 or self._means_another(name):
            raise Inexact
        return _CALLS[name](self.value(node.args[0]))

    def _means_another(self, name: str) -> bool:
        return name in self._body.variables or name in self._closure or name in self._outer

    def text(self, node: ast.JoinedStr) -> Value:
        return text_of([self._piece(piece) for piece in node.values])

    def _piece(self, node: ast.expr) -> str | Hole:
        """Return a piece of an f-string: its literal text, or a value and its format."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if not isinstance(node, ast.FormattedValue) or node.conversion != -1:
            raise Inexact
        return Hole(self.value(node.value), "" if node.format_spec is None else _format(node.format_spec))

    def unary(self, node: ast.UnaryOp) -> Value:
        operand = self.value(node.operand)
        if isinstance(node.op, ast.USub) and isinstance(operand, int | Ints):
            return _operate(ast.Sub, 0, operand)
        if isinstance(node.op, ast.USub) and isinstance(operand, float | Floats):
            return -operand if isinstance(operand, float) else Floats(-operand.column)  # 0 - x has no -0.0
        if isinstance(node.op, ast.Not):
            return Mask(~mask_of(operand))
        raise Inexact

    def binary(self, node: ast.BinOp) -> Value:
        return _operate(type(node.op), self.value(node.left), self.value(node.right))

    def compare(self, node: ast.Compare) -> Value:
        operands = [self.value(operand) for operand in (node.left, *node.comparators)]
        masks = [_compare(type(op), *operands[i : i + 2]) for i, op in enumerate(node.ops)]
        return Mask(reduce(np.logical_and, masks))

    def logic(self, node: ast.BoolOp) -> Value:
        values = list(map(self.value, node.values))
        if not all(isinstance(value, Mask) for value in values):
            raise Inexact  # for ints the result is one of the ints
        operate = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return Mask(reduce(operate, [value.column for value in values]))


_STEPS: dict[type[ast.expr], Callable[[_Walk, Any], Value]] = {
    ast.Constant: _Walk.constant,
    ast.Name: _Walk.name,
    ast.Attribute: _Walk.attribute,
    ast.Tuple: _Walk.tuple,
    ast.Subscript: _Walk.subscript,
    ast.UnaryOp: _Walk.unary,
    ast.BinOp: _Walk.binary,
    ast.Compare: _Walk.compare,
    ast.BoolOp: _Walk.logic,
    ast.JoinedStr: _Walk.text,
    ast.Call: _Walk.call,
}


def _int_of(value: Value) -> Value:
    if not isinstance(value, int | Ints):
        raise Inexact
    return value


_CALLS: dict[str, Callable[[Value], Value]] = {"int": _int_of, "str": lambda value: text_of([Hole(value, "")])}
"""Builtins."""


def _format(node: ast.expr) -> str:
    """Return a format that is a literal."""
    pieces = node.values if isinstance(node, ast.JoinedStr) else []
    if not all(isinstance(piece, ast.Constant) for piece in pieces):
        raise Inexact
    return "".join(piece.value for piece in pieces)  # type: ignore[attr-defined]


def _looks_up_itself(kind: UserValue) -> bool:
    return kind.__getattribute__ is not object.__getattribute__


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        raise Inexact from None  # no value yet: the user's error


def _plain_number(found: UserValue) -> int | float:
    if type(found) not in (int, float):
        raise Inexact
    return found  # type: ignore[no-any-return]


# -- operators: bounds first, then the columns ---------------------------------------------------------------------------

_Operation = Callable[[Any, Any], Any]
_Bounds = tuple[int, int]


def _operate(operator: type[ast.operator], left: Value, right: Value) -> Value:
    if not isinstance(left, _NUMBERS) or not isinstance(right, _NUMBERS):
        raise Inexact
    if operator is ast.Div or isinstance(left, _REALS) or isinstance(right, _REALS):
        return _operate_floats(operator, left, right)
    rule = _OPERATORS.get(operator)
    if rule is None:
        raise Inexact
    bounds, column = rule
    low, high = bounds(_bounds(left), _bounds(right))
    if low < LOWEST or high > HIGHEST:
        raise Inexact
    if isinstance(left, int) and isinstance(right, int):
        return int(column(left, right))
    return Ints(column(_operand(left), _operand(right)), low, high)


def _operate_floats(operator: type[ast.operator], left: Number, right: Number) -> float | Floats:
    """Operate on floats. The operands of ``int / int``, and the int of ``int + float``, become doubles: exactly, or as
    Python rounds them."""
    rule = _FLOAT_OPERATORS.get(operator)
    if rule is None:
        raise Inexact
    divides = operator is ast.Div
    if divides and _may_be_zero(right):
        raise Inexact
    exactly = divides and isinstance(left, int | Ints) and isinstance(right, int | Ints)
    result = rule(_double(left, exactly), _double(right, exactly))
    return Floats(result) if isinstance(result, np.ndarray) else float(result)


def _double(value: Number, exactly: bool) -> Any:
    if isinstance(value, float):
        return value
    if isinstance(value, Floats):
        return value.column
    low, high = _bounds(value)
    if exactly and (low < -_EXACT or high > _EXACT):
        raise Inexact
    return float(value) if isinstance(value, int) else value.column.astype(np.float64)


def _may_be_zero(value: Number) -> bool:
    if isinstance(value, Floats):
        return bool((value.column == 0).any())
    return value.low <= 0 <= value.high if isinstance(value, Ints) else value == 0


def _bounds(value: int | Ints) -> _Bounds:
    low, high = (value, value) if isinstance(value, int) else (value.low, value.high)
    if low < LOWEST or high > HIGHEST:
        raise Inexact
    return low, high


def _operand(value: int | Ints) -> Any:
    return np.int64(value) if isinstance(value, int) else value.column


def _corners(operate: Callable[[int, int], int]) -> Callable[[_Bounds, _Bounds], _Bounds]:
    """Return bounds of an operation that is monotonous in each operand: the extremes are among the corners."""

    def bounds(a: _Bounds, b: _Bounds) -> _Bounds:
        results = [operate(x, y) for x in a for y in b]
        return min(results), max(results)

    return bounds


def _divided(a: _Bounds, b: _Bounds) -> _Bounds:
    if b[0] <= 0 <= b[1]:
        raise Inexact
    return _corners(lambda x, y: x // y)(a, b)


def _remainder(a: _Bounds, b: _Bounds) -> _Bounds:
    """Return bounds with the divisor's sign, as in Python and numpy."""
    if b[0] <= 0 <= b[1] or a[0] == LOWEST:
        raise Inexact
    return (0, b[1] - 1) if b[0] > 0 else (b[0] + 1, 0)


_OPERATORS: dict[type[ast.operator], tuple[Callable[[_Bounds, _Bounds], _Bounds], _Operation]] = {
    ast.Add: (_corners(lambda x, y: x + y), lambda x, y: x + y),
    ast.Sub: (_corners(lambda x, y: x - y), lambda x, y: x - y),
    ast.Mult: (_corners(lambda x, y: x * y), lambda x, y: x * y),
    ast.FloorDiv: (_divided, lambda x, y: x // y),
    ast.Mod: (_remainder, lambda x, y: x % y),
}

_FLOAT_OPERATORS: dict[type[ast.operator], _Operation] = {
    ast.Add: lambda x, y: x + y,
    ast.Sub: lambda x, y: x - y,
    ast.Mult: lambda x, y: x * y,
    ast.Div: lambda x, y: x / y,
}
_EXACT = 1 << 53
"""A double holds every int up to it."""

_COMPARISONS: dict[type[ast.cmpop], _Operation] = {
    ast.Eq: lambda x, y: x == y,
    ast.NotEq: lambda x, y: x != y,
    ast.Lt: lambda x, y: x < y,
    ast.LtE: lambda x, y: x <= y,
    ast.Gt: lambda x, y: x > y,
    ast.GtE: lambda x, y: x >= y,
}


def _compare(operator: type[ast.cmpop], left: Value, right: Value) -> Column:
    rule = _COMPARISONS.get(operator)
    if rule is None or not isinstance(left, _NUMBERS) or not isinstance(right, _NUMBERS):
        raise Inexact
    if isinstance(left, int | float) and isinstance(right, int | float):
        raise Inexact  # not a column; no one writes this
    if isinstance(left, _REALS) or isinstance(right, _REALS):
        mask: Column = rule(_double(left, True), _double(right, True))
        return mask
    _ = _bounds(left), _bounds(right)
    mask = rule(_operand(left), _operand(right))
    return mask


_KNOWN = (
    *_STEPS,
    *_OPERATORS,
    ast.Div,
    *_COMPARISONS,
    *(ast.Assign, ast.AnnAssign, ast.Return, ast.USub, ast.Not, ast.boolop, ast.expr_context, ast.FormattedValue),
)


def _is_known(part: ast.AST) -> bool:
    if isinstance(part, ast.Call):
        return isinstance(part.func, ast.Name) and part.func.id in _CALLS and not part.keywords
    return type(part.value) in (int, float) if isinstance(part, ast.Constant) else isinstance(part, _KNOWN)
