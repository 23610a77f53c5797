"""Python values as PostgreSQL's text, column by column: for COPY, and as arrays for upserts."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from tidegate.base.errors import RowError
from tidegate.connectors.sql.encoding import Form, RowEncoder, ServerColumn
from tidegate.connectors.sql.frames import Frame
from tidegate.connectors.sql.table import Table
from tidegate.operators.loop.blame import reprlib_repr

Texts = list[str | None]
_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_IN_ARRAY = str.maketrans({"\\": "\\\\", '"': '\\"'})


def _number(value: Any) -> str:
    return repr(float(value)) if isinstance(value, float) else str(value)


def _interval(value: datetime.timedelta) -> str:
    return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"


_INTS = Form((int,), int.__repr__)
_TEXT = Form((str,), str.__str__, plain=False)
_JSON = Form((dict, list, str, int, float, bool), json.dumps, plain=False)


class PostgreSqlEncoder(RowEncoder):
    other = Form((str, int, float, decimal.Decimal), str, plain=False)
    null = None
    forms: ClassVar[dict[str, Form]] = {
        "bool": Form((bool,), lambda value: "t" if value else "f"),
        **dict.fromkeys(("int2", "int4", "int8"), _INTS),
        **dict.fromkeys(("float4", "float8"), Form((float, int), _number)),
        "numeric": Form((int, decimal.Decimal, float), _number),
        **dict.fromkeys(("text", "varchar", "bpchar", "name", "citext"), _TEXT),
        "bytea": Form((bytes, bytearray, memoryview), lambda value: "\\x" + bytes(value).hex(), plain=False),
        "date": Form((datetime.date,), lambda value: value.isoformat()[:10]),
        **dict.fromkeys(("timestamp", "timestamptz"), Form((datetime.datetime,), datetime.datetime.isoformat)),
        **dict.fromkeys(("time", "timetz"), Form((datetime.time,), datetime.time.isoformat)),
        "interval": Form((datetime.timedelta,), _interval),
        "uuid": Form((uuid.UUID, str), str, plain=False),
        **dict.fromkeys(("json", "jsonb"), _JSON),
    }

    def encode(self, table: int, rows: list[Sequence[Any]]) -> Frame:
        made, forms = self._texts(table, rows), self._forms[table]
        if self._tables[table].key:
            arrays = [_array(texts, form) for texts, form in zip(made, forms, strict=True)]
            return Frame(table, len(rows), msgspec.msgpack.encode(arrays))
        fields = [_copied(texts, form) for texts, form in zip(made, forms, strict=True)]
        lines = "\n".join(map("\t".join, zip(*fields, strict=True)))
        return Frame(table, len(rows), f"{lines}\n".encode())

    def _column(
        self, table: Table, column: ServerColumn, form: Form, values: tuple[Any, ...], rows: list[Sequence[Any]]
    ) -> Texts:
        texts: Texts = super()._column(table, column, form, values, rows)
        if not form.plain and "\x00" in "".join(filter(None, texts)):
            number = next(n for n, text in enumerate(texts) if text is not None and "\x00" in text)
            raise RowError(
                "PostgreSQL cannot store text with the character U+0000",
                where=f"column {column.name} of {table.name}, row {table.key_of(rows[number])}",
                found=reprlib_repr(values[number]),
                cure="remove the character in a map before the sink: text.replace('\\x00', '')",
            )
        return texts


_AS_ARRAYS = frozenset(PostgreSqlEncoder.forms) - {"json", "jsonb"}
"""Families whose arrays the server reads without a cast of each element."""


def elements(columns: Sequence[ServerColumn]) -> list[tuple[str, str]]:
    """For each column of an upsert: the type of the array that is sent, and the cast of an element to the column."""
    return [(column.bare, "") if column.family in _AS_ARRAYS else ("text", f"::{column.bare}") for column in columns]


def _copied(texts: Texts, form: Form) -> list[str]:
    if not form.plain:
        joined = "".join(filter(None, texts))
        if "\\" in joined or "\t" in joined or "\n" in joined or "\r" in joined:
            return ["\\N" if text is None else text.translate(_ESCAPED) for text in texts]
    if None in texts:
        return ["\\N" if text is None else text for text in texts]
    return texts  # type: ignore[return-value]


def _array(texts: Texts, form: Form) -> str:
    """An array literal: elements in quotes, except NULL."""
    if not form.plain:
        joined = "".join(filter(None, texts))
        if "\\" in joined or '"' in joined:
            texts = [None if text is None else text.translate(_IN_ARRAY) for text in texts]
    if None in texts:
        return "{" + ",".join("NULL" if text is None else f'"{text}"' for text in texts) + "}"
    return '{"' + '","'.join(texts) + '"}'  # type: ignore[arg-type]
