"""Avro with fastavro: schemas, records as messages, their types in a program, and files.

Avro files are read block by block, and written in bulk.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, BinaryIO

from tidegate.base.arguments import expect_text, wrong
from tidegate.base.errors import ConfigurationError, CorruptFileError, UserCodeError
from tidegate.base.imports import library
from tidegate.base.user_code import calling_line
from tidegate.common.conversion import Conversion
from tidegate.common.serialization import BulkWriterFactory, DeserializationSchema, SerializationSchema
from tidegate.common.typeinfo import DecimalTypeInfo, RowTypeInfo, TypeInformation, Types
from tidegate.common.types import Row
from tidegate.connectors.files.file_format import BulkFormat, full_path, unchanged
from tidegate.connectors.files.source import FileSource
from tidegate.connectors.formats.columns import ROWS
from tidegate.operators.contracts.arrow_types import named_row, same


class AvroSchema:
    """A parsed and valid schema. ``str`` gives its text."""

    def __init__(self, schema_string: str) -> None:
        self._text = expect_text("AvroSchema", schema_string, "pass the JSON text of the schema")
        self.parsed: Any = _parsed(self._text)

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroSchema, (self._text,)

    @staticmethod
    def parse_string(json_schema: str) -> AvroSchema:
        """Parse a schema from JSON text."""
        return AvroSchema(json_schema)

    @staticmethod
    def parse_file(file_path: str) -> AvroSchema:
        """Read a schema from a JSON file, when the program is built."""
        with open(file_path, encoding="utf-8") as file:
            return AvroSchema(file.read())

    def is_of(self, text: str) -> bool:
        """Whether the schema of a file is this one, so that records need no conversion."""
        return bool(json.loads(text) == json.loads(self._text))

    def __str__(self) -> str:
        return json.dumps(json.loads(self._text), separators=(",", ":"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AvroSchema) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def _parsed(text: str) -> Any:
    schemas = library("fastavro.schema", "Avro")
    try:
        return schemas.parse_schema(json.loads(text))
    except Exception as error:
        raise ConfigurationError(
            "The Avro schema is invalid",
            where=f"AvroSchema, {calling_line()}",
            found=f"{type(error).__name__}: {error}",
            cure="correct the schema",
        ) from None


class GenericRecordAvroTypeInfo(TypeInformation):
    """Records of an Avro schema: dicts, lists, texts, numbers, bytes."""

    def __init__(self, schema: AvroSchema) -> None:
        if not isinstance(schema, AvroSchema):
            raise wrong("GenericRecordAvroTypeInfo", "an AvroSchema", schema, "AvroSchema.parse_string(...)")
        self.schema = schema

    def describe(self) -> str:
        return f"AVRO<{self.schema}>"

    def __repr__(self) -> str:
        return f"GenericRecord({self.schema})"


def avro_encoder(schema: AvroSchema, where: str) -> Callable[[list[Any]], list[bytes]]:
    """The function that encodes each of a list of records."""
    writer = library("fastavro", "Avro").schemaless_writer

    def encode(values: list[Any]) -> list[bytes]:
        encoded = []
        buffer = io.BytesIO()
        for value in values:
            try:
                writer(buffer, schema.parsed, value)
            except Exception as error:
                raise misfit(schema, value, error, where) from None
            encoded.append(buffer.getvalue())
            buffer.seek(0)
            buffer.truncate()
        return encoded

    return encode


def misfit(schema: AvroSchema, value: Any, error: Exception, where: str) -> UserCodeError:
    """The error for a record that does not fit a schema. Validation finds the field."""
    reason = f"{type(error).__name__}: {error}"
    try:
        library("fastavro.validation", "Avro").validate(value, schema.parsed)
    except Exception as found:
        reason = str(found).replace("\n", " ")
    return UserCodeError(
        "A record does not fit the Avro schema",
        where=where,
        found=f"{value!r:.120}: {reason:.300}",
        cure="correct the record or the schema",
    )


# -- rows


def row_type_of(schema: AvroSchema) -> RowTypeInfo:
    return row_type_of_node(schema.parsed)


def row_type_of_node(node: Any) -> RowTypeInfo:
    """The row type of a node of a parsed schema."""
    info = _info(node)
    if not isinstance(info, RowTypeInfo):
        raise ConfigurationError("The Avro schema of rows is not a record", found=str(node), cure="use a record")
    return info


def _info(node: Any) -> TypeInformation:
    if isinstance(node, list):
        parts = [part for part in node if part != "null"]
        return _info(parts[0]) if len(parts) == 1 else Types.PICKLED_BYTE_ARRAY()
    if isinstance(node, str):
        return _PRIMITIVES.get(node, Types.PICKLED_BYTE_ARRAY)()
    if node.get("logicalType") == "decimal":
        return DecimalTypeInfo(node["precision"], node.get("scale", 0))
    logical = _LOGICAL.get(node.get("logicalType", ""))
    if logical is not None:
        return logical()
    kind = node["type"]
    if kind in ("record", "error"):
        return Types.ROW_NAMED([f["name"] for f in node["fields"]], [_info(f["type"]) for f in node["fields"]])
    if kind == "array":
        return Types.OBJECT_ARRAY(_info(node["items"]))
    if kind == "map":
        return Types.MAP(Types.STRING(), _info(node["values"]))
    return _info(kind) if not isinstance(kind, str) else _PRIMITIVES.get(kind, Types.PICKLED_BYTE_ARRAY)()


_PRIMITIVES: dict[str, Callable[[], TypeInformation]] = {
    "boolean": Types.BOOLEAN,
    "int": Types.INT,
    "long": Types.LONG,
    "float": Types.FLOAT,
    "double": Types.DOUBLE,
    "string": Types.STRING,
    "enum": Types.STRING,
    "bytes": lambda: Types.PRIMITIVE_ARRAY(Types.BYTE()),
    "fixed": lambda: Types.PRIMITIVE_ARRAY(Types.BYTE()),
}
_LOGICAL: dict[str, Callable[[], TypeInformation]] = {
    "date": Types.SQL_DATE,
    "time-millis": Types.SQL_TIME,
    "timestamp-millis": Types.SQL_TIMESTAMP,
}


def _to_rows(node: Any) -> Callable[[Any], Any]:
    """The converter of dicts of records to rows, nested ones included."""
    if isinstance(node, list):
        records = [part for part in node if part != "null"]
        return _to_rows(records[0]) if len(records) == 1 else same
    kind = node["type"] if isinstance(node, dict) else node
    if kind in ("record", "error"):
        names = [f["name"] for f in node["fields"]]
        parts = [_to_rows(f["type"]) for f in node["fields"]]

        def row(value: Any) -> Any:
            if value is None:
                return None
            return named_row([part(value[name]) for name, part in zip(names, parts, strict=True)], names)

        return row
    if kind in ("array", "map"):
        element = _to_rows(node["items" if kind == "array" else "values"])
        if element is same:
            return same
        if kind == "array":
            return lambda value: None if value is None else [element(item) for item in value]
        return lambda value: None if value is None else {key: element(item) for key, item in value.items()}
    return _to_rows(kind) if isinstance(kind, dict | list) else same


def _to_dicts(value: Any) -> Any:
    """Named rows as dicts, for fastavro."""
    if isinstance(value, Row):
        return {name: _to_dicts(item) for name, item in zip(value._fields or [], value._values, strict=True)}
    if isinstance(value, list):
        return [_to_dicts(item) for item in value]
    return {key: _to_dicts(item) for key, item in value.items()} if isinstance(value, dict) else value


class AvroRowDeserializationSchema(DeserializationSchema):
    """Avro's binary form to rows."""

    def __init__(self, record_class: str | None = None, avro_schema_string: str | None = None) -> None:
        self._schema = AvroSchema(_schema_text("AvroRowDeserializationSchema", record_class, avro_schema_string))
        self._type = row_type_of(self._schema)

    def deserialize(self, message: bytes) -> Any:
        return self.deserialize_batch([message])[0]

    def deserialize_batch(self, payloads: list[bytes]) -> list[Any]:
        reader, to_row = library("fastavro", "Avro").schemaless_reader, _to_rows(self._schema.parsed)
        schema, rows = self._schema.parsed, []
        for payload in payloads:
            try:
                rows.append(to_row(reader(io.BytesIO(payload), schema)))
            except Exception as error:
                raise UserCodeError(
                    "A message is not a record of the Avro schema",
                    where=f"Avro of {self._type}",
                    found=f"{len(payload)} bytes, {bytes(payload)!r:.60}: {type(error).__name__}: {error}",
                    cure="read the message with the schema with which it was written",
                ) from None
        return rows

    def get_produced_type(self) -> TypeInformation:
        return self._type


