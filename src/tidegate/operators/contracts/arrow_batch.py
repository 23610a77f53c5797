"""Records of a declared type as Arrow's record batches, and back: what functions over batches get and return.

A tuple has the columns ``f0``, ``f1`` and so on, a row has the columns of its fields, every other record is the one column
``value``. An ``ArrowBatch`` makes Python objects only for readers that ask for rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from tidegate.base.errors import ArgumentTypeError, ProgramError, StateFormatError, UserCodeError
from tidegate.base.imports import library
from tidegate.common.conversion import Conversion
from tidegate.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation, Types
from tidegate.common.types import Row, RowKind
from tidegate.operators.contracts.arrow_types import Converter, arrow_schema, converters, row_values, rows_of
from tidegate.operators.contracts.batch import (
    Batch,
    Column,
    ColumnBatch,
    Int64s,
    Keys,
    Rows,
    Times,
    checked_column,
    number_column,
    text_column,
)
from tidegate.operators.loop.blame import reprlib_repr

VALUE = "value"
"""The name of the column of records without fields."""


def _arrow() -> Any:
    return library("pyarrow", "map_batches, and every other method that takes functions over batches,")


@cache
def has_arrow() -> bool:
    """Tell whether pyarrow is installed. It is not imported for programs without columns."""
    return find_spec("pyarrow") is not None


class Layout:
    """Describe the columns of records of a type. ``columns``: the row type with a field for each column."""

    def __init__(self, info: TypeInformation) -> None:
        self.info = info
        self.width = 0
        if isinstance(info, RowTypeInfo):
            self.columns = info
        elif isinstance(info, TupleTypeInfo):
            fields = info.get_field_types()
            self.width = len(fields)
            self.columns = Types.ROW_NAMED([f"f{n}" for n in range(len(fields))], fields)
        else:
            self.columns = Types.ROW_NAMED([VALUE], [info])
        self.names = self.columns.get_field_names()

    @staticmethod
    def checked(method: str, info: TypeInformation) -> Layout:
        """Return the layout of a stream's type. Raise ProgramError for a type without columns."""
        if isinstance(info, PickledBytesTypeInfo):
            raise ProgramError(
                f"{method} needs a declared type: the type gives the columns of a batch",
                found="records without a declared type",
                cure="declare the type where the records are made: "
                "map(..., output_type=Types.TUPLE([Types.LONG(), Types.STRING()])), or type_info of from_collection",
            )
        layout = Layout(info)
        layout.schema  # noqa: B018 - raises an error now for a type without a column
        return layout

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout, (self.info,)

    @cached_property
    def schema(self) -> Any:
        """Return Arrow's schema of the columns."""
        _arrow()
        return arrow_schema(self.columns)

    @cached_property
    def digest(self) -> bytes:
        """Return eight bytes that differ for other columns: names, types and their order."""
        columns = [type(self.info).__name__, *(f"{field.name} {field.type}" for field in self.schema)]
        return hashlib.blake2b("\n".join(columns).encode(), digest_size=8).digest()

    # -- records to columns

    def batch_of(self, batch: Batch) -> Any:
        """Return the records of a batch as a record batch. Arrow's own batches are not copied, unless their columns have other
        names: row types are equal whatever their names are, so streams of both may be united."""
        arrow, schema = _arrow(), self.schema
        if isinstance(batch, ArrowBatch) and is_same_type(batch.layout.info, self.info):
            return batch.arrow
        if batch.columns:
            return arrow.RecordBatch.from_arrays(
                [self._fitted(arrow.array(column), n, schema) for n, column in enumerate(batch.columns)], schema=schema
            )
        return self.of_columns(self._split(batch.rows()))

    def of_columns(self, columns: Sequence[Sequence[Any]]) -> Any:
        """Return a record batch of the values of each column."""
        arrow, schema, convert = _arrow(), self.schema, self._converters
        made = []
        for n, (values, make) in enumerate(zip(columns, convert, strict=True)):
            if isinstance(values, arrow.Array):
                made.append(values)
                continue
            made.append(self.array(values if make is None else [make(value) for value in values], n))
        return arrow.RecordBatch.from_arrays(made, schema=schema)

    def array(self, values: Sequence[Any], column: int) -> Any:
        """Return values that Arrow takes as a column of the declared type. Raise ArgumentTypeError for a value that does not
        fit."""
        arrow, wanted = _arrow(), self.schema.field(column).type
        try:
            return arrow.array(values, wanted)
        except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise self._misfit(arrow, values, column, wanted, error) from None

    def _split(self, rows: Rows) -> Sequence[Any]:
        """Return the values of each column."""
        if isinstance(self.info, RowTypeInfo):
            if set(map(type, rows)) != {Row} or not all(map(self._is_in_order, rows)):
                rows = list(map(Conversion(self.info).call, rows))
            if any(row._kind is not RowKind.INSERT for row in rows):
                raise UserCodeError(
                    "A batch of columns holds only rows of the kind INSERT",
                    found=next(reprlib_repr(row) for row in rows if row._kind is not RowKind.INSERT),
                    cure="process changelog rows one by one, with map",
                )
            return list(zip(*[row._values for row in rows], strict=True)) or [[] for _ in self.names]
        if self.width:
            if any(type(row) is not tuple or len(row) != self.width for row in rows):
                rows = list(map(Conversion(self.info).call, rows))
            return list(zip(*rows, strict=True)) or [[] for _ in self.names]
        column = number_column(rows) if isinstance(rows, range) else None
        return [rows if column is None else column]

    @cached_property
    def _converters(self) -> list[Converter | None]:
        return converters(self.columns)

    def _is_in_order(self, row: Row) -> bool:
        """Tell whether the values of a row are those of the columns, in their order."""
        return len(row._values) == len(self.names) and (row._fields is None or row._fields == self.names)

    def _misfit(self, arrow: Any, values: Sequence[Any], column: int, wanted: Any, error: Exception) -> Exception:
        """Return the error for the first value that does not fit its column."""
        for row, value in enumerate(values):
            try:
                arrow.array([value], wanted)
            except Exception as found:
                return self._refused(column, row, f"{reprlib_repr(value)} of type {type(value).__name__}: {found}")
        return self._refused(column, 0, f"{type(error).__name__}: {error}")

    def _refused(self, column: int, row: int, found: str) -> ArgumentTypeError:
        name, info = self.names[column], self.columns.get_field_types()[column]
        return ArgumentTypeError(
            f"A column does not fit its declared type: field {name} is declared as {info}",
            found=f"row {row}: {found}",
            cure="return values of that type, or declare the type of the values",
        )

    # -- columns to records

    def returned(self, given: Any) -> Any:
        """Check a record batch that a function has returned. Return it with exactly the columns of the type."""
        arrow, schema = _arrow(), self.schema
        if isinstance(given, arrow.RecordBatch) and given.schema.equals(schema):
            return given
        if isinstance(given, arrow.Table):
            given = given.combine_chunks()
        elif isinstance(given, (arrow.Array, arrow.ChunkedArray)) and len(self.names) == 1:
            given = arrow.table([given], names=self.names).combine_chunks()
        if not isinstance(given, (arrow.RecordBatch, arrow.Table)):
            raise ArgumentTypeError(
                "A function over batches must return a pyarrow.RecordBatch or a pyarrow.Table",
                found=f"{reprlib_repr(given)} of type {type(given).__name__}",
                cure="return pyarrow.RecordBatch.from_pydict({...}), or choose another batch_format",
            )
        there = list(given.schema.names)
        if sorted(there) != sorted(self.names):
            raise ArgumentTypeError(
                f"A batch does not have the columns of its declared type: {', '.join(self.names)}",
                found=f"columns {', '.join(there) or 'none'}",
                cure="name the columns as the output type names them, or declare output_type",
            )
        columns = [self._fitted(given.column(name), n, schema) for n, name in enumerate(self.names)]
        return arrow.RecordBatch.from_arrays(columns, schema=schema)

    def _fitted(self, column: Any, n: int, schema: Any) -> Any:
        """Return a column as an array of its declared type."""
        arrow, wanted = _arrow(), schema.field(n).type
        if isinstance(column, arrow.ChunkedArray):
            column = column.combine_chunks()
            if isinstance(column, arrow.ChunkedArray):  # older versions of Arrow
                column = column.chunk(0) if column.num_chunks else arrow.array([], column.type)
        if arrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if column.type == wanted:
            return column
        if not _may_cast(arrow, column.type, wanted):
            row = next((row for row, value in enumerate(column) if value.is_valid), 0)
            value = column[row].as_py() if len(column) else None
            raise self._refused(n, row, f"{reprlib_repr(value)} in a column of type {column.type}")
        # as in a map, a whole number becomes the nearest float
        rounds = arrow.types.is_integer(column.type) and arrow.types.is_floating(wanted)
        try:
            return column.cast(wanted, safe=not rounds)
        except arrow.ArrowException:
            for row in range(len(column)):
                try:
                    column.slice(row, 1).cast(wanted, safe=not rounds)
                except arrow.ArrowException as error:
                    found = f"{reprlib_repr(column[row].as_py())} in a column of type {column.type}: {error}"
                    raise self._refused(n, row, found) from None
            raise

    def rows(self, batch: Any) -> list[Any]:
        """Return the records of a record batch as Python objects."""
        values = row_values(self.columns, batch.columns)
        if isinstance(self.info, RowTypeInfo):
            return rows_of(values, self.names)
        return list(zip(*values, strict=True)) if self.width else values[0]


