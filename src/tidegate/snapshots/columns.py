"""The columns of the rows of a snapshot's states: names, types, and texts for objects of any class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tidegate.common.type_texts import parse_type
from tidegate.common.typeinfo import (
    ElementTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
    is_bytes,
)
from tidegate.snapshots.reader import KEYED, OperatorInfo, StateInfo
from tidegate.state.namespaces import COUNT_WINDOWS, OTHER_WINDOWS, SLICES, TIME_WINDOWS

Convert = Callable[[Any], Any]

_AS_TEXT = frozenset({"pickle", "BIG_INT", "INSTANT"})


class StateColumn(NamedTuple):
    """A column. ``field``: the position in a ``StateRow`` or ``TimerRow``."""

    name: str
    field: int
    type: TypeInformation


def state_columns(
    owner: OperatorInfo,
    state: StateInfo,
    *,
    key_type: TypeInformation | None = None,
    value_type: TypeInformation | None = None,
    map_key_type: TypeInformation | None = None,
) -> list[StateColumn]:
    """Return the columns of a state. A caller may name the types of pickled keys and values."""
    keyed = state.scope == KEYED
    columns = []
    if keyed:
        windows = owner.windows or (SLICES if state.kind == "slices" else "")
        columns += [
            StateColumn("key", 0, key_type or parse_type(owner.key_type)),
            StateColumn("namespace", 2, _window(windows)),
        ]
    if state.kind == "map":
        columns.append(StateColumn("map_key", 3, map_key_type or parse_type(state.map_key_type)))
    values = value_type or parse_type(state.type)
    columns.append(StateColumn("value", 1, ListTypeInfo(values) if state.kind == "list" and keyed else values))
    if state.ttl_ms:
        columns.append(StateColumn("expires_ms", 4, Types.LONG()))
    return columns


def timer_columns(owner: OperatorInfo, *, key_type: TypeInformation | None = None) -> list[StateColumn]:
    return [
        StateColumn("key", 0, key_type or parse_type(owner.key_type or "pickle")),
        StateColumn("namespace", 3, _window(owner.windows)),
        StateColumn("time_ms", 1, Types.LONG()),
        StateColumn("domain", 2, Types.STRING()),
    ]


def _window(windows: str) -> TypeInformation:
    kind = windows.partition(" ")[0]
    if kind in (TIME_WINDOWS, SLICES):
        return Types.ROW_NAMED(["start", "end"], [Types.LONG(), Types.LONG()])
    if kind == COUNT_WINDOWS:
        return Types.LONG()
    return Types.PRIMITIVE_ARRAY(Types.BYTE()) if kind == OTHER_WINDOWS else Types.PICKLED_BYTE_ARRAY()


# -- for formats with plain types only -----------------------------------------------------------------------------------


def as_text(value: Any) -> str:
    """Return the text for an object of any class; a text stays itself."""
    return value if isinstance(value, str) else repr(value)


def plain_columns(columns: Sequence[StateColumn]) -> tuple[RowTypeInfo, Convert]:
    """Return a type that every file format knows, and the function that makes its fields of a row. Other types become texts."""
    plain = [_plain(column.type) for column in columns]
    fields = [column.field for column in columns]
    converts = [_or_none(convert) for _, convert in plain]
    row_type = RowTypeInfo([info for info, _ in plain], [column.name for column in columns])
    return row_type, lambda row: [convert(row[field]) for field, convert in zip(fields, converts, strict=True)]


def _plain(info: TypeInformation) -> tuple[TypeInformation, Convert]:
    if isinstance(info, RowTypeInfo):
        parts = [_plain(part) for part in info.get_field_types()]
        return RowTypeInfo([part for part, _ in parts], info.get_field_names()), _each([c for _, c in parts])
    if isinstance(info, TupleTypeInfo):
        parts = [_plain(part) for part in info.get_field_types()]
        return TupleTypeInfo([part for part, _ in parts]), _each([c for _, c in parts])
    if isinstance(info, MapTypeInfo):
        (key_type, key), (value_type, value) = _plain(info.key_type), _plain(info.value_type)
        value = _or_none(value)
        return MapTypeInfo(key_type, value_type), lambda found: {key(k): value(v) for k, v in found.items()}
    if isinstance(info, ElementTypeInfo) and not is_bytes(info):
        element_type, element = _plain(info.elem_type)
        element = _or_none(element)
        return ListTypeInfo(element_type), lambda values: [element(value) for value in values]
    return (Types.STRING(), as_text) if info.describe() in _AS_TEXT else (info, lambda value: value)


def _each(converts: list[Convert]) -> Convert:
    either = [_or_none(convert) for convert in converts]
    return lambda values: tuple([convert(value) for convert, value in zip(either, values, strict=True)])


def _or_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)
