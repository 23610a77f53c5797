"""Part files of a file sink: fragments and how they become one file, compaction of small files, success markers.

A writer never appends to a file of another attempt, because that attempt may still be alive. So each attempt writes a
fragment of its own. A part is an ordered list of fragments until it is finished. Then it is one hidden file that the
commit renames.

**Who may touch a fragment.** Checkpoints name fragments, and several may name the same one: retained checkpoints of a
job, and checkpoints that other jobs or lineages were started from. So a fragment that was ever part of a checkpoint
(``named``) is only read. It is never renamed: a part that contains one is finished as a copy. Only the job whose mark
it carries deletes it, and only when no checkpoint of that job names it (``ReferencedFiles``). A job that restores
fragments of another job copies them in its first round, and its checkpoints then name its own files. The attempt that
finishes a part chooses the visible name, so two jobs that continue one part never use the same name.

**Bulk formats.** A Parquet file ends with its index, so no round can append to the file of another round. The fragments
of such a part contain frames of packed records instead. Concatenated frames are frames, so these fragments are merged
and copied like those of a row format. The round that finishes the part writes the file itself once, hidden.

**Compaction.** A part continues over several checkpoints, and appears as one file instead of many small ones. In Flink
an operator after the sink collects finished, hidden files and merges them. Here an unfinished part is a list of
fragments in the checkpoint anyway. So a part that is too small for a file is not finished but continues, and a crash
treats it as any unfinished part. Files of different subtasks are not merged.

**Success markers.** An empty file ``_SUCCESS`` in a bucket means that the bucket is complete: all its files are
visible, no subtask has an open file of it, and no more records will come. A subtask knows this of itself alone: it may
have finished while others continue, and its clock may be ahead of theirs. So with every barrier each subtask reports
its buckets (``Unmarked.report``) as a committable of that checkpoint. The committer sees all reports and decides. A
bucket is complete if one subtask reports it as over and none as waiting. All buckets are complete when all subtasks
have finished. A subtask that reports a bucket as over has finished its files in the same round. So the files are in the
same commit or an earlier one, before the marker. Reports are in the checkpoint, so a restore repeats them. An existing
marker is not changed.

**Over** is what the bucket assigner returns for the start of the round, by the driver's clock. No subtask of that round
or a later round uses an earlier time for the buckets of its records, unless the clock is set back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from tidegate.base import faults
from tidegate.base.arguments import expect_int
from tidegate.base.errors import CorruptFileError, ProgramError
from tidegate.base.files import Files, FileWriter
from tidegate.base.hashing import stable_hash
from tidegate.common.configuration import notice
from tidegate.common.serialization import BulkWriterFactory
from tidegate.connectors.files.bucket_assigners import BucketAssigner, PartInfo
from tidegate.connectors.files.file_format import COPY_BUFFER, SINK, join
from tidegate.connectors.staged_file import plain_name
from tidegate.operators.contracts.sink import WriterContext

_HEAD = 8
MERGE_WIDTH = 16
"""This many fragments of one level become one of the next level. The list stays short, and a byte is copied once per level."""


@dataclass
class Fragment:
    name: str
    size: int
    level: int = 0
    named: bool = True
    """Whether a checkpoint may name the fragment. Only a fragment of no checkpoint can be renamed or deleted at once."""


@dataclass
class Part:
    """An unfinished file. ``target`` is its future name: a new one in every attempt, and no part of the state.

    With compaction a part holds several files. ``counted`` bytes of them are complete, and ``checkpoints`` have passed since the
    first record.
    """

    bucket: str
    directory: str
    target: str
    created_ms: int
    updated_ms: int
    fragments: list[Fragment] = field(default_factory=list)
    counted: int = 0
    checkpoints: int = 0

    @property
    def size(self) -> int:
        return sum(fragment.size for fragment in self.fragments)

    def info(self) -> PartInfo:
        return PartInfo(self.bucket, self.size - self.counted, self.created_ms, self.updated_ms)

    def to_state(self) -> dict[str, Any]:
        compacted = {"counted": self.counted, "checkpoints": self.checkpoints}
        return {
            "bucket": self.bucket,
            "directory": self.directory,
            "created": self.created_ms,
            "updated": self.updated_ms,
            "fragments": [[f.name, f.size, f.level, f.named] for f in self.fragments],
            **{name: number for name, number in compacted.items() if number},
        }

    @staticmethod
    def from_state(state: dict[str, Any], target: str = "") -> Part:
        fragments = [Fragment(*fields) for fields in state["fragments"]]
        part = Part(state["bucket"], state["directory"], target, state["created"], state["updated"], fragments)
        part.counted, part.checkpoints = state.get("counted", 0), state.get("checkpoints", 0)
        return part


class HiddenNames:
    """Make names of unfinished files: ``.<target>.inprogress.<owner>-<attempt>-<number>``.

    The owner stands for the job, its directory on checkpoint storage and the sink. So a restarted job finds exactly its own
    unfinished files by listing. A job with the same id and another directory knows nothing of the checkpoints of this job.
    """

    def __init__(self, job_id: str, sink_id: str, staging: str, attempt: str = "") -> None:
        self._mark = f".inprogress.{stable_hash(f'{job_id}/{sink_id}/{staging}')[:16]}-"
        self._attempt = plain_name(attempt)
        self._count = 0

    def new(self, target: str) -> str:
        self._count += 1
        return f".{target}{self._mark}{self._attempt}-{self._count}"

    def owns(self, name: str) -> bool:
        return name.startswith(".") and self._mark in name


def concatenate(directory: str, fragments: list[Fragment], name: str) -> Fragment:
    """Write several fragments as one durable file. The fragments stay, because an older checkpoint may need them."""
    files = Files(directory, SINK)
    for fragment in fragments:
        check_fragment(directory, fragment)
    with files.create_stream(name, aside=False) as stream:
        for fragment in fragments:
            with files.open_stream(fragment.name) as source:
                while block := source.read(COPY_BUFFER):
                    stream.write(block)
        stream.close()
    return Fragment(name, sum(f.size for f in fragments), max(f.level for f in fragments) + 1, named=False)


def check_fragment(directory: str, fragment: Fragment) -> None:
    path = join(directory, fragment.name)
    found = Files(directory, SINK).size_if_exists(fragment.name)
    if found != fragment.size:
        raise CorruptFileError(
            "An unfinished file of a file sink is missing or has the wrong size",
            where=f"file {path}",
            found=f"{'no such file' if found is None else f'{found} bytes'}, expected {fragment.size} bytes",
            cure="restore the file, or restore a checkpoint that the job retains: files of other checkpoints are deleted",
        )


def full_levels(fragments: list[Fragment]) -> int:
    """Return how many fragments at the end of the list are to be merged now. Levels never grow along the list."""
    levels = [fragment.level for fragment in fragments]
    merged = level = 0
    while True:
        run = levels.count(level)
        if run + bool(merged) < MERGE_WIDTH:
            return merged
        merged, level = merged + run, level + 1


def framed(packed: bytes) -> bytes:
    return len(packed).to_bytes(_HEAD, "big") + packed


def assemble(directory: str, fragments: list[Fragment], name: str, factory: BulkWriterFactory) -> Fragment:
    """Write the durable file of a part in a bulk format. The fragments stay, because an older checkpoint may need them."""
    files = Files(directory, SINK)
    for fragment in fragments:
        check_fragment(directory, fragment)
    with files.create_stream(name, aside=False) as stream:
        factory.write(_frames(files, fragments), _HiddenFile(stream))
        size = stream.size
        stream.close()
    return Fragment(name, size, named=False)


def _frames(files: Files, fragments: list[Fragment]) -> Iterator[bytes]:
    for fragment in fragments:
        with files.open_stream(fragment.name) as source:
            while head := source.read(_HEAD):
                yield _frame(source, int.from_bytes(head, "big"), files.location(fragment.name))


def _frame(source: BinaryIO, size: int, location: str) -> bytes:
    packed = source.read(size)
    if len(packed) != size:
        raise CorruptFileError(
            "An unfinished file of a bulk format is truncated",
            where=f"file {location}",
            found=f"{len(packed)} bytes of a frame of {size}",
            cure="restore an older checkpoint",
        )
    return packed


class _HiddenFile:
    """A hidden file with the methods that libraries of formats call. Their ``close`` has no effect."""

    closed = False

    def __init__(self, stream: FileWriter) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._stream.write(bytes(view))
        return view.nbytes

    def tell(self) -> int:
        return self._stream.size

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


@dataclass(frozen=True)
class FileCompactStrategy:
    """Decide when small files together make one file. A condition that is None does not count."""

    size_threshold: int | None
    num_checkpoints: int | None

    @staticmethod
    def builder() -> FileCompactStrategy.Builder:
        """Begin a strategy. It needs a size or a number of checkpoints."""
        return FileCompactStrategy.Builder()

    def is_enough(self, size: int, checkpoints: int) -> bool:
        """Return whether this many bytes, or this many checkpoints since the first byte, make a file."""
        by_size = self.size_threshold is not None and size >= self.size_threshold
        return by_size or (self.num_checkpoints is not None and checkpoints >= self.num_checkpoints)

    class Builder:
        """Describes a strategy."""

        def __init__(self) -> None:
            self._size: int | None = None
            self._checkpoints: int | None = None

        def enable_compaction_on_checkpoint(
            self, num_checkpoints_before_compaction: int
        ) -> FileCompactStrategy.Builder:
            """Finish a file after this many checkpoints at the latest."""
            self._checkpoints = _positive("enable_compaction_on_checkpoint", num_checkpoints_before_compaction)
            return self

        def set_size_threshold(self, size_threshold: int) -> FileCompactStrategy.Builder:
            """Finish a file as soon as it has this many bytes."""
            self._size = _positive("set_size_threshold", size_threshold)
            return self

        def set_num_compact_threads(self, num_compact_threads: int) -> FileCompactStrategy.Builder:
            """Accepted without effect: the subtasks that write files merge them."""
            _positive("set_num_compact_threads", num_compact_threads)
            notice("FileCompactStrategy.set_num_compact_threads", "the subtasks that write files merge them")
            return self

        def build(self) -> FileCompactStrategy:
            """Return the strategy. Raise ProgramError if it has no condition."""
            if self._size is None and self._checkpoints is None:
                raise ProgramError(
                    "At least one of conditions to be configured",
                    where="FileCompactStrategy.builder()",
                    found="neither a size nor a number of checkpoints",
                    cure="call set_size_threshold or enable_compaction_on_checkpoint",
                )
            return FileCompactStrategy(self._size, self._checkpoints)


def _positive(method: str, number: int) -> int:
    if expect_int(f"FileCompactStrategy.{method}", number, "a number above 0") <= 0:
        raise ProgramError(
            f"{method} takes a number above 0", where="FileCompactStrategy", found=str(number), cure="pass 1 or more"
        )
    return number


@dataclass(frozen=True)
class FileCompactor:
    """Say how small files become one. ``delimiter`` None: each stays a file. Bulk formats merge records and need no delimiter."""

    delimiter: bytes | None

    @staticmethod
    def concat_file_compactor(file_delimiter: bytes | None = None) -> FileCompactor:
        """Concatenate files, with the delimiter between them."""
        return FileCompactor(file_delimiter or b"")

    @staticmethod
    def identical_file_compactor() -> FileCompactor:
        """Keep every file."""
        return FileCompactor(None)


@dataclass(frozen=True)
class Compaction:
    """What the writer needs of strategy and compactor."""

    strategy: FileCompactStrategy
    delimiter: bytes


NAME = "_SUCCESS"
_KEY = "marks"


class Unmarked:
    """The buckets that a writer, or a writer before it, has written to and not yet reported as over."""

    def __init__(self, assigner: BucketAssigner, context: WriterContext, state: Sequence[dict[str, Any]]) -> None:
        self._assigner, self._context = assigner, context
        self._buckets: dict[str, tuple[str, int]] = {}
        for directory, bucket, written_ms in (entry for part in state for entry in part.get("unmarked", ())):
            self.written(directory, bucket, written_ms)

    def written(self, directory: str, bucket: str, at_ms: int) -> None:
        before = self._buckets.get(directory)
        self._buckets[directory] = bucket, at_ms if before is None else max(before[1], at_ms)

    def is_over(self, directory: str) -> bool:
        """Return whether the bucket's parts end with this round. Only a round with a barrier can report this."""
        if self._context.checkpoint_id is None:
            return False
        bucket, written_ms = self._buckets[directory]
        return self._assigner.is_over(bucket, written_ms, self._context.round_ms)

    def report(self, ended: bool) -> list[dict[str, Any]]:
        """Return the report of a round, after its last file. Only rounds with a barrier report, and the last round of the input:
        a job may have no barriers.
        """
        context = self._context
        if context.checkpoint_id is None and not ended:
            return []
        over = [directory for directory in self._buckets if self.is_over(directory)]
        waiting = [directory for directory in self._buckets if directory not in over]
        for directory in over:
            del self._buckets[directory]
        if not (over or waiting or ended):
            return []
        report = {"checkpoint": context.checkpoint_id, "of": context.parallelism, "ended": ended}
        return [{_KEY: {**report, "over": over, "waiting": waiting}}]

    def to_state(self) -> list[Any]:
        return [[directory, *entry] for directory, entry in self._buckets.items()]


