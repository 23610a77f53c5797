"""Python values as literals of MariaDB and MySQL, column by column; rows of an INSERT."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pymysql.converters import escape_string

from tidegate.base.errors import RowError
from tidegate.connectors.sql.database import Encoder
from tidegate.connectors.sql.frames import Frame
from tidegate.connectors.sql.table import Table
from tidegate.operators.loop.blame import reprlib_repr

BETWEEN_ROWS = b",\n"
"""No literal has a raw line feed: it is escaped."""


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    family: str


@dataclass(frozen=True)
class _Form:
    """How values of some types become literals."""

    types: tuple[type, ...]
    text: Callable[[Any], str]


def _quoted(value: Any) -> str:
    return f"'{escape_string(str(value))}'"


def _float(value: Any) -> str:
    return repr(float(value)) if math.isfinite(value) else "nan"


def _moment(value: datetime.datetime) -> str:
    """Times with a zone become UTC, which is that of the session."""
    plain = value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo is not None else value
    return f"'{plain.isoformat(' ')}'"


_INTS = _Form((int, bool), lambda value: str(int(value)))
_FLOATS = _Form((float, int), _float)
_TEXT = _Form((str,), _quoted)
_BYTES = _Form((bytes, bytearray, memoryview), lambda value: f"x'{bytes(value).hex()}'")
_ANY = _Form((str, int, decimal.Decimal), _quoted)
_FORMS: dict[str, _Form] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "bit", "year"), _INTS),
    **dict.fromkeys(("float", "double"), _FLOATS),
    "decimal": _Form((int, decimal.Decimal, float), str),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"), _TEXT),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), _BYTES),
    "date": _Form((datetime.date,), lambda value: f"'{value.isoformat()[:10]}'"),
    **dict.fromkeys(("datetime", "timestamp"), _Form((datetime.datetime,), _moment)),
    "time": _Form((datetime.time,), lambda value: f"'{value.isoformat()}'"),
    "uuid": _Form((uuid.UUID, str), _quoted),
    "json": _Form((dict, list, str, int, float, bool), lambda value: _quoted(json.dumps(value))),
}


class MySqlEncoder(Encoder):
    """``columns``: of each table, as the server describes them."""

    def __init__(self, tables: Sequence[Table], columns: Sequence[Sequence[Column]]) -> None:
        self._tables, self._columns = tables, columns
        self._forms = [[_FORMS.get(column.family, _ANY) for column in each] for each in columns]

    def encode(self, table: int, rows: list[Sequence[Any]]) -> Frame:
        target, columns = self._tables[table], zip(*rows, strict=True)
        described = zip(self._columns[table], self._forms[table], columns, strict=True)
        fields = [self._literals(target, column, form, values, rows) for column, form, values in described]
        lines = [f"({line})" for line in map(",".join, zip(*fields, strict=True))]
        return Frame(table, len(rows), BETWEEN_ROWS.decode().join(lines).encode())

    def _literals(
        self, table: Table, column: Column, form: _Form, values: tuple[Any, ...], rows: list[Sequence[Any]]
    ) -> list[str]:
        made = (
            list(map(form.text, values))
            if set(map(type, values)) <= {*form.types}
            else [self._literal(table, column, form, value, row) for value, row in zip(values, rows, strict=True)]
        )
        if form is _FLOATS and "nan" in made:
            self._refuse(table, column, "finite numbers", values[made.index("nan")], rows[made.index("nan")])
        return made

    def _literal(self, table: Table, column: Column, form: _Form, value: Any, row: Sequence[Any]) -> str:
        if value is None:
            return "NULL"
        if not isinstance(value, form.types) or (isinstance(value, bool) and bool not in form.types):
            self._refuse(table, column, " or ".join(kind.__name__ for kind in form.types), value, row)
        return form.text(value)

    @staticmethod
    def _refuse(table: Table, column: Column, wanted: str, value: Any, row: Sequence[Any]) -> None:
        raise RowError(
            f"Column {column.name} of {table.name} is {column.type}, and takes {wanted}",
            where=f"row {table.key_of(row)}",
            found=f"{type(value).__name__} {reprlib_repr(value)}",
            cure="convert it in a map before the sink",
        )
