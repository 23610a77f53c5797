"""Encode rows column by column: which Python types a column takes, and the text of each value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.base.errors import RowError
from tidegate.connectors.sql.frames import Frame
from tidegate.connectors.sql.table import Table
from tidegate.operators.loop.blame import reprlib_repr


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