class AvroRowSerializationSchema(SerializationSchema):
    """Rows to Avro's binary form."""

    def __init__(self, record_class: str | None = None, avro_schema_string: str | None = None) -> None:
        self._schema = AvroSchema(_schema_text("AvroRowSerializationSchema", record_class, avro_schema_string))
        self._type = row_type_of(self._schema)

    def serialize(self, value: Any) -> bytes:
        return self.serialize_batch([value])[0]

    def serialize_batch(self, values: list[Any]) -> list[bytes]:
        named = Conversion(self._type).call
        records = [_to_dicts(named(value)) for value in values]
        return avro_encoder(self._schema, "AvroRowSerializationSchema")(records)


def _schema_text(method: str, record_class: str | None, text: str | None) -> str:
    if record_class is not None:
        raise wrong(method, "an Avro schema", record_class, "there are no Java classes here: pass avro_schema_string")
    if text is None:
        raise wrong(method, "an Avro schema", None, "record_class or avro_schema_string should be specified")
    return text


_SYNC = 16
_SCAN = 1 << 16


class AvroFormat(BulkFormat):
    """Records of Avro files, as dicts of the given schema. A block belongs to the range that contains its first byte."""

    least_cut = 1 << 20

    def __init__(self, schema: AvroSchema) -> None:
        if not isinstance(schema, AvroSchema):
            raise wrong("an Avro format", "an AvroSchema", schema, "AvroSchema.parse_string(...)")
        self._schema = schema

    def produced_type(self) -> TypeInformation:
        return GenericRecordAvroTypeInfo(self._schema)

    def can_cut(self, path: str) -> bool:
        return True

    def read(self, path: str, size: int, start: int, end: int) -> Iterator[list[Any]]:
        fastavro = library("fastavro", "Avro files")
        with unchanged(path, size).open_stream("") as stream:
            try:
                header, sync, schema = _header(stream, fastavro)
                first, last = (_block(stream, position, size, len(header), sync) for position in (start, end))
                if first >= last:
                    return
                stream.seek(first)
                joined = _Joined(header, stream, last - first)
                reader = fastavro.reader(joined, None if self._schema.is_of(schema) else self._schema.parsed)
                while batch := list(islice(reader, ROWS)):
                    yield batch
            except CorruptFileError:
                raise
            except Exception as error:
                raise CorruptFileError(
                    "The file is not an Avro file, or its records do not fit the schema of the source",
                    where=f"file {path}, in bytes {start} to {end}",
                    found=f"{type(error).__name__}: {error}",
                    cure="correct the AvroSchema, or remove the file",
                ) from error


