"""Records of a declared type as the lines Flink prints: its values are Java's there, and Java writes them its own way."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from tidegate.common.typeinfo import BasicTypeInfo, PickledBytesTypeInfo, RowTypeInfo, TypeInformation
from tidegate.common.types import Row

_SAME_AS_STR = frozenset(["STRING", "CHAR", "BYTE", "SHORT", "INT", "LONG", "BIG_INT"])


def formatter(info: TypeInformation) -> Callable[[Any], str] | None:
    """What makes the text of a record of the type; None where ``str`` does."""
    if isinstance(info, RowTypeInfo):
        return row_text
    if isinstance(info, PickledBytesTypeInfo):
        return None
    return None if isinstance(info, BasicTypeInfo) and info.describe() in _SAME_AS_STR else java_text


def row_text(row: Row) -> str:
    """PyFlink's text of a row, with its fields as Python writes them: ``+I[a,None]``."""
    return f"{row.get_row_kind()}[{','.join(map(str, row))}]"


def java_text(value: Any) -> str:
    """``toString`` of the Java object a typed value is in Flink: ``true``, ``1.0E20``, ``(a,1)``, ``[1, 2]``, ``{k=1}``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _double_text(value)
    if isinstance(value, tuple):
        return f"({','.join(map(java_text, value))})"
    if isinstance(value, Row):
        return f"{value.get_row_kind()}[{', '.join(map(java_text, value))}]"
    if isinstance(value, list):
        return f"[{', '.join(map(java_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{java_text(key)}={java_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, datetime.datetime):
        fraction = f"{value.microsecond:06d}".rstrip("0") or "0"
        return f"{value:%Y-%m-%d %H:%M:%S}.{fraction}"
    return str(value)


def _double_text(value: float) -> str:
    """Plain from a thousandth up to ten million, else one digit before the point and an exponent."""
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return format(value, "f") if "e" in repr(value) else repr(value)
    digits, _, exponent = format(value, f".{_significant(value) - 1}e").partition("e")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


def _significant(value: float) -> int:
    """The number of digits that tell the value from its neighbours."""
    mantissa = repr(abs(value)).partition("e")[0].replace(".", "").strip("0")
    return max(1, len(mantissa))
