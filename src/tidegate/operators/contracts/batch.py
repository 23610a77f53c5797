"""Define batches of records, as rows or as columns: sources make batches, and loops, channels, windows and sinks hand
them on.

In columns a record is a scalar, or a tuple of fields. A column holds values of one type: ints of 64 bits, floats,
bools, or texts. Every value was a Python object of exactly that type, or becomes one: only the speed differs. Texts are
an array of Python's own objects: making or reading such a column costs no more than copying a pointer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.base.errors import UserCodeError

Column = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]
Rows = Sequence[Any]
"""Records as Python objects, of any type of the user's program."""
Keys = list[Any]
"""Keys in the engine's form (``state/keys.py``)."""
TimeList = list[Any]
"""Event timestamps: ints, and None for a record without a timestamp."""
Times = TimeList | Int64s
"""Times are a column where an assigner has made one, or where records came as columns, up to the loop that they enter."""
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
INT, FLOAT, BOOL, TEXT = "i", "f", "b", "O"
"""Types of columns: numpy's letters for kinds of data."""
_TYPES: dict[str, type] = {INT: int, FLOAT: float, BOOL: bool, TEXT: str}
WIDEST = 0xFE
"""Fields of a tuple that can be columns."""


class Schema(NamedTuple):
    """Describe the columns of a batch: a letter for the type of each column. ``width`` 0: a record is a scalar;
    otherwise a tuple of this number of fields."""

    types: str
    width: int

    def is_declared(self, kinds: Sequence[type | None]) -> bool:
        """Tell whether the columns are of these Python types, in their order."""
        return len(kinds) == max(self.width, 1) and all(
            _TYPES[letter] is kind for letter, kind in zip(self.types, kinds, strict=True)
        )


class Batch:
    """Hold records that are handed on together, as rows: the values, their event timestamps and their keys.

    Sources make batches, and loops, channels and windows hand them on. Code that needs Python objects asks for
    ``rows``, whatever form the batch has. A batch of rows has no ``schema`` and no ``columns``; a ``ColumnBatch`` has
    both. A batch is made for many records at once, never for one.

    ``times`` and ``keys`` are None if the records have none.
    """

    __slots__ = ("_rows", "keys", "times")

    columns: Sequence[Column] = ()
    width: int = 0
    key_field: int | None = None
    is_undecided: bool = False
    """Rows of the batch cost no more than its columns: a reader that does not need columns gets rows."""

    def __init__(self, rows: Rows, times: Times | None = None, keys: Keys | None = None) -> None:
        self._rows, self.times, self.keys = rows, times, keys

    @staticmethod
    def of(given: Given) -> Batch:
        """Make a batch from what a source's reader has yielded."""
        if isinstance(given, Batch):
            return given
        values, times = given
        if times is not None and not isinstance(times, (list, np.ndarray)):
            times = list(times)
        return values.with_times(times) if isinstance(values, Batch) else Batch(values, times)

    @property
    def schema(self) -> Schema | None:
        """Return the schema of the columns; None if the batch has rows."""
        return None

    @property
    def is_columnar(self) -> bool:
        """Tell whether the records can become columns without a look at each record. No one can change such records."""
        return isinstance(self._rows, range)

    def as_columns(self) -> Batch:
        """Return the same records as a ``ColumnBatch``, if the batch holds columns in another form; else itself."""
        return self

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows())

    def rows(self) -> Rows:
        """Return the records as Python objects."""
        return self._rows

    def time_list(self) -> TimeList | None:
        """Return the timestamps as Python objects; None if there are none."""
        times = self.times
        return times if times is None or isinstance(times, list) else times.tolist()

    def time_column(self) -> Int64s | None:
        """Return the timestamps as a column; None if there are none, or if one of them is missing."""
        times = self.times
        return int_column(times) if isinstance(times, list) else times

    def greatest_time(self) -> int | None:
        """Return the greatest timestamp; None if there are none."""
        times = self.times
        if times is None or not len(times):
            return None
        return max(times) if isinstance(times, list) else int(times.max())

    def with_times(self, times: Times | None) -> Batch:
        """Return the same records with other timestamps."""
        return Batch(self._rows, times, self.keys)

    def part(self, start: int, end: int) -> Batch:
        """Return the records from ``start`` to ``end``; the batch itself if these are all of its records."""
        if start == 0 and end == len(self):
            return self
        return Batch(self._rows[start:end], *self._beside(start, end))

    def _beside(self, start: int, end: int) -> tuple[Times | None, Keys | None]:
        times, keys = self.times, self.keys
        return None if times is None else times[start:end], None if keys is None else keys[start:end]

    def select(self, numbers: list[int]) -> Batch:
        """Return some of the records, by their numbers, as rows."""
        rows, times, keys = self.rows(), self.time_list(), self.keys
        return Batch(
            [rows[n] for n in numbers],
            None if times is None else [times[n] for n in numbers],
            None if keys is None else [keys[n] for n in numbers],
        )

    def take(self, numbers: Int64s) -> Batch:
        """Return some of the records, by their numbers, in the form that the batch has."""
        return self.select(numbers.tolist())

    def widened(self) -> Batch:
        """Return the same records, ready for arithmetic: columns of ints have 64 bits."""
        return self

    def column(self, field: int) -> Column | None:
        """Return a field of all records as a column. None: the batch has no columns, or a value is missing."""
        return None

    def present(self, field: int) -> tuple[Column, Int64s | None]:
        """Return the values of a field that are not missing as a column, and the numbers of their records; None: no value
        is missing. Only for a batch of columns, whose ``is_columnar`` is true."""
        raise NotImplementedError


