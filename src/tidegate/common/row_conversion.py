"""Give records what their declared type promises: names of fields where a function returned bare values, floats for integers.

In PyFlink a record passes a serializer between two functions: a ``Row`` comes out with the field names of the declared type, a
DOUBLE as a float whatever went in, a FLOAT cut to four bytes. Here fused functions hand objects over as they are, so a type that
contains one of these gets a converter instead. Other types cost nothing: they take what they are given.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from tidegate.common.arguments import wrong
from tidegate.common.typeinfo import (
    BasicArrayTypeInfo,
    BasicTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    ObjectArrayTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
)
from tidegate.common.types import Row, RowKind

Converter = Callable[[Any], Any]


def converter(info: Any) -> Converter | None:
    """What turns a value into one of the type; None if there is nothing to do. Pickles."""
    if isinstance(info, BasicTypeInfo):
        return _NUMBERS.get(info.describe())
    if isinstance(info, RowTypeInfo):
        return _ToRow(info.get_field_names(), [converter(part) for part in info.get_field_types()])
    if isinstance(info, TupleTypeInfo):
        parts = [converter(part) for part in info.get_field_types()]
        return _InTuple(parts) if any(parts) else None
    if isinstance(info, ListTypeInfo | ObjectArrayTypeInfo | BasicArrayTypeInfo | PrimitiveArrayTypeInfo):
        element = converter(info._element_type)
        return _InList(element) if element else None
    if isinstance(info, MapTypeInfo):
        key, value = converter(info._key_type_info), converter(info._value_type_info)
        return _InMap(key or _same, value or _same) if key or value else None
    return None


def _same(value: Any) -> Any:
    return value


def _double(value: Any) -> Any:
    return value if value.__class__ is float or value is None or isinstance(value, str) else float(value)


def _float(value: Any) -> Any:
    """As four bytes hold it."""
    try:
        return value if value is None or isinstance(value, str) else _FOUR_BYTES.unpack(_FOUR_BYTES.pack(value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


_FOUR_BYTES = struct.Struct("f")
_NUMBERS: dict[str, Converter] = {"DOUBLE": _double, "FLOAT": _float}


class _ToRow:
    def __init__(self, names: list[str], parts: list[Converter | None]) -> None:
        self._names = names
        self._nested = [(index, part) for index, part in enumerate(parts) if part is not None]

    def __call__(self, value: Any) -> Any:
        if value is None:
            return None
        row = self._row(value)
        if len(row._values) != len(self._names):
            raise wrong(
                f"A row type of the fields {self._names}", "one value for each", value, "correct the output_type"
            )
        return self._with_rows_inside(row) if self._nested else row

    def _with_rows_inside(self, row: Row) -> Row:
        values = row._values.copy()
        for index, part in self._nested:
            values[index] = part(values[index])
        return self._named(values, row.get_row_kind())

    def _named(self, values: list[Any], kind: RowKind) -> Row:
        """A new row, never the one given with other names: that may be part of a record another function sees."""
        row = Row.of_kind(kind, *values)
        row._fields = self._names
        return row

    def _row(self, value: Any) -> Row:
        if isinstance(value, Row):
            if value._fields == self._names:
                return value
            by_name = value._fields is not None and sorted(value._fields) == sorted(self._names)
            values = value.get_fields_by_names(self._names) if by_name else value._values
            return self._named(values, value.get_row_kind())
        if isinstance(value, dict):
            return self._named([value.get(name) for name in self._names], RowKind.INSERT)
        if isinstance(value, tuple | list):
            return self._named(list(value), RowKind.INSERT)
        raise wrong(f"A row type of the fields {self._names}", "a Row, tuple, list or dict", value, "return a Row")


class _InTuple:
    def __init__(self, parts: list[Converter | None]) -> None:
        self._parts = parts

    def __call__(self, value: Any) -> Any:
        if value is None:
            return None
        made = [part(item) if part else item for part, item in zip(self._parts, value, strict=True)]
        return made if value.__class__ is list else tuple(made)  # of another class than declared: passed on as it is


class _InList:
    def __init__(self, element: Converter) -> None:
        self._element = element

    def __call__(self, value: Any) -> Any:
        return None if value is None else [self._element(item) for item in value]


class _InMap:
    def __init__(self, key: Converter, value: Converter) -> None:
        self._key, self._value = key, value

    def __call__(self, value: Any) -> Any:
        return None if value is None else {self._key(key): self._value(item) for key, item in value.items()}
