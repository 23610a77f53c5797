"""Write a function's body (``bodies.py``) into the loop instead of a call.

A value state of the current key is then an entry of a dict, and a field of a record that comes as columns is a
variable. Where an f-string writes what is a float as far as one can see, msgspec finds the digits (``float_text``).
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from types import FunctionType
from typing import Any, NamedTuple

import msgspec

from tidegate.base.user_code import UserFunction, UserValue
from tidegate.operators.loop.rewrites import callees, meaning
from tidegate.operators.loop.rewrites.bodies import Body, body_of, constant_index, own_attribute
from tidegate.operators.loop.rewrites.meaning import lingering
from tidegate.operators.loop.rewrites.rewrite import (
    Call,
    Emit,
    FunctionId,
    LoopText,
    Refused,
    Rewrite,
    function_id,
)
from tidegate.state.keyed import ImmutableValueState, KeyedValueState

_LONGEST = 400
"""The number of lines after which generators are called: a chain of generators with two yields each would double with
every one."""

Line = Callable[[int, str, ast.AST], None]
"""Depth, text, the user's statement it comes from."""


class Inlined(NamedTuple):
    """Hold a body that may be inlined. ``helpers``: the bodies of the user's functions that are called from it; the worker
    may not have their source."""

    body: Body
    helpers: dict[FunctionId, Body]

    def body_of(self, function: UserFunction) -> Body:
        """Return the body of a helper."""
        key = function_id(function)
        if key is None or key not in self.helpers:
            raise Refused("is not the function that the driver has seen")
        return self.helpers[key]


class Inline(Rewrite):
    """Inline functions. ``prepare`` returns the function's body."""

    name = "inlined"

    def prepare(self, function: UserFunction) -> Inlined:
        body = body_of(function)
        meaning.check(body)
        return Inlined(body, callees.check(body, function, opened=False).helpers)

    def notes(self, prepared: Inlined) -> list[str]:
        return ["floats of f-strings are written by faster code"] if _writes_floats(prepared.body) else []

    def call(self, text: LoopText, call: Call, prepared: Inlined, out: str) -> bool:
        body = prepared.body
        if body.generator or not _means_the_same(text, call, prepared):
            return False

        def returned(value: str | None, level: int, statement: ast.AST) -> None:
            text.line(level, f"{out} = {value}", call.owner._replace(place=body.place(statement)))
            if body.early:
                text.line(level, "break", None)

        def yielded(value: str, every: bool, level: int, statement: ast.AST) -> None:
            raise AssertionError("not a generator")

        _write(text, call, prepared, returned, yielded)
        return True

    def call_each(self, text: LoopText, call: Call, prepared: Inlined, emit: Emit) -> bool:
        body, out = prepared.body, f"tg_v{call.label}"
        if not body.generator or len(text) >= _LONGEST or not _means_the_same(text, call, prepared):
            return False

        def returned(value: str | None, level: int, statement: ast.AST) -> None:
            text.line(level, "break" if body.early else "pass", None)

        def yielded(value: str, every: bool, level: int, statement: ast.AST) -> None:
            owner = call.owner._replace(place=body.place(statement))
            text.line(level, f"for {out} in {value}:" if every else f"{out} = {value}", owner)
            emit(out, level + every)

        _write(text, call, prepared, returned, yielded)
        return True


# -- do the names mean in this loop what they mean in the function? --------------------------------------------------------


def _means_the_same(text: LoopText, call: Call, prepared: Inlined) -> bool:
    body = prepared.body
    plain: Any = getattr(call.function, "__func__", call.function)
    if len(body.parameters) != len(call.arguments) + (plain is not call.function) or _has_empty_cell(plain):
        return False
    if body.optimized not in (None, sys.flags.optimize):
        return False  # the loop would be compiled with asserts, or without, unlike the function
    try:
        relied = callees.check(body, call.function, opened=True, body_of=prepared.body_of).relied
    except Refused:
        return False
    scope = plain.__globals__
    if body.outer:
        if text.scope is None:
            text.scope = scope
        elif scope is not text.scope:
            # The loop has only one place to look names up; those of another module, or of a copy of it, are looked up in
            # its dict. Functions are pickled one by one, so each may have a copy.
            others = _foreign(text, body, scope)
            if not all(map(_is_builtin, body.outer.difference(others), repeat(scope), repeat(text.scope))):
                return False
            text.holds_while(lambda: others.issubset(scope))
    for check in relied:
        text.holds_while(check)
    return True


