"""Rows as JSON objects by a row type; whole batches at once if all fields are plain."""

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import Callable
from typing import Any, Optional

import msgspec

from tidegate.base.errors import UserCodeError
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
from tidegate.connectors.formats.columns import named_row, rows_of_fields, same

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
        self._plain = _struct(row_type, strict)
        self._lines = None if self._plain is None else msgspec.json.Decoder(self._plain).decode_lines

    def __reduce__(self) -> tuple[Any, ...]:
        return _json_rows, (self._type, self._strict, self._lenient)

    def row(self, message: bytes) -> Row | None:
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
        if self._lines is not None:
            joined = b"\n".join(messages)
            try:
                found = self._lines(joined) if joined.count(b"\n") == len(messages) - 1 else []
            except msgspec.MsgspecError:
                found = []  # parse one by one below, to find the message
            if len(found) == len(messages):
                return rows_of_fields(map(msgspec.structs.astuple, found), self._names)
        return [self.row(message) for message in messages]

    def rows_of_lines(self, data: bytes) -> list[Row] | None:
        """The rows of whole lines, parsed at once; None: the caller must parse the lines one by one."""
        if self._lines is None:
            return None
        try:
            return rows_of_fields(map(msgspec.structs.astuple, self._lines(data)), self._names)
        except (msgspec.MsgspecError, TypeError):  # other objects, or a null among the lines
            return None


def _json_rows(row_type: RowTypeInfo, strict: bool, lenient: bool) -> JsonRows:
    return JsonRows(row_type, strict=strict, lenient=lenient)


def _shown(message: bytes) -> str:
    text = bytes(message).decode("utf-8", "replace")
    return repr(text if len(text) <= 120 else text[:117] + "...")


def _struct(row_type: RowTypeInfo, strict: bool) -> Any:
    """A struct that msgspec fills from an object; None: a field is not plain."""
    fields: list[Any] = []
    for number, info in enumerate(row_type.get_field_types()):
        if info.describe() not in _PLAIN:
            return None
        schema = Optional.__getitem__(info.to_schema())
        fields.append((f"f{number}", schema) if strict else (f"f{number}", schema, None))
    names = {f"f{number}": name for number, name in enumerate(row_type.get_field_names())}
    return msgspec.defstruct("JsonRow", fields, rename=names, gc=False) if fields else None


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
        self._encode = msgspec.json.Encoder(decimal_format="number").encode

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonObjects, (self._type,)

    def messages(self, values: list[Any]) -> list[bytes]:
        convert, plain, encode = self._convert, self._plain, self._encode
        return [encode(plain(convert(value))) for value in values]


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
