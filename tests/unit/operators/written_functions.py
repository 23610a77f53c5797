"""Functions made from text, with a source that ``bodies_of`` finds as it finds that of a file."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from tidegate.operators.loop.rewrites.inline import Inline
from tidegate.operators.loop.rewrites.rewrite import Refused

_NUMBERS = count()


def written(text: str, names: Mapping[str, Any] | None = None, **closure: Any) -> Callable[..., Any]:
    """The function that ``text`` is: a lambda, or a ``def`` of a function ``f``. ``names``: its globals."""
    lines = [f"    {line}" for line in (text.splitlines() if text.startswith("def ") else [f"f = {text}"])]
    source = "\n".join([f"def outer({', '.join(closure)}):", *lines, "    return f", ""])
    file = f"<written {next(_NUMBERS)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = dict(names or {})
    exec(compile(source, file, "exec"), scope)
    made: Callable[..., Any] = scope["outer"](**closure)
    return made


def is_inlined(function: Callable[..., Any]) -> bool:
    try:
        Inline().prepare(function)
    except Refused:
        return False
    return True


def exact(value: Any) -> Any:
    """A value such that only one of the same type is equal: 1 is not True, nor a number of numpy's."""
    return (tuple, *map(exact, value)) if type(value) is tuple else (type(value), value)
