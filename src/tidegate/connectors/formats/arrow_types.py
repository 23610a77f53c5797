"""Arrow's types for the types of a program, the conversion of values that differ, and Avro records as columns.

Records of an Avro schema become columns of Parquet in the layout of parquet-avro, which Flink uses. A field that is
always null has no column. A union of several types is a group with an optional column for each type, ``member0``,
``member1`` and so on; at most one of them holds a value. Every other field has a column of its own type.
"""

from __future__ import annotations

from collections.abc import Callable
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
from tidegate.connectors.formats.avro_schemas import AvroSchema, row_type_of_node
from tidegate.connectors.formats.columns import named_row, same

_NULL = "null"


def columns_of(node: Any) -> Any:
    """The schema of the columns, as a node of an Avro schema."""
    if isinstance(node, list):
        branches = _branches(node)
        if len(branches) < 2:
            return [_NULL, *map(columns_of, branches)]
        members = [{"name": f"member{n}", "type": [_NULL, columns_of(b)]} for n, b in enumerate(branches)]
        return [_NULL, {"type": "record", "name": "union", "fields": members}]
    kind = _kind(node)
    if kind == "record":
        fields = [{**field, "type": columns_of(field["type"])} for field in node["fields"] if not _is_null(field)]
        return {**node, "fields": fields}
    if kind in _INSIDE:
        return {**node, _INSIDE[kind]: columns_of(node[_INSIDE[kind]])}
    return node


def to_columns(node: Any) -> Converter | None:
    """The converter of values of the node for its columns; None: the columns take the values as they are."""
    if isinstance(node, list):
        return _union_to_columns(_branches(node))
    kind = _kind(node)
    if kind == "record":
        return _record_to_columns(node)
    return _of_elements(kind, to_columns(node[_INSIDE[kind]])) if kind in _INSIDE else None


def from_columns(node: Any) -> Converter | None:
    """The converter of the columns to values of the node; None: the columns give the values as they are."""
    if isinstance(node, list):
        return _union_from_columns(_branches(node))
    kind = _kind(node)
    if kind == "record":
        return _record_from_columns(node)
    return _of_elements(kind, from_columns(node[_INSIDE[kind]])) if kind in _INSIDE else None


_INSIDE = {"array": "items", "map": "values"}


def _branches(union: list[Any]) -> list[Any]:
    return [branch for branch in union if branch != _NULL]


def _kind(node: Any) -> Any:
    return node["type"] if isinstance(node, dict) else node


def _is_null(field: dict[str, Any]) -> bool:
    return field["type"] in (_NULL, [_NULL], {"type": _NULL})


def _union_to_columns(branches: list[Any]) -> Converter | None:
    if len(branches) < 2:
        return to_columns(branches[0]) if branches else None
    validate = library("fastavro.validation", "Avro").validate
    members = [(f"member{n}", branch, to_columns(branch)) for n, branch in enumerate(branches)]

    def convert(value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        name, inner = next((name, c) for name, b, c in members if validate(value, b, raise_errors=False))
        return {name: value if inner is None else inner(value)}

    return convert


def _union_from_columns(branches: list[Any]) -> Converter | None:
    if len(branches) < 2:
        return from_columns(branches[0]) if branches else None
    members = [(f"member{n}", from_columns(branch)) for n, branch in enumerate(branches)]

    def convert(group: dict[str, Any] | None) -> Any:
        for name, inner in members if group is not None else ():
            if group[name] is not None:  # type: ignore[index]
                return group[name] if inner is None else inner(group[name])  # type: ignore[index]
        return None

    return convert


def _record_to_columns(node: dict[str, Any]) -> Converter | None:
    parts = [(field["name"], to_columns(field["type"])) for field in node["fields"]]
    changed = [(name, convert) for name, convert in parts if convert is not None]
    if not changed:
        return None  # Arrow skips a key without a column

    def convert(record: Any) -> Any:
        if record is None:
            return None
        return {**record, **{name: inner(record.get(name)) for name, inner in changed}}

    return convert


def _record_from_columns(node: dict[str, Any]) -> Converter | None:
    parts = [(f["name"], from_columns(f["type"]), _is_null(f)) for f in node["fields"]]
    if not any(convert or is_null for _, convert, is_null in parts):
        return None

    def convert(record: Any) -> Any:
        if record is None:
            return None
        made = {}
        for name, inner, is_null in parts:
            value = None if is_null else record[name]
            made[name] = value if inner is None else inner(value)
        return made

    return convert


def _of_elements(kind: str, convert: Converter | None) -> Converter | None:
    if convert is None:
        return None
    if kind == "array":
        return lambda values: None if values is None else [convert(value) for value in values]
    return lambda values: None if values is None else {key: convert(value) for key, value in values.items()}


Converter = Callable[[Any], Any]


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


def schema_of_avro(schema: AvroSchema) -> Any:
    """The Arrow schema for records of an Avro schema."""
    return arrow_schema(row_type_of_node(columns_of(schema.parsed)))
