"""A Spark DataFrame as a bounded source: Spark computes it once, into files that the job reads, and reads again after a failure."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.base.errors import ArgumentTypeError, RestoreError
from tidegate.base.files import Files
from tidegate.base.ids import new_token
from tidegate.base.pickling import load_stored_from
from tidegate.connectors.frames.spark_rows import records
from tidegate.operators.contracts.source import (
    Batch,
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
                    yield Batch(load_stored_from(stream))
                except EOFError:
                    return
