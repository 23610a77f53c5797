"""Rolling aggregations as reduce functions: sum, min, max of a field, and the record with the least or greatest field.

``SumOf``, ``LeastOf`` and ``GreatestOf`` keep the other fields of the first record of the key, as in Flink.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any

from tidegate.base.arguments import shown, wrong
from tidegate.base.errors import ArgumentTypeError
from tidegate.common.types import Row

Field = int | str
"""A position (of a tuple, list or Row; 0 of any other value is the value itself), or a name (of a Row, dict or object)."""


def expect_field(method: str, field: Any) -> Field:
    if isinstance(field, bool) or not isinstance(field, int | str):
        raise wrong(method, "a position or the name of a field", field, f'{method}(1) or {method}("amount")')
    return field


@dataclass(frozen=True)
class SumOf:
    field: Field

    def __call__(self, first: Any, second: Any) -> Any:
        return _with(first, self.field, _get(first, self.field) + _get(second, self.field))


@dataclass(frozen=True)
class LeastOf:
    field: Field

    def __call__(self, first: Any, second: Any) -> Any:
        candidate = _get(second, self.field)
        return _with(first, self.field, candidate) if candidate < _get(first, self.field) else first


@dataclass(frozen=True)
class GreatestOf:
    field: Field

    def __call__(self, first: Any, second: Any) -> Any:
        candidate = _get(second, self.field)
        return _with(first, self.field, candidate) if candidate > _get(first, self.field) else first


@dataclass(frozen=True)
class RecordWithLeast:
    """Keeps the whole record; of several the first."""

    field: Field

    def __call__(self, first: Any, second: Any) -> Any:
        return second if _get(second, self.field) < _get(first, self.field) else first


@dataclass(frozen=True)
class RecordWithGreatest:
    """Keeps the whole record; of several the first."""

    field: Field

    def __call__(self, first: Any, second: Any) -> Any:
        return second if _get(second, self.field) > _get(first, self.field) else first


_BY_POSITION = (tuple, list)
_BY_KEY = (Row, dict)


def _get(value: Any, field: Field) -> Any:
    try:
        if isinstance(value, _BY_POSITION) and isinstance(field, int):
            return value[field]
        if isinstance(value, _BY_KEY):
            return value[field]
        if isinstance(field, str):
            return getattr(value, field)
    except (LookupError, AttributeError, ValueError):
        raise _no_field(value, field) from None
    if field != 0:
        raise _no_field(value, field)
    return value


def _with(value: Any, field: Field, new: Any) -> Any:
    """Return a copy with the field changed: other code may still use the old record."""
    if isinstance(value, tuple):
        if isinstance(field, str):  # _get has read it, so it is a named tuple
            return value._replace(**{field: new})  # type: ignore[attr-defined]
        position = field % len(value)
        parts = (*value[:position], new, *value[position + 1 :])
        make = getattr(value, "_make", None)
        return parts if make is None else make(parts)
    if isinstance(value, Row):
        changed = Row.of_kind(value.get_row_kind(), *value)
        changed._fields = value._fields
        changed[field] = new
        return changed
    if isinstance(value, list | dict):
        container: Any = value.copy()
        container[field] = new
        return container
    if isinstance(field, int):
        return new
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{field: new})
    changed_object = copy.copy(value)
    setattr(changed_object, field, new)
    return changed_object


def _no_field(value: Any, field: Field) -> ArgumentTypeError:
    return ArgumentTypeError(
        "A record lacks the field that is aggregated",
        where=f"sum, min, max, min_by or max_by of field {field!r}",
        found=shown(value),
        cure="use a position of a tuple, list or Row, or the name of a field or attribute",
    )
