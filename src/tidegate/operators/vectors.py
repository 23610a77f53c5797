"""Batches of ints as columns of machine integers: what arithmetic on whole batches works on, and what it sends.

A record is an int, or a tuple of ints. Every int of a column was a Python int of 64 bits and becomes one again: nobody sees
the difference but the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1

MARK = 0xC1
"""The first byte of packed columns. No pickle begins with it, and msgpack never uses it."""
_FIELD = 0xFF
WIDEST = 0xFE
"""Fields of a tuple that can be packed as columns."""
_DTYPES: list[np.dtype[Any]] = [np.dtype("<i1"), np.dtype("<i2"), np.dtype("<i4"), np.dtype("<i8")]
"""A column travels in the narrowest of them that holds its numbers."""


class IntColumns:
    """Records as columns of equal length. ``width`` 0: each record is an int; else a tuple of so many.

    ``key_field``: the column that is also the key of the records, if there is one. Columns that came from another subtask may be
    narrower than 64 bits: they are for reading, not for arithmetic.
    """

    __slots__ = ("columns", "key_field", "width")

    def __init__(self, columns: Sequence[Int64s], width: int, key_field: int | None = None) -> None:
        self.columns, self.width, self.key_field = columns, width, key_field

    def __len__(self) -> int:
        return len(self.columns[0])

    def rows(self) -> list[Any]:
        """The records as Python objects."""
        return list(zip(*self.lists(), strict=True)) if self.width else self.columns[0].tolist()

    def row(self, index: int) -> Any:
        fields = tuple(int(column[index]) for column in self.columns)
        return fields if self.width else fields[0]

    def lists(self) -> list[list[int]]:
        return [column.tolist() for column in self.columns]

    def pack(self) -> bytes:
        """The mark, the width, for each column its type, and the columns."""
        codes = [_narrowest(column) for column in self.columns]
        columns = (column.astype(_DTYPES[code]).tobytes() for column, code in zip(self.columns, codes, strict=True))
        return b"".join((bytes((MARK, self.width, *codes)), *columns))


Values = Sequence[Any] | IntColumns
"""The records of a batch."""


def unpack(data: bytes) -> IntColumns:
    width = data[1]
    position = 2 + max(width, 1)
    dtypes = [_DTYPES[code] for code in data[2:position]]
    records = (len(data) - position) // sum(dtype.itemsize for dtype in dtypes)
    columns = []
    for dtype in dtypes:
        columns.append(np.frombuffer(data, dtype, records, position))
        position += records * dtype.itemsize
    return IntColumns(columns, width)


def _narrowest(column: Int64s) -> int:
    least, greatest = int(column.min()), int(column.max())
    return next(code for code, bits in enumerate((7, 15, 31, 63)) if -1 << bits <= least and greatest < 1 << bits)


def int_column(values: Sequence[Any]) -> Int64s | None:
    """The column of a batch whose records are ints and nothing else; None for any other batch."""
    if isinstance(values, range) and values.step == 1:  # of another step numpy rounds the length
        fits = values.start >= LOWEST and values.stop <= HIGHEST
        return np.arange(values.start, values.stop, dtype=np.int64) if fits else None
    if set(map(type, values)) != {int}:
        return None
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return None


def pack_field(index: int) -> bytes:
    """The key column of a chunk whose key is a field of its records: it travels once."""
    return bytes((MARK, _FIELD, index))


def packed_field(data: bytes) -> int | None:
    """The field, if ``data`` is what ``pack_field`` gives."""
    return data[2] if data[0] == MARK and data[1] == _FIELD else None
