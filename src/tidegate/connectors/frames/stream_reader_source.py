"""A Python DataSource of PySpark (``pyspark.sql.datasource``) as a source: its offsets are the positions in the checkpoint."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Iterator
from typing import Any

import cloudpickle

from tidegate.base.errors import ArgumentTypeError
from tidegate.base.pickling import load_stored
from tidegate.connectors.frames.spark_rows import in_batches, spark_side
from tidegate.connectors.values.ranges import BATCH_SIZE
from tidegate.operators.contracts.source import (
    Batch,
    Boundedness,
    Source,
    SourcePlan,
    SplitEnumerator,
    SplitInterval,
    SplitReader,
)


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
            yield Batch(batch)


def _text(partition: Any) -> str:
    return base64.b64encode(cloudpickle.dumps(partition)).decode()
