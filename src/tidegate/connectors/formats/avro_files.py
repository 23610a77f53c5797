"""Avro files: read block by block, written in bulk, with fastavro."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO

from tidegate.base.arguments import wrong
from tidegate.base.errors import CorruptFileError
from tidegate.common.serialization import BulkWriterFactory
from tidegate.common.typeinfo import TypeInformation
from tidegate.connectors.files.file_format import BulkFormat, unchanged
from tidegate.connectors.files.paths import full_path
from tidegate.connectors.files.source import FileSource
from tidegate.connectors.formats.avro_schemas import AvroSchema, GenericRecordAvroTypeInfo, avro_encoder
from tidegate.connectors.formats.columns import ROWS
from tidegate.connectors.formats.libraries import library

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
        return self._format.produced_type()

    def source(self) -> FileSource:
        return FileSource.for_bulk_file_format(self._format, self._path).build()


class AvroBulkWriters:
    """Writers of Avro files for ``FileSink.for_bulk_format``."""

    @staticmethod
    def for_generic_record(schema: AvroSchema) -> BulkWriterFactory:
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
