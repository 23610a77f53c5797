"""Serialization schemas: records to bytes and back, for connectors that move bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tidegate.common.arguments import wrong
from tidegate.common.errors import ConfigurationError

__all__ = ["ByteArraySchema", "DeserializationSchema", "Encoder", "SerializationSchema", "SimpleStringSchema"]


class SerializationSchema(ABC):
    """Turns one record into bytes. Pickled to the executors, so it holds plain settings only."""

    @abstractmethod
    def serialize(self, value: Any) -> bytes:
        """The bytes of a record."""


class DeserializationSchema(ABC):
    """Turns bytes into one record."""

    @abstractmethod
    def deserialize(self, message: bytes) -> Any:
        """The record of these bytes."""


class SimpleStringSchema(SerializationSchema, DeserializationSchema):
    """Texts in a character set."""

    def __init__(self, charset: str = "UTF-8") -> None:
        self.charset = _known(charset)

    def serialize(self, value: Any) -> bytes:
        """The text in the schema's character set."""
        if not isinstance(value, str):
            raise wrong("SimpleStringSchema", "a text", value, "map the records to str first")
        return value.encode(self.charset)

    def deserialize(self, message: bytes) -> str:
        """The text of bytes in the schema's character set."""
        return message.decode(self.charset)


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


def _known(charset: str) -> str:
    try:
        "".encode(charset)
    except (LookupError, TypeError):
        raise ConfigurationError("The character set must be known", found=repr(charset), cure="UTF-8") from None
    return charset
