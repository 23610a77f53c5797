"""DataFrames of state and of records: Spark's tasks read and write the files, and nothing passes through the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as sql

from tidegate.base.errors import SnapshotError
from tidegate.base.files import Files
from tidegate.common.type_texts import parse_type
from tidegate.common.typeinfo import ListTypeInfo, TypeInformation
from tidegate.connectors.frames.for_each_checkpoint import kept_records
from tidegate.snapshots.columns import StateColumn, state_columns, timer_columns
from tidegate.snapshots.entries import StateEntries, StateRow, StateWriter, own_rows, scan, timers_in
from tidegate.snapshots.reader import KEYED, SnapshotReader, keyed_parts, own_parts
from tidegate.spark.session import spark_context
from tidegate.spark.shipping import ship_tidegate
from tidegate.spark.sql_types import python_value, spark_type
from tidegate.state.layout import STATE
from tidegate.state.refs import KeyGroupRange, StateFile
from tidegate.state.snapshot import KeyedPart, StoredPart

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
