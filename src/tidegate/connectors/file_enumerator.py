"""Finds files, cuts them into splits and hands out byte ranges."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any

from tidegate.common.files import Files
from tidegate.connectors.file_format import FileFormat
from tidegate.connectors.paths import SOURCE, join
from tidegate.operators.source import SourcePlan, SplitEnumerator, SplitInterval

DEFAULT_SPLIT_SIZE = 64 << 20
_OPEN_COST = 4096
"""What opening a file counts against a round's limit, so that a round is not made of ten thousand tiny files."""


@dataclass
class FileSplit:
    """Lines that start in ``[at, end)`` of the file are still to be read. ``number`` decides the subtask."""

    number: int
    path: str
    size: int
    start: int
    end: int
    at: int


class FileEnumerator(SplitEnumerator):
    """Splits wait in one queue per subtask and are read one after another, each in as many pieces as the rounds'
    limits make.
    """

    def __init__(
        self,
        paths: tuple[str, ...],
        file_format: FileFormat,
        discovery_ms: int | None,
        split_size: int | None,
        parallelism: int,
        restored: Any | None,
    ) -> None:
        self._paths, self._format = paths, file_format
        self._discovery_ms, self._split_size = discovery_ms, split_size
        self._least_cut = min(file_format.least_cut, split_size or file_format.least_cut)
        self._queues: list[deque[FileSplit]] = [deque() for _ in range(parallelism)]
        self._next_number, self._next_discovery_ms = 0, 0
        self._seen: list[str] = []  # replaced, never changed: snapshots share it
        if restored is not None:
            self._next_number, self._seen = restored["next"], list(restored["seen"])
            for fields in restored["splits"]:
                self._enqueue(FileSplit(*fields))
        elif discovery_ms is None:
            self._discover()

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        if self._discovery_ms is not None and now_ms >= self._next_discovery_ms:
            self._discover()
            self._next_discovery_ms = now_ms + self._discovery_ms
        busy = [subtask for subtask, queue in enumerate(self._queues) if queue]
        intervals = [part for subtask in busy for part in self._take(subtask, max(1, limit // len(busy)))]
        backlog = any(self._queues)
        return SourcePlan(
            intervals,
            backlog=backlog,
            wake_up_ms=None if self._discovery_ms is None else self._next_discovery_ms,
            finished=self._discovery_ms is None and not backlog,
        )

    def _take(self, subtask: int, budget: int) -> Iterator[SplitInterval]:
        queue = self._queues[subtask]
        while queue and budget > 0:
            split = queue[0]
            start = split.at
            split.at = (
                min(split.end, start + max(budget, self._least_cut)) if self._format.can_cut(split.path) else split.end
            )
            budget -= max(split.at - start, _OPEN_COST)
            last = split.at == split.end
            if last:
                queue.popleft()
            name = f"{split.path}:{split.start}"
            before, after = [split.path, split.size, start], [split.path, split.size, split.at]
            yield SplitInterval(name, subtask, before, after, split.at - start, last)

    def _discover(self) -> None:
        known = set(self._seen)
        found = []
        for path in self._paths:
            for file, size in self._files_of(path):
                if file not in known:
                    known.add(file)
                    found.append(file)
                    self._split(file, size)
        if self._discovery_ms is not None and found:
            self._seen = self._seen + found

    def _files_of(self, path: str) -> Iterator[tuple[str, int]]:
        files = Files(path, SOURCE)
        if files.is_directory():
            # the user's own address stays in front: it may hold a host that the bare path does not
            yield from ((join(path, found), size) for found, size in files.find())
        else:
            size = files.size_if_exists("")
            if size is not None:
                yield path, size

    def _split(self, path: str, size: int) -> None:
        step = self._split_size if self._split_size and self._format.can_cut(path) else max(1, size)
        for start in range(0, size, step):
            self._enqueue(FileSplit(self._next_number, path, size, start, min(start + step, size), start))
            self._next_number += 1

    def _enqueue(self, split: FileSplit) -> None:
        self._queues[split.number % len(self._queues)].append(split)

    def snapshot(self) -> Any:
        splits = sorted((split for queue in self._queues for split in queue), key=lambda split: split.number)
        return {"next": self._next_number, "splits": [list(astuple(split)) for split in splits], "seen": self._seen}
