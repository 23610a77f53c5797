"""The state of a snapshot as DataFrames: Spark's tasks read it, each some key groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as sql

from tidegate.base.files import Files
from tidegate.common.typeinfo import TypeInformation
from tidegate.snapshots.columns import Column, state_columns, timer_columns
from tidegate.snapshots.entries import StateEntries, own_rows, scan, timers_in
from tidegate.snapshots.reader import KEYED, SnapshotReader, keyed_parts, own_parts
from tidegate.spark.shipping import ship_tidegate
from tidegate.spark.sql_types import spark_type
from tidegate.state.layout import STATE
from tidegate.state.refs import KeyGroupRange
from tidegate.state.snapshot import KeyedPart, StoredPart

_BYTES_PER_TASK = 64 << 20


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
    """Each subtask's groups in as many pieces as its files are large: a state of few large subtasks is read by many tasks."""
    pieces = []
    for part in parts:
        groups, size = part.groups, sum(file.size for file in part.files)
        number = min(len(groups), size // _BYTES_PER_TASK + 1)
        for n in range(number if part.files else 0):
            first, end = (groups.first + len(groups) * k // number for k in (n, n + 1))
            pieces.append(Piece(root, part, KeyGroupRange(first, end - 1)))
    return pieces
