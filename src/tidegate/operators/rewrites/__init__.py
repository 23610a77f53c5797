"""The list of rewrites. Each is one file; without its line here a program does the same, and takes longer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tidegate.operators.rewrites.columns import Columns
from tidegate.operators.rewrites.inline import Inline
from tidegate.operators.rewrites.rewrite import Prepared, Refused, Rewrite, Rewrites, function_id

REWRITES: list[Rewrite] = [Inline(), Columns()]


def prepare(functions: Iterable[Callable[..., Any]]) -> Rewrites:
    """On the driver: what the rewrites know of the functions of a chain."""
    functions = list(functions)
    return Rewrites([(rewrite, Prepared(dict(_found(rewrite, functions)))) for rewrite in REWRITES])


def _found(rewrite: Rewrite, functions: list[Callable[..., Any]]) -> Iterable[tuple[Any, Any]]:
    for function in functions:
        try:
            yield function_id(function), rewrite.prepare(function)
        except Refused:
            continue
