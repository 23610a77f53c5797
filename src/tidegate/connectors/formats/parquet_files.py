"""Parquet files, read and written as columns, and ORC files, written as columns, with pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tidegate.base.errors import CorruptFileError, UserCodeError
from tidegate.base.imports import library
from tidegate.common.configuration import notice
from tidegate.common.serialization import BulkWriterFactory, RowDataBulkWriterFactory
from tidegate.common.typeinfo import RowTypeInfo, TypeInformation, Types
from tidegate.connectors.files.file_format import BulkFormat, unchanged
from tidegate.connectors.formats.arrow_types import from_columns, schema_of_avro, to_columns
from tidegate.connectors.formats.avro_schemas import AvroSchema, GenericRecordAvroTypeInfo, misfit
from tidegate.connectors.formats.columns import ROWS, RowColumns
from tidegate.connectors.values.ranges import BATCH_SIZE
from tidegate.operators.contracts.arrow_batch import ArrowBatch, Layout, is_same_type
from tidegate.operators.contracts.arrow_types import arrow_schema, converters
from tidegate.operators.contracts.batch import Batch
from tidegate.table.types import row_of

ROW_GROUP = 1 << 17
"""Records of a written row group."""


class _ParquetFormat(BulkFormat):
    """A row group belongs to the range that contains its first byte."""

    least_cut = 1 << 20
    batch_size = 2 * ROWS  # batches are costlier in Arrow than elsewhere

    def can_cut(self, path: str) -> bool:
        return True

    def read(self, path: str, size: int, start: int, end: int) -> Iterator[Sequence[Any] | Batch]:
        parquet = library("pyarrow.parquet", "Parquet files")
        with unchanged(path, size).open_stream("") as stream:
            try:
                file = parquet.ParquetFile(stream)
                groups = [n for n in range(file.num_row_groups) if start <= _begin(file.metadata.row_group(n)) < end]
                columns = self._columns(file, path)
                for batch in file.iter_batches(self.batch_size, row_groups=groups, columns=columns) if groups else ():
                    yield self._values(batch)
            except CorruptFileError:
                raise
            except Exception as error:
                raise CorruptFileError(
                    "The file is not a valid Parquet file, or its columns do not have the types of the row type",
                    where=f"file {path}",
                    found=f"{type(error).__name__}: {error}",
                    cure="remove the file, or correct the row type",
                ) from error

    def _columns(self, file: Any, path: str) -> list[str]:
        raise NotImplementedError

    def _values(self, batch: Any) -> Sequence[Any] | Batch:
        raise NotImplementedError


def _begin(group: Any) -> int:
    """The first byte of a row group: of its first column, or of that column's dictionary."""
    column = group.column(0)
    dictionary = column.dictionary_page_offset
    return int(column.data_page_offset if dictionary is None else min(dictionary, column.data_page_offset))


def asked_columns(schema: Any, names: list[str], path: str, case_sensitive: bool) -> list[str]:
    """The names in the file of the wanted columns. Raises an error that names missing columns."""
    there = list(schema.names)
    by_name = {name if case_sensitive else name.lower(): name for name in there}
    missing = [name for name in names if (name if case_sensitive else name.lower()) not in by_name]
    if missing:
        raise CorruptFileError(
            "The Parquet file lacks a column of the row type",
            where=f"file {path}",
            found=f"no column {', '.join(missing)}; it has {', '.join(there)}",
            cure="correct the row type, or remove the file",
        )
    return [by_name[name if case_sensitive else name.lower()] for name in names]


