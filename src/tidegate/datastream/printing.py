"""Records of a declared type as the lines Flink prints: its values are Java's there, and Java writes them its own way."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from tidegate.common.serialization import LineEncoder
from tidegate.common.typeinfo import (
    BasicTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)
from tidegate.common.types import Row
from tidegate.connectors.file_sink import FileSink

_SAME_AS_STR = frozenset(["STRING", "CHAR", "BYTE", "SHORT", "INT", "LONG", "BIG_INT"])


def formatter(info: TypeInformation) -> Callable[[Any], str] | None:
    """What makes the text of a record of the type that is printed; None where ``str`` does."""
    return row_text if isinstance(info, RowTypeInfo) else _java_formatter(info)


def _java_formatter(info: TypeInformation) -> Callable[[Any], str] | None:
    if isinstance(info, PickledBytesTypeInfo):
        return None
    return None if isinstance(info, BasicTypeInfo) and info.describe() in _SAME_AS_STR else partial(java_text, info)


def as_written_by_flink(sink: Any, info: TypeInformation) -> Any:
    """A file sink that writes the text of a record writes Java's."""
    text = _java_formatter(info)
    if text is None or not isinstance(sink, FileSink) or type(sink.settings.encoder) is not LineEncoder:
        return sink
    written = copy.copy(sink)
    written.settings = dataclasses.replace(sink.settings, encoder=JavaLineEncoder(text, sink.settings.encoder.charset))
    return written


class JavaLineEncoder(LineEncoder):
    def __init__(self, text: Callable[[Any], str], charset_name: str) -> None:
        super().__init__(charset_name)
        self._text = text

    def encode(self, value: Any) -> bytes:
        return super().encode(self._text(value))

    def encode_batch(self, values: list[Any]) -> bytes:
        return super().encode_batch([self._text(value) for value in values])


def row_text(row: Row) -> str:
    """PyFlink's text of a row that is printed, with its fields as Python writes them: ``+I[a,None]``."""
    return f"{row.get_row_kind()}[{','.join([str(value) for value in row])}]"


def java_text(info: TypeInformation, value: Any) -> str:
    """``toString`` of the Java object a typed value is in Flink: ``true``, ``1.0E20``, ``(a,1)``, ``[1, 2]``, ``{k=1}``."""
    if value is None:
        return "null"
    if isinstance(info, TupleTypeInfo):
        return f"({','.join(_texts(info, value))})"
    if isinstance(info, RowTypeInfo):
        return f"{value.get_row_kind()}[{', '.join(_texts(info, value))}]"
    if isinstance(info, ListTypeInfo):
        return f"[{', '.join(java_text(info._element_type, item) for item in value)}]"
    if isinstance(info, MapTypeInfo):
        key, item = info._key_type_info, info._value_type_info
        return f"{{{', '.join(f'{java_text(key, k)}={java_text(item, v)}' for k, v in value.items())}}}"
    if isinstance(value, float):
        return _number_text(value, _digits_of_float(value) if info.describe() == "FLOAT" else repr(value))
    return _scalar_text(value)


def _texts(info: TupleTypeInfo | RowTypeInfo, value: Any) -> list[str]:
    return [java_text(part, item) for part, item in zip(info.get_field_types(), value, strict=False)]


def _scalar_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        fraction = f"{value.microsecond:06d}".rstrip("0") or "0"
        return f"{value:%Y-%m-%d %H:%M:%S}.{fraction}"
    return str(value)


def _number_text(value: float, shortest: str) -> str:
    """Plain from a thousandth up to ten million, else one digit before the point and an exponent. ``shortest``: as Python
    writes the digits that tell the value from its neighbours."""
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
    """The fewest digits that give the same four bytes."""
    for precision in range(1, 10):
        text = repr(float(f"{value:.{precision}g}"))
        if struct.pack("f", float(text)) == struct.pack("f", value):
            return text
    return repr(value)
