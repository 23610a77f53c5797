"""Declared types as functions: they convert a program's values to the type, or raise with the reason.

The rules are those of PyFlink's serializers. A DOUBLE turns any number into a float, a FLOAT has four bytes, an INT takes any
integer value that fits in 32 bits, a ``Row`` gets the names of its type, times are truncated to milliseconds. ``from_collection``
is more lenient, as in PyFlink: integers wrap around, lists become tuples.

A type is compiled once from Python source (``Conversion``), so no record walks a tree of types: a tuple whose fields have the
declared classes costs one comparison per field. Types that never change a valid value (``changes``) are not checked inside a
chain, but where records leave it: ``Boundary`` checks a whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from tidegate.base.arguments import shown
from tidegate.base.errors import ArgumentTypeError
from tidegate.base.user_code import CONVERSION_FILE
from tidegate.common import scalar_conversion as scalars
from tidegate.common.object_types import ObjectTypeInfo
from tidegate.common.typeinfo import (
    INTEGER_BITS,
    BasicTypeInfo,
    DecimalTypeInfo,
    ElementTypeInfo,
    ExternalTypeInfo,
    MapTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    is_bytes,
)
from tidegate.common.types import Row, RowKind

Converter = Callable[[Any], Any]
BatchConverter = Callable[[list[Any]], list[Any]]


class Conversion:
    """The compiled form of a type. ``call`` is the function. The object pickles as its type."""

    __slots__ = ("_info", "_wrap", "call")

    def __init__(self, info: TypeInformation, *, wrap: bool = False) -> None:
        self._info, self._wrap = info, wrap
        self.call: Converter = _Compiler(wrap).compiled(info, "")

    def __call__(self, value: Any) -> Any:
        return self.call(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._info, self._wrap)


def _again(info: TypeInformation, wrap: bool) -> Conversion:
    return Conversion(info, wrap=wrap)


def converter(info: Any) -> Conversion | None:
    """Return the conversion of a function's results; None if the type never changes them."""
    return Conversion(info) if isinstance(info, TypeInformation) and changes(info) else None


def collection_converter(info: Any) -> Conversion | None:
    """Return the conversion of a collection's values: integers wrap around at the width of their type."""
    return None if takes_anything(info) else Conversion(info, wrap=True)


def changes(info: TypeInformation) -> bool:
    """Return whether the conversion of a valid value can change it, apart from integers of another class."""
    if isinstance(info, BasicTypeInfo):
        return info.describe() in ("FLOAT", "DOUBLE", "BIG_DEC")
    if isinstance(info, TupleTypeInfo):
        return any(map(changes, info.get_field_types()))
    if isinstance(info, ElementTypeInfo):
        return changes(info.elem_type)
    if isinstance(info, MapTypeInfo):
        return changes(info.key_type) or changes(info.value_type)
    if isinstance(info, ObjectTypeInfo):
        return False
    return not takes_anything(info)


def takes_anything(info: Any) -> bool:
    """Return whether the type takes any object."""
    return not isinstance(info, TypeInformation) or isinstance(info, PickledBytesTypeInfo)


def boundary(info: Any) -> BatchConverter | None:
    """Return the check of a batch that leaves a chain; None if its records were converted one by one already."""
    return None if takes_anything(info) or changes(info) else Boundary(info)


