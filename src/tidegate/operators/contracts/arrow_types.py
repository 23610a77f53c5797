"""Arrow's types for the types of a program, the conversion of values that differ, and rows made of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from tidegate.base.errors import ConfigurationError
from tidegate.base.imports import library
from tidegate.common.typeinfo import (
    DecimalTypeInfo,
    ElementTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    is_bytes,
)
from tidegate.common.types import Row, RowKind

Converter = Callable[[Any], Any]
_new_row = Row.__new__
_INSERT = RowKind.INSERT


def same(value: Any) -> Any:
    """The converter that changes nothing."""
    return value


def named_row(values: list[Any], names: list[str]) -> Row:
    """A row with the names of its type; rows of a type share the list of names."""
    row = _new_row(Row)
    row._values, row._fields, row._kind = values, names, _INSERT
    return row


def rows_of(columns: Iterable[Sequence[Any]], names: list[str]) -> list[Row]:
    """A named row for each position of the columns."""
    return rows_of_fields(zip(*columns, strict=True), names)


def rows_of_fields(fields: Iterable[Sequence[Any]], names: list[str]) -> list[Row]:
    """A named row for each record of fields."""
    rows: list[Row] = []
    add = rows.append
    for values in fields:
        row = _new_row(Row)
        row._values, row._fields, row._kind = list(values), names, _INSERT
        add(row)
    return rows


# -- types


def arrow_schema(row_type: RowTypeInfo) -> Any:
    """Cached by the text of the type: row types with different names compare equal, and so do decimals of different precision."""
    return _schema(str(row_type), _ByText(row_type))


class _ByText:
    """A row type that does not count in the key of the cache: the text before it does."""

    def __init__(self, row_type: RowTypeInfo) -> None:
        self.row_type = row_type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByText)

    def __hash__(self) -> int:
        return 0


@lru_cache(64)
def _schema(text: str, keyed: _ByText) -> Any:
    arrow = library("pyarrow", "Parquet files")
    fields = zip(keyed.row_type.get_field_names(), keyed.row_type.get_field_types(), strict=True)
    return arrow.schema([(name, _arrow_type(arrow, info, name)) for name, info in fields])


def _arrow_type(arrow: Any, info: TypeInformation, path: str) -> Any:
    if isinstance(info, RowTypeInfo):
        fields = zip(info.get_field_names(), info.get_field_types(), strict=True)
        return arrow.struct([(name, _arrow_type(arrow, part, f"{path}.{name}")) for name, part in fields])
    if isinstance(info, TupleTypeInfo):
        parts = enumerate(info.get_field_types())
        return arrow.struct([(f"f{n}", _arrow_type(arrow, part, f"{path}[{n}]")) for n, part in parts])
    if is_bytes(info):
        return arrow.binary()
    if isinstance(info, ElementTypeInfo):
        return arrow.list_(_arrow_type(arrow, info.elem_type, f"{path}[]"))
    if isinstance(info, MapTypeInfo):
        return arrow.map_(_arrow_type(arrow, info.key_type, path), _arrow_type(arrow, info.value_type, path))
    if isinstance(info, DecimalTypeInfo):
        return arrow.decimal128(info.precision, info.scale)
    name = _NAMES.get(info.describe())
    if name is None:
        raise ConfigurationError(
            "Arrow has no type for a column",
            where=f"field {path}",
            found=str(info),
            cure="map the field to another type before the sink, for example to a text with json.dumps",
        )
    made = getattr(arrow, name[0])
    return made(*name[1:])


_NAMES: dict[str, tuple[Any, ...]] = {
    "BOOLEAN": ("bool_",),
    "BYTE": ("int8",),
    "SHORT": ("int16",),
    "INT": ("int32",),
    "LONG": ("int64",),
    "FLOAT": ("float32",),
    "DOUBLE": ("float64",),
    "STRING": ("string",),
    "CHAR": ("string",),
    "BIG_DEC": ("decimal128", 38, 18),
    **dict.fromkeys(("SQL_DATE", "LOCAL_DATE"), ("date32",)),
    "SQL_TIME": ("time32", "ms"),
    "LOCAL_TIME": ("time64", "us"),
    "SQL_TIMESTAMP": ("timestamp", "ms"),
    "LOCAL_DATE_TIME": ("timestamp", "us"),
}


def converters(row_type: RowTypeInfo) -> list[Converter | None]:
    """For each field the converter of its values for Arrow; None: Arrow takes the values as they are."""
    return [_to_arrow(info) for info in row_type.get_field_types()]


def _to_arrow(info: TypeInformation) -> Converter | None:
    if isinstance(info, RowTypeInfo):
        names, parts = info.get_field_names(), converters(info)
        return lambda row: None if row is None else _as_dict(names, parts, row)
    if isinstance(info, TupleTypeInfo):
        fields = [_to_arrow(part) for part in info.get_field_types()]
        names_of = [f"f{n}" for n in range(len(fields))]
        return lambda value: None if value is None else _as_dict(names_of, fields, value)
    if isinstance(info, ElementTypeInfo) and not is_bytes(info):
        element = _to_arrow(info.elem_type)
        return None if element is None else lambda value: None if value is None else [element(v) for v in value]
    if isinstance(info, MapTypeInfo):
        item = _to_arrow(info.value_type) or same
        return lambda value: None if value is None else [(k, item(v)) for k, v in value.items()]
    return None


def _as_dict(names: list[str], parts: list[Converter | None], values: Any) -> dict[str, Any]:
    return {n: v if part is None else part(v) for n, part, v in zip(names, parts, values, strict=True)}


def row_values(row_type: RowTypeInfo, columns: list[Any]) -> list[list[Any]]:
    """The values of Arrow's columns as values of the row type."""
    made = []
    for info, column in zip(row_type.get_field_types(), columns, strict=True):
        convert = _from_arrow(info)
        values = _objects(column)
        made.append(values if convert is None else [convert(value) for value in values])
    return made


_FAST = frozenset(("int8", "int16", "int32", "int64", "float", "double", "bool", "string"))


def _objects(column: Any) -> list[Any]:
    """The values as Python objects. Where numpy has the type, its way is several times faster than Arrow's."""
    fast = not column.null_count and str(column.type) in _FAST
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist() if fast else column.to_pylist()
    return values


def _from_arrow(info: TypeInformation) -> Converter | None:
    if isinstance(info, RowTypeInfo):
        names, parts = info.get_field_names(), [_from_arrow(part) or same for part in info.get_field_types()]
        return lambda value: (
            None if value is None else named_row([p(value[n]) for n, p in zip(names, parts, strict=True)], names)
        )
    if isinstance(info, TupleTypeInfo):
        fields = [_from_arrow(part) or same for part in info.get_field_types()]
        return lambda value: None if value is None else tuple(f(value[f"f{n}"]) for n, f in enumerate(fields))
    if isinstance(info, ElementTypeInfo) and not is_bytes(info):
        element = _from_arrow(info.elem_type)
        return None if element is None else lambda value: None if value is None else [element(v) for v in value]
    if isinstance(info, MapTypeInfo):
        item = _from_arrow(info.value_type) or same
        return lambda value: None if value is None else {k: item(v) for k, v in value}
    return None
