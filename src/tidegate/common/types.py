"""Row and RowKind: records with positional or named fields and a kind of change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from tidegate.base.errors import ProgramError
from tidegate.base.plain_text import count

__all__ = ["Row", "RowKind"]


class RowKind(Enum):
    """The kind of change that a row describes."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    def __str__(self) -> str:
        return _SHORT[self.value]


_SHORT = ("+I", "-U", "+U", "-D")
_KINDS = tuple(RowKind)
_INSERT = RowKind.INSERT  # access through its class costs as much as a field


class Row:
    """A record of fields.

    ``Row(1, "a")`` has positions only, ``Row(id=1, name="a")`` has names too, and a row of names called with values
    makes named rows: ``Person = Row("id", "name"); Person(1, "a")``. Fields are read by position, by name
    (``row["id"]``) and as attributes. Two rows are equal if kind, names and values are; the order of names does not count.
    """

    __slots__ = ("_fields", "_kind", "_values")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._kind: RowKind = _INSERT
        self._fields: list[str] | None
        self._values: list[Any]
        if not kwargs:
            self._fields, self._values = None, list(args)
            return
        if args:
            raise ProgramError(
                "The Row mixes positional and named fields",
                found=f"{len(args)} positional and {len(kwargs)} named",
                cure="name all fields, or none",
            )
        self._fields, self._values = list(kwargs), list(kwargs.values())

    @staticmethod
    def of_kind(row_kind: RowKind, *args: Any, **kwargs: Any) -> Row:
        """Return a row with these values and this kind."""
        row = Row(*args, **kwargs)
        row._kind = row_kind
        return row

    def get_row_kind(self) -> RowKind:
        """Return the kind of change; INSERT unless set."""
        return self._kind

    def set_row_kind(self, row_kind: RowKind) -> None:
        """Set the kind of change."""
        self._kind = row_kind

    def set_field_names(self, field_names: Sequence[str]) -> None:
        """Give the fields names; there must be as many as fields."""
        self._fields = list(field_names)

    def get_fields_by_names(self, names: Sequence[str]) -> list[Any]:
        """Return the values of these fields, in this order."""
        fields = self._fields or []
        unknown = [name for name in names if name not in fields]
        if unknown:
            raise ProgramError("The Row has no such field", found=f"{unknown}; the fields are {fields}")
        return [self._values[fields.index(name)] for name in names]

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """Names to values; with ``recursive`` rows inside (also in lists and dicts) become dicts too."""
        if self._fields is None:
            raise TypeError("A Row without field names cannot become a dict: call set_field_names first")
        values = [_plain(value) for value in self._values] if recursive else self._values
        return dict(zip(self._fields, values, strict=True))

    def _index(self, name: str) -> int:
        if self._fields is None:
            raise KeyError(f"this Row has no field names, so no field {name!r}; use a position or set_field_names")
        return self._fields.index(name)

    def __call__(self, *args: Any) -> Row:
        """Take this row's values as field names for a new row (see the class)."""
        if len(args) > len(self._values):
            raise ProgramError(
                "The Row gets more values than it has field names",
                found=f"{count(len(args), 'value')} for the names {self._values}",
            )
        row = Row(*args)
        row._fields = self._values[: len(args)]
        return row

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str):
            return self._values[self._index(item)]
        return self._values[item]

    def __setitem__(self, key: int | str, value: Any) -> None:
        self._values[self._index(key) if isinstance(key, str) else key] = value

    def __getattr__(self, item: str) -> Any:
        # Called for names that are not slots: fields, and names that copy and pickle probe.
        fields = self._fields
        if fields is not None and item in fields:
            return self._values[fields.index(item)]
        raise AttributeError(item)

    def __contains__(self, item: Any) -> bool:
        return item in (self._values if self._fields is None else self._fields)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Row):
            return NotImplemented
        if self._fields == other._fields:
            return self._values == other._values and self._kind is other._kind
        if self._fields is None or other._fields is None or sorted(self._fields) != sorted(other._fields):
            return False
        return self._values == other.get_fields_by_names(self._fields) and self._kind is other._kind

    def __hash__(self) -> int:
        return hash(tuple(self._values if self._fields is None else self.get_fields_by_names(sorted(self._fields))))

    def __repr__(self) -> str:
        if self._fields is None:
            return f"<Row({', '.join([repr(value) for value in self._values])})>"
        return f"Row({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self._values, strict=True))})"

    def __copy__(self) -> Row:
        return _rebuild(self._values.copy(), self._fields, self._kind.value)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._kind is RowKind.INSERT:
            return _rebuild, (self._values, self._fields)
        return _rebuild, (self._values, self._fields, self._kind.value)


def _rebuild(values: list[Any], fields: list[str] | None, kind: int = 0) -> Row:
    row = Row.__new__(Row)
    row._values, row._fields, row._kind = values, fields, _KINDS[kind]
    return row


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return value.as_dict(recursive=True)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