class Boundary:
    """Checks the classes of a whole batch. Only a batch with a value of another class, or with a tree, is converted record by
    record.

    ``convert`` is the function for one value.
    """

    def __init__(self, info: TypeInformation) -> None:
        described = info.describe()
        self._kind = int if described in INTEGER_BITS else _KINDS.get(described)
        if isinstance(info, ObjectTypeInfo):
            self._kind = info.kind
        self._limit = 1 << INTEGER_BITS[described] - 1 if described in INTEGER_BITS else None
        fields = [Boundary(field) for field in info.get_field_types()] if isinstance(info, TupleTypeInfo) else []
        # A tuple with a field that its class does not decide is converted record by record: checking other fields is useless.
        self._fields: list[Boundary] | None = fields if fields and all(f._kind or f._fields for f in fields) else None
        self.convert = Conversion(info).call

    def __call__(self, values: list[Any]) -> list[Any]:
        return values if self.is_declared(values) else [self.convert(value) for value in values]

    def is_declared(self, values: Collection[Any]) -> bool:
        """Return whether all values have the declared classes, so that a conversion would change nothing. Tuples are checked by
        field."""
        kinds = {int} if isinstance(values, range) and values else set(map(type, values))
        if self._fields is None:
            return kinds == {self._kind} and self._holds(values)
        if kinds != {tuple} or set(map(len, values)) != {len(self._fields)}:
            return False
        return all(f.is_declared(column) for f, column in zip(self._fields, zip(*values, strict=True), strict=True))

    def _holds(self, values: Collection[Any]) -> bool:
        limit = self._limit
        ends = (values[0], values[-1]) if isinstance(values, range) else values
        return limit is None or (-limit <= min(ends) and max(ends) < limit)


_KINDS: dict[str, type] = {"STRING": str, "BOOLEAN": bool, "DOUBLE": float, "BIG_INT": int}


# -- the compiler


class _Compiler:
    """``wrap``: for collections. ``path``: the place in the record, for messages."""

    def __init__(self, wrap: bool) -> None:
        self._wrap = wrap

    def compiled(self, info: TypeInformation, path: str) -> Converter:
        if isinstance(info, ExternalTypeInfo):
            return self.compiled(info.type_info, path)
        if isinstance(info, TupleTypeInfo):
            return self._tuple(info, path)
        if isinstance(info, RowTypeInfo):
            return self._row(info, path)
        if is_bytes(info):
            return _or_none(_placed(scalars.as_bytes, "bytes", path))
        if isinstance(info, ElementTypeInfo):
            return self._list(info, path)
        if isinstance(info, MapTypeInfo):
            return self._map(info, path)
        if isinstance(info, ObjectTypeInfo):
            return _or_none(_instance_of(info.kind or object, path))
        if isinstance(info, DecimalTypeInfo):
            return _or_none(_placed(scalars.decimal_of(info.precision, info.scale, exact=info.exact), str(info), path))
        convert = scalars.converter(info.describe(), wrap=self._wrap)
        return _same if convert is None else _or_none(_placed(convert, info.describe(), path))

    def _tuple(self, info: TupleTypeInfo, path: str) -> Converter:
        types = info.get_field_types()
        parts = [self.compiled(part, f"{path}[{n}]") for n, part in enumerate(types)]
        lenient, count = self._wrap, len(types)

        def opened(value: Any) -> Any:
            kinds = tuple | list | Row if lenient else tuple
            if not isinstance(value, kinds) or len(value) < count:
                raise misfit(path, f"a tuple of {count} fields", value)
            return tuple(value)[:count]

        return _function(
            types,
            parts,
            head="if value.__class__ is tuple and len(value) == count:",
            fields="value",
            otherwise="values = opened(value)",
            result="({fields})",
            names={"opened": opened, "count": count},
        )

    def _row(self, info: RowTypeInfo, path: str) -> Converter:
        types, names = info.get_field_types(), info.get_field_names()
        parts = [
            self.compiled(part, f"{path}.{name}" if path else name) for name, part in zip(names, types, strict=True)
        ]

        def named(values: list[Any], kind: RowKind) -> Row:
            row = Row.of_kind(kind, *values)
            row._fields = names
            return row

        lenient = self._wrap

        def opened(value: Any) -> tuple[list[Any], RowKind]:
            held = (
                getattr(value, "__dict__", ()) if lenient and not isinstance(value, Row | dict | tuple | list) else ()
            )
            if any(name in held for name in names):
                value = held  # an object whose attributes have the names of the fields, as in PyFlink
            return fields_of(value, names, path)

        return _function(
            types,
            parts,
            head="if value.__class__ is Row and value._fields == names and len(value._values) == count:\n"
            "        kind = value._kind",
            fields="value._values",
            otherwise="values, kind = opened(value)",
            result="named([{fields}], kind)",
            names={"opened": opened, "named": named, "names": names, "Row": Row, "count": len(types)},
        )

    def _list(self, info: ElementTypeInfo, path: str) -> Converter:
        element = self.compiled(info.elem_type, f"{path}[]")
        kinds: Any = list | tuple if self._wrap else list

        def convert(value: Any) -> Any:
            if value is None:
                return None
            if not isinstance(value, kinds):
                raise misfit(path, "a list", value)
            return [element(item) for item in value]

        return convert

    def _map(self, info: MapTypeInfo, path: str) -> Converter:
        key, item = self.compiled(info.key_type, f"{path}{{key}}"), self.compiled(info.value_type, f"{path}{{value}}")

        def convert(value: Any) -> Any:
            if value is None:
                return None
            if not isinstance(value, dict):
                raise misfit(path, "a dict", value)
            return {key(k): item(v) for k, v in value.items()}

        return convert


