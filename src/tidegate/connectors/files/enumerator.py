"""The enumerator of the file source: it finds files, makes splits of them and plans byte ranges."""

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
"""Cost of opening a file, in bytes that are read in the same time. It limits rounds of tiny files."""


class FileSplit(NamedTuple):
    """The records that start in ``[at, end)`` of a file, which are not read yet. ``number`` decides the subtask.

    The file is ``name`` below ``root``, one of the source's paths. With an empty name it is that path itself.
    """

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
    """Keep the splits of each subtask in a queue, and plan them one after another, in pieces that fit the limits of rounds.

    A file is one split, so its records stay in order, unless ``split_size`` divides it.
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
        self._seen: list[str] = []  # replaced, never changed in place: snapshots share it
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
        """Subtasks with files in their queue.

        With a watched directory also the subtasks that have had a file, and before the first file the subtask that gets it: the
        next file may go to any of them.
        """
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
            # With the cost of the opening, as the limit counts it: the planner sizes the next round by these units.
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
            # below the user's address, which may name a host that the bare path lacks
            yield from files.find()
        else:
            size = files.size_if_exists("")
            if size is not None:
                yield "", size

    def _split(self, root: str, name: str, size: int) -> None:
        piece = self._split_size if self._split_size and self._format.can_cut(join(root, name)) else None
        step = piece or max(1, size)
        for start in range(0, size, step):
            self._enqueue(FileSplit(self._next_number, root, name, size, start, min(start + step, size), start))
            self._next_number += 1

    def _enqueue(self, split: FileSplit) -> None:
        self._queues[split.number % len(self._queues)].append(split)

    def snapshot(self) -> Any:
        """Return the position. Taken every round, so it is cheap and small for thousands of waiting splits.

        Roots are written once. A file that nobody has begun is written with its size only.
        """
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
    """Refuse a name that is no valid text: positions contain names of files as text."""
    if not is_encodable(file):
        raise ConfigurationError(
            "The name of a file is not valid UTF-8, and the file source cannot read the file",
            where="FileSource",
            found=ascii(file),
            cure="rename the file, or move it out of the source's directory",
        )


def _splits_of(restored: Any) -> Iterator[FileSplit]:
    for number, path, size, start, end, at in restored.get("splits", ()):  # the form of the first version
        yield FileSplit(number, path, "", size, start, end, at)
    for number, root, name, size, *piece in restored.get("waiting", ()):
        start, end, at = piece or (0, size, 0)
        yield FileSplit(number, restored["roots"][root], name, size, start, end, at)
