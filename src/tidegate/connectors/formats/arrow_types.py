"""Avro records as Arrow's columns: their schema, and the conversion of values that differ.

Records of an Avro schema become columns of Parquet in the layout of parquet-avro, which Flink uses. A field that is
always null has no column. A union of several types is a group with an optional column for each type, ``member0``,
``member1`` and so on; at most one of them holds a value. Every other field has a column of its own type.
"""

from __future__ import annotations

from typing import Any

from tidegate.base.imports import library
from tidegate.connectors.formats.avro_schemas import AvroSchema, row_type_of_node
from tidegate.operators.contracts.arrow_types import Converter, arrow_schema

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


def schema_of_avro(schema: AvroSchema) -> Any:
    """The Arrow schema for records of an Avro schema."""
    return arrow_schema(row_type_of_node(columns_of(schema.parsed)))
