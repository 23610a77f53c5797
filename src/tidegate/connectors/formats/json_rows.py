"""Rows as JSON objects by a row type; whole batches at once if all fields are plain, also in nested rows, arrays and maps."""

from __future__ import annotations

import base64
import datetime
import decimal
import operator
from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Any, NamedTuple, Optional

import msgspec

from tidegate.base.errors import UserCodeError
from tidegate.base.imports import library
from tidegate.common import scalar_conversion as scalars
from tidegate.common.conversion import Conversion
from tidegate.common.time import Instant
from tidegate.common.typeinfo import (
    INTEGER_BITS,
    DecimalTypeInfo,
    ElementTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    is_bytes,
)
from tidegate.common.types import Row
from tidegate.operators.contracts.arrow_batch import DecodedBatch, Layout, has_arrow
from tidegate.operators.contracts.arrow_types import named_row, rows_of_fields, same
from tidegate.operators.contracts.batch import Batch

Converter = Callable[[Any], Any]
_PLAIN = frozenset(["BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "DOUBLE", "STRING"])


class JsonRows:
    """Parse messages to rows. ``strict``: a missing field is an error. ``lenient``: a message that does not fit becomes None."""

    def __init__(self, row_type: RowTypeInfo, *, strict: bool = False, lenient: bool = False) -> None:
        self._type, self._names = row_type, row_type.get_field_names()
        self._strict, self._lenient = strict, lenient
        self._convert = _reader(row_type, strict)
        exact = "BIG_DEC" in row_type.describe()  # decimals keep the digits of the text
        self._decode = msgspec.json.Decoder(float_hook=decimal.Decimal if exact else None).decode
        plain = _plain_row(row_type, strict)
        self._struct = None if plain is None else plain.schema
        self._lines = None if plain is None else msgspec.json.Decoder(plain.schema).decode_lines
        self._inner = {} if plain is None else plain.inner
        self._nested = {} if plain is None else plain.nested
        self._layout = Layout(row_type)

    def __reduce__(self) -> tuple[Any, ...]:
        return _json_rows, (self._type, self._strict, self._lenient)

    def row(self, message: bytes) -> Row | None:
        """Return the row of a message: the row that it has among others (``rows``), whatever the others are."""
        found = None if b"\n" in message else self._parsed(message)
        if found is not None and len(found) == 1:
            return found.rows()[0]
        try:
            value: Row = self._convert(self._decode(message))
            return value
        except Exception as error:
            if self._lenient:
                return None
            raise UserCodeError(
                "A message is not a JSON object of the declared type",
                where=f"JSON of {self._type}",
                found=f"{_shown(message)}: {error}",
                cure="correct the declared type, or skip such messages with ignore_parse_errors()",
            ) from None

    def rows(self, messages: list[bytes]) -> list[Any]:
        """The row of each message. Messages of one line are parsed together, directly to the types of the columns, in C."""
        found = self._together(messages)
        return [self.row(message) for message in messages] if found is None else found.rows()

    def batch(self, messages: list[bytes]) -> Batch | list[Any]:
        """The same as a batch whose reader decides whether it gets rows or columns; a list if a message has no row, or if
        not all messages could be parsed together."""
        found = self._together(messages)
        return [self.row(message) for message in messages] if found is None else self._batch(found)

    def _together(self, messages: list[bytes]) -> _Objects | None:
        joined = b"\n".join(messages)
        found = self._parsed(joined) if joined.count(b"\n") == len(messages) - 1 else None
        return found if found is not None and len(found) == len(messages) else None

    def batch_of_lines(self, data: bytes) -> Batch | list[Row] | None:
        """The records of whole lines, parsed at once; None: the caller must parse the lines one by one."""
        found = self._parsed(data)
        return None if found is None else self._batch(found)

    def _parsed(self, data: bytes) -> _Objects | None:
        if self._lines is None:
            return None
        try:
            if not data.isascii():
                data.decode()  # msgspec does not look at the bytes of fields that it passes over
            found = self._lines(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):  # parse one by one, to find the message
            return None
        whole = {self._struct}.issuperset(map(type, found))
        return _Objects(found, self._names, self._inner, self._nested) if whole else None

    def _batch(self, found: _Objects) -> Batch | list[Row]:
        return DecodedBatch(found, self._layout) if has_arrow() else found.rows()


class _Objects:
    """Parsed objects: structs with a field for each field of the rows. ``inner``: converters of some fields; ``nested``: how the
    fields of these that are rows become a column."""

    def __init__(
        self, structs: list[Any], names: list[str], inner: dict[int, Converter], nested: dict[int, _ToColumn]
    ) -> None:
        self._structs, self._names, self._inner, self._nested = structs, names, inner, nested

    def __len__(self) -> int:
        return len(self._structs)

    def rows(self) -> list[Row]:
        rows = rows_of_fields(map(msgspec.structs.astuple, self._structs), self._names)
        for field, convert in self._inner.items():
            for row in rows:
                row._values[field] = convert(row._values[field])
        return rows

    def columns(self) -> Sequence[Sequence[Any]]:
        return [self._column(number, self._nested.get(number)) for number in range(len(self._names))]

    def field(self, number: int) -> Sequence[Any]:
        return self._column(number, None)

    def _column(self, number: int, to_column: _ToColumn | None) -> Sequence[Any]:
        values = list(map(operator.attrgetter(f"f{number}"), self._structs))  # half the time of all fields of a struct
        if to_column is not None:
            column: Sequence[Any] = to_column(values)
            return column
        return values if number not in self._inner else list(map(self._inner[number], values))

    def part(self, start: int, end: int) -> _Objects:
        return _Objects(self._structs[start:end], self._names, self._inner, self._nested)


def _json_rows(row_type: RowTypeInfo, strict: bool, lenient: bool) -> JsonRows:
    return JsonRows(row_type, strict=strict, lenient=lenient)


def _shown(message: bytes) -> str:
    text = bytes(message).decode("utf-8", "replace")
    return repr(text if len(text) <= 120 else text[:117] + "...")


_ToColumn = Callable[[Sequence[Any]], Any]


class _Plain(NamedTuple):
    """A type that msgspec fills from JSON. ``convert`` makes the value that ``_reader`` would make; ``same``: it is that already.
    ``inner``: of a row, the fields that have to be converted. ``to_column``: of a row of plain fields and such rows, how
    msgspec's objects become Arrow's column; ``nested``: the same of its fields."""

    schema: Any
    convert: Converter = same
    inner: dict[int, Converter] = {}  # noqa: RUF012 - nobody changes it
    to_column: _ToColumn | None = None
    nested: dict[int, _ToColumn] = {}  # noqa: RUF012 - nobody changes it


def _plain(info: TypeInformation, strict: bool) -> _Plain | None:
    """None: msgspec cannot fill a part of it, or only in another way than ``_reader``."""
    if info.describe() in _PLAIN:
        return _Plain(_optional(info.to_schema()))
    if isinstance(info, RowTypeInfo):
        return _plain_row(info, strict)
    if isinstance(info, ElementTypeInfo) and not is_bytes(info):
        element = _plain(info.elem_type, strict)
        if element is not None:
            return _Plain(_optional(GenericAlias(list, _optional(element.schema))), _all_of(element.convert))
    if isinstance(info, MapTypeInfo) and info.key_type.describe() == "STRING":
        item = _plain(info.value_type, strict)
        if item is not None:
            return _Plain(_optional(GenericAlias(dict, (str, _optional(item.schema)))), _values_of(item.convert))
    return None


def _optional(schema: Any) -> Any:
    return Optional.__getitem__(schema)


def _plain_row(row_type: RowTypeInfo, strict: bool) -> _Plain | None:
    names = row_type.get_field_names()
    parts = [_plain(info, strict) for info in row_type.get_field_types()]
    fields: list[Any] = []
    inner: dict[int, Converter] = {}
    for number, part in enumerate(parts):
        if part is None:
            return None
        schema = _optional(part.schema)
        fields.append((f"f{number}", schema) if strict else (f"f{number}", schema, None))
        if part.convert is not same:
            inner[number] = part.convert
    if not fields:
        return None
    renamed = {f"f{number}": name for number, name in enumerate(names)}
    nested = {number: part.to_column for number, part in enumerate(parts) if part is not None and part.to_column}
    schema = msgspec.defstruct("JsonRow", fields, rename=renamed, gc=False)
    to_column = None if inner.keys() - nested.keys() else _column_of(row_type, schema, nested)
    return _Plain(schema, _row_of(names, inner), inner, to_column, nested)


def _column_of(row_type: RowTypeInfo, struct: Any, nested: dict[int, _ToColumn]) -> _ToColumn:
    """Return how structs of a row become Arrow's column, without a row for each."""
    layout = Layout(row_type)
    blank = struct(*[None] * len(layout.names))
    fields = [operator.attrgetter(f"f{number}") for number in range(len(layout.names))]

    def convert(structs: Sequence[Any]) -> Any:
        arrow = library("pyarrow", "A column of rows")
        missing = [found is None for found in structs]
        filled = [blank if found is None else found for found in structs]
        columns = [
            nested[number](list(map(get, filled)))
            if number in nested
            else arrow.array(list(map(get, filled)), field.type)
            for number, (get, field) in enumerate(zip(fields, layout.schema, strict=True))
        ]
        return arrow.StructArray.from_arrays(columns, fields=list(layout.schema), mask=arrow.array(missing))

    return convert


def _row_of(names: list[str], inner: dict[int, Converter]) -> Converter:
    astuple = msgspec.structs.astuple

    def convert(struct: Any) -> Row | None:
        if struct is None:
            return None
        values = list(astuple(struct))
        for field, part in inner.items():
            values[field] = part(values[field])
        return named_row(values, names)

    return convert


def _all_of(convert: Converter) -> Converter:
    return same if convert is same else lambda items: None if items is None else list(map(convert, items))


def _values_of(convert: Converter) -> Converter:
    if convert is same:
        return same
    return lambda items: None if items is None else {key: convert(item) for key, item in items.items()}


# -- from parsed JSON


def _reader(info: TypeInformation, strict: bool) -> Converter:
    """The converter of parsed JSON to values of the type. As in Flink, texts may contain numbers, and null is None everywhere."""
    convert = _value_reader(info, strict)
    return lambda value: None if value is None else convert(value)


def _value_reader(info: TypeInformation, strict: bool) -> Converter:
    if isinstance(info, RowTypeInfo):
        return _row_reader(info, strict)
    if isinstance(info, TupleTypeInfo):
        parts = [_reader(part, strict) for part in info.get_field_types()]
        return lambda value: tuple(part(item) for part, item in zip(parts, _a(list, value), strict=True))
    if is_bytes(info):
        return lambda value: base64.b64decode(_a(str, value))
    if isinstance(info, ElementTypeInfo):
        element = _reader(info.elem_type, strict)
        return lambda value: [element(item) for item in _a(list, value)]
    if isinstance(info, MapTypeInfo):
        key, item = _reader(info.key_type, strict), _reader(info.value_type, strict)
        return lambda value: {key(k): item(v) for k, v in _a(dict, value).items()}
    if isinstance(info, DecimalTypeInfo):
        exact = scalars.decimal_of(info.precision, info.scale)
        return lambda value: exact(str(value).strip())
    return _scalar_reader(info.describe())


def _row_reader(info: RowTypeInfo, strict: bool) -> Converter:
    names = info.get_field_names()
    parts = [(name, _reader(part, strict)) for name, part in zip(names, info.get_field_types(), strict=True)]

    def convert(value: Any) -> Row:
        found = _a(dict, value)
        values = []
        for name, part in parts:
            if strict and name not in found:
                raise ValueError(f"Could not find field with name '{name}'")
            try:
                values.append(part(found.get(name)))
            except Exception as error:
                raise ValueError(f"field '{name}': {error}") from None
        return named_row(values, names)

    return convert


def _a(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{_JSON_NAMES[kind]} is expected, found {value!r:.60}")
    return value


_JSON_NAMES: dict[type, str] = {list: "an array", dict: "an object", str: "a text"}


def _scalar_reader(described: str) -> Converter:
    if described in INTEGER_BITS or described == "BIG_INT":
        convert = scalars.converter(described)
        assert convert is not None
        return lambda value: convert(int(value.strip()) if isinstance(value, str) else value)
    return _SCALARS.get(described, lambda value: value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()  # a number or a tree, as it stood


def _flag(value: Any) -> bool:
    return value.strip().lower() == "true" if isinstance(value, str) else bool(value)


def timestamp(text: str) -> datetime.datetime:
    """Parse RFC 3339 or the form of SQL; a zone is ignored."""
    return datetime.datetime.fromisoformat(text.strip()).replace(tzinfo=None)


def clock_time(text: str) -> datetime.time:
    return datetime.time.fromisoformat(text.strip()).replace(tzinfo=None)


def _instant(value: Any) -> Instant:
    moment = datetime.datetime.fromisoformat(_a(str, value).strip())
    aware = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    return Instant(int(aware.replace(microsecond=0).timestamp()), aware.microsecond * 1000)


_SCALARS: dict[str, Converter] = {
    "STRING": _text,
    "CHAR": _text,
    "BOOLEAN": _flag,
    "DOUBLE": float,
    "FLOAT": lambda value: scalars.as_float(float(value)),
    "BIG_DEC": lambda value: decimal.Decimal(str(value).strip()),
    "INSTANT": _instant,
    **dict.fromkeys(("SQL_DATE", "LOCAL_DATE"), lambda value: datetime.date.fromisoformat(_a(str, value).strip())),
    **dict.fromkeys(("SQL_TIME", "LOCAL_TIME"), lambda value: clock_time(_a(str, value))),
    **dict.fromkeys(("SQL_TIMESTAMP", "LOCAL_DATE_TIME"), lambda value: timestamp(_a(str, value))),
}


# -- to JSON


class JsonObjects:
    """Write rows as messages, with the names of the type in their order."""

    def __init__(self, row_type: RowTypeInfo) -> None:
        self._type = row_type
        self._convert, self._plain = Conversion(row_type).call, _writer(row_type)
        parts = [_writer(info) for info in row_type.get_field_types()]
        self._names = row_type.get_field_names() if all(part is same for part in parts) else None
        self._encode = msgspec.json.Encoder(decimal_format="number").encode

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonObjects, (self._type,)

    def messages(self, values: list[Any]) -> list[bytes]:
        convert, plain, encode = self._convert, self._plain, self._encode
        return [encode(plain(convert(value))) for value in values]

    def messages_of(self, columns: Sequence[Sequence[Any]]) -> list[bytes] | None:
        """The message of each record of columns; None: a field needs a converter."""
        names, encode = self._names, self._encode
        if names is None:
            return None
        return [encode(dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def _writer(info: TypeInformation) -> Converter:
    """The converter of values to objects that the encoder takes as they are."""
    if isinstance(info, RowTypeInfo):
        names, parts = info.get_field_names(), [_writer(part) for part in info.get_field_types()]
        if all(part is same for part in parts):
            return lambda row: None if row is None else dict(zip(names, row._values, strict=True))
        return lambda row: (
            None
            if row is None
            else {name: part(item) for name, part, item in zip(names, parts, row._values, strict=True)}
        )
    if isinstance(info, TupleTypeInfo):
        fields = [_writer(part) for part in info.get_field_types()]
        return lambda value: None if value is None else [f(item) for f, item in zip(fields, value, strict=True)]
    if is_bytes(info):
        return lambda value: None if value is None else base64.b64encode(value).decode()
    if isinstance(info, ElementTypeInfo):
        element = _writer(info.elem_type)
        return lambda value: None if value is None else [element(item) for item in value]
    if isinstance(info, MapTypeInfo):
        item = _writer(info.value_type)
        return lambda value: None if value is None else {str(k): item(v) for k, v in value.items()}
    return _WRITERS.get(info.describe(), same)


def _written(form: Callable[[Any], str]) -> Converter:
    return lambda value: None if value is None else form(value)


def _iso(value: datetime.datetime | datetime.time) -> str:
    """With the zone that Flink writes, and a fraction only if there is one."""
    return value.isoformat() + "Z"


def _instant_text(value: Instant) -> str:
    moment = datetime.datetime.fromtimestamp(value.seconds, datetime.UTC).replace(tzinfo=None)
    return _iso(moment.replace(microsecond=value.nanos // 1000))


_WRITERS: dict[str, Converter] = {
    **dict.fromkeys(("SQL_DATE", "LOCAL_DATE"), _written(datetime.date.isoformat)),
    **dict.fromkeys(("SQL_TIME", "LOCAL_TIME", "SQL_TIMESTAMP", "LOCAL_DATE_TIME"), _written(_iso)),
    "INSTANT": _written(_instant_text),
}
