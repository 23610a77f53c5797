"""Finds files, makes splits of them and hands out byte ranges."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from tidegate.base.errors import ConfigurationError
from tidegate.base.files import Files
from tidegate.base.plain_data import is_encodable
from tidegate.connectors.files.file_format import FileFormat
from tidegate.connectors.files.paths import SOURCE, join
from tidegate.operators.contracts.source import SourcePlan, SplitEnumerator, SplitInterval

_OPEN_COST = 4096
"""What opening a file counts against a round's limit, in bytes read in the same time: a round of tiny files is sized by it."""


class FileSplit(NamedTuple):
    """Lines that start in ``[at, end)`` of the file are still to be read. ``number`` decides the subtask. The file is ``name``
    below ``root``, one of the source's paths; it is that path itself if the name is empty."""

    number: int
    root: str
    name: str
    size: int
    start: int
    end: int
    at: int

    @property
    def path(self) -> str:
        return join(self.root, self.name)

    @property
    def is_untouched_file(self) -> bool:
        return self.start == self.at == 0 and self.end == self.size


class FileEnumerator(SplitEnumerator):
    """Splits wait in one queue per subtask and are read one after another, each in as many pieces as the rounds'
    limits make. A file is one split, so its records stay in order, unless ``split_size`` cuts it.
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
            for split in sorted(_splits_of(restored)):
                self._enqueue(split)
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

    @property
    def awaited(self) -> frozenset[int]:
        """Subtasks with files in their queue. Of a watched directory those that have had a file, and before the first file the
        one that gets it: the next file may go to any of them."""
        watched = 0 if self._discovery_ms is None else max(1, self._next_number)
        return frozenset(subtask for subtask, queue in enumerate(self._queues) if queue or subtask < watched)

    def _take(self, subtask: int, budget: int) -> Iterator[SplitInterval]:
        queue = self._queues[subtask]
        while queue and budget > 0:
            split = queue.popleft()
            path, start = split.path, split.at
            whole = not self._format.can_cut(path)
            at = split.end if whole else min(split.end, start + max(budget, self._least_cut))
            cost = max(at - start, _OPEN_COST)
            budget -= cost
            last = at == split.end
            if not last:
                queue.appendleft(split._replace(at=at))
            before, after = [path, split.size, start], [path, split.size, at]
            # In the unit of the limit, with the opening: the planner sizes the next round by what this one has given.
            yield SplitInterval(f"{path}:{split.start}", subtask, before, after, cost, last)

    def _discover(self) -> None:
        known = set(self._seen)
        found = []
        for root in self._paths:
            for name, size in self._files_of(root):
                file = join(root, name)
                if file not in known:
                    _refuse_odd_name(file)
                    known.add(file)
                    found.append(file)
                    self._split(root, name, size)
        if self._discovery_ms is not None and found:
            self._seen = self._seen + found

    def _files_of(self, path: str) -> Iterator[tuple[str, int]]:
        files = Files(path, SOURCE)
        if files.is_directory():
            # below the user's own address: it may hold a host that the bare path does not
            yield from files.find()
        else:
            size = files.size_if_exists("")
            if size is not None:
                yield "", size

    def _split(self, root: str, name: str, size: int) -> None:
        cuts = self._split_size if self._split_size and self._format.can_cut(join(root, name)) else None
        step = cuts or max(1, size)
        for start in range(0, size, step):
            self._enqueue(FileSplit(self._next_number, root, name, size, start, min(start + step, size), start))
            self._next_number += 1

    def _enqueue(self, split: FileSplit) -> None:
        self._queues[split.number % len(self._queues)].append(split)

    def snapshot(self) -> Any:
        """Taken every round, so it is cheap for thousands of splits that wait, and small: roots are written once, and of a file
        that nobody has begun only its size."""
        splits = [split for queue in self._queues for split in queue]
        numbers: dict[str, int] = {}
        rows = [
            [
                split.number,
                numbers.setdefault(split.root, len(numbers)),
                *split[2 : 4 if split.is_untouched_file else 7],
            ]
            for split in splits
        ]
        return {"next": self._next_number, "roots": list(numbers), "waiting": rows, "seen": self._seen}


def _refuse_odd_name(file: str) -> None:
    """A position is written down as text, and so are the files it names."""
    if not is_encodable(file):
        raise ConfigurationError(
            "a file source reads files whose names are valid UTF-8",
            where="FileSource",
            found=ascii(file),
            cure="rename the file, or leave it out of the source's directory",
        )


def _splits_of(restored: Any) -> Iterator[FileSplit]:
    for number, path, size, start, end, at in restored.get("splits", ()):  # as it was first written down
        yield FileSplit(number, path, "", size, start, end, at)
    for number, root, name, size, *cut in restored.get("waiting", ()):
        start, end, at = cut or (0, size, 0)
        yield FileSplit(number, restored["roots"][root], name, size, start, end, at)
