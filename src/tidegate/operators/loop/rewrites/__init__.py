"""List the rewrites. Each rewrite is one file. Without its line here a program does the same, but takes longer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidegate.base.user_code import UserFunction
from tidegate.operators.loop.rewrites.columns import Columns
from tidegate.operators.loop.rewrites.inline import Inline
from tidegate.operators.loop.rewrites.lending import Lending
from tidegate.operators.loop.rewrites.rewrite import Findings, Refused, Rewrite, Rewrites, function_id

REWRITES: list[Rewrite] = [Columns(), Inline(), Lending()]
"""In the order in which they are asked."""


def prepare(functions: Iterable[UserFunction]) -> Rewrites:
    """Collect on the driver what the rewrites know of the functions of a chain."""
    functions = list(functions)
    return Rewrites([(rewrite, prepared(rewrite, functions)) for rewrite in REWRITES])


def prepared(rewrite: Rewrite, functions: Iterable[UserFunction]) -> Findings:
    return Findings(dict(_found(rewrite, functions)))


def _found(rewrite: Rewrite, functions: Iterable[UserFunction]) -> Iterable[tuple[Any, Any]]:
    for function in functions:
        try:
            yield function_id(function), rewrite.prepare(function)
        except Refused:
            continue