def _foreign(text: LoopText, body: Body, scope: dict[str, Any]) -> frozenset[str]:
    """Return the globals of a body that the loop does not find by name: those of another module."""
    return frozenset() if text.scope is None or text.scope is scope else body.outer.intersection(scope)


def _is_builtin(name: str, *scopes: dict[str, object]) -> bool:
    """Tell whether the name is a builtin in every module. A name that is not there yet may appear while the job
    runs."""
    return not any(name in scope for scope in scopes) and hasattr(builtins, name)


def _has_empty_cell(function: FunctionType) -> bool:
    """Tell whether a closure variable has no value yet: reading it is the user's error, at the record that reads it."""
    try:
        for cell in function.__closure__ or ():
            _ = cell.cell_contents
    except ValueError:
        return True
    return False


# -- the text ----------------------------------------------------------------------------------------------------------


def _write(
    text: LoopText,
    call: Call,
    prepared: Inlined,
    returned: Callable[[str | None, int, ast.AST], None],
    yielded: Callable[[str, bool, int, ast.AST], None],
) -> None:
    body, label, depth, function = prepared.body, call.label, call.depth, call.function
    plain: Any = getattr(function, "__func__", function)
    arguments = list(call.arguments)
    if plain is not function:
        arguments.insert(0, text.bind(f"self{label}", function.__self__))  # type: ignore[attr-defined]
    names = {name: f"tg_u{label}_{name}" for name in body.variables}
    for name, cell in zip(body.free, plain.__closure__ or (), strict=True):
        names[name] = text.bind(f"o{label}_{name}", cell.cell_contents)
    fields: dict[str, list[str]] = {}
    for name, argument in zip(body.parameters, arguments, strict=True):
        if name in body.assigned:
            text.line(depth, f"{names[name]} = {argument}", None)
            continue
        names[name] = argument
        columns = text.fields(argument)
        if columns is not None:
            fields[name] = columns
    cells = _cells(text, call, prepared) if call.keyed and plain is not function else {}
    scope = plain.__globals__
    foreign = dict.fromkeys(_foreign(text, body, scope), "")
    if foreign:
        foreign = dict.fromkeys(foreign, text.bind(f"g{label}", scope))

    def line(level: int, code: str, statement: ast.AST) -> None:
        text.line(level, code, call.owner._replace(place=body.place(statement)))

    text_of_float = text.bind("float_text", float_text) if _writes_floats(body) else ""
    rename = _Rename(names, cells, body.parameters[0] if body.parameters else "", fields, foreign)
    rename.floats, rename.float_text = _float_variables(body), text_of_float
    write = Inliner(rename, line, returned, yielded)
    if body.early:
        text.line(depth, "while True:", None)  # a return is a break out of it
    write.block(body.statements, depth + body.early)
    if (body.early or not body.generator) and not isinstance(body.statements[-1], ast.Return):
        returned(None, depth + body.early, body.statements[-1])
    text.use(write.used_fields)
    gone = lingering(body, _of_atoms(call, cells), fields)
    if gone:
        text.line(depth, " = ".join(names[name] for name in gone) + " = None", None)


def _cells(text: LoopText, call: Call, prepared: Inlined) -> dict[str, tuple[str, ...]]:
    """Return the value states among the attributes of the function object whose values per key are available as dicts,
    and the dicts that an update has to fill. Keys that come as a column, and are all written, are noted as a column."""
    this, label = call.function.__self__, call.label  # type: ignore[attr-defined]
    certain = certain_updates(prepared.body)
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(state_attributes(prepared.body, prepared.helpers.values())):
        state: Any = vars(this).get(name) if hasattr(this, "__dict__") else None
        if isinstance(state, ImmutableValueState | KeyedValueState) and getattr(this, name) is state:
            found[name] = (text.bind(f"d{label}_{name}", state.cells),)
            if isinstance(state, ImmutableValueState) and text.key_column is not None and name in certain:
                text.once(f"{text.bind(f'n{label}_{name}', state.note)}({text.key_column})")
            else:
                found[name] += (text.bind(f"h{label}_{name}", state.wrote),)
            text.holds_while(_Held(this, name, state))
    return found


def _of_atoms(call: Call, cells: Iterable[str]) -> list[str]:
    """Return the states that hold numbers, texts or bytes; nobody can observe when such a value is released."""
    this = getattr(call.function, "__self__", None)
    return [name for name in cells if isinstance(getattr(this, name), ImmutableValueState)]


class _Held:
    """Check whether an inlined state is still the value of the function's attribute."""

    def __init__(self, this: Any, name: str, state: Any) -> None:
        self._this, self._name, self._state = this, name, state

    def __call__(self) -> bool:
        return getattr(self._this, self._name, None) is self._state


