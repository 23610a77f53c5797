"""Columns for the walk over a function (``arithmetic.py``): types of values, bounds of ints, and f-strings.

An f-string such as ``f"user-{x % 1000}"`` is evaluated for a whole batch. The same f-string makes the text of every
record in a comprehension. Its only value may be an int that is known to lie in a narrow range, batch after batch, as
the result of ``% 1000`` does. Then its texts are made once and looked up. These texts are the same objects again and
again, so a dict with these keys need not compute their hash.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tidegate.common.typeinfo import RowTypeInfo
from tidegate.operators.contracts.arrow_batch import ArrowBatch, taken
from tidegate.operators.contracts.batch import BOOL, FLOAT, INT, Column, Int64s, text_column


class Inexact(Exception):
    """Report that this batch, or this function, cannot be evaluated on columns."""


class Field:
    """A column in the form that the walk uses."""

    __slots__ = ("column",)

    def __init__(self, column: Column) -> None:
        self.column = column

    def take(self, which: Any) -> Field:
        return type(self)(self.column[which])


class Ints(Field):
    """A column of ints, with bounds of its values."""

    __slots__ = ("high", "low")

    def __init__(self, column: Int64s, low: int, high: int) -> None:
        self.column, self.low, self.high = column, low, high

    @classmethod
    def of(cls, column: Int64s) -> Ints:
        if not len(column):
            return cls(column, 1, 1)  # any bounds are true of no values; with these a division passes
        return cls(column, int(column.min()), int(column.max()))

    def take(self, which: Any) -> Ints:
        return Ints(self.column[which], self.low, self.high)


class Floats(Field):
    """A column of doubles."""

    __slots__ = ()


class Texts(Field):
    """A column of texts."""

    __slots__ = ()


class Mask(Field):
    """A column of bools: the results of comparisons."""

    __slots__ = ()


class Record:
    """A record of Arrow's columns. A field becomes a column when a function asks for it."""

    __slots__ = ("_fields", "batch")

    def __init__(self, batch: ArrowBatch) -> None:
        self.batch = batch
        self._fields: dict[int, Field] = {}

    def __len__(self) -> int:
        return len(self.batch)

    def field(self, which: int | str) -> Field:
        """Return a field by its position, or by its name in a row. Raise Inexact for a column with missing values, or of
        another type than numpy's."""
        names, named = self.batch.layout.names, isinstance(self.batch.layout.info, RowTypeInfo)
        if isinstance(which, str):
            if not named or names.count(which) != 1:
                raise Inexact
            which = names.index(which)
        if not -len(names) <= which < len(names) or not (named or self.batch.layout.width):
            raise Inexact
        which %= len(names)
        if which not in self._fields:
            column = self.batch.column(which)
            if column is None:
                raise Inexact
            self._fields[which] = field_of(column)
        return self._fields[which]

    def is_field(self, which: int, value: Field) -> bool:
        """Tell whether a value is this field of the record."""
        return self._fields.get(which) is value

    def take(self, kept: Int64s) -> Record:
        """Return some of the records, without timestamps."""
        return Record(ArrowBatch(taken(self.batch.arrow, kept), self.batch.layout))


Value = Any
"""A number, a column of any type, a tuple of such, or a ``Record``."""


def field_of(column: Column) -> Field:
    """Return a column of a batch in the form that the walk uses."""
    kind = column.dtype.kind
    if kind == INT:
        return Ints.of(column.astype(np.int64, copy=False))
    if kind == FLOAT:
        return Floats(column)
    return Mask(column) if kind == BOOL else Texts(column)


_WIDEST = 1 << 15
"""The greatest range of ints whose texts are kept."""
_USES = 4
"""Batches with the same range before its texts are made."""
_MOST_TABLES = 8


class Hole(NamedTuple):
    """Hold ``{value:format}`` of an f-string."""

    value: Value
    format: str


_Template = tuple[str | tuple[str], ...]
"""The literal texts, and for each hole its format in a tuple."""
_tables: dict[tuple[_Template, int, int], int | Column] = {}
"""The texts of a range; before they are made, how often the range was seen."""


def text_of(pieces: Sequence[str | Hole]) -> Texts:
    """Return the texts of an f-string. Raise Inexact for a value that is no column or number, and for a format that
    does not fit."""
    columns = [piece.value for piece in pieces if isinstance(piece, Hole) and isinstance(piece.value, Field)]
    if not columns:
        raise Inexact  # the same text for every record; no one writes this
    try:
        template = tuple(map(_in_template, pieces))
        if len(columns) == 1 and isinstance(columns[0], Ints) and columns[0].high - columns[0].low < _WIDEST:
            table = _table(template, columns[0].low, columns[0].high)
            if table is not None:
                return Texts(table[columns[0].column - columns[0].low])
        return Texts(text_column(_formatter(template)(*(field.column.tolist() for field in columns))))
    except (ValueError, TypeError):
        raise Inexact from None  # the loop will find the record


def _in_template(piece: str | Hole) -> str | tuple[str]:
    if isinstance(piece, str):
        return piece
    if isinstance(piece.value, Field):
        return (piece.format,)
    if not isinstance(piece.value, (int, float)):
        raise Inexact
    return format(piece.value, piece.format)


def _table(template: _Template, low: int, high: int) -> Column | None:
    found = _tables.get((template, low, high), 0)
    if isinstance(found, int):
        if found < _USES:
            if len(_tables) == _MOST_TABLES:
                _tables.clear()
            _tables[template, low, high] = found + 1
            return None
        found = _tables[template, low, high] = text_column(_formatter(template)(list(range(low, high + 1))))
    return found


@lru_cache(maxsize=64)
def _formatter(template: _Template) -> Callable[..., list[str]]:
    """Return a function that takes a list for each hole."""
    holes = sum(isinstance(piece, tuple) for piece in template)
    lists, names = ([f"{letter}{n}" for n in range(holes)] for letter in "cx")
    every = lists[0] if holes == 1 else f"zip({', '.join(lists)}, strict=True)"
    tree = ast.parse(f"lambda {', '.join(lists)}: [f'' for {', '.join(names)} in {every}]", mode="eval")
    tree.body.body.elt.values = list(_pieces(template, iter(names)))  # type: ignore[attr-defined]
    made: Callable[..., list[str]] = eval(compile(ast.fix_missing_locations(tree), "<f-string>", "eval"))
    return made


def _pieces(template: _Template, names: Iterator[str]) -> Iterator[ast.expr]:
    for piece in template:
        if isinstance(piece, str):
            yield ast.Constant(piece)
        else:
            spec: Any = ast.JoinedStr([ast.Constant(piece[0])]) if piece[0] else None
            yield ast.FormattedValue(ast.Name(next(names), ast.Load()), -1, spec)