def without_marks(committables: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the committables of files, without reports."""
    return [committable for committable in committables if _KEY not in committable]


def write_markers(committables: Iterable[dict[str, Any]], publishes: bool) -> None:
    """Write the markers of complete buckets. Called when all files of these committables are visible."""
    for directory in _complete([item[_KEY] for item in committables if _KEY in item], publishes):
        files = Files(directory, SINK)
        if files.size_if_exists(NAME) is None:
            faults.point("K3.file-sink.before-marker", bucket=directory)
            files.write(NAME, b"")  # fails if an older driver has just written it: the retry finds the marker
            faults.point("K3.file-sink.marked", bucket=directory)


def _complete(marks: list[dict[str, Any]], publishes: bool) -> list[str]:
    by_checkpoint: dict[int, list[dict[str, Any]]] = {}
    for mark in marks:
        if mark["checkpoint"] is not None:
            by_checkpoint.setdefault(mark["checkpoint"], []).append(mark)
    if not by_checkpoint and not publishes:  # a job without checkpoints commits once, at its end
        return sorted({directory for mark in marks for directory in mark["waiting"]})
    complete: set[str] = set()
    for _, reports in sorted(by_checkpoint.items()):
        waiting = {directory for mark in reports for directory in mark["waiting"]}
        complete.update(directory for mark in reports for directory in mark["over"])
        if sum(mark["ended"] for mark in reports) == reports[0]["of"]:
            complete |= waiting
        else:
            complete -= waiting  # also a bucket that was over at an earlier checkpoint and got records again
    return sorted(complete)
