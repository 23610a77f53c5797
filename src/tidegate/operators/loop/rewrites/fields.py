"""Columns as the walk over a function takes them (``arithmetic.py``): what the values are, and bounds of ints."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.operators.contracts.batch import BOOL, FLOAT, INT, Column, Int64s


class Inexact(Exception):
    """This batch, or this function, is not for columns."""


class Field:
    """A column as the walk takes it."""

    __slots__ = ("column",)

    def __init__(self, column: Column) -> None:
        self.column = column

    def take(self, which: Any) -> Field:
        return type(self)(self.column[which])


class Ints(Field):
    """A column of ints and bounds of what is in it."""

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
    """A column of a batch as the walk takes it."""
    kind = column.dtype.kind
    if kind == INT:
        return Ints.of(column.astype(np.int64, copy=False))
    if kind == FLOAT:
        return Floats(column)
    return Mask(column) if kind == BOOL else Texts(column)
