"""Serialization schemas: records to bytes and back, for connectors that move bytes.

Connectors work on chunks: they call ``serialize_batch`` and ``deserialize_batch``, and a schema that knows a faster way than one by
one overrides them. A schema of a user's needs ``serialize`` or ``deserialize`` only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.base.arguments import expect_int, shown, wrong
from tidegate.base.errors import ArgumentTypeError, ConfigurationError, ProgramError
from tidegate.common.typeinfo import RowTypeInfo, TypeInformation, Types
from tidegate.common.types import Row

__all__ = [
    "BulkWriterFactory",
    "ByteArraySchema",
    "DeserializationSchema",
    "Encoder",
    "RowDataBulkWriterFactory",
    "RowFieldExtractorSchema",
    "SerializationSchema",
    "SimpleStringSchema",
]


def for_many(schema: Any, one: str) -> Callable[[list[Any]], list[Any]]:
    """Return the schema's method for many records (``serialize_batch``, ``deserialize_batch``), unless a subclass overrides the
    method for ``one`` (``serialize``, ``deserialize``): then that method is called for each."""
    many: Callable[[list[Any]], list[Any]]
    if _depth(schema, f"{one}_batch") <= _depth(schema, one):
        many = getattr(schema, f"{one}_batch")
        return many
    single = getattr(schema, one)
    return lambda values: [single(value) for value in values]


def as_batch(schema: Any) -> Callable[[list[bytes]], Any] | None:
    """Return the schema's method ``deserialize_as_batch``: it returns a batch whose reader decides between rows and columns, or a
    list. None: the schema has none, or a subclass overrides how one or many messages are deserialized."""
    there = _depth(schema, "deserialize_as_batch")
    overridden = min(_depth(schema, "deserialize"), _depth(schema, "deserialize_batch")) < there
    found: Callable[[list[bytes]], Any] | None = getattr(schema, "deserialize_as_batch", None)
    return None if overridden else found


def produced_type(schema: Any) -> TypeInformation | None:
    """Return the type of a deserialization schema's records; None if it is unknown: a subclass that overrides ``deserialize``
    without a type may return something else."""
    declared = _depth(schema, "get_produced_type")
    if declared > min(_depth(schema, "deserialize"), _depth(schema, "deserialize_batch")):
        return None
    found: TypeInformation | None = schema.get_produced_type()
    return found


def _depth(schema: Any, name: str) -> int:
    """Return how far above the schema's class a method is defined."""
    order = type(schema).__mro__
    return next((n for n, each in enumerate(order) if name in vars(each)), len(order))


class SerializationSchema(ABC):
    """Turns records into bytes. It is pickled to the executors, so it contains only plain settings."""

    @abstractmethod
    def serialize(self, value: Any, /) -> bytes:
        """Return the bytes of a record."""

    def serialize_batch(self, values: list[Any], /) -> list[bytes]:
        """Return the bytes of each record. Connectors call this."""
        return [self.serialize(value) for value in values]


class DeserializationSchema(ABC):
    """Turns bytes into records."""

    @abstractmethod
    def deserialize(self, message: bytes, /) -> Any:
        """Return the record; None: the message contains none and is skipped."""

    def deserialize_batch(self, payloads: list[bytes], /) -> list[Any]:
        """Return one record, or None, for each payload. Connectors call this."""
        return [self.deserialize(payload) for payload in payloads]

    def get_produced_type(self) -> TypeInformation | None:
        """Return the type of the records; None if the schema does not know it."""
        return None


class SimpleStringSchema(SerializationSchema, DeserializationSchema):
    """Texts in a character set."""

    def __init__(self, charset: str = "UTF-8") -> None:
        self.charset = _known(charset)

    def serialize(self, value: Any) -> bytes:
        """Return the text in the schema's character set."""
        if not isinstance(value, str):
            raise wrong("SimpleStringSchema", "a text", value, "map the records to str first")
        return value.encode(self.charset)

    def serialize_batch(self, values: list[Any]) -> list[bytes]:
        charset = self.charset
        if {str}.issuperset(map(type, values)):
            return [value.encode(charset) for value in values]
        return [self.serialize(value) for value in values]

    def deserialize(self, message: bytes) -> str:
        """Return the text. As in Java, bytes outside of the character set become the replacement character."""
        return message.decode(self.charset, "replace")

    def deserialize_batch(self, payloads: list[bytes]) -> list[Any]:
        charset = self.charset
        return [payload.decode(charset, "replace") for payload in payloads]

    def get_produced_type(self) -> TypeInformation:
        return Types.STRING()


