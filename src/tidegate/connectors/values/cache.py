"""Cached streams: one job writes the records of an operator to files, and later jobs read them as a source.

A writer's file carries the name of its attempt. Only files that the job commits at its end count. Files of failed attempts are
never read, and are deleted with the directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cloudpickle

from tidegate.base.files import Files
from tidegate.connectors.staged_file import pickles_in
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
"""Directory -> its files, for the caches of this process."""


def cached_files(directory: str) -> list[str] | None:
    """Return the files of a cache. None: no job has filled the cache."""
    return _complete.get(directory)


def drop(directory: str) -> None:
    """Forget the cache and delete its files."""
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
    """Commit all files together at the end of the job: a batch job has no checkpoints."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def commit(self, committables: list[Any]) -> None:
        _complete[self._directory] = sorted(committables)


class CachedSource(Source):
    """Read the files of a cache. Each file is a split."""

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
        """Plan all files: a cache is read in batch mode only, in one round."""
        left, self._position = range(self._position, len(self._files)), len(self._files)
        intervals = [SplitInterval(self._files[n], n % self._parallelism, 0, 1, units=1, last=True) for n in left]
        return SourcePlan(intervals, finished=True)

    def snapshot(self) -> Any:
        return self._position


class _CacheReader(SplitReader):
    def __init__(self, directory: str) -> None:
        self._files = Files(directory)

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        return map(Batch.of, pickles_in(self._files.location(interval.split)))
