"""Records of a declared type in the form that Flink prints: Java's texts of Java's values."""

from __future__ import annotations

import copy
import dataclasses
import datetime
from collections.abc import Callable
from functools import partial
from typing import Any

from tidegate.common.conversion import Conversion, changes
from tidegate.common.object_types import ObjectTypeInfo
from tidegate.common.scalar_conversion import double_text, float_text
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
from tidegate.connectors.files.sink import FileSink

_SAME_AS_STR = frozenset(["STRING", "CHAR", "BYTE", "SHORT", "INT", "LONG", "BIG_INT"])


def formatter(info: TypeInformation) -> Callable[[Any], str] | None:
    """Return the function that makes the printed text of a record; None where ``str`` does."""
    if isinstance(info, RowTypeInfo):
        return row_text
    text = _java_formatter(info)
    # printing is where records leave Python in Flink, so types that only check are applied here
    return text if text is None or changes(info) else partial(_text_of_declared, Conversion(info), text)


def _text_of_declared(convert: Conversion, text: Callable[[Any], str], value: Any) -> str:
    return text(convert(value))


def _java_formatter(info: TypeInformation) -> Callable[[Any], str] | None:
    if isinstance(info, PickledBytesTypeInfo | ObjectTypeInfo):
        return None
    return None if isinstance(info, BasicTypeInfo) and info.describe() in _SAME_AS_STR else partial(java_text, info)


def as_written_by_flink(sink: Any, info: TypeInformation) -> Any:
    """Return the sink that writes Java's texts, for a file sink of texts."""
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
    """Return PyFlink's printed text of a row, with its fields in Python's form: ``+I[a,None]``."""
    return f"{row.get_row_kind()}[{','.join([str(value) for value in row])}]"


def java_text(info: TypeInformation, value: Any) -> str:
    """Return ``toString`` of the Java object that a typed value is in Flink: ``true``, ``1.0E20``, ``(a,1)``, ``[1, 2]``,
    ``{k=1}``."""
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
        return float_text(value) if info.describe() == "FLOAT" else double_text(value)
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
