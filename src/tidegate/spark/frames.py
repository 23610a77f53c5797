"""DataFrames of state and of records, and the conversion between Spark's types and Tidegate's types.

Spark's tasks read and write the files, and nothing passes through the driver. Values are converted in both directions.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as sql

from tidegate.base.errors import SnapshotError
from tidegate.base.files import Files
from tidegate.common.time import Instant
from tidegate.common.type_texts import parse_type
from tidegate.common.typeinfo import (
    ElementTypeInfo,
    ExternalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    is_bytes,
)
from tidegate.common.types import Row
from tidegate.connectors.frames.for_each_checkpoint import kept_records
from tidegate.snapshots.entries import StateEntries, StateRow, StateWriter, own_rows, scan, timers_in
from tidegate.snapshots.reader import (
    KEYED,
    SnapshotReader,
    StateColumn,
    as_text,
    keyed_parts,
    own_parts,
    state_columns,
    timer_columns,
)
from tidegate.spark.session import spark_context
from tidegate.spark.shipping import ship_tidegate
from tidegate.state.layout import STATE
from tidegate.state.refs import KeyGroupRange, StateFile
from tidegate.state.snapshot import KeyedPart, StoredPart

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


BYTES_PER_TASK = 64 << 20


def _prepared(context: SparkContext) -> SparkContext:
    """Return the context, with Tidegate on its executors."""
    if not str(context.master).startswith("local"):
        ship_tidegate(context)
    return context


# -- state as DataFrames ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """What one task reads: some key groups of a keyed part, or one part of an operator state."""

    root: str
    part: KeyedPart | StoredPart
    groups: KeyGroupRange | None = None


class StateFrame:
    """One state. See ``SavepointReader.dataframe``."""

    def __init__(
        self,
        reader: SnapshotReader,
        operator: str,
        state: str,
        *,
        key_type: TypeInformation | None = None,
        value_type: TypeInformation | None = None,
        map_key_type: TypeInformation | None = None,
        expired: bool = False,
    ) -> None:
        self._reader, self._stored = reader, reader.stored(operator)
        self._info = info = reader.state(operator, state)
        self._entries = reader.entries(operator, state, expired=expired) if info.scope == KEYED else None
        named = {"key_type": key_type, "value_type": value_type, "map_key_type": map_key_type}
        self._columns = state_columns(reader.operator(operator), info, **named)

    def read(self, spark: SparkSession) -> DataFrame:
        root = self._reader.files.root
        if self._entries is None:
            pieces = [Piece(root, part) for part in own_parts(self._stored, self._info.name)]
            return _frame(spark, pieces, _own_rows, self._columns)
        return _frame(spark, _pieces(root, keyed_parts(self._stored)), _KeyedRows(self._entries), self._columns)


class TimerFrame:
    """The timers of an operator."""

    def __init__(self, reader: SnapshotReader, operator: str, *, key_type: TypeInformation | None = None) -> None:
        info = reader.operator(operator)
        self._pieces = _pieces(reader.files.root, keyed_parts(reader.stored(operator)))
        self._columns = timer_columns(info, key_type=key_type)

    def read(self, spark: SparkSession) -> DataFrame:
        return _frame(spark, self._pieces, _timer_rows, self._columns)


class _KeyedRows:
    def __init__(self, entries: StateEntries) -> None:
        self._entries = entries

    def __call__(self, piece: Piece) -> Iterator[Any]:
        assert isinstance(piece.part, KeyedPart)
        for table, entries in scan(Files(piece.root), piece.part, piece.groups):
            if table != STATE:
                return
            yield from self._entries.rows(entries)


def _timer_rows(piece: Piece) -> Iterator[Any]:
    assert isinstance(piece.part, KeyedPart)
    for table, entries in scan(Files(piece.root), piece.part, piece.groups):
        if table != STATE:
            yield from timers_in((path for path, data in entries.items() if data is not None), piece.part.windows)


def _own_rows(piece: Piece) -> Iterator[Any]:
    assert isinstance(piece.part, StoredPart)
    return own_rows(Files(piece.root), piece.part)


def _frame(
    spark: SparkSession, pieces: list[Piece], rows: Callable[[Piece], Iterator[Any]], columns: list[StateColumn]
) -> DataFrame:
    context = _prepared(spark.sparkContext)
    typed = [spark_type(column.type) for column in columns]
    fields = [(column.field, convert) for column, (_, convert) in zip(columns, typed, strict=True)]

    def read(some: Iterable[Piece]) -> Iterator[tuple[Any, ...]]:
        for piece in some:
            for row in rows(piece):
                yield tuple([None if row[field] is None else convert(row[field]) for field, convert in fields])

    schema = sql.StructType([sql.StructField(c.name, kind) for c, (kind, _) in zip(columns, typed, strict=True)])
    found = context.parallelize(pieces, max(1, len(pieces))).mapPartitions(read)
    return spark.createDataFrame(found, schema, verifySchema=False)


def _pieces(root: str, parts: list[KeyedPart]) -> list[Piece]:
    """Divide the groups of each subtask by the size of its files: many tasks read the state of a few large subtasks."""
    pieces = []
    for part in parts:
        groups, size = part.groups, sum(file.size for file in part.files)
        number = min(len(groups), size // BYTES_PER_TASK + 1)
        for n in range(number if part.files else 0):
            first, end = (groups.first + len(groups) * k // number for k in (n, n + 1))
            pieces.append(Piece(root, part, KeyGroupRange(first, end - 1)))
    return pieces


# -- state from DataFrames -------------------------------------------------------------------------------------------------


class FrameRows:
    """A DataFrame as rows of a keyed state. See ``SavepointWriter.with_keyed_state``."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    def write(self, writer: StateWriter) -> list[StateFile]:
        _prepared(self._frame.sparkSession.sparkContext)
        row = self._converter(writer)

        def write(rows: Iterable[Any]) -> Iterator[StateFile]:
            return writer.write(map(row, rows))

        return self._frame.rdd.mapPartitions(write).collect()

    def _converter(self, writer: StateWriter) -> Callable[[Any], StateRow]:
        schema, names = writer.schema, self._frame.columns
        wanted = ["key", "map_key", "value"] if schema.kind == "map" else ["key", "value"]
        if not set(wanted) <= set(names):
            raise SnapshotError(
                "The DataFrame for a keyed state lacks columns",
                where=f"state {schema.name!r}",
                found=f"columns {', '.join(names)}",
                cure=f"name its columns {', '.join(wanted)}",
            )
        value_type = parse_type(schema.type)
        value = python_value(ListTypeInfo(value_type) if schema.kind == "list" else value_type)
        key, map_key = (python_value(_or_any(of)) for of in (writer.key_type, writer.map_key_type))
        in_windows, expires = "namespace" in names, "expires_ms" in names

        def converted(row: Any) -> StateRow:
            return StateRow(
                key(row["key"]),
                value(row["value"]),
                row["namespace"] if in_windows else None,
                map_key(row["map_key"]) if schema.kind == "map" else None,
                row["expires_ms"] if expires else None,
            )

        return converted


def _or_any(info: TypeInformation | None) -> TypeInformation:
    return parse_type("pickle") if info is None else info


# -- records of for_each_checkpoint (found by the entry points tidegate.frames) ----------------------------------------------


def frame_of(files: list[str], type_info: TypeInformation) -> DataFrame:
    """Return stored records as a DataFrame. Rows and tuples have a column for each field, other records one column ``value``."""
    context = _prepared(spark_context({}))
    session = SparkSession.builder.getOrCreate()
    kind, convert = spark_type(type_info)
    whole = isinstance(kind, sql.StructType)
    schema: Any = kind if whole else sql.StructType([sql.StructField("value", kind)])

    def read(file: str) -> Any:
        for record in kept_records(file):
            converted = None if record is None else convert(record)
            yield converted if whole else (converted,)

    rows: Any = context.parallelize(files, len(files)).flatMap(read)
    return session.createDataFrame(rows, schema, verifySchema=False)


def schema_of(text: str) -> sql.DataType:
    """Parse the schema that a DataSource gives as text: ``id INT, name STRING``."""
    return sql.StructType.fromDDL(text)
