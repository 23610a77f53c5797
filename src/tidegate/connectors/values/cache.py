"""Cached streams: the records of an operator written to files by one job, and read back as a source by later ones.

A writer's file carries the name of its attempt, and a file counts only when the job has committed it, at its end: what failed
attempts have left is never read, and goes with the directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cloudpickle

from tidegate.base.files import Files
from tidegate.base.pickling import load_stored_from
from tidegate.operators.contracts.sink import (
    Committer,
    CommitterContext,
    Prepared,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)
from tidegate.operators.contracts.source import Batch, Source, SourcePlan, SplitEnumerator, SplitInterval, SplitReader

_complete: dict[str, list[str]] = {}
"""Directory -> the files in it, of caches that this process has made."""


def cached_files(directory: str) -> list[str] | None:
    """None: no job has filled the cache."""
    return _complete.get(directory)


def drop(directory: str) -> None:
    """Forget the cache, and delete its files."""
    if _complete.pop(directory, None) is not None:
        Files(directory).delete_tree("")


class CacheSink(Sink):
    guarantee = SinkGuarantee.TWO_PHASE_COMMIT

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _CacheWriter(self.directory, f"{context.subtask}-{context.attempt}")

    def create_committer(self, context: CommitterContext) -> Committer:
        return _CacheCommitter(self.directory)


class _CacheWriter(SinkWriter):
    def __init__(self, directory: str, name: str) -> None:
        self._name = name
        self._file = Files(directory).create_stream(name, aside=False)

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._file.write(cloudpickle.dumps((list(values), None if timestamps is None else list(timestamps))))

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        self._file.close()
        return Prepared([self._name])

    def abort(self) -> None:
        self._file.discard()


class _CacheCommitter(Committer):
    """Without checkpoints, which a batch job has none of, all is committed at once, at the end of the job."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def commit(self, committables: list[Any]) -> None:
        _complete[self._directory] = sorted(committables)


class CachedSource(Source):
    """The files of a cache, a split each."""

    def __init__(self, directory: str, files: list[str]) -> None:
        self.directory, self.files = directory, files

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        return _CacheEnumerator(self.files, parallelism, restored or 0)

    def create_reader(self, subtask: int) -> SplitReader:
        return _CacheReader(self.directory)


class _CacheEnumerator(SplitEnumerator):
    def __init__(self, files: list[str], parallelism: int, position: int) -> None:
        self._files, self._parallelism, self._position = files, parallelism, position

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        """Whole files: a cache is read in batch mode only, which is one round."""
        left, self._position = range(self._position, len(self._files)), len(self._files)
        intervals = [SplitInterval(self._files[n], n % self._parallelism, 0, 1, units=1, last=True) for n in left]
        return SourcePlan(intervals, finished=True)

    def snapshot(self) -> Any:
        return self._position


class _CacheReader(SplitReader):
    def __init__(self, directory: str) -> None:
        self._files = Files(directory)

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        with self._files.open_stream(interval.split) as stream:
            while True:
                try:
                    yield Batch.of(load_stored_from(stream))
                except EOFError:
                    return