class ParquetColumnarRowInputFormat(_ParquetFormat):
    """Read some columns of Parquet files as rows. ``as_tuples``: as tuples, which stay columns if no value is missing.

    ``hadoop_config``, ``batch_size`` and ``is_utc_timestamp`` are PyFlink's and have no effect: batches have the engine's size, and
    timestamps are read as they are stored, without a zone.
    """

    def __init__(
        self,
        row_type: Any,
        hadoop_config: Any = None,
        batch_size: int = 2048,
        is_utc_timestamp: bool = False,
        is_case_sensitive: bool = True,
        *,
        as_tuples: bool = False,
    ) -> None:
        _without_effect(
            "ParquetColumnarRowInputFormat",
            hadoop_config=(hadoop_config is not None, _NO_HADOOP),
            batch_size=(batch_size != 2048, "batches have the engine's size"),
            is_utc_timestamp=(is_utc_timestamp, "timestamps are read as they are stored, without a zone"),
        )
        self._type = row_of("ParquetColumnarRowInputFormat", row_type)
        self._case_sensitive, self._as_tuples = is_case_sensitive, as_tuples
        self._names = self._type.get_field_names()
        self._layout = Layout(self.produced_type())
        if as_tuples:
            self.batch_size = BATCH_SIZE

    def produced_type(self) -> TypeInformation:
        return Types.TUPLE(self._type.get_field_types()) if self._as_tuples else self._type

    def _columns(self, file: Any, path: str) -> list[str]:
        return asked_columns(file.schema_arrow, self._names, path, self._case_sensitive)

    def _values(self, batch: Any) -> Sequence[Any] | Batch:
        arrow, wanted = library("pyarrow", "Parquet files"), self._layout.schema
        columns = [column.cast(field.type) for column, field in zip(batch.columns, wanted, strict=True)]
        for column in columns:
            if arrow.types.is_string(column.type):
                column.validate(full=True)  # here the error names the file: texts are decoded later, if at all
        return ArrowBatch(arrow.RecordBatch.from_arrays(columns, schema=wanted), self._layout)


_NO_HADOOP = "files are read and written without Hadoop"


def _without_effect(method: str, **given: tuple[bool, str]) -> None:
    """Tell the user which arguments of PyFlink's have no effect. By name: whether it is set, and why it has no effect."""
    for name, (is_set, reason) in given.items():
        if is_set:
            notice(f"{method}({name})", reason)


class AvroParquetFormat(_ParquetFormat):
    """Read Parquet files as records of an Avro schema: dicts."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema, self._arrow = schema, schema_of_avro(schema)
        self._convert = from_columns(schema.parsed)

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroParquetFormat, (self._schema,)

    def produced_type(self) -> TypeInformation:
        return GenericRecordAvroTypeInfo(self._schema)

    def _columns(self, file: Any, path: str) -> list[str]:
        return asked_columns(file.schema_arrow, list(self._arrow.names), path, True)

    def _values(self, batch: Any) -> Sequence[Any] | Batch:
        arrow = library("pyarrow", "Parquet files")
        columns = [column.cast(field.type) for column, field in zip(batch.columns, self._arrow, strict=True)]
        records: list[Any] = arrow.RecordBatch.from_arrays(columns, schema=self._arrow).to_pylist(
            maps_as_pydicts="strict"
        )
        return records if self._convert is None else [self._convert(record) for record in records]


class AvroParquetReaders:
    """Formats that read Parquet files by an Avro schema."""

    @staticmethod
    def for_generic_record(schema: AvroSchema) -> AvroParquetFormat:
        """Read records as dicts, with the fields of the schema."""
        return AvroParquetFormat(schema)


# -- writing


class _ArrowWriterFactory(BulkWriterFactory):
    """Packed batches are record batches in Arrow's own form, without the schema."""

    def _schema_of(self) -> Any:
        raise NotImplementedError

    def write(self, batches: Iterator[bytes], target: Any) -> None:
        arrow, schema = library("pyarrow", "Parquet files"), self._schema_of()
        with self._writer(target, schema) as writer:
            for group in _groups(arrow.ipc.read_record_batch(arrow.py_buffer(batch), schema) for batch in batches):
                writer.write_table(arrow.Table.from_batches(group, schema))

    def _writer(self, target: Any, schema: Any) -> Any:
        return library("pyarrow.parquet", "Parquet files").ParquetWriter(target, schema)


def _groups(batches: Iterator[Any]) -> Iterator[list[Any]]:
    group: list[Any] = []
    for batch in batches:
        group.append(batch)
        if sum(part.num_rows for part in group) >= ROW_GROUP:
            yield group
            group = []
    if group:
        yield group


