"""Types by Python's own annotations: ``int``, ``list[str]``, data classes, named tuples and msgspec's structs."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import types
import typing
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import msgspec

from tidegate.base.arguments import wrong
from tidegate.base.generics import TypeVar
from tidegate.common.time import Instant
from tidegate.common.typeinfo import (
    ListTypeInfo,
    MapTypeInfo,
    TimestampTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)

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
        decoder(kind)
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
    if hasattr(kind, "__post_init__"):
        raise TypeError("msgspec would call it again for every object that it reads")
    if issubclass(kind, msgspec.Struct):
        config = kind.__struct_config__
        if config.tag is not None or kind.__dictoffset__ or config.omit_defaults:
            # Another default would change state
            raise TypeError("the fields are not all that is stored, or are not always stored")
        yield from zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    elif dataclasses.is_dataclass(kind):
        if not all(field.init for field in dataclasses.fields(kind)):
            raise TypeError("a field is not an argument")
        yield from ((field.name, field.name) for field in dataclasses.fields(kind))
    elif issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
        yield from ((name, name) for name in kind._fields)  # type: ignore[attr-defined]
    else:
        raise TypeError("not a class with declared fields")


def decoder(schema: Any) -> Callable[[bytes], Any]:
    """Return the function that decodes values of the schema.

    msgspec leaves a note on each class that it decodes, and a class of ``__main__`` with such a note cannot be pickled. So the
    notes are removed: the decoder keeps what they say.
    """
    decode = msgspec.msgpack.Decoder(schema).decode
    _remove_notes(schema, set())
    return decode


def _remove_notes(annotation: Any, seen: set[type]) -> None:
    for part in typing.get_args(annotation):
        _remove_notes(part, seen)
    if not isinstance(annotation, type) or annotation in seen:
        return
    seen.add(annotation)
    if _NOTE in vars(annotation):
        delattr(annotation, _NOTE)
    if dataclasses.is_dataclass(annotation) or issubclass(annotation, msgspec.Struct | tuple):
        for field in typing.get_type_hints(annotation).values():
            _remove_notes(field, seen)


_NOTE = "__msgspec_cache__"

Check = Callable[[Any], bool]


def exactly(info: object) -> Check | None:
    """Return a check that the objects in a value come back as they are: they are of the declared classes themselves, since
    an object of a subclass would lose its own fields, and their times have no zone that msgspec replaces by UTC. None: the type
    has no objects. Values of the wrong shape may raise anything."""
    return _exactly(info, inside=False)


def fields_exactly(info: object) -> Check | None:
    """Do as ``exactly`` does for an object that is known to be of the declared class; None: its fields need no check."""
    if not isinstance(info, ObjectTypeInfo) or info.kind is None:
        return exactly(info)
    checks = _field_checks(info)
    return (lambda value: all(check(get(value)) for get, check in checks)) if checks else None


def _field_checks(info: ObjectTypeInfo) -> list[tuple[Callable[[Any], Any], Check]]:
    named = zip(_fields(info.kind or object), info.fields.values(), strict=True)
    found = [(attrgetter(name), _exactly(field, inside=True)) for (name, _), field in named]
    return [(get, check) for get, check in found if check is not None]


def _exactly(info: object, *, inside: bool) -> Check | None:
    """``inside``: of an object, where times are not converted as declared times are."""
    if isinstance(info, TimestampTypeInfo) and inside:
        return _is_plain_time
    if isinstance(info, ListTypeInfo) and (check := _exactly(info.elem_type, inside=inside)):
        return lambda value: value is None or all(map(check, value))
    if isinstance(info, MapTypeInfo):
        key, value_check = _exactly(info.key_type, inside=inside), _exactly(info.value_type, inside=inside)
        if key or value_check:
            return lambda value: (
                value is None
                or (
                    (key is None or all(map(key, value))) and (not value_check or all(map(value_check, value.values())))
                )
            )
    if isinstance(info, TupleTypeInfo):
        checks = [(n, c) for n, f in enumerate(info.get_field_types()) if (c := _exactly(f, inside=inside))]
        return (lambda value: value is None or all(c(value[n]) for n, c in checks)) if checks else None
    if isinstance(info, ObjectTypeInfo) and info.kind is not None:
        kind, fields = info.kind, _field_checks(info)
        return lambda value: value is None or (type(value) is kind and all(c(get(value)) for get, c in fields))
    return None


def _is_plain_time(value: Any) -> bool:
    return value is None or ((value.tzinfo is None or value.tzinfo is datetime.UTC) and not value.fold)
