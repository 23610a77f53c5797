"""Types by Python's own annotations: ``int``, ``list[str]``, data classes, named tuples and msgspec's structs."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from tidegate.base.arguments import wrong
from tidegate.base.generics import TypeVar
from tidegate.common.time import Instant
from tidegate.common.typeinfo import TypeInformation, Types

Value = TypeVar("Value", covariant=True, default=Any)

Declared = TypeInformation[Any] | type[Any] | None
"""What parameters for types take."""

_BASIC: dict[Any, TypeInformation] = {
    int: Types.LONG(),
    float: Types.DOUBLE(),
    str: Types.STRING(),
    bool: Types.BOOLEAN(),
    bytes: Types.PRIMITIVE_ARRAY(Types.BYTE()),
    decimal.Decimal: Types.BIG_DEC(),
    datetime.date: Types.SQL_DATE(),
    datetime.time: Types.SQL_TIME(),
    datetime.datetime: Types.SQL_TIMESTAMP(),
    Instant: Types.INSTANT(),
}


class ObjectTypeInfo(TypeInformation[Value]):
    """Objects of a class with declared fields. They are stored by the names of their fields; those of named tuples by position.

    ``kind`` is the class; None for a type that was read from a snapshot, whose values are dicts or named tuples. A renamed class
    keeps its stored state, and changed fields are another type.
    """

    def __init__(self, fields: dict[str, TypeInformation], kind: type[Value] | None, *, by_position: bool) -> None:
        self.fields, self.kind, self.by_position = fields, kind, by_position

    def describe(self) -> str:
        fields = ", ".join(f"{name}: {info.describe()}" for name, info in self.fields.items())
        return f"{'NAMED_TUPLE' if self.by_position else 'OBJECT'}<{fields}>"

    def to_schema(self) -> Any | None:
        if self.kind is not None:
            return self.kind
        return collections.namedtuple("Fields", self.fields) if self.by_position else dict[str, Any]  # noqa: PYI024

    def __eq__(self, other: object) -> bool:
        """Compare the class too: records of two classes do not mix."""
        return isinstance(other, ObjectTypeInfo) and other.kind is self.kind and other.describe() == self.describe()

    def __hash__(self) -> int:
        return hash(self.describe())

    def __repr__(self) -> str:
        return f"{'Object' if self.kind is None else self.kind.__name__}({', '.join(self.fields)})"


def type_of(method: str, declared: Any) -> TypeInformation | None:
    """Return the type information for an argument of ``method``, which may be a class or an annotation; None for None."""
    if declared is None or isinstance(declared, TypeInformation):
        return declared
    if not isinstance(declared, type | types.GenericAlias | types.UnionType) and typing.get_origin(declared) is None:
        cure = "use a type of Types, for example Types.STRING(), or a class"
        raise wrong(method, "type information, a class or None", declared, cure)
    return _of(declared, ()) or Types.PICKLED_BYTE_ARRAY()


def _of(annotation: Any, inside: tuple[type, ...]) -> TypeInformation | None:
    """Return None for what only pickle can store. ``inside``: the classes around, since a class may have fields of itself."""
    if annotation in _BASIC:
        return _BASIC[annotation]
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        some = [part for part in parts if part is not type(None)]
        return _of(some[0], inside) if len(some) == 1 else None
    found = [_of(part, inside) for part in parts]
    if found and None not in found:
        known = typing.cast("list[TypeInformation]", found)
        if origin is list:
            return Types.LIST(known[0])
        if origin is dict:
            return Types.MAP(known[0], known[1])
        if origin is tuple:
            return Types.TUPLE(known)
    if not isinstance(annotation, type) or annotation in inside:
        return None
    return _of_class(annotation, (*inside, annotation))


def _of_class(kind: type, inside: tuple[type, ...]) -> ObjectTypeInfo | None:
    by_position = issubclass(kind, tuple)
    try:
        names = dict(_fields(kind))
        hints = typing.get_type_hints(kind)
        msgspec.msgpack.Decoder(kind)
    except (TypeError, NameError, AttributeError):
        return None  # no fields, fields of names that are not found, or fields that msgspec does not know
    found = {stored: _of(hints.get(name, object), inside) for name, stored in names.items()}
    if not found or None in found.values():
        return None
    if issubclass(kind, msgspec.Struct):
        by_position = kind.__struct_config__.array_like
    return ObjectTypeInfo(typing.cast("dict[str, TypeInformation]", found), kind, by_position=by_position)


def _fields(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the names of fields, as they are declared and as they are stored."""
    if issubclass(kind, msgspec.Struct):
        if kind.__struct_config__.tag is not None or kind.__dictoffset__:
            raise TypeError("the fields are not all that is stored")
        yield from zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    elif dataclasses.is_dataclass(kind):
        if not all(field.init for field in dataclasses.fields(kind)):
            raise TypeError("a field is not an argument")
        yield from ((field.name, field.name) for field in dataclasses.fields(kind))
    elif issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
        yield from ((name, name) for name in kind._fields)  # type: ignore[attr-defined]
    else:
        raise TypeError("not a class with declared fields")