class RowColumnWriterFactory(RowDataBulkWriterFactory, _ArrowWriterFactory):
    """Write rows as columns."""

    _what = "Parquet writer"

    def __init__(self, row_type: RowTypeInfo) -> None:
        super().__init__(row_type)
        arrow_schema(row_type)  # raises an error now for a type without a column
        self._made: tuple[RowColumns, list[Any], Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def _schema_of(self) -> Any:
        return arrow_schema(self._row_type)

    def pack_columns(self, columns: Any, row_type: TypeInformation) -> bytes | None:
        return bytes(columns.serialize()) if is_same_type(row_type, self._row_type) else None

    def pack(self, values: list[Any]) -> bytes:
        arrow = library("pyarrow", "Parquet files")
        if self._made is None:
            self._made = RowColumns(self._row_type, self._what), converters(self._row_type), self._schema_of()
        split, convert, schema = self._made
        columns = []
        for column, make, field in zip(split(values), convert, schema, strict=True):
            try:
                columns.append(arrow.array(column if make is None else [make(v) for v in column], field.type))
            except Exception as error:
                raise UserCodeError(
                    f"A record does not fit the columns of the file: {field.name} is {field.type}",
                    where=self._what,
                    found=f"{type(error).__name__}: {error}",
                    cure="correct the record or the row type",
                ) from None
        return bytes(arrow.RecordBatch.from_arrays(columns, schema=schema).serialize())


class ParquetBulkWriters:
    """Writers of Parquet files for ``FileSink.for_bulk_format``. ``hadoop_config`` and ``utc_timestamp`` have no effect:
    timestamps are written as they are, without a zone."""

    @staticmethod
    def for_row_type(row_type: Any, hadoop_config: Any = None, utc_timestamp: bool = False) -> BulkWriterFactory:
        """Write rows of this type into Parquet files. The other arguments have no effect, and a warning names
        them."""
        _without_effect(
            "ParquetBulkWriters.for_row_type",
            hadoop_config=(hadoop_config is not None, _NO_HADOOP),
            utc_timestamp=(utc_timestamp, "timestamps are written as they are, without a zone"),
        )
        return RowColumnWriterFactory(row_of("ParquetBulkWriters.for_row_type", row_type))


class AvroParquetWriterFactory(_ArrowWriterFactory):
    """Write records of an Avro schema as columns."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        schema_of_avro(schema)

    def _schema_of(self) -> Any:
        return schema_of_avro(self._schema)

    def pack(self, values: list[Any]) -> bytes:
        arrow = library("pyarrow", "Parquet files")
        validate = library("fastavro.validation", "Avro").validate
        for value in values:
            try:
                validate(value, self._schema.parsed)
            except Exception as error:
                raise misfit(self._schema, value, error, "Parquet writer of Avro records") from None
        convert = to_columns(self._schema.parsed)
        try:
            rows = values if convert is None else [convert(value) for value in values]
            return bytes(arrow.RecordBatch.from_pylist(rows, schema=self._schema_of()).serialize())
        except Exception as error:
            raise UserCodeError(
                "Records do not fit the columns of their Avro schema",
                where="Parquet writer of Avro records",
                found=f"{type(error).__name__}: {error}",
                cure="correct the records or the schema",
            ) from None


class AvroParquetWriters:
    """Formats that write Parquet files by an Avro schema."""

    @staticmethod
    def for_generic_record(schema: AvroSchema) -> BulkWriterFactory:
        """Write dicts into Parquet files whose columns are the fields of the schema."""
        return AvroParquetWriterFactory(schema)


class OrcWriterFactory(RowColumnWriterFactory):
    _what = "ORC writer"

    def write(self, batches: Iterator[bytes], target: Any) -> None:
        arrow, schema = library("pyarrow", "ORC files"), self._schema_of()
        with library("pyarrow.orc", "ORC files").ORCWriter(target) as writer:
            for group in _groups(arrow.ipc.read_record_batch(arrow.py_buffer(batch), schema) for batch in batches):
                writer.write(arrow.Table.from_batches(group, schema))


class OrcBulkWriters:
    """Writers of ORC files for ``FileSink.for_bulk_format``. ``writer_properties`` and ``hadoop_config`` have no effect."""

    @staticmethod
    def for_row_type(row_type: Any, writer_properties: Any = None, hadoop_config: Any = None) -> BulkWriterFactory:
        """Write rows of this type into ORC files. The other arguments have no effect, and a warning names them."""
        _without_effect(
            "OrcBulkWriters.for_row_type",
            writer_properties=(writer_properties is not None, "Arrow's ORC writer has its own settings"),
            hadoop_config=(hadoop_config is not None, _NO_HADOOP),
        )
        return OrcWriterFactory(row_of("OrcBulkWriters.for_row_type", row_type))