def _may_cast(arrow: Any, given: Any, wanted: Any) -> bool:
    """Tell whether values keep their meaning: Arrow would also turn numbers into texts."""
    kinds = arrow.types
    if kinds.is_null(given):
        return True
    numbers = kinds.is_integer(given) or kinds.is_floating(given)
    if kinds.is_integer(wanted) or kinds.is_floating(wanted):
        return bool(numbers)
    if kinds.is_decimal(wanted):
        return bool(kinds.is_decimal(given) or kinds.is_integer(given))
    if kinds.is_string(wanted):
        return bool(kinds.is_string(given) or kinds.is_large_string(given) or str(given) == "string_view")
    if kinds.is_binary(wanted):
        return bool(kinds.is_large_binary(given) or str(given) == "binary_view" or kinds.is_fixed_size_binary(given))
    if kinds.is_nested(wanted):
        return bool(kinds.is_nested(given))
    return bool(kinds.is_temporal(wanted) and kinds.is_temporal(given))


class ArrowBatch(Batch):
    """Hold records as a record batch with the columns of a layout. Rows are made when they are asked for, once.

    ``key_field``: the column that is also the key of the records, if there is one.
    """

    __slots__ = ("_arrow", "_numpy", "key_field", "layout")

    is_columnar = True
    key_field: int | None

    def __init__(
        self,
        arrow: Any,
        layout: Layout,
        times: Times | None = None,
        keys: Keys | None = None,
        rows: Any = None,
        key_field: int | None = None,
    ) -> None:
        self._arrow, self.layout, self.key_field = arrow, layout, key_field
        self._numpy: dict[int, Column | None] = {}
        super().__init__(rows, times, keys)

    @staticmethod
    def joined(batches: list[ArrowBatch]) -> ArrowBatch:
        """Return one batch with the records of all, which have one layout. A record without a timestamp stays without."""
        if len(batches) == 1:
            return batches[0]
        times: list[Any] | None = None
        if any(batch.times is not None for batch in batches):
            times = [time for batch in batches for time in batch.time_list() or [None] * len(batch)]
        return ArrowBatch(joined([batch.arrow for batch in batches]), batches[0].layout, times)

    @property
    def arrow(self) -> Any:
        """Return the record batch."""
        return self._arrow

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def rows(self) -> Rows:
        if self._rows is None:
            try:
                self._rows = self.layout.rows(self.arrow)
            except Exception as error:
                raise UserCodeError(
                    f"A value has no Python object: the records are declared as {self.layout.info}",
                    found=f"{type(error).__name__}: {error}",
                    cure="declare a type that takes the value, for example LONG for a time far away",
                ) from error
        return self._rows

    def with_times(self, times: Times | None) -> Batch:
        found = ArrowBatch(self.arrow, self.layout, times, self.keys, self._rows, self.key_field)
        found._numpy = self._numpy
        return found

    def part(self, start: int, end: int) -> Batch:
        if start == 0 and end == len(self):
            return self
        rows = None if self._rows is None else self._rows[start:end]
        part = self.arrow.slice(start, end - start)
        return ArrowBatch(part, self.layout, *self._beside(start, end), rows, self.key_field)

    def take(self, numbers: Int64s) -> ArrowBatch:
        times = self.times
        if isinstance(times, list):
            times = [times[n] for n in numbers.tolist()]
        elif times is not None:
            times = times[numbers]
        keys = None if self.keys is None else [self.keys[n] for n in numbers.tolist()]
        return ArrowBatch(taken(self.arrow, numbers), self.layout, times, keys, None, self.key_field)

    def as_columns(self) -> Batch:
        """Return a column batch, if records are tuples or scalars and each column is one of numpy's without nulls."""
        layout = self.layout
        if isinstance(layout.info, RowTypeInfo) or not self.arrow.num_columns:
            return self
        columns = [self.column(n) for n in range(self.arrow.num_columns)]
        found = [column for column in columns if column is not None]
        if len(found) < len(columns):
            return self
        return ColumnBatch(found, layout.width, None, self.times, self.keys)

    def column(self, field: int) -> Column | None:
        if field not in self._numpy:
            self._numpy[field] = numpy_column(self.arrow.column(field))
        return self._numpy[field]

    def present(self, field: int) -> tuple[Column, Int64s | None]:
        column = self.column(field)
        if column is not None:
            return column, None
        found = self.arrow.column(field)
        present = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False)) if found.null_count else None
        values = found.drop_null()
        column = numpy_column(values)
        if column is None:  # no type of numpy: Python objects, which aggregations compare and keep
            [objects] = row_values(Types.ROW([self.layout.columns.get_field_types()[field]]), [values])
            column = np.fromiter(objects, object, len(objects))
        return column, present


