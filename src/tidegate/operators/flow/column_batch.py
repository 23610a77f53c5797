"""Column batches: many records as one column for each field, for sources, whole-batch arithmetic and the shuffle.

A record is a scalar, or a tuple of fields. A column holds values of one type: ints of 64 bits, floats, bools, or texts. Every value
was a Python object of exactly that type, or becomes one: nobody sees the difference but the clock. Texts are an array of
Python's own objects: they are passengers, and neither making nor reading the column costs more than copying a pointer.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tidegate.base.errors import StateFormatError, UserCodeError

Column = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
INT, FLOAT, BOOL, TEXT = "i", "f", "b", "O"
"""Types of columns: numpy's letters for kinds of data."""
_TYPES: dict[str, type] = {INT: int, FLOAT: float, BOOL: bool, TEXT: str}

MARK = 0xC1
"""The first byte of a packed column batch. No pickle begins with it, and msgpack never uses it."""
_VERSION = 1
_FIELD = 0xFF
WIDEST = 0xFE
"""Fields of a tuple that can be packed as columns."""
_DTYPES: list[np.dtype[Any]] = [np.dtype(name) for name in ("<i1", "<i2", "<i4", "<i8", "<f8", "|b1")]
"""By code. Ints travel in the narrowest type that holds them."""
_FLOATS, _BOOLS, _TEXTS, _PICKLED_TEXTS = 4, 5, 6, 7
_encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
_decode_texts: Callable[[bytes], list[str]] = msgspec.msgpack.Decoder(list[str]).decode


class ColumnBatch:
    """Records as columns of equal length. ``width`` 0: each record is a scalar; else a tuple of so many.

    ``key_field``: the column that is also the key of the records, if there is one. Columns of ints that came from another subtask
    may be narrower than 64 bits: they are for reading, not for arithmetic.
    """

    __slots__ = ("columns", "key_field", "width")

    def __init__(self, columns: Sequence[Column], width: int, key_field: int | None = None) -> None:
        self.columns, self.width, self.key_field = columns, width, key_field

    @classmethod
    def of_scalars(cls, values: Column | list[Any]) -> ColumnBatch:
        """Records that are scalars, for a source to hand over."""
        return cls([checked_column(values)], 0)

    @classmethod
    def of_tuples(cls, *fields: Column | list[Any]) -> ColumnBatch:
        """Records that are tuples, one column for each field, for a source to hand over."""
        columns = [checked_column(values) for values in fields]
        if not columns or len(columns) > WIDEST or len({len(column) for column in columns}) > 1:
            raise UserCodeError(
                f"A column batch of tuples has 1 to {WIDEST} columns of one length",
                found=f"columns of {[len(column) for column in columns]} values",
                cure="hand over lists of records",
            )
        return cls(columns, len(columns))

    @property
    def schema(self) -> str:
        """The types of the columns, a letter each."""
        return "".join(column.dtype.kind for column in self.columns)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows())

    def rows(self) -> list[Any]:
        """The records as Python objects."""
        return list(zip(*self.lists(), strict=True)) if self.width else self.columns[0].tolist()

    def row(self, index: int) -> Any:
        fields = tuple(column.item(index) for column in self.columns)
        return fields if self.width else fields[0]

    def part(self, start: int, end: int) -> ColumnBatch:
        """Some of the records."""
        return ColumnBatch([column[start:end] for column in self.columns], self.width, self.key_field)

    def lists(self) -> list[list[Any]]:
        return [column.tolist() for column in self.columns]

    def pack(self) -> bytes:
        """The mark, the version, the width, for each column its code, the number of records, and the columns."""
        codes, columns = zip(*map(_packed, self.columns), strict=True)
        return b"".join((bytes((MARK, _VERSION, self.width, *codes)), len(self).to_bytes(4, "little"), *columns))


Values = Sequence[Any] | ColumnBatch
"""The records of a batch."""
Times = list[Any] | Int64s
"""Their timestamps: a column only where an assigner has made one, up to the loop they enter."""


