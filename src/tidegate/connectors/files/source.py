"""The file source, its readers and its enumerator: a fixed set of files, or directories that are watched for new files.

The enumerator finds files, makes splits of them and plans byte ranges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from tidegate.base.arguments import expect_int, made_by, wrong
from tidegate.base.errors import ConfigurationError, ProgramError
from tidegate.base.files import Files
from tidegate.base.pickling import is_encodable
from tidegate.common.configuration import notice
from tidegate.common.time import millis_of
from tidegate.common.typeinfo import TypeInformation
from tidegate.connectors.files.file_format import SOURCE, FileFormat, full_path, join
from tidegate.operators.contracts.source import (
    Batch,
    Boundedness,
    Lag,
    Source,
    SourcePlan,
    SplitEnumerator,
    SplitInterval,
    SplitReader,
)

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
    def lag(self) -> Lag:
        left = {subtask: sum(split.end - split.at for split in queue) for subtask, queue in enumerate(self._queues)}
        return Lag(left, "bytes")

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


_LEAST_SPLIT_SIZE = 16
_SPLIT_SIZE = 64 << 20
"""Bytes of a part, if the user wants files divided and gives no size."""


class FileEnumeratorProvider:
    """Say whether large files are divided into parts that several subtasks read at the same time. By default they are not."""

    def __init__(self, splits: bool) -> None:
        self.splits = splits

    @staticmethod
    def default_splittable_file_enumerator() -> FileEnumeratorProvider:
        """Divide files above 64 MiB into parts, where the format allows. ``FileSourceBuilder.with_split_size`` describes the
        effect on event time."""
        return FileEnumeratorProvider(True)

    @staticmethod
    def default_non_splittable_file_enumerator() -> FileEnumeratorProvider:
        """Read every file as one split, in order, by one subtask (the default)."""
        return FileEnumeratorProvider(False)


class FileSplitAssignerProvider:
    """Say which subtask reads which file."""

    @staticmethod
    def locality_aware_split_assigner() -> FileSplitAssignerProvider:
        """In Flink a subtask near the file. Here Spark decides where a subtask runs."""
        return FileSplitAssignerProvider()


@made_by("FileSource.for_record_stream_format(...) or FileSource.for_bulk_file_format(...), then build()", tuple)
class FileSource(Source):
    """Read the records of files and directories. Directories are read recursively, without names that start with ``.`` or ``_``.

    A file must be complete when it is discovered, and must not change: write it elsewhere and move it in. The unit is the byte.

    A file is one split. One subtask reads it from its beginning to its end, over several rounds if it is large, so its records stay
    in order. Only ``with_split_size`` lets several subtasks read one file. Files that cannot be divided (compressed text, charsets
    with wide line ends) are read in one round.

    A source that watches directories stores the path of every file it has seen in the checkpoint, which grows accordingly.
    """

    initial_limit = 4 << 20
    splits_in_turn = True
    gives_time = False

    def __init__(
        self, paths: tuple[str, ...], file_format: FileFormat, discovery_ms: int | None, split_size: int | None
    ) -> None:
        self.paths, self.format = paths, file_format
        self.discovery_ms, self.split_size = discovery_ms, split_size
        self.boundedness = Boundedness.BOUNDED if discovery_ms is None else Boundedness.CONTINUOUS_UNBOUNDED

    @staticmethod
    def for_record_stream_format(stream_format: FileFormat, *paths: str) -> FileSourceBuilder:
        """Begin a source that reads files record by record in this format."""
        return FileSourceBuilder("FileSource.for_record_stream_format", stream_format, paths)

    @staticmethod
    def for_bulk_file_format(bulk_format: FileFormat, *paths: str) -> FileSourceBuilder:
        """Begin a source that reads files block by block in this format."""
        return FileSourceBuilder("FileSource.for_bulk_file_format", bulk_format, paths)

    def get_produced_type(self) -> TypeInformation | None:
        """Return the type of the records, if the format knows it. ``from_source`` uses it as the type of the stream."""
        return self.format.produced_type()

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        missing = [path for path in self.paths if not _exists(path)]
        if missing and restored is None:
            raise ConfigurationError(
                "A path of a file source does not exist",
                where="FileSource",
                found=f"no file or directory {', '.join(missing)}",
                cure="create it before the job starts, or correct the path",
            )
        return FileEnumerator(self.paths, self.format, self.discovery_ms, self.split_size, parallelism, restored)

    def create_reader(self, subtask: int) -> SplitReader:
        """Make a reader for files, or parts of files, that are its splits."""
        return _FileReader(self.format)


class FileSourceBuilder:
    """Describe a source of files."""

    def __init__(self, method: str, file_format: FileFormat, paths: tuple[str, ...]) -> None:
        if not isinstance(file_format, FileFormat):
            raise wrong(method, "a format of files", file_format, "pass for example StreamFormat.text_line_format()")
        if not paths:
            raise ProgramError(
                "A file source has no path", where=method, found="none", cure="pass a file or a directory"
            )
        self._format, self._paths = file_format, tuple(full_path(path) for path in paths)
        self._discovery_ms: int | None = None
        self._split_size: int | None = None

    def monitor_continuously(self, discovery_interval: Any) -> FileSourceBuilder:
        """Look for new files every ``discovery_interval`` (Duration or timedelta). The source becomes unbounded."""
        interval = millis_of("FileSource.monitor_continuously", discovery_interval)
        if interval <= 0:
            raise ProgramError(
                "The discovery interval of a file source is not above zero",
                where="FileSource.monitor_continuously",
                found=f"{interval} ms",
                cure="pass for example Duration.of_seconds(10)",
            )
        self._discovery_ms = interval
        return self

    def process_static_file_set(self) -> FileSourceBuilder:
        """Read the files that exist when the job first starts, then finish (the default)."""
        self._discovery_ms = None
        return self

    def set_file_enumerator(self, file_enumerator: FileEnumeratorProvider) -> FileSourceBuilder:
        """Say whether large files are divided (``FileEnumeratorProvider``)."""
        self._split_size = _SPLIT_SIZE if file_enumerator.splits else None
        return self

    def set_split_assigner(self, split_assigner: FileSplitAssignerProvider) -> FileSourceBuilder:
        """Accepted without effect."""
        if not isinstance(split_assigner, FileSplitAssignerProvider):
            cure = "FileSplitAssignerProvider.locality_aware_split_assigner()"
            raise wrong("FileSource.set_split_assigner", "a FileSplitAssignerProvider", split_assigner, cure)
        notice("FileSource.set_split_assigner", "Spark decides where a subtask runs")
        return self

    def with_split_size(self, size: int) -> FileSourceBuilder:
        """Divide files larger than this many bytes into parts of this size, where the format allows. By default no file is divided.

        Several subtasks read the parts of a file at the same time, and every part is a split with a watermark of its own. A
        subtask that reads a part of one file, and after it a part of another file with earlier records, has moved event time
        past these records: they are late, and windows drop them. Divide files only if the program uses no event time, or if the
        allowed out-of-orderness spans a whole file. Every part costs an opening of the file.
        """
        if (
            expect_int("FileSource.with_split_size", size, "a number of bytes, for example 64 << 20")
            < _LEAST_SPLIT_SIZE
        ):
            raise ProgramError(
                f"The split size of a file source is below {_LEAST_SPLIT_SIZE} bytes, and every part costs an opening of the file",
                where="FileSource.with_split_size",
                found=str(size),
                cure="pass some megabytes, for example 64 << 20",
            )
        self._split_size = size
        return self

    def build(self) -> FileSource:
        """Return the source."""
        return FileSource(self._paths, self._format, self._discovery_ms, self._split_size)


class _FileReader(SplitReader):
    def __init__(self, file_format: FileFormat) -> None:
        self._format = file_format

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        path, size, start = interval.start
        for values in self._format.read(path, size, start, interval.end[2]):
            yield values if isinstance(values, Batch) else Batch(values)


def _exists(path: str) -> bool:
    return Files(path, SOURCE).exists("")
