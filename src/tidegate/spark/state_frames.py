"""The state of a snapshot as DataFrames: Spark's tasks read it, each some key groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as sql

from tidegate.checkpoint.reader import KEYED, SnapshotReader, keyed_parts, own_parts
from tidegate.common.files import Files
from tidegate.common.type_texts import parse_type
from tidegate.common.typeinfo import TypeInformation
from tidegate.spark.shipping import ship_tidegate
from tidegate.spark.sql_types import Convert, as_it_is, as_text, list_of, spark_type
from tidegate.state.entries import StateEntries, own_rows, scan, timers_in
from tidegate.state.layout import STATE
from tidegate.state.namespaces import COUNT_WINDOWS, OTHER_WINDOWS, SLICES, TIME_WINDOWS
from tidegate.state.refs import KeyGroupRange
from tidegate.state.snapshot import KeyedPart, StoredPart

_BYTES_PER_TASK = 64 << 20


@dataclass(frozen=True)
class Column:
    """``of``: from a row to what the column holds."""

    name: str
    type: sql.DataType
    of: Convert


@dataclass(frozen=True)
class Piece:
    """What one task reads: some key groups of a part, or a state of an operator's own subtask."""

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
        owner, self._info = reader.operator(operator), reader.state(operator, state)
        info = self._info
        keyed = info.scope == KEYED
        self._entries = reader.entries(operator, state, expired=expired) if keyed else None
        windows = owner.windows or (SLICES if info.kind == "slices" else "")
        values = spark_type(value_type or parse_type(info.type))
        if info.kind == "list" and keyed:
            values = list_of(*values)
        columns = [_column("key", 0, key_type or parse_type(owner.key_type)), _namespaces(windows, 2)] if keyed else []
        if info.kind == "map":
            columns.append(_column("map_key", 3, map_key_type or parse_type(info.map_key_type)))
        columns.append(Column("value", values[0], _field(1, values[1])))
        if info.ttl_ms:
            columns.append(Column("expires_ms", sql.LongType(), _field(4, as_it_is)))
        self._columns = columns

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
        self._columns = [
            _column("key", 0, key_type or parse_type(info.key_type or "pickle")),
            _namespaces(info.windows, 3),
            Column("time_ms", sql.LongType(), _field(1, as_it_is)),
            Column("domain", sql.StringType(), _field(2, as_it_is)),
        ]

    def read(self, spark: SparkSession) -> DataFrame:
        return _frame(spark, self._pieces, _timer_rows, self._columns)


# -- in the tasks --------------------------------------------------------------------------------------------------------


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


# -- on the driver -------------------------------------------------------------------------------------------------------


def _frame(
    spark: SparkSession, pieces: list[Piece], rows: Callable[[Piece], Iterator[Any]], columns: list[Column]
) -> DataFrame:
    context = spark.sparkContext
    if not str(context.master).startswith("local"):
        ship_tidegate(context)
    converts = [column.of for column in columns]

    def read(some: Iterable[Piece]) -> Iterator[tuple[Any, ...]]:
        for piece in some:
            for row in rows(piece):
                yield tuple([convert(row) for convert in converts])

    schema = sql.StructType([sql.StructField(column.name, column.type) for column in columns])
    found = context.parallelize(pieces, max(1, len(pieces))).mapPartitions(read)
    return spark.createDataFrame(found, schema, verifySchema=False)


def _pieces(root: str, parts: list[KeyedPart]) -> list[Piece]:
    """Each subtask's groups in as many pieces as its files are large: a state of few large subtasks is read by many tasks."""
    pieces = []
    for part in parts:
        groups, size = part.groups, sum(file.size for file in part.files)
        number = min(len(groups), size // _BYTES_PER_TASK + 1)
        for n in range(number if part.files else 0):
            first, end = (groups.first + len(groups) * k // number for k in (n, n + 1))
            pieces.append(Piece(root, part, KeyGroupRange(first, end - 1)))
    return pieces


def _column(name: str, field: int, info: TypeInformation) -> Column:
    kind, convert = spark_type(info)
    return Column(name, kind, _field(field, convert))


def _field(number: int, convert: Convert) -> Convert:
    return lambda row: None if row[number] is None else convert(row[number])


def _namespaces(windows: str, field: int) -> Column:
    kind = windows.partition(" ")[0]
    if kind in (TIME_WINDOWS, SLICES):
        bounds = [sql.StructField(name, sql.LongType()) for name in ("start", "end")]
        return Column("namespace", sql.StructType(bounds), _field(field, tuple))
    if kind == COUNT_WINDOWS:
        return Column("namespace", sql.LongType(), _field(field, as_it_is))
    if kind == OTHER_WINDOWS:
        return Column("namespace", sql.BinaryType(), _field(field, as_it_is))
    return Column("namespace", sql.StringType(), _field(field, as_text))
