"""Single values of a declared type: PyFlink's rules for numbers, texts, bytes and times.

PyFlink's coders take for a LONG any integer value (True, 1.0, an IntEnum and numpy's ints are all 1), for a DOUBLE any real
value, for a STRING only texts. Other values fail there, and fail here. None is handled before.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable
from typing import Any

from tidegate.common.time import Instant
from tidegate.common.typeinfo import INTEGER_BITS

Converter = Callable[[Any], Any]


def converter(described: str, *, wrap: bool = False) -> Converter | None:
    """Converts a value to the type, or raises the reason why it does not fit. None: the type takes any object."""
    if wrap and described in INTEGER_BITS:
        return _wrapping(INTEGER_BITS[described])
    return _CONVERTERS.get(described)


def condition(described: str, name: str) -> str | None:
    """Source of a test that is true only for values that need no conversion; None: there is no short test."""
    if described in INTEGER_BITS:
        bits = INTEGER_BITS[described]
        return f"{name}.__class__ is int and {-1 << bits - 1} <= {name} < {1 << bits - 1}"
    if described == "pickle":
        return "True"
    kind = _CLASSES.get(described)
    return None if kind is None else f"{name}.__class__ is {kind}"


_CLASSES = {
    "STRING": "str",
    "BOOLEAN": "bool",
    "DOUBLE": "float",
    "BIG_INT": "int",
    "BIG_DEC": "Decimal",
    "SQL_DATE": "date",
    "LOCAL_DATE": "date",
    "INSTANT": "Instant",
}
NAMES: dict[str, Any] = {"Decimal": decimal.Decimal, "date": datetime.date, "Instant": Instant}
"""What the conditions refer to."""


def integer(bits: int | None) -> Converter:
    def convert(value: Any) -> int:
        number = _whole(value)
        if bits is not None and not -1 << bits - 1 <= number < 1 << bits - 1:
            raise OverflowError(f"it does not fit in {bits} bits")
        return number

    return convert


def _wrapping(bits: int) -> Converter:
    """Wrap integers of Java's widest type around at ``bits``. PyFlink turns larger ones into null, or fails."""
    half, mask = 1 << bits - 1, (1 << bits) - 1
    widest = integer(64)
    return lambda value: ((widest(value) + half) & mask) - half


def _whole(value: Any) -> int:
    if isinstance(value, str | bytes | bytearray):
        raise TypeError("an integer is required")
    return int(value)


def as_boolean(value: Any) -> bool:
    return bool(_whole(value))


def as_double(value: Any) -> float:
    if isinstance(value, str | bytes | bytearray):
        raise TypeError("a number is required")
    return float(value)


def as_float(value: Any) -> float:
    """As four bytes hold it."""
    number = as_double(value)
    try:
        made: float = _FOUR_BYTES.unpack(_FOUR_BYTES.pack(number))[0]
    except OverflowError:
        made = float("inf") if number > 0 else float("-inf")
    return made


_FOUR_BYTES = struct.Struct("f")


def as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is required")
    return str.__str__(value)  # only the text of a subclass


def as_character(value: Any) -> str:
    if len(as_text(value)) != 1:
        raise ValueError("one character is required")
    return as_text(value)


def as_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray):
        raise TypeError("bytes are required")
    return bytes(value)


def as_decimal(value: Any) -> decimal.Decimal:
    try:
        return value if type(value) is decimal.Decimal else decimal.Decimal(str(value))
    except decimal.InvalidOperation:
        raise ValueError("a decimal number is required") from None


def decimal_of(precision: int, scale: int, *, exact: bool = True) -> Converter:
    """Convert to decimals of this precision and scale, and refuse a number that would lose digits.

    With ``exact`` False, as in Flink, digits after the decimal point are rounded half up. A number with too many digits before the
    point becomes None.
    """
    unit = decimal.Decimal(1).scaleb(-scale)
    return _exact_decimal(precision, scale, unit) if exact else _rounded_decimal(precision, unit)


