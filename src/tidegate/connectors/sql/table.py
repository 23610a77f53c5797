"""Tables that a sink writes to, records as encoded rows, and files of rows between two checkpoints.

Rows are encoded column by column. The encoder decides which Python types a column takes, and makes the text of each
value.

The files lie on checkpoint storage. Each has the encoded rows of one round. A database gets one transaction for each
subtask and checkpoint, however many rounds a checkpoint covers: servers allow few prepared transactions, and two
transactions must not wait for each other's rows. So a round without a barrier writes its rows, encoded for the
database, into a file. The next writer of the subtask gets the file as its state. The round with the barrier sends the
files and its own rows. No checkpoint ever names such a file: at its cut all rows are in transactions.
"""

from __future__ import annotations

import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar

from tidegate.base.arguments import wrong
from tidegate.base.errors import ProgramError, RowError
from tidegate.base.files import FileHandle, Files
from tidegate.common.types import Row
from tidegate.connectors.staged_file import StagedFile
from tidegate.operators.contracts.sink import WriterContext
from tidegate.operators.loop.blame import reprlib_repr, user_error

_DIRECTORY = "rows"
_HEAD = struct.Struct(">HIQ")
"""Before each frame: the number of the table, rows, bytes."""


@dataclass(frozen=True)
class Frame:
    """Encoded rows of one table, for one statement."""

    table: int
    rows: int
    payload: bytes


class FrameFile(StagedFile):
    """A file that is being written. It has at least one frame."""

    def __init__(self, context: WriterContext) -> None:
        super().__init__(context, _DIRECTORY, aside=True)
        self._rows = 0

    def add(self, frame: Frame) -> None:
        self._rows += frame.rows
        self.write(_HEAD.pack(frame.table, frame.rows, len(frame.payload)), frame.payload)

    def staged(self) -> dict[str, Any]:
        """Make the file durable. Returns what the next writer needs to read the file."""
        address, size, content = self.finish()
        return {"address": address, "size": size, "hash": content, "rows": self._rows}


def read_frames(staged: dict[str, Any]) -> Iterator[Frame]:
    """The file is verified as a whole before the first frame."""
    directory, _, name = staged["address"].rpartition("/")
    data = memoryview(Files(directory).read(FileHandle(name, staged["size"], staged["hash"])))
    at = 0
    while at < len(data):
        table, rows, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield Frame(table, rows, bytes(data[at : at + length]))
        at += length


def delete_frames(address: str) -> None:
    directory, _, name = address.rpartition("/")
    Files(directory).delete(name)


def staged_files(files: Files) -> list[str]:
    """Names of all files in the staging directory of a sink."""
    return list(files.list(_DIRECTORY))


Rows = list[Sequence[Any]]
ToRows = Callable[[Any], Iterable[tuple[str, Any]]]
_NAME = re.compile(r"[^\x00`\"]+")


@dataclass(frozen=True)
class Table:
    """A table with the columns that a sink writes.

    ``name``: as the database spells it; ``schema.table`` for a table outside the default schema. ``columns``: in the order of a
    record's fields. ``key``: a row replaces the row with the same key (an upsert); the database must have a primary key or a
    unique index of exactly these columns. Without a key every record becomes a new row.
    """

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...] = ()

    def __init__(self, name: str, columns: Sequence[str], key: Sequence[str] = ()) -> None:
        for what, names in (("columns", columns), ("key", key)):
            if isinstance(names, str) or not all(isinstance(each, str) and _NAME.fullmatch(each) for each in names):
                raise wrong(f"Table {what}", "a list of names", names, '["id", "amount"]')
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise wrong("Table", "a name", name, '"orders", or "shop.orders"')
        missing = [each for each in key if each not in columns]
        if not columns or len(set(columns)) != len(columns) or missing:
            raise ProgramError(
                "A table needs columns with different names, and its key must be some of them",
                where=f"Table {name!r}",
                found=f"columns {list(columns)}, key {list(key)}",
                cure=f"add {missing} to the columns" if missing else "name each column once",
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "columns", tuple(columns))
        object.__setattr__(self, "key", tuple(key))

    def key_of(self, row: Sequence[Any]) -> str:
        """The key of a row, for a message; the whole row if the table has no key."""
        if len(row) != len(self.columns):
            return reprlib_repr(tuple(row))
        shown = self.key or self.columns
        return ", ".join(f"{name}={reprlib_repr(row[self.columns.index(name)])}" for name in shown)

    def sent(self, fields: Sequence[str]) -> str:
        """A row as it was sent, for a message: the key first, then the other columns."""
        if len(fields) != len(self.columns):
            return ""
        by_name = dict(zip(self.columns, fields, strict=True))
        names = [*self.key, *(name for name in self.columns if name not in self.key)]
        return ", ".join(f"{name}={_short(by_name[name])}" for name in names)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}..."


