"""Python values as PostgreSQL's text, column by column: for COPY, and as arrays for upserts."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tidegate.base.errors import RowError
from tidegate.connectors.sql.database import Encoder
from tidegate.connectors.sql.frames import Frame
from tidegate.connectors.sql.table import Table
from tidegate.operators.loop.blame import reprlib_repr

Texts = list[str | None]
_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_IN_ARRAY = str.maketrans({"\\": "\\\\", '"': '\\"'})


@dataclass(frozen=True)
class Column:
    """``type``: as the database spells it. ``family``: its plain name, without length or precision. ``bare``: the type without
    them, as a statement names it: a cast to ``varchar(3)`` would cut a longer text without a word, an assignment refuses it."""

    name: str
    type: str
    family: str
    bare: str


@dataclass(frozen=True)
class _Form:
    """How values of some types become text. ``plain``: the text never needs escaping."""

    types: tuple[type, ...]
    text: Callable[[Any], str]
    plain: bool = True


def _number(value: Any) -> str:
    return repr(float(value)) if isinstance(value, float) else str(value)


def _interval(value: datetime.timedelta) -> str:
    return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"


_INTS = _Form((int,), int.__repr__)
_FLOATS = _Form((float, int), _number)
_NUMERIC = _Form((int, decimal.Decimal, float), _number)
_TEXT = _Form((str,), str.__str__, plain=False)
_JSON = _Form((dict, list, str, int, float, bool), json.dumps, plain=False)
_ANY = _Form((str, int, float, decimal.Decimal), str, plain=False)
_FORMS: dict[str, _Form] = {
    "bool": _Form((bool,), lambda value: "t" if value else "f"),
    **dict.fromkeys(("int2", "int4", "int8"), _INTS),
    **dict.fromkeys(("float4", "float8"), _FLOATS),
    "numeric": _NUMERIC,
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "citext"), _TEXT),
    "bytea": _Form((bytes, bytearray, memoryview), lambda value: "\\x" + bytes(value).hex(), plain=False),
    "date": _Form((datetime.date,), lambda value: value.isoformat()[:10]),
    **dict.fromkeys(("timestamp", "timestamptz"), _Form((datetime.datetime,), datetime.datetime.isoformat)),
    **dict.fromkeys(("time", "timetz"), _Form((datetime.time,), datetime.time.isoformat)),
    "interval": _Form((datetime.timedelta,), _interval),
    "uuid": _Form((uuid.UUID, str), str, plain=False),
    **dict.fromkeys(("json", "jsonb"), _JSON),
}
_AS_ARRAYS = frozenset(_FORMS) - {"json", "jsonb"}
"""Families whose arrays the server reads without a cast of each element."""


class PostgreSqlEncoder(Encoder):
    """``columns``: of each table, as the server describes them."""

    def __init__(self, tables: Sequence[Table], columns: Sequence[Sequence[Column]]) -> None:
        self._tables, self._columns = tables, columns
        self._forms = [[_form(column) for column in each] for each in columns]

    def encode(self, table: int, rows: list[Sequence[Any]]) -> Frame:
        target = self._tables[table]
        made = [
            self._texts(target, column, form, values, rows)
            for column, form, values in zip(
                self._columns[table], self._forms[table], zip(*rows, strict=True), strict=True
            )
        ]
        if target.key:
            arrays = [_array(texts, form) for texts, form in zip(made, self._forms[table], strict=True)]
            return Frame(table, len(rows), msgspec.msgpack.encode(arrays))
        fields = [_copied(texts, form) for texts, form in zip(made, self._forms[table], strict=True)]
        lines = "\n".join(map("\t".join, zip(*fields, strict=True)))
        return Frame(table, len(rows), f"{lines}\n".encode())

    def _texts(
        self, table: Table, column: Column, form: _Form, values: tuple[Any, ...], rows: list[Sequence[Any]]
    ) -> Texts:
        kinds = set(map(type, values))
        if kinds <= {*form.types}:
            texts: Texts = list(map(form.text, values))
        else:
            texts = [
                None if value is None else self._text(table, column, form, value, rows[n])
                for n, value in enumerate(values)
            ]
        if not form.plain:
            self._refuse_zeros(table, column, texts, rows)
        return texts

    def _text(self, table: Table, column: Column, form: _Form, value: Any, row: Sequence[Any]) -> str:
        if isinstance(value, form.types) and (not isinstance(value, bool) or bool in form.types):
            return form.text(value)
        wanted = " or ".join(kind.__name__ for kind in form.types)
        raise RowError(
            f"Column {column.name} of {table.name} is {column.type}, and takes {wanted}",
            where=f"row {table.key_of(row)}",
            found=f"{type(value).__name__} {reprlib_repr(value)}",
            cure="convert it in a map before the sink",
        )

    @staticmethod
    def _refuse_zeros(table: Table, column: Column, texts: Texts, rows: list[Sequence[Any]]) -> None:
        if "\x00" in "".join(filter(None, texts)):
            row = rows[next(n for n, text in enumerate(texts) if text is not None and "\x00" in text)]
            raise RowError(
                "PostgreSQL holds no text with the character U+0000",
                where=f"column {column.name} of {table.name}, row {table.key_of(row)}",
                found=reprlib_repr(row[table.columns.index(column.name)]),
                cure="take it out in a map before the sink: text.replace('\\x00', '')",
            )


def elements(table: Table, columns: Sequence[Column]) -> list[tuple[str, str]]:
    """For each column of an upsert the type of the array that is sent, and what casts an element to the column."""
    return [(column.bare, "") if column.family in _AS_ARRAYS else ("text", f"::{column.bare}") for column in columns]


def _form(column: Column) -> _Form:
    return _FORMS.get(column.family, _ANY)


def _copied(texts: Texts, form: _Form) -> list[str]:
    if not form.plain:
        joined = "".join(filter(None, texts))
        if "\\" in joined or "\t" in joined or "\n" in joined or "\r" in joined:
            return ["\\N" if text is None else text.translate(_ESCAPED) for text in texts]
    if None in texts:
        return ["\\N" if text is None else text for text in texts]
    return texts  # type: ignore[return-value]


def _array(texts: Texts, form: _Form) -> str:
    """As a literal: elements in quotes, but for NULL."""
    if not form.plain:
        joined = "".join(filter(None, texts))
        if "\\" in joined or '"' in joined:
            texts = [None if text is None else text.translate(_IN_ARRAY) for text in texts]
    if None in texts:
        return "{" + ",".join("NULL" if text is None else f'"{text}"' for text in texts) + "}"
    return '{"' + '","'.join(texts) + '"}'  # type: ignore[arg-type]