def _header(stream: BinaryIO, fastavro: Any) -> tuple[bytes, bytes, str]:
    """The bytes before the first block, the sync mark at the end of the header and of every block, and the schema of the file."""
    counted = _CountedStream(stream)
    reader = fastavro.reader(counted)
    sync = reader._header["sync"]
    stream.seek(0)
    head = stream.read(counted.taken)
    return head[: head.index(sync) + _SYNC], sync, reader.metadata["avro.schema"]


def _block(stream: BinaryIO, position: int, size: int, header: int, sync: bytes) -> int:
    """The start of the first block at or after ``position``; ``size`` if there is none."""
    if position <= header:
        return header
    at = position - _SYNC
    stream.seek(at)
    rest = b""
    while block := stream.read(min(_SCAN, size - at - len(rest))):
        whole = rest + block
        found = whole.find(sync)
        if found >= 0:
            return at + found + _SYNC
        rest = whole[-(_SYNC - 1) :]
        at += len(whole) - len(rest)
    return size


class _CountedStream:
    """Count the bytes that are read of a stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.taken = stream, 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.taken += len(data)
        return data


class _Joined:
    """A header and some blocks, readable as one file."""

    def __init__(self, header: bytes, stream: BinaryIO, left: int) -> None:
        self._head, self._stream, self._left = io.BytesIO(header), stream, left

    def read(self, size: int = -1) -> bytes:
        data = self._head.read(size)
        if data or size == 0:
            return data
        data = self._stream.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


class AvroInputFormat:
    """An Avro file or directory for ``env.create_input``. ``source()`` gives the source for ``env.from_source``."""

    def __init__(self, path: str, schema: AvroSchema) -> None:
        self._path, self._format = full_path(path), AvroFormat(schema)

    def get_produced_type(self) -> TypeInformation:
        """Return the type of the records."""
        return self._format.produced_type()

    def source(self) -> FileSource:
        """Return the source that reads the files of this format."""
        return FileSource.for_bulk_file_format(self._format, self._path).build()


class AvroBulkWriters:
    """Writers of Avro files for ``FileSink.for_bulk_format``."""

    @staticmethod
    def for_generic_record(schema: AvroSchema) -> BulkWriterFactory:
        """Write dicts into Avro object container files with this schema."""
        return AvroBulkWriterFactory(schema)


class AvroBulkWriterFactory(BulkWriterFactory):
    """A packed batch is a block of the file without its sync mark."""

    def __init__(self, schema: AvroSchema) -> None:
        if not isinstance(schema, AvroSchema):
            raise wrong("AvroBulkWriters.for_generic_record", "an AvroSchema", schema, "AvroSchema.parse_string(...)")
        self._schema = schema

    def pack(self, values: list[Any]) -> bytes:
        buffer = io.BytesIO()
        try:
            self._write(buffer, values)
        except Exception:
            avro_encoder(self._schema, "Avro writer")(values)  # one by one: raises an error that names the record
            raise
        return buffer.getvalue()[len(self._header()) : -_SYNC]

    def write(self, batches: Iterator[bytes], target: Any) -> None:
        header = self._header()
        target.write(header)
        for batch in batches:
            target.write(batch + header[-_SYNC:])

    def _header(self) -> bytes:
        """Always of the same length, with a sync mark that no other file has."""
        buffer = io.BytesIO()
        self._write(buffer, [])
        return buffer.getvalue()

    def _write(self, buffer: io.BytesIO, values: list[Any]) -> None:
        """All values in one block."""
        library("fastavro", "Avro files").writer(buffer, self._schema.parsed, values, sync_interval=1 << 40)
