"""Define columns for the walk over a function (``arithmetic.py``): the types of the values, and bounds of ints."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.operators.contracts.batch import BOOL, FLOAT, INT, Column, Int64s


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


Value = Any
"""A number, a column of any type, or a tuple of such."""


def field_of(column: Column) -> Field:
    """Return a column of a batch in the form that the walk uses."""
    kind = column.dtype.kind
    if kind == INT:
        return Ints.of(column.astype(np.int64, copy=False))
    if kind == FLOAT:
        return Floats(column)
    return Mask(column) if kind == BOOL else Texts(column)
