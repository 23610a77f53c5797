"""Part files of a file sink: fragments written round by round, names, and what checkpoints keep of them.

A writer never appends to a file of another attempt, because that attempt may still be alive. So each attempt
writes a fragment of its own, and a part is an ordered list of fragments until it is finished: then it is one
hidden file that the commit renames.

**Who may touch a fragment.** Checkpoints name fragments, and several may name the same one: retained ones of a job, and
the ones other jobs or other lineages were started from. So a fragment that was ever handed over with a checkpoint
(``named``) is only read. It is never renamed: a part that has one is finished as a copy. It is deleted by the job
whose mark it carries, and only when none of that job's checkpoints names it (``kept_files``). A job that finds fragments
of another one in its writer states copies them in its first round, and its checkpoints name its own files from then on.
The visible name is chosen by the attempt that finishes the part: two jobs that go on with one part never want the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tidegate.base.errors import CorruptFileError
from tidegate.base.files import Files
from tidegate.base.ids import stable_hash
from tidegate.connectors.files.paths import COPY_BUFFER, SINK, join
from tidegate.connectors.files.rolling import PartInfo

MERGE_WIDTH = 16
"""So many fragments of one level become one of the next: the list stays short, a byte is copied once per level."""


@dataclass
class Fragment:
    name: str
    size: int
    level: int = 0
    named: bool = True
    """Whether a checkpoint may name it: only one that never was part of one can be renamed or deleted at once."""


@dataclass
class Part:
    """``target``: the name it will get, a new one in every attempt; it is no part of the state. With compaction a part
    holds several files: ``counted`` bytes of them are complete, and ``checkpoints`` have passed since its first record."""

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
    """Names of unfinished files: ``.<target>.inprogress.<owner>-<attempt>-<number>``. The owner stands for the job, its
    directory on checkpoint storage and the sink, so that a restarted job finds all its unfinished files by listing, and no
    others: a job of the same id with another checkpoint directory knows nothing of this one's checkpoints.
    """

    def __init__(self, job_id: str, sink_id: str, staging: str, attempt: str = "") -> None:
        self._mark = f".inprogress.{stable_hash(f'{job_id}/{sink_id}/{staging}')[:16]}-"
        self._attempt = re.sub(r"[^A-Za-z0-9_.-]", "_", attempt)
        self._count = 0

    def new(self, target: str) -> str:
        self._count += 1
        return f".{target}{self._mark}{self._attempt}-{self._count}"

    def owns(self, name: str) -> bool:
        return name.startswith(".") and self._mark in name


def concatenate(directory: str, fragments: list[Fragment], name: str) -> Fragment:
    """One durable file out of several; the old ones stay, an older checkpoint may need them."""
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
            "an unfinished file of a file sink must be what the checkpoint says",
            where=f"file {path}",
            found=f"{'no such file' if found is None else f'{found} bytes'}, expected {fragment.size} bytes",
            cure="bring it back, or restore a checkpoint the job still keeps: files of the others are gone",
        )


def full_levels(fragments: list[Fragment]) -> int:
    """How many fragments at the end of the list are to be merged now; 0: none. Levels never grow along the list."""
    levels = [fragment.level for fragment in fragments]
    merged = level = 0
    while True:
        run = levels.count(level)
        if run + bool(merged) < MERGE_WIDTH:
            return merged
        merged, level = merged + run, level + 1
