"""The output of ``tidegate state``: operators and states, rows, differences.

Rows are written as a table, CSV, JSON lines or Parquet. Only the table holds all rows in memory.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TextIO

import msgspec
from rich.console import Console
from rich.progress import Progress

from tidegate.base.errors import ConfigurationError
from tidegate.base.imports import library
from tidegate.base.pickling import allow_stored
from tidegate.base.plain_text import count, plain, plain_line
from tidegate.cli.outcome import print_json, say, table
from tidegate.common import global_configuration
from tidegate.common.options import SIGNING_KEY_FILE
from tidegate.operators.contracts.arrow_types import arrow_schema, converters
from tidegate.snapshots.difference import OperatorChange, difference
from tidegate.snapshots.entries import StateRow, TimerRow
from tidegate.snapshots.reader import (
    TIMERS,
    Count,
    OperatorInfo,
    SnapshotReader,
    StateColumn,
    as_text,
    plain_columns,
    state_columns,
    timer_columns,
)


def open_snapshot(path: str, signing_key_file: str | None, *, allow_pickle: bool) -> SnapshotReader:
    """Open a snapshot. Without ``signing_key_file``, the configured key file is used."""
    allow_stored(allow_pickle)
    if signing_key_file is None:
        signing_key_file = global_configuration.load().read(SIGNING_KEY_FILE)
    return SnapshotReader(path, signing_key_file=signing_key_file)


def show_overview(reader: SnapshotReader, operator: str | None, *, rows_asked: bool, count: bool, json: bool) -> None:
    """Print operators and states. ``rows_asked``: the user asked for a format that only rows have."""
    if rows_asked:
        raise ConfigurationError(
            "--csv and --parquet are formats for rows", cure="give --operator and --state, or --timers"
        )
    operators = reader.operators if operator is None else [reader.operator(operator)]
    _overview(reader, operators, count, json)


def show_rows(
    reader: SnapshotReader,
    operator: str | None,
    state: str | None,
    *,
    expired: bool,
    limit: int | None,
    csv: bool,
    json: bool,
    parquet: str | None,
) -> None:
    """Print the rows of a state; without a state, the timers."""
    owner = reader.operator(operator if operator is not None else _owner_of(reader, state))
    rows: Iterator[Any]
    with _progress(owner.uid or owner.name) as watch:
        if state is None:
            columns, rows = timer_columns(owner), reader.read_timers(owner.uid_hash)
        else:
            columns = state_columns(owner, reader.state(owner.uid_hash, state))
            rows = reader.read(owner.uid_hash, state, expired=expired, watch=watch)
        _print_rows(columns, islice(rows, limit), csv=csv, json=json, parquet=parquet)


def _print_rows(columns: list[StateColumn], rows: Iterator[Any], *, csv: bool, json: bool, parquet: str | None) -> None:
    if sum((csv, json, parquet is not None)) > 1:
        raise ConfigurationError(
            "Rows are written in one format only", found="--csv, --json or --parquet together", cure="give one of them"
        )
    if parquet is not None:
        number = write_parquet(parquet, columns, rows)
        say(f"{count(number, 'row')} in {parquet}", err=True)
    elif csv:
        write_csv(sys.stdout, columns, rows)
    elif json:
        write_json(sys.stdout, columns, rows)
    else:
        say(as_table(columns, rows))


def _owner_of(reader: SnapshotReader, state: str | None) -> str:
    """Return the only operator that has the state, or timers."""
    having = [o for o in reader.operators if (any(s.name == state for s in o.states) if state else o.key_type)]
    if len(having) == 1:
        return having[0].uid_hash
    what = f"state {state!r}" if state else "timers"
    raise ConfigurationError(
        "The operator is not clear from the state",
        where=reader.address,
        found=f"{what} in {', '.join(repr(o.uid or o.name) for o in having) or 'no operator'}",
        cure="give --operator UID",
    )


# -- what is in it -------------------------------------------------------------------------------------------------------


def _overview(reader: SnapshotReader, operators: list[OperatorInfo], count: bool, json: bool) -> None:
    counts: dict[str, dict[str, Count]] = {}
    if count:
        for operator in operators:
            with _progress(operator.uid or operator.name) as watch:
                counts[operator.uid_hash] = reader.count(operator.uid_hash, watch)
    if json:
        return print_json(_as_json(reader, operators, counts))
    metadata = reader.metadata
    say(plain_line(f"{metadata.kind} {metadata.checkpoint_id} of job '{metadata.job_name}' ({metadata.job_id})"))
    say(f"{reader.address}, round {metadata.round}, {sum(f.size for f in metadata.state_files()):,} bytes")
    for operator in operators:
        say("")
        for line in _operator_lines(operator, counts.get(operator.uid_hash)):
            say(plain_line(line))


def _operator_lines(operator: OperatorInfo, counts: dict[str, Count] | None) -> Iterator[str]:
    keys = f", keys of type {operator.key_type}" if operator.key_type else ""
    yield f"{operator.name} (uid {operator.uid or 'none'}, {operator.uid_hash})"
    parallelism = f"parallelism {operator.parallelism} of at most {operator.max_parallelism}"
    yield f"  {parallelism}{keys}, {count(operator.bytes, 'byte')} in {count(operator.files, 'file')}"
    if operator.source is not None:
        yield f"  position {operator.source}"
    if operator.uncommitted:
        yield f"  {count(operator.uncommitted, 'output')} not known to be committed"
    rows = [_state_line(state.name, *_described(state), counts) for state in operator.states]
    if counts is not None and TIMERS in counts and all(state.name != TIMERS for state in operator.states):
        rows.append([TIMERS, "", "", "", f"{counts[TIMERS].entries:,}", ""])
    if rows:
        text = table(["state", "scope", "kind", "type", "entries", "bytes"], rows)
        yield from (f"  {line}" for line in text.splitlines())


def _described(state: Any) -> tuple[str, str, str]:
    of = f"{state.map_key_type} to {state.type}" if state.map_key_type else state.type
    return state.scope, state.kind, of + (f", lives {state.ttl_ms} ms" if state.ttl_ms else "")


def _state_line(name: str, scope: str, kind: str, of: str, counts: dict[str, Count] | None) -> list[str]:
    found = None if counts is None else counts[name]
    numbers = ["", ""] if found is None else [f"{found.entries:,}", f"{found.bytes:,}"]
    return [name, scope, kind, of, *numbers]


def _as_json(
    reader: SnapshotReader, operators: list[OperatorInfo], counts: dict[str, dict[str, Count]]
) -> dict[str, Any]:
    metadata = reader.metadata
    return {
        "kind": metadata.kind,
        "checkpoint_id": metadata.checkpoint_id,
        "job_id": metadata.job_id,
        "job_name": metadata.job_name,
        "address": reader.address,
        "round": metadata.round,
        "complete_ms": metadata.complete_ms,
        "bytes": sum(file.size for file in metadata.state_files()),
        "operators": [{**_fields(o), "counts": counts.get(o.uid_hash)} for o in operators],
    }


def _fields(operator: OperatorInfo) -> dict[str, Any]:
    return {name: getattr(operator, name) for name in operator.__dataclass_fields__}


# -- what has changed ----------------------------------------------------------------------------------------------------


def show_difference(before: SnapshotReader, now: SnapshotReader, *, examples: int, exit_code: bool, json: bool) -> None:
    with _progress("comparing") as watch:
        changes = list(difference(before, now, examples=examples, watch=lambda _, done, of: watch(done, of)))
    if json:
        print_json([_change_as_json(change) for change in changes])
    else:
        for line in (line for change in changes for line in _change_lines(change)):
            say(plain_line(line))
    if exit_code and any(change.is_change for change in changes):
        sys.exit(1)


def _change_lines(change: OperatorChange) -> Iterator[str]:
    operator = change.now or change.before
    assert operator is not None
    name = f"{operator.name} (uid {operator.uid or operator.uid_hash})"
    if change.before is None:
        name += ": added"
    elif change.now is None:
        name += ": removed"
    elif not change.is_change:
        yield f"{name}: no change"
        return
    yield name
    if change.source is not None:
        yield f"  position {change.source[0]} -> {change.source[1]}"
    for state in change.states:
        if not state.is_change:
            continue
        note = f"; {state.note}" if state.note else ""
        numbers = (
            f"{state.added:,} added, {state.removed:,} removed, {state.changed:,} changed, {state.same:,} the same"
        )
        yield f"  {state.state}: {numbers}{note}"
        for before, now in state.examples:
            yield f"    {changed_line(before, now)}"


def _change_as_json(change: OperatorChange) -> dict[str, Any]:
    operator = change.now or change.before
    assert operator is not None
    return {
        "uid": operator.uid,
        "uid_hash": operator.uid_hash,
        "name": operator.name,
        "before": change.before is not None,
        "now": change.now is not None,
        "source": change.source,
        "states": [
            {
                "state": state.state,
                "added": state.added,
                "removed": state.removed,
                "changed": state.changed,
                "same": state.same,
                "note": state.note,
                "examples": [
                    {"before": row_as_json(before), "now": row_as_json(now)} for before, now in state.examples
                ],
            }
            for state in change.states
        ],
    }


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal, and nothing elsewhere."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


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