class Decoded(Protocol):
    """Give records that a format has parsed, as rows or as columns."""

    def __len__(self) -> int: ...

    def rows(self) -> list[Any]: ...

    def columns(self) -> Sequence[Sequence[Any]]:
        """Return the values of each column."""
        ...

    def field(self, number: int) -> Sequence[Any]:
        """Return the values of one column."""
        ...

    def part(self, start: int, end: int) -> Decoded: ...


class ParsedColumns:
    """Parsed records as a list of values for each column."""

    def __init__(self, columns: Sequence[Sequence[Any]], names: list[str]) -> None:
        self._columns, self._names = columns, names

    def __len__(self) -> int:
        return len(self._columns[0])

    def rows(self) -> list[Any]:
        return rows_of(self._columns, self._names)

    def columns(self) -> Sequence[Sequence[Any]]:
        return self._columns

    def field(self, number: int) -> Sequence[Any]:
        return self._columns[number]

    def part(self, start: int, end: int) -> ParsedColumns:
        return ParsedColumns([column[start:end] for column in self._columns], self._names)


class DecodedBatch(ArrowBatch):
    """Hold records that a format has parsed, and that are neither rows nor columns yet: the first reader decides."""

    __slots__ = ("_decoded",)

    is_undecided = True

    def __init__(self, decoded: Decoded, layout: Layout, times: Times | None = None, keys: Keys | None = None) -> None:
        super().__init__(None, layout, times, keys)
        self._decoded = decoded

    @property
    def arrow(self) -> Any:
        if self._arrow is None:
            self._arrow = self.layout.of_columns(self._decoded.columns())
        return self._arrow

    def __len__(self) -> int:
        return len(self._decoded)

    def rows(self) -> Rows:
        if self._rows is None:
            self._rows = self._decoded.rows()
        return self._rows

    def column(self, field: int) -> Column | None:
        if self._arrow is None and field not in self._numpy:  # one field, without the others
            values = self._decoded.field(field)
            fits = set(map(type, values)) in _COLUMN_TYPES
            self._numpy[field] = checked_column(list(values)) if fits else None
        return super().column(field)

    def with_times(self, times: Times | None) -> Batch:
        found = DecodedBatch(self._decoded, self.layout, times, self.keys)
        found._arrow, found._rows, found._numpy = self._arrow, self._rows, self._numpy
        return found

    def part(self, start: int, end: int) -> Batch:
        if self._arrow is not None or (start == 0 and end == len(self)):
            return super().part(start, end)
        return DecodedBatch(self._decoded.part(start, end), self.layout, *self._beside(start, end))