class ColumnBatch(Batch):
    """Hold records as columns of equal length. ``width`` 0: each record is a scalar; otherwise a tuple of this number
    of fields.

    ``key_field``: the column that is also the key of the records, if there is one. Columns of ints that came from
    another subtask may be narrower than 64 bits: they are for reading, not for arithmetic (``widened``).
    """

    __slots__ = ("columns", "key_field", "width")

    is_columnar = True
    columns: Sequence[Column]
    width: int
    key_field: int | None

    def __init__(
        self,
        columns: Sequence[Column],
        width: int,
        key_field: int | None = None,
        times: Times | None = None,
        keys: Keys | None = None,
    ) -> None:
        self.columns, self.width, self.key_field, self.times, self.keys = columns, width, key_field, times, keys

    @classmethod
    def of_scalars(cls, values: Column | list[Any], times: Times | None = None) -> ColumnBatch:
        """Make a batch of records that are scalars, for a source to hand over."""
        return cls([checked_column(values)], 0, times=times)

    @classmethod
    def of_tuples(cls, *fields: Column | list[Any], times: Times | None = None) -> ColumnBatch:
        """Make a batch of records that are tuples, one column for each field, for a source to hand over."""
        columns = [checked_column(values) for values in fields]
        if not columns or len(columns) > WIDEST or len({len(column) for column in columns}) > 1:
            raise UserCodeError(
                f"A column batch of tuples must have 1 to {WIDEST} columns of equal length",
                found=f"columns of {[len(column) for column in columns]} values",
                cure="hand over lists of records",
            )
        return cls(columns, len(columns), times=times)

    @property
    def schema(self) -> Schema:
        return Schema("".join(column.dtype.kind for column in self.columns), self.width)

    def __len__(self) -> int:
        return len(self.columns[0])

    def rows(self) -> list[Any]:
        lists = [column.tolist() for column in self.columns]
        return list(zip(*lists, strict=True)) if self.width else lists[0]

    def row(self, index: int) -> Any:
        """Return one of the records as a Python object."""
        fields = tuple(column.item(index) for column in self.columns)
        return fields if self.width else fields[0]

    def with_times(self, times: Times | None) -> ColumnBatch:
        return ColumnBatch(self.columns, self.width, self.key_field, times, self.keys)

    def part(self, start: int, end: int) -> ColumnBatch:
        if start == 0 and end == len(self):
            return self
        columns = [column[start:end] for column in self.columns]
        return ColumnBatch(columns, self.width, self.key_field, *self._beside(start, end))

    def take(self, numbers: Int64s) -> ColumnBatch:
        times, keys = self.times, self.keys
        if isinstance(times, list):
            times = [times[n] for n in numbers.tolist()]
        elif times is not None:
            times = times[numbers]
        columns = [column[numbers] for column in self.columns]
        kept = None if keys is None else [keys[n] for n in numbers.tolist()]
        return ColumnBatch(columns, self.width, self.key_field, times, kept)

    def column(self, field: int) -> Column | None:
        return self.columns[field] if field < len(self.columns) else None

    def present(self, field: int) -> tuple[Column, Int64s | None]:
        return self.columns[field], None

    def widened(self) -> ColumnBatch:
        columns = [column.astype(np.int64) if column.dtype.kind == INT else column for column in self.columns]
        return ColumnBatch(columns, self.width, self.key_field, self.times, self.keys)


Given = Batch | tuple[Rows | ColumnBatch, list[int] | None]
"""What a source's reader may yield: a batch; or its records and, if the source knows them, their event timestamps."""


# -- columns -----------------------------------------------------------------------------------------------------------


def text_column(values: list[str]) -> Column:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def number_column(values: Rows) -> Column | None:
    """Return the column of a batch whose records are only ints of 64 bits, or only floats; None for any other batch."""
    if isinstance(values, range) and values.step == 1:  # with another step numpy rounds the length
        fits = values.start >= LOWEST and values.stop <= HIGHEST
        return np.arange(values.start, values.stop, dtype=np.int64) if fits else None
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.array(values, dtype=np.float64)
    return int_column(values) if kinds == {int} else None


def int_column(values: Rows) -> Int64s | None:
    """Return the column of values that are only ints of 64 bits; None for any other values."""
    if isinstance(values, range):
        column = number_column(values) if values.step == 1 else None
        if column is not None:
            return column
    if set(map(type, values)) != {int}:
        return None
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return None


def checked_column(values: Column | list[Any]) -> Column:
    """Return a column of one of the four types, as a copy: the owner of the values may fill them again. Raise
    UserCodeError for anything else."""
    if isinstance(values, np.ndarray):
        widened = _widened(values) if values.ndim == 1 else None  # with more dimensions, the parts are lists
        return checked_column(values.tolist()) if widened is None else widened
    kinds = set(map(type, values))
    if kinds <= {str}:
        return text_column(values)
    column = np.array(values, dtype=np.bool_) if kinds == {bool} else number_column(values)
    if column is None:
        raise UserCodeError(
            "A column must hold values of one type: ints of 64 bits, floats, bools or texts",
            found=f"values of {', '.join(sorted(kind.__name__ for kind in kinds))}",
            cure="hand over a list of records for values of other or mixed types",
        )
    return column


def _widened(values: Column) -> Column | None:
    """Return the values with 64 bits each; None if they do not fit, or are not numbers."""
    kind = values.dtype.kind
    if kind not in (INT, FLOAT, BOOL, "u"):
        return None
    if kind == BOOL:
        return values.copy()
    target = np.dtype(np.float64) if kind == FLOAT else np.dtype(np.int64)
    return values.astype(target) if np.can_cast(values.dtype, target, "safe") else None
