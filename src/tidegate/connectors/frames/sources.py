"""Spark's data as sources: a DataFrame, and a Python DataSource of PySpark. Only the room ``spark`` knows Spark's classes."""

from __future__ import annotations

import base64
import inspect
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any

import cloudpickle

from tidegate.base.errors import ArgumentTypeError, RestoreError
from tidegate.base.files import Files
from tidegate.base.hashing import new_token
from tidegate.base.pickling import load_stored
from tidegate.common.types import Row
from tidegate.connectors.staged_file import file_at, pickles_in
from tidegate.connectors.values.ranges import BATCH_SIZE
from tidegate.operators.contracts.source import (
    Batch,
    Boundedness,
    Lag,
    Source,
    SourceContext,
    SourcePlan,
    SplitEnumerator,
    SplitInterval,
    SplitReader,
)

FRAMES = "tidegate.frames"
"""Entry points of the room ``spark``: ``records(files, type_info)`` makes a DataFrame of files, ``schema(text)`` a schema."""
_STORED_ROWS = 4096


def spark_side(name: str) -> Callable[..., Any]:
    (point,) = entry_points(group=FRAMES, name=name)
    return point.load()  # type: ignore[no-any-return]


class DataFrameSource(Source):
    """Read the rows of a DataFrame as named ``Row`` records. Each partition of the DataFrame is a split.

    A DataFrame that is computed twice may have another order or other rows (``rand()``, a table that has changed). So Spark
    computes it once, when the job starts for the first time. Its rows stay on checkpoint storage as long as the job lives, and the
    job reads them again after a failure.
    """

    splits_in_turn = True
    gives_time = False

    def __init__(self, frame: Any) -> None:
        if not all(hasattr(frame, name) for name in ("rdd", "columns", "schema")):
            raise ArgumentTypeError(
                "from_dataframe takes a DataFrame of Spark",
                found=type(frame).__name__,
                cure="pass for example spark.createDataFrame(...)",
            )
        self._frame, self.names = frame, list(frame.columns)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the DataFrame, which only the driver can use."""
        return {**self.__dict__, "_frame": None}

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        raise NotImplementedError("a DataFrame source needs the directory of a job: use create_enumerator_in")

    def create_enumerator_in(self, context: SourceContext, parallelism: int, restored: Any | None) -> SplitEnumerator:
        if restored is None:
            restored = {"next": 0, "files": self._compute(f"{context.directory}/{new_token()}")}
        missing = [file for file, _ in restored["files"][restored["next"] :] if not _exists(file)]
        if missing:
            raise RestoreError(
                "The stored rows of a DataFrame are missing, and the job cannot continue without them",
                where=context.directory,
                found=f"no file {missing[0]}",
                cure="give the source another uid to read the DataFrame anew",
            )
        return _FrameEnumerator(restored, parallelism)

    def _compute(self, directory: str) -> list[list[Any]]:
        """Run one Spark job that writes the rows. A task may run twice: only files that Spark returns count."""
        names = self.names

        def write(number: int, rows: Iterable[Any]) -> Iterator[list[Any]]:
            files, count, name = Files(directory), 0, f"rows-{number:06d}-{new_token()}"
            with files.create_stream(name, aside=False) as stream:
                batch: list[Any] = []
                for row in rows:
                    batch.append(row)
                    count += 1
                    if len(batch) == _STORED_ROWS:
                        stream.write(pickle.dumps(records(batch, names), 5))
                        batch = []
                if batch:
                    stream.write(pickle.dumps(records(batch, names), 5))
                stream.close()
            yield [files.location(name), count]

        found: list[list[Any]] = self._frame.rdd.mapPartitionsWithIndex(write).collect()
        return [file for file in found if file[1]]

    def create_reader(self, subtask: int) -> SplitReader:
        return _FrameReader()


def _exists(address: str) -> bool:
    files, name = file_at(address)
    return files.exists(name)


class _FrameEnumerator(SplitEnumerator):
    def __init__(self, position: dict[str, Any], parallelism: int) -> None:
        self._files, self._next, self._parallelism = position["files"], position["next"], parallelism

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        """Plan whole partitions, at least one for each subtask: with fewer, event time would pass the waiting ones."""
        intervals: list[SplitInterval] = []
        while self._next < len(self._files) and (
            len(intervals) < self._parallelism or sum(i.units for i in intervals) < limit
        ):
            file, count = self._files[self._next]
            subtask = self._next % self._parallelism
            intervals.append(SplitInterval(str(self._next), subtask, file, count, units=count, last=True))
            self._next += 1
        finished = self._next == len(self._files)
        return SourcePlan(intervals, backlog=not finished, finished=finished)

    @property
    def lag(self) -> Lag:
        left: Counter[int] = Counter()
        for number in range(self._next, len(self._files)):
            left[number % self._parallelism] += self._files[number][1]
        return Lag(left)

    @property
    def awaited(self) -> frozenset[int]:
        """Subtasks with partitions that are not planned yet."""
        return frozenset(n % self._parallelism for n in range(self._next, len(self._files)))

    def snapshot(self) -> Any:
        return {"next": self._next, "files": self._files}


class _FrameReader(SplitReader):
    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        for rows in pickles_in(interval.start):
            yield Batch(rows)


class StreamReaderSource(Source):
    """Read a Python DataSource of PySpark (``pyspark.sql.datasource``): an object with ``schema()`` and ``streamReader(schema)``.

    The offsets of its reader are the positions in the checkpoint. As in Spark, the records between two offsets are read again after
    a failure, and must be the same then (SPEC E1). ``commit`` of the reader gets the offset of each completed checkpoint.
    """

    boundedness = Boundedness.CONTINUOUS_UNBOUNDED

    def __init__(self, data_source: Any) -> None:
        if not hasattr(data_source, "streamReader"):
            raise ArgumentTypeError(
                "from_data_source takes a DataSource of pyspark.sql.datasource",
                found=type(data_source).__name__,
                cure="pass an object of a class with schema() and streamReader(schema)",
            )
        schema = data_source.schema()
        self.schema = spark_side("schema")(schema) if isinstance(schema, str) else schema
        self.data_source, self.names = data_source, list(self.schema.names)

    def new_reader(self) -> Any:
        return self.data_source.streamReader(self.schema)

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        return _OffsetEnumerator(self.new_reader(), parallelism, restored)

    def create_reader(self, subtask: int) -> SplitReader:
        return _PartitionReader(self)


class _OffsetEnumerator(SplitEnumerator):
    def __init__(self, reader: Any, parallelism: int, restored: Any | None) -> None:
        self._reader, self._parallelism = reader, parallelism
        self._offset = reader.initialOffset() if restored is None else restored["offset"]

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        """Plan everything up to the latest offset: only the reader knows how offsets count and whether a limit applies."""
        start, end = self._offset, self._latest()
        if end is None or end == start:
            return SourcePlan()
        self._offset = end
        intervals = [
            SplitInterval(f"p{n}", n % self._parallelism, {"partition": _text(partition)}, n, units=1)
            for n, partition in enumerate(self._reader.partitions(start, end))
        ]
        return SourcePlan(intervals)

    def _latest(self) -> Any:
        """Ask the reader. Since Spark 4.2 ``latestOffset`` takes the start and a limit; before it took nothing."""
        if inspect.signature(self._reader.latestOffset).parameters:
            return self._reader.latestOffset(self._offset, self._reader.getDefaultReadLimit())
        return self._reader.latestOffset()

    @property
    def awaited(self) -> frozenset[int]:
        """Before the first partition comes: the subtask that will get it."""
        return frozenset({0})

    def snapshot(self) -> Any:
        return {"offset": self._offset}

    def checkpoint_complete(self, position: Any) -> None:
        self._reader.commit(position["offset"])

    def close(self) -> None:
        self._reader.stop()


class _PartitionReader(SplitReader):
    def __init__(self, source: StreamReaderSource) -> None:
        self._names, self._reader = source.names, source.new_reader()

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        partition = load_stored(base64.b64decode(interval.start["partition"]))
        for batch in _batches(self._reader.read(partition), self._names):
            yield Batch(batch)


def _text(partition: Any) -> str:
    return base64.b64encode(cloudpickle.dumps(partition)).decode()


def _batches(found: Iterable[Any], names: list[str]) -> Iterator[list[Row]]:
    """Group what a DataSource gives into batches of records. It may give tuples or record batches of Arrow."""
    waiting: list[Any] = []
    for item in found:
        if hasattr(item, "to_pylist"):
            waiting += (tuple(row.values()) for row in item.to_pylist())
        else:
            waiting.append(item)
        while len(waiting) >= BATCH_SIZE:
            yield records(waiting[:BATCH_SIZE], names)
            del waiting[:BATCH_SIZE]
    if waiting:
        yield records(waiting, names)


def records(rows: Iterable[Any], names: list[str]) -> list[Row]:
    """Turn rows of Spark, and rows in them, into named rows."""
    named = Row(*names)
    return [named(*map(_plain, row)) for row in rows]


def _plain(value: Any) -> Any:
    fields = getattr(value, "__fields__", None)
    if fields is not None and isinstance(value, tuple):  # a row of Spark
        return Row(*fields)(*map(_plain, value))
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