class ByteArraySchema(SerializationSchema, DeserializationSchema):
    """Bytes as they are."""

    def serialize(self, value: Any) -> bytes:
        """Return the record as it is."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise wrong("ByteArraySchema", "bytes", value, "map the records to bytes first")
        return bytes(value)

    def deserialize(self, message: bytes) -> bytes:
        """Return the bytes as they are."""
        return message

    def deserialize_batch(self, payloads: list[bytes]) -> list[Any]:
        return list(payloads)

    def get_produced_type(self) -> TypeInformation:
        return Types.PRIMITIVE_ARRAY(Types.BYTE())


class RowFieldExtractorSchema(SerializationSchema):
    """One field of a row, which holds bytes already: the key or the value of a Kafka record. A null row and a null field are
    empty bytes, as in PyFlink."""

    def __init__(self, field_index: int) -> None:
        if expect_int("RowFieldExtractorSchema", field_index, "a position from 0") < 0:
            raise ProgramError(f"Field index must be non-negative, got: {field_index}", cure="count fields from 0")
        self.field_index = field_index

    def serialize(self, value: Any) -> bytes:
        if value is None:
            return b""
        if not isinstance(value, Row | tuple) or len(value) <= self.field_index:
            wanted = f"a row with a field {self.field_index}"
            raise wrong("RowFieldExtractorSchema", wanted, value, "map the records to rows of bytes first")
        field = value[self.field_index]
        if field is None:
            return b""
        if not isinstance(field, bytes | bytearray):
            raise ArgumentTypeError(
                f"Field {self.field_index} must be of type bytes",
                where="RowFieldExtractorSchema",
                found=shown(field),
                cure="encode the field before, for example str(key).encode()",
            )
        return bytes(field)


class Encoder(ABC):
    """Writes records into a file, one after another (row formats of ``FileSink``)."""

    @abstractmethod
    def encode(self, value: Any, /) -> bytes:
        """Return the bytes of one record, with its separator."""

    def encode_batch(self, values: list[Any], /) -> bytes:
        """Return the bytes of many records. ``FileSink`` calls this."""
        return b"".join([self.encode(value) for value in values])  # with map, a StopIteration would end the list

    @staticmethod
    def simple_string_encoder(charset_name: str = "UTF-8") -> Encoder:
        """Return the record's ``str`` and a line feed."""
        return LineEncoder(charset_name)


class LineEncoder(Encoder):
    """Writes ``str(value)`` as a line."""

    def __init__(self, charset_name: str = "UTF-8") -> None:
        self.charset = _known(charset_name)

    def encode(self, value: Any) -> bytes:
        return f"{value}\n".encode(self.charset)

    def encode_batch(self, values: list[Any]) -> bytes:
        return "".join([f"{value}\n" for value in values]).encode(self.charset)


class BulkWriterFactory(ABC):
    """Writes files in a bulk format: ``FileSink.for_bulk_format`` collects the batches of a part.

    A closed file in a bulk format cannot be continued. So a part begins and ends in one round, or contains records that earlier
    rounds have stored for it. The factory is pickled to the executors.
    """

    @abstractmethod
    def pack(self, values: list[Any], /) -> bytes:
        """Check a batch against the format's columns and turn it into bytes for ``write``. Raise for a record that does not fit."""

    def pack_columns(self, columns: Any, row_type: TypeInformation, /) -> bytes | None:
        """Do the same for a ``pyarrow.RecordBatch`` with the columns of a row type. None: ``pack`` gets the records."""
        return None

    @abstractmethod
    def write(self, batches: Iterator[bytes], target: Any, /) -> None:
        """Write a whole file with the records of the batches to a binary stream."""


class RowDataBulkWriterFactory(BulkWriterFactory):
    """A factory for rows of a known type."""

    def __init__(self, row_type: RowTypeInfo) -> None:
        self._row_type = row_type

    def get_row_type(self) -> RowTypeInfo:
        return self._row_type


def _known(charset: str) -> str:
    try:
        "".encode(charset)
    except (LookupError, TypeError):
        raise ConfigurationError("The character set is unknown", found=repr(charset), cure="use UTF-8") from None
    return charset