_COLUMN_TYPES = [{int}, {float}, {bool}, {str}]


ARROW = 0xC8
"""The first byte of a packed record batch. No pickle begins with it, and no array of msgpack."""
_VERSION = 2
_COUNTED, _HEAD = 8, 16
"""The mark, the version, two empty bytes, the number of records in four bytes, then the digest of the columns in eight: Arrow reads
buffers at multiples of 8."""


def pack_arrow(batch: Any, layout: Layout) -> bytes:
    """Pack a record batch without its schema: sender and receiver know the declared type."""
    return b"".join(
        (bytes((ARROW, _VERSION, 0, 0)), batch.num_rows.to_bytes(4, "little"), layout.digest, batch.serialize())
    )


def arrow_length(data: bytes) -> int:
    """Return the number of records of a packed record batch."""
    return int.from_bytes(data[4:_COUNTED], "little")


def unpack_arrow(data: bytes, layout: Layout | None, target: str) -> Any:
    """Return a packed record batch. A chunk that waited in a checkpoint may be of a program with another type: its bytes would be
    other values."""
    if data[1] != _VERSION:
        raise StateFormatError(
            "The chunk was written by another version of Tidegate",
            found=f"record batch of version {data[1]}, this is {_VERSION}",
            cure="run all workers of a job with one version of Tidegate",
        )
    if layout is None or data[_COUNTED:_HEAD] != layout.digest:
        raise StateFormatError(
            "Records in flight cannot be restored: the program declares another type for them",
            where=f"records sent to {target}",
            found="columns of another type than " + ("records without columns" if layout is None else str(layout.info)),
            cure="restore with the previous program and take a savepoint, which contains no records in flight; or set "
            "execution.checkpointing.recover-without-channel-state.checkpoint-id to the checkpoint's id to discard them",
        )
    return _arrow().ipc.read_record_batch(_arrow().py_buffer(memoryview(data)[_HEAD:]), layout.schema)


def is_same_type(one: TypeInformation, other: TypeInformation) -> bool:
    """Tell whether two types have the same columns: row types compare equal whatever the names of their fields are."""
    return one is other or (one == other and str(one) == str(other))


def taken(batch: Any, numbers: Int64s) -> Any:
    """Return some of the records, by their numbers."""
    return batch.take(_arrow().array(numbers))


def joined(batches: list[Any]) -> Any:
    """Return one record batch with the records of all."""
    if len(batches) == 1:
        return batches[0]
    [whole] = _arrow().Table.from_batches(batches).combine_chunks().to_batches()  # several only beyond 2 GB of text
    return whole


_NUMPY = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), np.int64),
    **dict.fromkeys(("float", "double"), np.float64),
    "bool": np.bool_,
}


def numpy_column(column: Any) -> Any:
    """Return the column of a column batch: numbers or texts without missing values; None for other columns."""
    name = str(column.type)
    if column.null_count or name not in (*_NUMPY, "string"):
        return None
    if name == "string":
        return text_column(column.to_pylist())
    return column.to_numpy(zero_copy_only=False).astype(_NUMPY[name], copy=False)
