"""Writes a function's body (``bodies.py``) into the generated loop."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from tidegate.operators.bodies import Body

Line = Callable[[int, str, ast.AST], None]
"""Depth, text, the user's statement it comes from."""


class Inliner:
    """``names``: the body's names -> names in the loop. ``cells``: attribute of ``self`` -> the dicts of a value state that hold
    its value per key (state/keyed.py): the first is read, all are written. ``fields``: a parameter that is a tuple -> the variables
    that its fields have in the loop.
    Afterwards ``used_fields`` has those of them that were used.

    ``returned(text, depth, statement)`` and ``yielded`` write what happens with a value; a text None stands for a bare return.
    """

    def __init__(
        self,
        body: Body,
        names: Mapping[str, str],
        cells: Mapping[str, tuple[str, ...]],
        fields: Mapping[str, list[str]],
        line: Line,
        returned: Callable[[str | None, int, ast.AST], None],
        yielded: Callable[[str, bool, int, ast.AST], None],
    ) -> None:
        fields = {name: variables for name, variables in fields.items() if name not in body.assigned}
        self._rename = _Rename(names, cells, body.parameters[0] if body.parameters else "", fields)
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
    """Names of the body become names of the loop; reads and writes of a value state become accesses of its dict. The result is a
    tree of its own."""

    def __init__(
        self, names: Mapping[str, str], cells: Mapping[str, tuple[str, ...]], this: str, fields: Mapping[str, list[str]]
    ) -> None:
        self.names, self._cells, self._this, self._fields = names, cells, this, fields
        self.used_fields: set[str] = set()

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return type(node)(**{name: self._copied(value) for name, value in ast.iter_fields(node)})

    def _copied(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._copied(part) for part in value]
        return self.visit(value) if isinstance(value, ast.AST) else value

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        fields = self._fields.get(node.value.id) if isinstance(node.value, ast.Name) else None
        index = _constant(node.slice)
        if fields is None or index is None or not -len(fields) <= index < len(fields) or not _is_read(node):
            return self.generic_visit(node)
        self.used_fields.add(fields[index])
        return ast.Name(fields[index], ast.Load())

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
        """The dicts behind ``self.<state>.<method>(...)``, if they are known."""
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


def _constant(index: ast.expr) -> int | None:
    sign = 1
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub):
        index, sign = index.operand, -1
    return sign * index.value if isinstance(index, ast.Constant) and type(index.value) is int else None


def own_attribute(node: ast.AST | None, this: str) -> str | None:
    """The name of an attribute of ``self``, if the expression is one."""
    ok = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == this
    return node.attr if ok else None  # type: ignore[union-attr]


def state_attributes(body: Body) -> set[str]:
    """The attributes of ``self`` whose ``value()`` or ``update(x)`` the body calls. None at all if something it does could set an
    attribute of ``self``: another object might stand behind the name at the next record."""
    if not body.parameters or body.parameters[0] in body.assigned:
        return set()
    this, found = body.parameters[0], set()
    every: list[Any] = [part for statement in body.statements for part in ast.walk(statement)]
    attributes = [part for part in every if own_attribute(part, this) is not None]
    bare = sum(isinstance(part, ast.Name) and part.id == this for part in every) - len(attributes)
    if bare or any(not isinstance(part.ctx, ast.Load) for part in attributes):
        return set()
    for part in every:
        if isinstance(part, ast.Call):
            if own_attribute(part.func, this) is not None:
                return set()  # a method of the user's
            if isinstance(part.func, ast.Attribute) and part.func.attr in ("value", "update"):
                attribute = own_attribute(part.func.value, this)
                found |= {attribute} if attribute else set()
    return found


def certain_updates(body: Body) -> set[str]:
    """The attributes of ``self`` that are updated for every record, unless it fails: ``self.state.update(x)`` stands among the
    statements of the body itself, and nothing leaves before it."""
    if body.early or not body.parameters:
        return set()
    calls = [s.value for s in body.statements if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
    methods = [call.func for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "update"]
    return {name for name in (own_attribute(method.value, body.parameters[0]) for method in methods) if name}