def _rounded_decimal(precision: int, unit: decimal.Decimal) -> Converter:
    rounding = decimal.Context(prec=precision, rounding=decimal.ROUND_HALF_UP, traps=[decimal.InvalidOperation])

    def convert(value: Any) -> decimal.Decimal | None:
        number = as_decimal(value)
        if not number.is_finite():
            raise ValueError("a finite number is required")
        try:
            return number.quantize(unit, context=rounding)
        except decimal.InvalidOperation:
            return None

    return convert


def _exact_decimal(precision: int, scale: int, unit: decimal.Decimal) -> Converter:
    exact = decimal.Context(prec=precision, traps=[decimal.Inexact, decimal.InvalidOperation])

    def convert(value: Any) -> decimal.Decimal:
        number = as_decimal(value)
        if not number.is_finite():
            raise ValueError("a finite number is required")
        try:
            return number.quantize(unit, context=exact)
        except decimal.InvalidOperation:
            raise ValueError(f"it has more than {precision - scale} digits before the decimal point") from None
        except decimal.Inexact:
            raise ValueError(f"it has more than {scale} digits after the decimal point") from None

    return convert


def as_instant(value: Any) -> Instant:
    if not isinstance(value, Instant):
        raise TypeError("an Instant is required")
    return value


def as_date(value: Any) -> datetime.date:
    if not isinstance(value, datetime.date):
        raise TypeError("a datetime.date is required")
    return datetime.date.fromordinal(value.toordinal())


def as_time(value: Any) -> datetime.time:
    """To the microsecond; a zone is dropped."""
    if not isinstance(value, datetime.time | datetime.datetime):
        raise TypeError("a datetime.time is required")
    return datetime.time(value.hour, value.minute, value.second, value.microsecond)


def as_timestamp(value: Any) -> datetime.datetime:
    """Return the local time: a zone is dropped, not converted."""
    if not isinstance(value, datetime.datetime):
        raise TypeError("a datetime.datetime is required")
    return datetime.datetime.combine(as_date(value), as_time(value))


def _to_millis(convert: Converter) -> Converter:
    def truncated(value: Any) -> Any:
        made = convert(value)
        return made.replace(microsecond=made.microsecond // 1000 * 1000)

    return truncated


_CONVERTERS: dict[str, Converter] = {
    **{name: integer(bits) for name, bits in INTEGER_BITS.items()},
    "BIG_INT": integer(None),
    "BOOLEAN": as_boolean,
    "FLOAT": as_float,
    "DOUBLE": as_double,
    "STRING": as_text,
    "CHAR": as_character,
    "BIG_DEC": as_decimal,
    "INSTANT": as_instant,
    "SQL_DATE": as_date,
    "SQL_TIME": _to_millis(as_time),
    "SQL_TIMESTAMP": _to_millis(as_timestamp),
    "LOCAL_DATE": as_date,
    "LOCAL_TIME": as_time,
    "LOCAL_DATE_TIME": as_timestamp,
}


def double_text(value: float) -> str:
    return _number_text(value, repr(value))


def float_text(value: float) -> str:
    """Return Java's text of a number of four bytes."""
    return _number_text(value, _digits_of_float(value))


def _number_text(value: float, shortest: str) -> str:
    """Return Java's text: plain from a thousandth up to ten million, else one digit before the point and an exponent.
    ``shortest``: Python's shortest digits that identify the value."""
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return format(value, "f") if "e" in shortest else shortest
    digits, _, exponent = format(value, f".{_significant(shortest) - 1}e").partition("e")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


def _significant(shortest: str) -> int:
    mantissa = shortest.lstrip("-").partition("e")[0].replace(".", "").strip("0")
    return max(1, len(mantissa))


def _digits_of_float(value: float) -> str:
    """Return the fewest digits that give the same four bytes."""
    for precision in range(1, 10):
        text = repr(float(f"{value:.{precision}g}"))
        if struct.pack("f", float(text)) == struct.pack("f", value):
            return text
    return repr(value)
