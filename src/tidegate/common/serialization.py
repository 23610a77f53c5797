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
    """A schema's way for many records (``serialize_batch``, ``deserialize_batch``), unless a subclass of it has written its own way
    for ``one`` (``serialize``, ``deserialize``): then that is called for each."""
    many: Callable[[list[Any]], list[Any]]
    if _depth(schema, f"{one}_batch") <= _depth(schema, one):
        many = getattr(schema, f"{one}_batch")
        return many
    single = getattr(schema, one)
    return lambda values: [single(value) for value in values]


def produced_type(schema: Any) -> TypeInformation | None:
    """The type of a deserialization schema's records; None where it is not known: a subclass that has written its own way to
    deserialize and says nothing of the type may give something else."""
    told = _depth(schema, "get_produced_type")
    if told > min(_depth(schema, "deserialize"), _depth(schema, "deserialize_batch")):
        return None
    found: TypeInformation | None = schema.get_produced_type()
    return found


def _depth(schema: Any, name: str) -> int:
    """How far up from the schema's class a method is written."""
    order = type(schema).__mro__
    return next((n for n, each in enumerate(order) if name in vars(each)), len(order))


class SerializationSchema(ABC):
    """Turns records into bytes. Pickled to the executors, so it holds plain settings only."""

    @abstractmethod
    def serialize(self, value: Any) -> bytes:
        """The bytes of a record."""

    def serialize_batch(self, values: list[Any]) -> list[bytes]:
        """The bytes of each; what connectors call."""
        return [self.serialize(value) for value in values]


class DeserializationSchema(ABC):
    """Turns bytes into records."""

    @abstractmethod
    def deserialize(self, message: bytes) -> Any:
        """The record; None: there is none in the message, and it is passed over."""

    def deserialize_batch(self, payloads: list[bytes]) -> list[Any]:
        """The record of each, or None; as many as there are payloads. What connectors call."""
        return [self.deserialize(payload) for payload in payloads]

    def get_produced_type(self) -> TypeInformation | None:
        """The type of the records, if the schema knows it."""
        return None


class SimpleStringSchema(SerializationSchema, DeserializationSchema):
    """Texts in a character set."""

    def __init__(self, charset: str = "UTF-8") -> None:
        self.charset = _known(charset)

    def serialize(self, value: Any) -> bytes:
        """The text in the schema's character set."""
        if not isinstance(value, str):
            raise wrong("SimpleStringSchema", "a text", value, "map the records to str first")
        return value.encode(self.charset)

    def serialize_batch(self, values: list[Any]) -> list[bytes]:
        charset = self.charset
        if {str}.issuperset(map(type, values)):
            return [value.encode(charset) for value in values]
        return [self.serialize(value) for value in values]

    def deserialize(self, message: bytes) -> str:
        """As Java does: bytes that are no text of the character set become the replacement character."""
        return message.decode(self.charset, "replace")

    def deserialize_batch(self, payloads: list[bytes]) -> list[Any]:
        charset = self.charset
        return [payload.decode(charset, "replace") for payload in payloads]

    def get_produced_type(self) -> TypeInformation:
        return Types.STRING()


class ByteArraySchema(SerializationSchema, DeserializationSchema):
    """Bytes as they are."""

    def serialize(self, value: Any) -> bytes:
        """The record as it is."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise wrong("ByteArraySchema", "bytes", value, "map the records to bytes first")
        return bytes(value)

    def deserialize(self, message: bytes) -> bytes:
        """The bytes as they are."""
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
    def encode(self, value: Any) -> bytes:
        """The bytes of one record, with whatever separates it from the next."""

    def encode_batch(self, values: list[Any]) -> bytes:
        """The bytes of many records; what ``FileSink`` calls."""
        return b"".join([self.encode(value) for value in values])  # with map, a StopIteration would end it

    @staticmethod
    def simple_string_encoder(charset_name: str = "UTF-8") -> Encoder:
        """The record's ``str`` and a line feed."""
        return LineEncoder(charset_name)


class LineEncoder(Encoder):
    """``str(value)`` on a line of its own."""

    def __init__(self, charset_name: str = "UTF-8") -> None:
        self.charset = _known(charset_name)

    def encode(self, value: Any) -> bytes:
        return f"{value}\n".encode(self.charset)

    def encode_batch(self, values: list[Any]) -> bytes:
        return "".join([f"{value}\n" for value in values]).encode(self.charset)


class BulkWriterFactory(ABC):
    """How a bulk format makes a file: ``FileSink.for_bulk_format`` collects the batches of a part and hands them over.

    A file in a bulk format cannot be continued once it is closed, so a part begins and ends in one round, or is made of the
    records that earlier rounds have kept for it. Pickled to the executors.
    """

    @abstractmethod
    def pack(self, values: list[Any]) -> bytes:
        """Check a batch against the format's columns and turn it into bytes that ``write`` takes. What does not fit is refused."""

    @abstractmethod
    def write(self, batches: Iterator[bytes], target: Any) -> None:
        """Write a whole file with the records of the batches to a binary stream."""


class RowDataBulkWriterFactory(BulkWriterFactory):
    """One whose records are rows of a known type."""

    def __init__(self, row_type: RowTypeInfo) -> None:
        self._row_type = row_type

    def get_row_type(self) -> RowTypeInfo:
        return self._row_type


def _known(charset: str) -> str:
    try:
        "".encode(charset)
    except (LookupError, TypeError):
        raise ConfigurationError("The character set must be known", found=repr(charset), cure="UTF-8") from None
    return charset
