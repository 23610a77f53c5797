"""Rows of a Spark DataFrame, or of a PySpark DataSource, as records; without Spark's classes, which only its own room knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any

from tidegate.common.types import Row

FRAMES = "tidegate.frames"
"""Entry points of what only Spark's room can do: ``records(files, type_info)``, a DataFrame of them, and ``schema(text)``."""


def spark_side(name: str) -> Callable[..., Any]:
    (point,) = entry_points(group=FRAMES, name=name)
    return point.load()  # type: ignore[no-any-return]


def records(rows: Iterable[Any], names: list[str]) -> list[Row]:
    """Named rows; rows in rows too."""
    named = Row(*names)
    return [named(*map(_plain, row)) for row in rows]


def _plain(value: Any) -> Any:
    fields = getattr(value, "__fields__", None)
    if fields is not None and isinstance(value, tuple):  # a row of Spark's
        return Row(*fields)(*map(_plain, value))
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def in_batches(found: Iterable[Any], names: list[str], size: int) -> Iterator[list[Row]]:
    """Of tuples, or of Arrow's record batches: a DataSource may give either."""
    waiting: list[Any] = []
    for item in found:
        if hasattr(item, "to_pylist"):
            waiting += (tuple(row.values()) for row in item.to_pylist())
        else:
            waiting.append(item)
        while len(waiting) >= size:
            yield records(waiting[:size], names)
            del waiting[:size]
    if waiting:
        yield records(waiting, names)
