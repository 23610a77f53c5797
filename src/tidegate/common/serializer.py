"""Serializers of objects to streams of bytes, by PyFlink's module path. A window assigner names one for its windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from io import BytesIO
from typing import Any, Generic, TypeVar

__all__ = ["TypeSerializer", "VoidNamespaceSerializer"]

T = TypeVar("T")
void = b""


class TypeSerializer(ABC, Generic[T]):
    """Equal objects must have the same bytes, because the bytes identify windows."""

    @abstractmethod
    def serialize(self, element: T, stream: BytesIO, /) -> None:
        """Write the value to the stream."""

    @abstractmethod
    def deserialize(self, stream: BytesIO, /) -> T:
        """Read a value from the stream."""

    def __repr__(self) -> str:
        return type(self).__name__

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(type(self))


class VoidNamespaceSerializer(TypeSerializer[Any]):
    """The serializer of the empty namespace."""

    def serialize(self, element: Any, stream: BytesIO) -> None:
        return None

    def deserialize(self, stream: BytesIO) -> None:
        return None
