"""Small questions about syntax trees."""

from __future__ import annotations

import ast


def own_attribute(node: ast.AST | None, this: str) -> str | None:
    """The name of an attribute of ``self``, if the expression is one."""
    ok = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == this
    return node.attr if ok else None  # type: ignore[union-attr]


def constant_index(index: ast.expr) -> int | None:
    """The number, if the expression is one: ``-1`` is an operator and a number."""
    sign = 1
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub):
        index, sign = index.operand, -1
    return sign * index.value if isinstance(index, ast.Constant) and type(index.value) is int else None
