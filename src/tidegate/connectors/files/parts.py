"""Part files of a file sink: fragments, their names, and how fragments become one file.

A writer never appends to a file of another attempt, because that attempt may still be alive. So each attempt writes a fragment of
its own. A part is an ordered list of fragments until it is finished. Then it is one hidden file that the commit renames.

**Who may touch a fragment.** Checkpoints name fragments, and several may name the same one: retained checkpoints of a job, and
checkpoints that other jobs or lineages were started from. So a fragment that was ever part of a checkpoint (``named``) is only
read. It is never renamed: a part that contains one is finished as a copy. Only the job whose mark it carries deletes it, and only
when no checkpoint of that job names it (``ReferencedFiles``). A job that restores fragments of another job copies them in its first
round, and its checkpoints then name its own files. The attempt that finishes a part chooses the visible name, so two jobs that
continue one part never use the same name.

**Bulk formats.** A Parquet file ends with its index, so no round can append to the file of another round. The fragments of such a
part contain frames of packed records instead. Concatenated frames are frames, so these fragments are merged and copied like those
of a row format. The round that finishes the part writes the file itself once, hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from tidegate.base.errors import CorruptFileError
from tidegate.base.files import Files, FileWriter
from tidegate.base.ids import stable_hash
from tidegate.common.serialization import BulkWriterFactory
from tidegate.connectors.files.paths import COPY_BUFFER, SINK, join
from tidegate.connectors.files.rolling import PartInfo
from tidegate.connectors.staged_file import plain_name

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
