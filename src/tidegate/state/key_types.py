"""Declared key types: what makes a key of the declared type out of what a key selector returns.

The table is PyFlink's: its coders take for a LONG whatever has an integer value (True, 1.0, an IntEnum and numpy's ints are all the
key 1), for a DOUBLE whatever has a real one, for a STRING texts only; what they cannot encode fails, and so it does here.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable
from typing import Any

from tidegate.common import row_conversion
from tidegate.common.arguments import shown
from tidegate.common.errors import ArgumentTypeError
from tidegate.common.time import Instant
from tidegate.common.typeinfo import (
    BasicTypeInfo,
    DateTypeInfo,
    MapTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    _ElementTypeInfo,
)
from tidegate.common.types import Row
from tidegate.state.keys import encode_key, identify

Converter = Callable[[Any], Any]


class KeyIdentity:
    """How the keys of an edge, or of a map state, become keys of the engine. Made once for each, used for every record.

    ``safe``: keys of exactly these classes are in the engine's form already; the others go through ``identify``. A loop
    asks ``key.__class__ in safe`` first, so the common classes pay no call.
    """

    __slots__ = ("describe", "identify", "safe")

    def __init__(self, describe: str, safe: frozenset[type], identify: Converter) -> None:
        self.describe, self.safe, self.identify = describe, safe, identify

    def __call__(self, key: Any) -> Any:
        return key if type(key) in self.safe else self.identify(key)


UNDECLARED = KeyIdentity("pickle", frozenset({int, str}), identify)


def key_identity(declared: Any) -> KeyIdentity:
    """The identity of keys of a declared type; without one, or where it says no more than "any object", ``UNDECLARED``."""
    convert = _converter(declared)
    if declared is None or convert is None:
        return UNDECLARED
    describe = declared.describe()

    def identified(key: Any) -> Any:
        try:
            return identify(None if key is None else convert(key))
        except ArgumentTypeError:
            raise
        except Exception as error:
            raise ArgumentTypeError(
                f"A key must be of its declared type, {describe}.",
                found=f"{shown(key)}: {error}",
                cure="return such keys from the key selector, or declare what it returns as key_type",
            ) from error

    return KeyIdentity(describe, _SAFE.get(describe, frozenset()), identified)


_SAFE: dict[str, frozenset[type]] = {
    **dict.fromkeys(("BYTE", "SHORT", "INT", "LONG", "BIG_INT"), frozenset({int})),
    **dict.fromkeys(("STRING", "CHAR"), frozenset({str})),
}


def _converter(info: Any) -> Converter | None:
    """What turns a value into one of the type, exactly; None where any object may come. It is never called with None."""
    if isinstance(info, BasicTypeInfo):
        return _BASIC[info.describe()]
    if isinstance(info, DateTypeInfo | TimeTypeInfo | TimestampTypeInfo):
        return _TIMES[info.describe()]
    if isinstance(info, RowTypeInfo):
        return _row(info)
    if isinstance(info, TupleTypeInfo):
        parts = [_part(field) for field in info.get_field_types()]
        return lambda value: tuple(part(item) for part, item in zip(parts, value, strict=True))
    if isinstance(info, PrimitiveArrayTypeInfo) and info.to_schema() is bytes:
        return _bytes
    if isinstance(info, _ElementTypeInfo):
        element = _part(info._element_type)
        return lambda value: [element(item) for item in value]
    return _map(info) if isinstance(info, MapTypeInfo) else None


def _part(info: TypeInformation) -> Converter:
    """The converter of a part, which may be None."""
    convert = _converter(info)
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _row(info: RowTypeInfo) -> Converter:
    to_row = row_conversion.converter(info)
    assert to_row is not None
    parts = [_part(field) for field in info.get_field_types()]

    def convert(value: Any) -> Row:
        row: Row = to_row(value)
        made = Row.of_kind(row.get_row_kind(), *(part(item) for part, item in zip(parts, row, strict=True)))
        made.set_field_names(info.get_field_names())
        return made

    return convert


def _map(info: MapTypeInfo) -> Converter:
    key_part, value_part = _part(info._key_type_info), _part(info._value_type_info)

    def convert(value: dict[Any, Any]) -> dict[Any, Any]:
        pairs = [(key_part(key), value_part(item)) for key, item in value.items()]
        return dict(sorted(pairs, key=lambda pair: encode_key(identify(pair[0]))))  # the order of a dict does not count

    return convert


def _integer(bits: int | None) -> Converter:
    def convert(value: Any) -> int:
        if isinstance(value, str | bytes | bytearray):
            raise TypeError("an integer is required")
        number = int(value)
        if bits is not None and not -1 << bits - 1 <= number < 1 << bits - 1:
            raise OverflowError(f"it does not fit in {bits} bits")
        return number

    return convert


def _boolean(value: Any) -> bool:
    return bool(_integer(None)(value))


def _double(value: Any) -> float:
    if isinstance(value, str | bytes | bytearray):
        raise TypeError("a number is required")
    number = float(value)
    return number if number == number else float("nan")  # of all the bit patterns of nan one


def _float(value: Any) -> float:
    """As four bytes hold it."""
    try:
        number: float = _FOUR_BYTES.unpack(_FOUR_BYTES.pack(_double(value)))[0]
    except OverflowError:
        number = float("inf") if value > 0 else float("-inf")
    return number


_FOUR_BYTES = struct.Struct("f")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is required")
    return str.__str__(value)  # of a subclass the text alone


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray):
        raise TypeError("bytes are required")
    return bytes(value)


def _decimal(value: Any) -> decimal.Decimal:
    """``1.0`` and ``1.00`` are two keys, as for Java's BigDecimal; a zero has no sign there."""
    number = decimal.Decimal(str(value))
    if not number.is_finite():
        raise ValueError("a finite number is required")
    return number if number else number.copy_abs()


def _instant(value: Any) -> Instant:
    if not isinstance(value, Instant):
        raise TypeError("an Instant is required")
    return value


def _date(value: Any) -> datetime.date:
    return datetime.date.fromordinal(value.toordinal())


def _time(value: Any) -> datetime.time:
    return datetime.time(value.hour, value.minute, value.second, value.microsecond)


def _timestamp(value: Any) -> datetime.datetime:
    """What the clock on the wall shows: a zone is dropped, not converted."""
    return datetime.datetime.combine(_date(value), _time(value))


_BASIC: dict[str, Converter] = {
    "BYTE": _integer(8),
    "SHORT": _integer(16),
    "INT": _integer(32),
    "LONG": _integer(64),
    "BIG_INT": _integer(None),
    "BOOLEAN": _boolean,
    "FLOAT": _float,
    "DOUBLE": _double,
    "STRING": _text,
    "CHAR": _text,
    "BIG_DEC": _decimal,
    "INSTANT": _instant,
}
_TIMES: dict[str, Converter] = {"SQL_DATE": _date, "SQL_TIME": _time, "SQL_TIMESTAMP": _timestamp}