class RecordRows:
    """Convert the records of a batch to rows, in the order of the tables: a table that others refer to can come first.

    ``to_rows`` gives pairs of a table's name and a record. None: there is one table, and a record is its row. A record is a
    tuple, list or ``Row`` in the order of the columns, a ``Row`` or dict with their names, or (for a table with one column) the
    value itself.
    """

    def __init__(self, tables: Sequence[Table], to_rows: ToRows | None) -> None:
        self._tables, self._to_rows = tables, to_rows
        self._numbers = {table.name: number for number, table in enumerate(tables)}

    def of(self, values: list[Any]) -> list[tuple[int, Rows]]:
        if self._to_rows is None:
            return [(0, _unique(self._tables[0], _rows(self._tables[0], values)))]
        found: list[list[Any]] = [[] for _ in self._tables]
        for value in values:
            try:
                pairs = list(self._to_rows(value))
            except BaseException as error:
                raise user_error(error, "to_rows", reprlib_repr(value)) from error
            for name, record in pairs:
                if name not in self._numbers:
                    raise self._unknown(name, value)
                found[self._numbers[name]].append(record)
        tables = self._tables
        return [(n, _unique(tables[n], _rows(tables[n], each))) for n, each in enumerate(found) if each]

    def _unknown(self, name: object, value: Any) -> ProgramError:
        return ProgramError(
            "to_rows names a table that the sink does not have",
            where="to_rows",
            found=f"table {name!r} for record {reprlib_repr(value)}",
            cure=f"return one of {list(self._numbers)}, or add a Table to the sink",
        )


def _rows(table: Table, records: list[Any]) -> Rows:
    kinds = set(map(type, records))
    if not kinds <= {tuple, list}:
        records = [_row(table, record) for record in records]
    width = len(table.columns)
    if set(map(len, records)) - {width}:
        row = next(record for record in records if len(record) != width)
        raise RowError(
            f"A row of {table.name} has {width} fields: {', '.join(table.columns)}",
            found=f"{len(row)} in {reprlib_repr(row)}",
            cure="map the records to the fields of the table",
        )
    return records


def _row(table: Table, record: Any) -> Sequence[Any]:
    if isinstance(record, tuple | list):
        return record
    if isinstance(record, Row):
        fields = record._fields
        return record._values if fields is None else _named(table, record.as_dict(), record)
    if isinstance(record, dict):
        return _named(table, record, record)
    if len(table.columns) == 1:
        return (record,)
    raise RowError(
        "A record of a table is a tuple, a list, a Row or a dict",
        where=f"table {table.name}",
        found=f"{type(record).__name__} {reprlib_repr(record)}",
        cure="map the records to tuples in the order of the columns",
    )


def _named(table: Table, fields: dict[str, Any], record: Any) -> Sequence[Any]:
    try:
        return [fields[name] for name in table.columns]
    except KeyError as error:
        raise RowError(
            "A record lacks a column of its table",
            where=f"table {table.name}",
            found=f"no {error} in {reprlib_repr(record)}",
            cure="add the field; use None for NULL",
        ) from None


def _unique(table: Table, rows: Rows) -> Rows:
    """Keep the last of all rows with the same key: a statement may touch a row once."""
    if not table.key:
        return rows
    key = itemgetter(*(table.columns.index(name) for name in table.key))
    try:
        last = {key(row): row for row in rows}
    except TypeError:  # a key that cannot be hashed
        last = {repr(key(row)): row for row in rows}
    return rows if len(last) == len(rows) else list(last.values())


@dataclass(frozen=True)
class ServerColumn:
    """A column as the server describes it. ``type``: as the server spells it. ``family``: its plain name, without length or
    precision. ``bare``: the type without them, as a statement names it. (PostgreSQL only: a cast to ``varchar(3)`` truncates a
    longer text silently, an assignment refuses it.)"""

    name: str
    type: str
    family: str
    bare: str = ""


@dataclass(frozen=True)
class Form:
    """How values of some types become text. ``plain``: the text never needs escaping."""

    types: tuple[type, ...]
    text: Callable[[Any], str]
    plain: bool = True


class RowEncoder(ABC):
    """``columns``: those of each table."""

    forms: ClassVar[Mapping[str, Form]]
    """By family of the column."""
    other: ClassVar[Form]
    """For all other families."""
    null: ClassVar[Any]

    def __init__(self, tables: Sequence[Table], columns: Sequence[Sequence[ServerColumn]]) -> None:
        self._tables, self._columns = tables, columns
        self._forms = [[self.forms.get(column.family, self.other) for column in each] for each in columns]

    @abstractmethod
    def encode(self, table: int, rows: list[Sequence[Any]]) -> Frame:
        """Raises ``RowError`` with column and key for a value that the column cannot hold."""

    def _texts(self, table: int, rows: list[Sequence[Any]]) -> list[list[Any]]:
        """For each column the texts of its values; ``null`` for None."""
        columns = zip(self._columns[table], self._forms[table], zip(*rows, strict=True), strict=True)
        return [self._column(self._tables[table], column, form, values, rows) for column, form, values in columns]

    def _column(
        self, table: Table, column: ServerColumn, form: Form, values: tuple[Any, ...], rows: list[Sequence[Any]]
    ) -> list[Any]:
        if set(map(type, values)) <= {*form.types}:
            return list(map(form.text, values))
        return [
            self.null if value is None else self._text(table, column, form, value, row)
            for value, row in zip(values, rows, strict=True)
        ]

    def _text(self, table: Table, column: ServerColumn, form: Form, value: Any, row: Sequence[Any]) -> str:
        if isinstance(value, form.types) and (not isinstance(value, bool) or bool in form.types):
            return form.text(value)
        raise wrong_value(table, column, " or ".join(kind.__name__ for kind in form.types), value, row)


def wrong_value(table: Table, column: ServerColumn, wanted: str, value: Any, row: Sequence[Any]) -> RowError:
    return RowError(
        f"Column {column.name} of {table.name} is {column.type}, and takes {wanted}",
        where=f"row {table.key_of(row)}",
        found=f"{type(value).__name__} {reprlib_repr(value)}",
        cure="convert the value in a map before the sink",
    )
