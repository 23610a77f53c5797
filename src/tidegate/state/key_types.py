"""Declared key types: conversions of a key selector's results to keys of the declared type.

The rules are those of PyFlink's coders. A LONG takes any integer value (True, 1.0, an IntEnum and numpy's ints are all the key
1), a DOUBLE any real value, a STRING only texts. Other values fail there, and fail here.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Collection
from typing import Any

from tidegate.base.arguments import shown
from tidegate.base.errors import ArgumentTypeError
from tidegate.common import scalar_conversion as scalars
from tidegate.common.conversion import fields_of
from tidegate.common.typeinfo import (
    INTEGER_BITS,
    ElementTypeInfo,
    ExternalTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    is_bytes,
)
from tidegate.common.types import Row
from tidegate.state.keys import encode_key, identify

Converter = Callable[[Any], Any]


class KeyIdentity:
    """Converts the keys of an edge, or of a map state, to the engine's form. Made once for each, used for every record.

    ``safe``: keys of exactly these classes are in the engine's form already; other keys go through ``identify``. A loop checks
    ``key.__class__ in safe`` first, so the common classes cost no call.
    """

    __slots__ = ("describe", "identify", "safe")

    def __init__(self, describe: str, safe: frozenset[type], identify: Converter) -> None:
        self.describe, self.safe, self.identify = describe, safe, identify

    def __call__(self, key: Any) -> Any:
        return key if type(key) in self.safe else self.identify(key)

    def check(self, key: Any) -> None:
        """Check a new key of a safe class: an int may have more bits than its declared type, which PyFlink refuses too."""
        if type(key) in self.safe:
            self.identify(key)

    def check_all(self, keys: Collection[Any]) -> None:
        """Check many keys. Only integers have a width."""
        bits = INTEGER_BITS.get(self.describe)
        numbers = [key for key in keys if type(key) is int] if bits else []
        if bits and numbers and not (-1 << bits - 1 <= min(numbers) and max(numbers) < 1 << bits - 1):
            for number in numbers:
                self.check(number)


UNDECLARED = KeyIdentity("pickle", frozenset({int, str}), identify)


def key_identity(declared: Any) -> KeyIdentity:
    """Return the identity of keys of a declared type; ``UNDECLARED`` without a type, or if the type takes any object."""
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
                f"The key is not of its declared type, {describe}.",
                found=f"{shown(key)}: {error}",
                cure="return keys of that type from the key selector, or declare the type of its keys as key_type",
            ) from error

    return KeyIdentity(describe, _SAFE.get(describe, frozenset()), identified)


_SAFE: dict[str, frozenset[type]] = {
    **dict.fromkeys(("BYTE", "SHORT", "INT", "LONG", "BIG_INT"), frozenset({int})),
    **dict.fromkeys(("STRING", "CHAR"), frozenset({str})),
}


def _converter(info: Any) -> Converter | None:
    """Return the converter of values to the type; None if the type takes any object. It is never called with None."""
    if isinstance(info, ExternalTypeInfo):
        return _converter(info.type_info)
    if isinstance(info, RowTypeInfo):
        return _row(info)
    if isinstance(info, TupleTypeInfo):
        parts = [_part(field) for field in info.get_field_types()]
        return lambda value: tuple(part(item) for part, item in zip(parts, value, strict=True))
    if isinstance(info, TypeInformation) and is_bytes(info):
        return scalars.as_bytes
    if isinstance(info, ElementTypeInfo):
        element = _part(info.elem_type)
        return lambda value: [element(item) for item in value]
    if isinstance(info, MapTypeInfo):
        return _map(info)
    return _SCALARS.get(info.describe()) if isinstance(info, TypeInformation) else None


def _part(info: TypeInformation) -> Converter:
    """Return the converter of a part, which may be None."""
    convert = _converter(info)
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _row(info: RowTypeInfo) -> Converter:
    parts, names = [_part(field) for field in info.get_field_types()], info.get_field_names()

    def convert(value: Any) -> Row:
        values, kind = fields_of(value, names, "")
        made = Row.of_kind(kind, *(part(item) for part, item in zip(parts, values, strict=True)))
        made.set_field_names(names)
        return made

    return convert


def _map(info: MapTypeInfo) -> Converter:
    key_part, value_part = _part(info.key_type), _part(info.value_type)

    def convert(value: dict[Any, Any]) -> dict[Any, Any]:
        pairs = [(key_part(key), value_part(item)) for key, item in value.items()]
        return dict(sorted(pairs, key=lambda pair: encode_key(identify(pair[0]))))  # the order of a dict does not count

    return convert


def _double(value: Any) -> float:
    return _one_nan(scalars.as_double(value))


def _float(value: Any) -> float:
    return _one_nan(scalars.as_float(value))


def _one_nan(number: float) -> float:
    return number if number == number else float("nan")  # one of the many bit patterns of nan


def _decimal(value: Any) -> decimal.Decimal:
    """``1.0`` and ``1.00`` are two keys, as for Java's BigDecimal; a zero has no sign there."""
    number = scalars.as_decimal(value)
    if not number.is_finite():
        raise ValueError("a finite number is required")
    return number or number.copy_abs()


_SCALARS: dict[str, Converter] = {
    **{name: scalars.integer(bits) for name, bits in INTEGER_BITS.items()},
    "BIG_INT": scalars.integer(None),
    "BOOLEAN": scalars.as_boolean,
    "FLOAT": _float,
    "DOUBLE": _double,
    "STRING": scalars.as_text,
    "CHAR": scalars.as_text,
    "BIG_DEC": _decimal,
    "INSTANT": scalars.as_instant,
    **dict.fromkeys(("SQL_DATE", "LOCAL_DATE"), scalars.as_date),
    **dict.fromkeys(("SQL_TIME", "LOCAL_TIME"), scalars.as_time),
    **dict.fromkeys(("SQL_TIMESTAMP", "LOCAL_DATE_TIME"), scalars.as_timestamp),
}
"""Times keep their microseconds in keys: the bytes of a key never change."""
