"""Batches of ints as columns of machine integers: what arithmetic on whole batches works on, and what it sends.

A record is an int, or a tuple of ints. Every int of a column was a Python int of 64 bits and becomes one again: nobody sees
the difference but the clock.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

MARK = 0xC1
"""The first byte of packed columns. No pickle begins with it, and msgpack never uses it."""
_FIELD = 0xFF
WIDEST = 0xFE
"""Fields of a tuple that can be packed as columns."""
_HEAD = struct.Struct("<BB6x")
"""The mark and the width. Eight bytes, so that the columns behind it are aligned."""


class IntColumns:
    """Records as columns of equal length. ``width`` 0: each record is an int; else a tuple of so many.

    ``key_field``: the column that is also the key of the records, if there is one.
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
        columns = (column.astype("<i8", copy=False).tobytes() for column in self.columns)
        return b"".join((_HEAD.pack(MARK, self.width), *columns))


Values = Sequence[Any] | IntColumns
"""The records of a batch."""


def unpack(data: bytes) -> IntColumns:
    _, width = _HEAD.unpack_from(data)
    flat = np.frombuffer(data, dtype="<i8", offset=_HEAD.size)
    count = max(width, 1)
    return IntColumns(list(flat.reshape(count, len(flat) // count)), width)


def int_column(values: Sequence[Any]) -> Int64s | None:
    """The column of a batch whose records are ints and nothing else; None for any other batch."""
    if isinstance(values, range) and values.step == 1:  # of another step numpy rounds the length
        return np.arange(values.start, values.stop, dtype=np.int64) if _fits(values) else None
    if set(map(type, values)) != {int}:
        return None
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return None


def _fits(values: range) -> bool:
    limits = np.iinfo(np.int64)
    return all(limits.min <= bound <= limits.max for bound in (values.start, values.stop))


def pack_field(index: int) -> bytes:
    """The key column of a chunk whose key is a field of its records: it travels once."""
    return bytes((MARK, _FIELD, index))


def packed_field(data: bytes) -> int | None:
    """The field, if ``data`` is what ``pack_field`` gives."""
    return data[2] if data[0] == MARK and data[1] == _FIELD else None
