"""Parse the text of a type in checkpoint metadata (``describe``)."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.base.errors import StateFormatError
from tidegate.common.object_types import ObjectTypeInfo
from tidegate.common.typeinfo import (
    BasicArrayTypeInfo,
    BasicType,
    BasicTypeInfo,
    DateTypeInfo,
    InstantTypeInfo,
    ListTypeInfo,
    LocalTimeTypeInfo,
    MapTypeInfo,
    ObjectArrayTypeInfo,
    PickledBytesTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)

_PLAIN: dict[str, TypeInformation] = {
    **{kind.name: BasicTypeInfo(kind) for kind in BasicType},
    "INSTANT": InstantTypeInfo(BasicType.INSTANT),
    "SQL_DATE": DateTypeInfo(),
    "SQL_TIME": TimeTypeInfo(),
    "SQL_TIMESTAMP": TimestampTypeInfo(),
    **{kind.name: LocalTimeTypeInfo(kind) for kind in LocalTimeTypeInfo.TimeType},
    "pickle": PickledBytesTypeInfo(),
}
_OF_ONE: dict[str, type[ListTypeInfo | PrimitiveArrayTypeInfo | BasicArrayTypeInfo | ObjectArrayTypeInfo]] = {
    "LIST": ListTypeInfo,
    "PRIMITIVE_ARRAY": PrimitiveArrayTypeInfo,
    "BASIC_ARRAY": BasicArrayTypeInfo,
    "OBJECT_ARRAY": ObjectArrayTypeInfo,
}


def parse_type(text: str) -> TypeInformation:
    """Return the type with this description."""
    try:
        found = _parsed(text)
    except (KeyError, ValueError, TypeError):
        found = None
    if found is None or found.describe() != text:
        raise StateFormatError(
            "The checkpoint metadata names a type that this version does not know.",
            found=repr(text),
            cure="use the version of Tidegate that wrote the checkpoint, or a newer one",
        )
    return found


def _parsed(text: str) -> TypeInformation:
    name, bracket, rest = text.partition("<")
    if not bracket:
        return _PLAIN[text]
    parts = list(_split(rest.removesuffix(">")))
    if name in _OF_ONE:
        return _OF_ONE[name](*map(_parsed, parts))
    if name == "MAP":
        return MapTypeInfo(*map(_parsed, parts))
    if name == "TUPLE":
        return TupleTypeInfo(list(map(_parsed, parts)))
    if name == "ROW":
        fields = [part.partition(": ") for part in parts]
        return RowTypeInfo([_parsed(of) for _, _, of in fields], [field for field, _, _ in fields])
    if name in ("OBJECT", "NAMED_TUPLE"):
        fields = [part.partition(": ") for part in parts]
        of_fields = {field: _parsed(of) for field, _, of in fields}
        return ObjectTypeInfo(of_fields, None, by_position=name == "NAMED_TUPLE")
    raise KeyError(name)


def _split(text: str) -> Iterator[str]:
    """Yield the parts between commas outside of brackets."""
    depth = start = 0
    for position, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == "," and not depth:
            yield text[start:position]
            start = position + 2
    if text:
        yield text[start:]