class Inliner:
    """Write the statements of a body. Afterwards ``used_fields`` has the fields that were used.

    ``returned(text, depth, statement)`` and ``yielded`` write what happens with a value; a text None stands for a bare
    return.
    """

    def __init__(
        self,
        rename: _Rename,
        line: Line,
        returned: Callable[[str | None, int, ast.AST], None],
        yielded: Callable[[str, bool, int, ast.AST], None],
    ) -> None:
        self._rename = rename
        self._line, self._returned, self._yielded = line, returned, yielded

    def block(self, statements: list[ast.stmt], depth: int) -> None:
        for statement in statements:
            if isinstance(statement, ast.If | ast.For | ast.While | ast.With | ast.Try):
                self._compound(statement, depth)
            elif isinstance(statement, ast.Return):
                self._returned(self._text(statement.value) if statement.value else None, depth, statement)
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Yield | ast.YieldFrom):
                value = statement.value.value
                every = isinstance(statement.value, ast.YieldFrom)
                self._yielded("None" if value is None else self._text(value), every, depth, statement)
            else:
                self._line(depth, self._text(statement), statement)

    def _text(self, node: ast.AST) -> str:
        renamed = ast.fix_missing_locations(self._rename.visit(node))
        return ast.unparse(renamed)

    @property
    def used_fields(self) -> set[str]:
        return self._rename.used_fields

    def _compound(self, s: ast.If | ast.For | ast.While | ast.With | ast.Try, depth: int) -> None:
        if isinstance(s, ast.If):
            self._nested(f"if {self._text(s.test)}:", s.body, s, depth)
            self._nested("else:", s.orelse, s, depth)
        elif isinstance(s, ast.For):
            self._nested(f"for {self._text(s.target)} in {self._text(s.iter)}:", s.body, s, depth)
        elif isinstance(s, ast.While):
            self._nested(f"while {self._text(s.test)}:", s.body, s, depth)
        elif isinstance(s, ast.With):
            self._nested(f"with {', '.join(map(self._text, s.items))}:", s.body, s, depth)
        else:
            self._nested("try:", s.body, s, depth)
            for handler in s.handlers:
                self._nested(self._handler(handler), handler.body, handler, depth)
            self._nested("else:", s.orelse, s, depth)
            self._nested("finally:", s.finalbody, s, depth)

    def _handler(self, handler: ast.ExceptHandler) -> str:
        kind = f" {self._text(handler.type)}" if handler.type else ""
        return f"except{kind} as {self._rename.names[handler.name]}:" if handler.name else f"except{kind}:"

    def _nested(self, head: str, body: list[ast.stmt], owner: ast.AST, depth: int) -> None:
        if body:
            self._line(depth, head, owner)
            self.block(body, depth + 1)


class _Rename(ast.NodeVisitor):
    """Rename names of the body to names of the loop; turn reads and writes of a value state into accesses of its dict.
    The result is a new tree.

    ``names``: the body's names -> names in the loop. ``cells``: attribute of ``self`` -> the dicts of a value state that
    hold its value per key (state/keyed.py): the first is read, all are written. ``fields``: a parameter that is a tuple ->
    the variables of its fields in the loop. ``foreign``: a global of another module -> the variable with the dict of this
    module. ``floats``: variables that hold floats, as far as one can see; ``float_text``: the function's name.
    """

    floats: frozenset[str] = frozenset()
    float_text = ""

    def __init__(
        self,
        names: Mapping[str, str],
        cells: Mapping[str, tuple[str, ...]],
        this: str,
        fields: Mapping[str, list[str]],
        foreign: Mapping[str, str],
    ) -> None:
        self.names, self._cells, self._this, self._fields, self._foreign = names, cells, this, fields, foreign
        self.used_fields: set[str] = set()

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return type(node)(**{name: self._copied(value) for name, value in ast.iter_fields(node)})

    def _copied(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._copied(part) for part in value]
        return self.visit(value) if isinstance(value, ast.AST) else value

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._foreign:
            return ast.Subscript(ast.Name(self._foreign[node.id], ast.Load()), ast.Constant(node.id), node.ctx)
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        fields = self._fields.get(node.value.id) if isinstance(node.value, ast.Name) else None
        index = constant_index(node.slice)
        if fields is None or index is None or not -len(fields) <= index < len(fields) or not _is_read(node):
            return self.generic_visit(node)
        self.used_fields.add(fields[index])
        return ast.Name(fields[index], ast.Load())

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        if not _is_float(node, self.floats):
            return self.generic_visit(node)
        made = ast.Call(ast.Name(self.float_text, ast.Load()), [self.visit(node.value)], [])
        return ast.FormattedValue(made, node.conversion, None)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        cells = self._dicts(node, "value", 0)
        return self.generic_visit(node) if cells is None else _entry(cells[0], ast.Load())

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        cells = self._dicts(node.value, "update", 1)
        if cells is None:
            return self.generic_visit(node)
        assert isinstance(node.value, ast.Call)
        return ast.Assign([_entry(cell, ast.Store()) for cell in cells], self.visit(node.value.args[0]))

    def _dicts(self, node: ast.AST, method: str, arguments: int) -> tuple[str, ...] | None:
        """Return the dicts of ``self.<state>.<method>(...)``, if they are known."""
        if not isinstance(node, ast.Call) or node.keywords or len(node.args) != arguments:
            return None
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            return None
        state = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == method else None
        attribute = own_attribute(state, self._this)
        return None if attribute is None else self._cells.get(attribute)