def unpack(data: bytes) -> ColumnBatch:
    if data[1] != _VERSION:
        raise StateFormatError(
            "A chunk is read by the version that wrote it",
            found=f"column batch of version {data[1]}, this is {_VERSION}",
            cure="run all workers of a job with one version of Tidegate",
        )
    width = data[2]
    position = 3 + max(width, 1)
    codes, records = data[3:position], int.from_bytes(data[position : position + 4], "little")
    position += 4
    columns: list[Column] = []
    for code in codes:
        if code < _TEXTS:
            columns.append(np.frombuffer(data, _DTYPES[code], records, position))
            position += records * _DTYPES[code].itemsize
        else:
            start = position + 4
            position = start + int.from_bytes(data[position:start], "little")
            texts = data[start:position]
            columns.append(text_column(_decode_texts(texts) if code == _TEXTS else pickle.loads(texts)))
    return ColumnBatch(columns, width)


def packed_length(data: bytes) -> int:
    """The number of records of a packed batch, without unpacking it."""
    position = 3 + max(data[2], 1)
    return int.from_bytes(data[position : position + 4], "little")


def widened(batch: ColumnBatch) -> ColumnBatch:
    """With ints of 64 bits again, for arithmetic."""
    columns = [column.astype(np.int64) if column.dtype.kind == INT else column for column in batch.columns]
    return ColumnBatch(columns, batch.width, batch.key_field)


def _packed(column: Column) -> tuple[int, bytes]:
    kind = column.dtype.kind
    if kind != TEXT:
        code = _narrowest(column) if kind == INT else _FLOATS if kind == FLOAT else _BOOLS
        return code, column.astype(_DTYPES[code]).tobytes()
    values = column.tolist()
    try:
        code, data = _TEXTS, _encode(values)
    except ValueError:  # lone surrogates
        code, data = _PICKLED_TEXTS, pickle.dumps(values, 5)
    return code, len(data).to_bytes(4, "little") + data


def _narrowest(column: Column) -> int:
    if not len(column):
        return 0
    least, greatest = int(column.min()), int(column.max())
    return next(code for code, bits in enumerate((7, 15, 31, 63)) if -1 << bits <= least and greatest < 1 << bits)


# -- columns -----------------------------------------------------------------------------------------------------------


def text_column(values: list[str]) -> Column:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def number_column(values: Sequence[Any]) -> Column | None:
    """The column of a batch whose records are ints of 64 bits, or floats, and nothing else; None for any other batch."""
    if isinstance(values, range) and values.step == 1:  # of another step numpy rounds the length
        fits = values.start >= LOWEST and values.stop <= HIGHEST
        return np.arange(values.start, values.stop, dtype=np.int64) if fits else None
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.array(values, dtype=np.float64)
    return int_column(values) if kinds == {int} else None


def int_column(values: Sequence[Any]) -> Int64s | None:
    """The column of ints of 64 bits and nothing else; None for any other values."""
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
    """A column of one of the four types, a copy: who made it may fill it again. Raises UserCodeError for anything else."""
    if isinstance(values, np.ndarray):
        widened = _widened(values) if values.ndim == 1 else None  # of more dimensions the parts are lists
        return checked_column(values.tolist()) if widened is None else widened
    kinds = set(map(type, values))
    if kinds <= {str}:
        return text_column(values)
    column = np.array(values, dtype=np.bool_) if kinds == {bool} else number_column(values)
    if column is None:
        raise UserCodeError(
            "A column holds ints of 64 bits, floats, bools or texts, and one of them only",
            found=f"values of {', '.join(sorted(kind.__name__ for kind in kinds))}",
            cure="hand over a list of records for what is not as plain as that",
        )
    return column


def _widened(values: Column) -> Column | None:
    """64 bits each; None if they do not fit, or are no numbers."""
    kind = values.dtype.kind
    if kind not in (INT, FLOAT, BOOL, "u"):
        return None
    if kind == BOOL:
        return values.copy()
    target = np.dtype(np.float64) if kind == FLOAT else np.dtype(np.int64)
    return values.astype(target) if np.can_cast(values.dtype, target, "safe") else None


# -- keys --------------------------------------------------------------------------------------------------------------


def pack_field(index: int) -> bytes:
    """The key column of a chunk whose key is a field of its records: it travels once."""
    return bytes((MARK, _VERSION, _FIELD, index))


def packed_field(data: bytes) -> int | None:
    """The field, if ``data`` is what ``pack_field`` gives."""
    return data[3] if data[0] == MARK and data[2] == _FIELD else None


def is_declared(schema: str, width: int, declared: Sequence[Any]) -> bool:
    """Whether the columns are of the declared Python types, in their order."""
    return len(declared) == max(width, 1) and all(
        _TYPES[letter] is kind for letter, kind in zip(schema, declared, strict=True)
    )
