"""Spark's types for Tidegate's types, and the conversion of values in both directions."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

from pyspark.sql import types as sql

from tidegate.common.time import Instant
from tidegate.common.typeinfo import (
    ElementTypeInfo,
    ExternalTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    is_bytes,
)
from tidegate.common.types import Row
from tidegate.snapshots.columns import as_text

Convert = Callable[[Any], Any]
Typed = tuple[sql.DataType, Convert]


def unchanged(value: Any) -> Any:
    return value


def _instant(value: Instant) -> datetime.datetime:
    moment = datetime.datetime.fromtimestamp(value.seconds, datetime.UTC)
    return moment.replace(microsecond=value.nanos // 1000)


def _exact(value: Any) -> decimal.Decimal:
    return decimal.Decimal(value)


_SCALARS: dict[str, Typed] = {
    "STRING": (sql.StringType(), unchanged),
    "CHAR": (sql.StringType(), unchanged),
    "BOOLEAN": (sql.BooleanType(), unchanged),
    "BYTE": (sql.ByteType(), unchanged),
    "SHORT": (sql.ShortType(), unchanged),
    "INT": (sql.IntegerType(), unchanged),
    "LONG": (sql.LongType(), unchanged),
    "FLOAT": (sql.FloatType(), float),
    "DOUBLE": (sql.DoubleType(), float),
    "BIG_INT": (sql.DecimalType(38, 0), _exact),
    "BIG_DEC": (sql.DecimalType(38, 18), _exact),
    "INSTANT": (sql.TimestampType(), _instant),
    **dict.fromkeys(("SQL_DATE", "LOCAL_DATE"), (sql.DateType(), unchanged)),
    **dict.fromkeys(("SQL_TIME", "LOCAL_TIME"), (sql.StringType(), datetime.time.isoformat)),
    **dict.fromkeys(("SQL_TIMESTAMP", "LOCAL_DATE_TIME"), (sql.TimestampNTZType(), unchanged)),
}
"""Spark has no type for a time of day, so it becomes a text. A BIG_INT of more than 38 digits does not fit."""


def spark_type(info: TypeInformation) -> Typed:
    """Return Spark's type and the conversion for values that are not None. A pickled value becomes a text."""
    if isinstance(info, ExternalTypeInfo):
        return spark_type(info.type_info)
    if is_bytes(info):
        return sql.BinaryType(), bytes
    if isinstance(info, ElementTypeInfo):
        return list_of(*spark_type(info.elem_type))
    if isinstance(info, MapTypeInfo):
        return _map(spark_type(info.key_type), spark_type(info.value_type))
    if isinstance(info, RowTypeInfo):
        return _struct(info.get_field_names(), info.get_field_types())
    if isinstance(info, TupleTypeInfo):
        fields = info.get_field_types()
        return _struct([f"f{n}" for n in range(len(fields))], fields)
    return _SCALARS.get(info.describe(), (sql.StringType(), as_text))


def list_of(element: sql.DataType, convert: Convert) -> Typed:
    of = _or_none(convert)
    return sql.ArrayType(element), lambda values: list(map(of, values))


def _map(key: Typed, value: Typed) -> Typed:
    keys, values = key[1], _or_none(value[1])
    return sql.MapType(key[0], value[0]), lambda found: {keys(k): values(v) for k, v in found.items()}


def _struct(names: list[str], fields: list[TypeInformation]) -> Typed:
    typed = [spark_type(field) for field in fields]
    converts = [_or_none(convert) for _, convert in typed]
    kind = sql.StructType([sql.StructField(name, of) for name, (of, _) in zip(names, typed, strict=True)])
    return kind, lambda value: tuple([convert(item) for convert, item in zip(converts, value, strict=True)])


def _or_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


# -- the other way -------------------------------------------------------------------------------------------------------


def python_value(info: TypeInformation) -> Convert:
    """Return the conversion from a DataFrame's value to a value of the type. None stays None; an untyped struct becomes a dict."""
    return _or_none(_back(info))


def _back(info: TypeInformation) -> Convert:
    if isinstance(info, ExternalTypeInfo):
        return _back(info.type_info)
    if is_bytes(info):
        return bytes
    if isinstance(info, ElementTypeInfo):
        element = python_value(info.elem_type)
        return lambda values: [element(value) for value in values]
    if isinstance(info, MapTypeInfo):
        key, item = python_value(info.key_type), python_value(info.value_type)
        return lambda found: {key(k): item(v) for k, v in found.items()}
    if isinstance(info, RowTypeInfo):
        names, parts = info.get_field_names(), [python_value(part) for part in info.get_field_types()]
        return lambda value: _row(names, [part(item) for part, item in zip(parts, value, strict=True)])
    if isinstance(info, TupleTypeInfo):
        fields = [python_value(part) for part in info.get_field_types()]
        return lambda value: tuple([part(item) for part, item in zip(fields, value, strict=True)])
    return _BACK.get(info.describe(), unchanged)


def _row(names: list[str], values: list[Any]) -> Row:
    made = Row(*values)
    made.set_field_names(names)
    return made


def _any(value: Any) -> Any:
    return value.asDict(recursive=True) if isinstance(value, sql.Row) else value


def _moment(value: datetime.datetime) -> Instant:
    exact = value.astimezone(datetime.UTC)
    whole = int(exact.replace(microsecond=0).timestamp())
    return Instant(whole, exact.microsecond * 1000)


_BACK: dict[str, Convert] = {
    "BIG_INT": int,
    "INSTANT": _moment,
    **dict.fromkeys(("SQL_TIME", "LOCAL_TIME"), datetime.time.fromisoformat),
    "pickle": _any,
}