def _entry(cell: str, context: ast.expr_context) -> ast.Subscript:
    return ast.Subscript(ast.Name(cell, ast.Load()), ast.Name("tg_k", ast.Load()), context)


def _is_read(node: ast.Subscript) -> bool:
    return isinstance(node.ctx, ast.Load)


# -- floats in f-strings ---------------------------------------------------------------------------------------------------

_encode: Callable[[float], bytes] = msgspec.json.Encoder().encode


def float_text(value: UserValue) -> UserValue:
    """Return what an f-string writes in the place of a float. Other values are returned themselves: the f-string asks them.

    Between these limits ``repr`` writes no exponent, and both write the fewest digits that stand for the float.
    """
    if type(value) is float and (1e-4 <= value < 1e16 or -1e16 < value <= -1e-4):
        return _encode(value).decode()
    return value


def _is_float(part: ast.AST, variables: frozenset[str]) -> bool:
    """Tell whether the part is a place of an f-string without a format, for what is a float as far as one can see. A wrong guess
    costs some time, and never another text."""
    if not isinstance(part, ast.FormattedValue) or part.conversion != -1 or part.format_spec is not None:
        return False
    return _makes_float(part.value) or (isinstance(part.value, ast.Name) and part.value.id in variables)


def _writes_floats(body: Body) -> bool:
    variables = _float_variables(body)
    return any(_is_float(part, variables) for part in body.parts())


def _makes_float(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(op=ast.Div()):
            return True
        case ast.BinOp(left=left, op=ast.Mult() | ast.Add() | ast.Sub(), right=right):
            return any(isinstance(side, ast.Constant) and type(side.value) is float for side in (left, right))
    return False


def _float_variables(body: Body) -> frozenset[str]:
    """Return the variables to which the body gives floats only."""
    found = {
        target.id
        for part in body.parts()
        if isinstance(part, ast.Assign) and _makes_float(part.value)
        for target in part.targets
        if isinstance(target, ast.Name)
    }
    return frozenset(found)


def state_attributes(body: Body, helpers: Iterable[Body] = ()) -> set[str]:
    """Return the attributes of ``self`` whose ``value()`` or ``update(x)`` the body calls. Empty if anything in the
    body, or in the helpers that it calls, could set an attribute of ``self``: the name might stand for another object at
    the next record."""
    if not body.parameters or body.parameters[0] in body.assigned or any(map(_sets_attributes, helpers)):
        return set()
    this, found = body.parameters[0], set()
    every: list[Any] = [part for statement in body.statements for part in ast.walk(statement)]
    attributes = [part for part in every if own_attribute(part, this) is not None]
    bare = sum(isinstance(part, ast.Name) and part.id == this for part in every) - len(attributes)
    if bare or any(not isinstance(part.ctx, ast.Load) for part in attributes):
        return set()
    for part in every:
        if (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and part.func.attr in ("value", "update")
        ):
            attribute = own_attribute(part.func.value, this)
            found |= {attribute} if attribute else set()
    return found


def _sets_attributes(helper: Body) -> bool:
    return any(isinstance(part, ast.Attribute) and not isinstance(part.ctx, ast.Load) for part in helper.parts())


def certain_updates(body: Body) -> set[str]:
    """Return the attributes of ``self`` that are updated for every record, unless it fails: ``self.state.update(x)`` is
    among the statements of the body itself, and nothing leaves the body before it."""
    if body.early or not body.parameters:
        return set()
    calls = [s.value for s in body.statements if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
    methods = [call.func for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "update"]
    return {name for name in (own_attribute(method.value, body.parameters[0]) for method in methods) if name}
