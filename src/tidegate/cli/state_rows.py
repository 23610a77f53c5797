"""Writes rows of a snapshot as a table, CSV, JSON lines or Parquet. Only the table holds all rows in memory."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from typing import Any, TextIO

import msgspec

from tidegate.base.plain_text import plain, plain_line
from tidegate.cli.outcome import table
from tidegate.connectors.formats.arrow_types import arrow_schema, converters
from tidegate.connectors.formats.libraries import library
from tidegate.snapshots.columns import StateColumn, as_text, plain_columns
from tidegate.snapshots.entries import StateRow, TimerRow

_ROWS_AT_ONCE = 10_000
_WIDEST = 80


def as_table(columns: list[StateColumn], rows: Iterator[Any]) -> str:
    """Lay out all rows in memory, for people."""
    shown = [[_shortened(row[column.field]) for column in columns] for row in rows]
    used = [n for n, column in enumerate(columns) if column.name != "namespace" or any(line[n] for line in shown)]
    head = [columns[n].name for n in used]
    return table(head, [[line[n] for n in used] for line in shown])


def _shortened(value: Any) -> str:
    text = "" if value is None else _shown(value)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def _shown(value: Any) -> str:
    """Show a value on one line. A text stays as it is, unless it would break the table."""
    text = as_text(value)
    return text if text.isprintable() else repr(value)


def write_csv(out: TextIO, columns: list[StateColumn], rows: Iterator[Any]) -> None:
    writer = csv.writer(out, lineterminator="\n")
    on_terminal = out.isatty()  # a file gets the values unchanged
    writer.writerow([column.name for column in columns])
    for row in rows:
        texts = ["" if (value := row[column.field]) is None else as_text(value) for column in columns]
        writer.writerow(map(plain_line, texts) if on_terminal else texts)


def write_json(out: TextIO, columns: list[StateColumn], rows: Iterator[Any]) -> None:
    """Write one object in each line."""
    out.writelines(plain(to_json({column.name: row[column.field] for column in columns})) + "\n" for row in rows)


def to_json(value: Any) -> str:
    """Write JSON. A value of a type that JSON lacks becomes its repr."""
    return msgspec.json.encode(jsonable(value)).decode()


def jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key if isinstance(key, str) else repr(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: jsonable(item) for name, item in zip(value._fields, value, strict=True)}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if value is None or type(value) in (bool, float, str) or (type(value) is int and -(1 << 63) <= value < 1 << 64):
        return value
    return repr(value)


def write_parquet(path: str, columns: list[StateColumn], rows: Iterator[Any]) -> int:
    """Write a Parquet file and return the number of rows. Columns have the types of the state; pickled values become text."""
    arrow, parquet = library("pyarrow", "Parquet files"), library("pyarrow.parquet", "Parquet files")
    row_type, fields = plain_columns(columns)
    schema, steps = arrow_schema(row_type), converters(row_type)
    number = 0
    with parquet.ParquetWriter(path, schema) as writer:
        while some := [fields(row) for row in islice(rows, _ROWS_AT_ONCE)]:
            number += len(some)
            values = zip(*some, strict=True)
            arrays = [
                arrow.array([value if step is None else step(value) for value in column], type=field.type)
                for column, step, field in zip(values, steps, schema, strict=True)
            ]
            writer.write_table(arrow.table(arrays, schema=schema))
    return number


# -- examples of changes -------------------------------------------------------------------------------------------------


def changed_line(before: Any, now: Any) -> str:
    if before is None:
        return f"+ {_place(now)}{_shortened_value(now)}"
    if now is None:
        return f"- {_place(before)}{_shortened_value(before)}"
    return f"~ {_place(now)}{_shortened_value(before)} ->{_shortened_value(now)}"


def _place(row: Any) -> str:
    if isinstance(row, TimerRow):
        return f"{_shortened(row.key)} {_window(row.namespace)}{row.domain} time"
    if row.key is None and row.map_key is None:
        return "element"
    parts = [_shortened(part) for part in (row.key, row.map_key) if part is not None]
    return _window(row.namespace) + " ".join(parts) + ":"


def _window(namespace: Any) -> str:
    return "" if namespace is None else f"{namespace} "


def _shortened_value(row: Any) -> str:
    return f" {row.time_ms}" if isinstance(row, TimerRow) else f" {_shortened(row.value)}"


def row_as_json(row: StateRow | TimerRow | None) -> Any:
    return jsonable(row)