def _instance_of(kind: type, path: str) -> Converter:
    def convert(value: Any) -> Any:
        if type(value) is not kind:  # a subclass would lose its own fields
            raise misfit(path, f"an object of {kind.__name__}", value)
        return value

    return convert


_SOURCE = """
def convert(value):
    {head}
        {unpacked} = {fields}
{fast}
    elif value is None:
        return None
    else:
        {otherwise}
        {unpacked} = values
    return {result}
"""


def _function(
    types: list[TypeInformation],
    parts: list[Converter],
    *,
    head: str,
    fields: str,
    otherwise: str,
    result: str,
    names: dict[str, Any],
) -> Converter:
    """Return the source for a record with fields. A value whose fields all have their classes stays unchanged."""
    variables = [f"v{n}" for n in range(len(types))]
    conditions = [
        None if isinstance(info, DecimalTypeInfo) else scalars.condition(info.describe(), name)
        for info, name in zip(types, variables, strict=True)
    ]
    fast = ""
    if all(condition is not None for condition in conditions):
        fast = f"        if {' and '.join(conditions) or 'True'}:\n            return value"  # type: ignore[arg-type]
    converted = "".join(f"c{n}({name}), " for n, name in enumerate(variables))
    source = _SOURCE.format(
        head=head,
        unpacked=f"[{', '.join(variables)}]",
        fields=fields,
        fast=fast,
        otherwise=otherwise,
        result=result.format(fields=converted),
    )
    scope: dict[str, Any] = {**scalars.NAMES, **names, **{f"c{n}": part for n, part in enumerate(parts)}}
    exec(compile(source, CONVERSION_FILE, "exec"), scope)
    made: Converter = scope["convert"]
    return made


def fields_of(value: Any, names: list[str], path: str) -> tuple[list[Any], RowKind]:
    """Return the values in the order of the type, from any form of a row."""
    values: list[Any] | None = None
    kind = RowKind.INSERT
    if isinstance(value, Row):
        kind = value.get_row_kind()
        by_name = value._fields is not None and sorted(value._fields) == sorted(names)
        values = value.get_fields_by_names(names) if by_name else value._values
    elif isinstance(value, dict):
        values = [value.get(name) for name in names]
    elif isinstance(value, tuple | list):
        values = list(value)
    if values is None or len(values) != len(names):
        wanted = f"a Row, tuple, list or dict with one value for each of {names}"
        raise misfit(path, wanted, value)
    return values, kind


def _same(value: Any) -> Any:
    return value


def _or_none(convert: Converter) -> Converter:
    """Return the source for a part. It may be None, which PyFlink allows only in rows."""
    return lambda value: None if value is None else convert(value)


def _placed(convert: Converter, expected: str, path: str) -> Converter:
    def placed(value: Any) -> Any:
        try:
            return convert(value)
        except Exception as error:
            raise misfit(path, expected, value, str(error)) from None

    return placed


def misfit(path: str, expected: str, value: Any, reason: str = "") -> ArgumentTypeError:
    """Return the error for a value, or a part of a value, that its declared type refuses."""
    place = f"field {path.removeprefix('.')}" if path else "the record"
    return ArgumentTypeError(
        f"A record is not of its declared type: {place} is declared as {expected}",
        found=shown(value) + (f": {reason}" if reason else ""),
        cure="return a value of that type, or declare the type of the value",
    )
