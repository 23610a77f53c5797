"""Python values as literals of MariaDB and MySQL, column by column; rows of an INSERT."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

from pymysql.converters import escape_string

from tidegate.connectors.sql.encoding import Form, RowEncoder, ServerColumn, wrong_value
from tidegate.connectors.sql.frames import Frame
from tidegate.connectors.sql.table import Table

BETWEEN_ROWS = b",\n"
"""No literal holds a raw line feed: line feeds are escaped."""


def _quoted(value: Any) -> str:
    return f"'{escape_string(str(value))}'"


def _float(value: Any) -> str:
    return repr(float(value)) if math.isfinite(value) else "nan"


def _moment(value: datetime.datetime) -> str:
    """Times with a zone become UTC, which is the zone of the session."""
    plain = value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo is not None else value
    return f"'{plain.isoformat(' ')}'"


_INTS = Form((int, bool), lambda value: str(int(value)))
_FLOATS = Form((float, int), _float)
_TEXT = Form((str,), _quoted)
_BYTES = Form((bytes, bytearray, memoryview), lambda value: f"x'{bytes(value).hex()}'")


class MySqlEncoder(RowEncoder):
    other = Form((str, int, decimal.Decimal), _quoted)
    null = "NULL"
    forms: ClassVar[dict[str, Form]] = {
        **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "bit", "year"), _INTS),
        **dict.fromkeys(("float", "double"), _FLOATS),
        "decimal": Form((int, decimal.Decimal, float), str),
        **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"), _TEXT),
        **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), _BYTES),
        "date": Form((datetime.date,), lambda value: f"'{value.isoformat()[:10]}'"),
        **dict.fromkeys(("datetime", "timestamp"), Form((datetime.datetime,), _moment)),
        "time": Form((datetime.time,), lambda value: f"'{value.isoformat()}'"),
        "uuid": Form((uuid.UUID, str), _quoted),
        "json": Form((dict, list, str, int, float, bool), lambda value: _quoted(json.dumps(value))),
    }

    def encode(self, table: int, rows: list[Sequence[Any]]) -> Frame:
        lines = [f"({line})" for line in map(",".join, zip(*self._texts(table, rows), strict=True))]
        return Frame(table, len(rows), BETWEEN_ROWS.decode().join(lines).encode())

    def _column(
        self, table: Table, column: ServerColumn, form: Form, values: tuple[Any, ...], rows: list[Sequence[Any]]
    ) -> list[str]:
        made = super()._column(table, column, form, values, rows)
        if form is _FLOATS and "nan" in made:
            raise wrong_value(table, column, "finite numbers", values[made.index("nan")], rows[made.index("nan")])
        return made
