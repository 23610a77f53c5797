"""Sources that Spark reads: a DataFrame, and a Python DataSource of PySpark."""

from __future__ import annotations

import base64
import inspect
import pickle
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any

import cloudpickle

from tidegate.base.errors import ArgumentTypeError, RestoreError
from tidegate.base.files import Files
from tidegate.base.ids import new_token
from tidegate.base.pickling import load_stored, load_stored_from
from tidegate.common.types import Row
from tidegate.connectors.values.ranges import BATCH_SIZE
from tidegate.operators.contracts.source import (
    Batch,
    Boundedness,
    Source,
    SourceContext,
    SourcePlan,
    SplitEnumerator,
    SplitInterval,
    SplitReader,
)

_BATCH = 4096


class DataFrameSource(Source):
    """Its rows as named ``Row`` records, one split for each of its partitions.

    A DataFrame computed twice may come in another order, or be another one (``rand()``, a table that has changed): so it is
    computed when the job starts for the first time, and its rows are kept on checkpoint storage as long as the job lives.
    """

    splits_in_turn = True
    gives_time = False

    def __init__(self, frame: Any) -> None:
        if not all(hasattr(frame, name) for name in ("rdd", "columns", "schema")):
            raise ArgumentTypeError("from_dataframe takes a DataFrame of Spark's", found=type(frame).__name__)
        self._frame, self.names = frame, list(frame.columns)

    def __getstate__(self) -> dict[str, Any]:
        """The DataFrame itself stays with the driver."""
        return {**self.__dict__, "_frame": None}

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        raise NotImplementedError("a DataFrame is read by a job, which has a place for its rows")

    def create_enumerator_in(self, context: SourceContext, parallelism: int, restored: Any | None) -> SplitEnumerator:
        if restored is None:
            restored = {"next": 0, "files": self._computed(f"{context.directory}/{new_token()}")}
        missing = [file for file, _ in restored["files"][restored["next"] :] if not _exists(file)]
        if missing:
            raise RestoreError(
                "A DataFrame goes on from the rows that were kept of it",
                where=context.directory,
                found=f"no file {missing[0]}",
                cure="give the source another uid to read the DataFrame anew",
            )
        return _FileEnumerator(restored, parallelism)

    def _computed(self, directory: str) -> list[list[Any]]:
        """One Spark job. Its tasks may run twice: the files of the attempt that counts are those it returns."""
        names = self.names

        def write(number: int, rows: Iterable[Any]) -> Iterator[list[Any]]:
            files, count, name = Files(directory), 0, f"rows-{number:06d}-{new_token()}"
            with files.create_stream(name, aside=False) as stream:
                batch: list[Any] = []
                for row in rows:
                    batch.append(row)
                    count += 1
                    if len(batch) == _BATCH:
                        stream.write(pickle.dumps(records(batch, names), 5))
                        batch = []
                if batch:
                    stream.write(pickle.dumps(records(batch, names), 5))
                stream.close()
            yield [files.location(name), count]

        found: list[list[Any]] = self._frame.rdd.mapPartitionsWithIndex(write).collect()
        return [file for file in found if file[1]]

    def create_reader(self, subtask: int) -> SplitReader:
        return _FileReader()


def _exists(file: str) -> bool:
    directory, _, name = file.rpartition("/")
    return Files(directory).exists(name)


class _FileEnumerator(SplitEnumerator):
    def __init__(self, position: dict[str, Any], parallelism: int) -> None:
        self._files, self._next, self._parallelism = position["files"], position["next"], parallelism

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        """Whole partitions, at least one for each subtask: with fewer, event time would pass those that wait."""
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
    def awaited(self) -> frozenset[int]:
        """Subtasks with partitions that are not planned yet."""
        return frozenset(n % self._parallelism for n in range(self._next, len(self._files)))

    def snapshot(self) -> Any:
        return {"next": self._next, "files": self._files}


class _FileReader(SplitReader):
    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        directory, _, name = interval.start.rpartition("/")
        with Files(directory).open_stream(name) as stream:
            while True:
                try:
                    yield load_stored_from(stream), None
                except EOFError:
                    return


class StreamReaderSource(Source):
    """``data_source``: an object with ``schema()`` and ``streamReader(schema)``.

    As Spark does: what lies between two offsets is read again after a failure, and must be the same then (SPEC E1). ``commit`` of
    the reader is told the offset of each completed checkpoint.
    """

    boundedness = Boundedness.CONTINUOUS_UNBOUNDED

    def __init__(self, data_source: Any) -> None:
        if not hasattr(data_source, "streamReader"):
            raise ArgumentTypeError(
                "from_data_source takes a DataSource of pyspark.sql.datasource",
                found=type(data_source).__name__,
                cure="an object of a class with schema() and streamReader(schema)",
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
        """All that is there: only the reader knows how its offsets are counted, and whether they have a limit."""
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
        """Of Spark 4.2 on it takes the start and a limit; before, nothing."""
        if inspect.signature(self._reader.latestOffset).parameters:
            return self._reader.latestOffset(self._offset, self._reader.getDefaultReadLimit())
        return self._reader.latestOffset()

    @property
    def awaited(self) -> frozenset[int]:
        """Before the first partition comes: the subtask that gets it."""
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
        for batch in in_batches(self._reader.read(partition), self._names, BATCH_SIZE):
            yield batch, None


def _text(partition: Any) -> str:
    return base64.b64encode(cloudpickle.dumps(partition)).decode()


FRAMES = "tidegate.frames"
"""Entry points of what only Spark's room can do: ``records(files, type_info)``, a DataFrame of them, and ``schema(text)``."""


def spark_side(name: str) -> Callable[..., Any]:
    (point,) = entry_points(group=FRAMES, name=name)
    return point.load()  # type: ignore[no-any-return]


def records(rows: Iterable[Any], names: list[str]) -> list[Row]:
    """Named rows; rows in rows too."""
    named = Row(*names)
    return [named(*map(_plain, row)) for row in rows]


def _plain(value: Any) -> Any:
    fields = getattr(value, "__fields__", None)
    if fields is not None and isinstance(value, tuple):  # a row of Spark's
        return Row(*fields)(*map(_plain, value))
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def in_batches(found: Iterable[Any], names: list[str], size: int) -> Iterator[list[Row]]:
    """Of tuples, or of Arrow's record batches: a DataSource may give either."""
    waiting: list[Any] = []
    for item in found:
        if hasattr(item, "to_pylist"):
            waiting += (tuple(row.values()) for row in item.to_pylist())
        else:
            waiting.append(item)
        while len(waiting) >= size:
            yield records(waiting[:size], names)
            del waiting[:size]
    if waiting:
        yield records(waiting, names)
