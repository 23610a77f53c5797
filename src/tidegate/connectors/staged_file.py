"""Files that writers keep on checkpoint storage until a commit, their numbers, and the mark of a job's directory.

**Numbers.** A checkpoint holds the committables that it covers, **and those that the checkpoint before it had not
confirmed at its cut**. When a checkpoint is restored, the latter may have been committed long ago, under the number of
the earlier checkpoint. So every committable has a number, and a commit skips committables whose number is done.

The number is the id of the checkpoint whose barrier came with the round, or with the next round that carried a barrier.
In at-least-once mode rounds are committed, and a restored checkpoint may be older than the committed output. There the
number is made of attempt and round.

**Mark.** The mark is part of our names in outside systems that outlive the directory. An outside system remembers
"attempt 3 of this job, round 40". A program with the same job id and a new directory starts with attempt 1. Without the
mark the outside system would take it for an older attempt and discard its output silently.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from tidegate.base import faults
from tidegate.base.errors import StorageError
from tidegate.base.files import FileHandle, Files, FileWriter
from tidegate.base.hashing import new_token
from tidegate.base.pickling import load_stored_from
from tidegate.checkpoint.lease_records import Claim, claim_path, read_undamaged
from tidegate.operators.contracts.sink import CommitterContext, WriterContext

ROUND_BITS = 32
_HEAD = 8


def name_of_attempt(context: WriterContext) -> str:
    """Return a file name that no other attempt uses. Names sort by round."""
    return f"{context.round:010d}-{context.subtask}-{plain_name(context.attempt)}"


def plain_name(text: str) -> str:
    """Replace characters that not every file system takes in a name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text)


class StagedFile:
    """A file of one attempt in the staging directory of its sink. It exists from the first ``write`` on.

    ``aside``: see ``Files.create_stream``. ``strong``: see ``Files``.
    """

    def __init__(self, context: WriterContext, directory: str, *, aside: bool = False, strong: bool = False) -> None:
        self._files, self._aside = Files(context.staging, strong=strong), aside
        self._name = f"{directory}/{name_of_attempt(context)}"
        self._stream: FileWriter | None = None

    @property
    def has_content(self) -> bool:
        """Whether something was written and the file is not finished yet."""
        return self._stream is not None

    def write(self, *parts: bytes) -> None:
        if self._stream is None:
            self._stream = self._files.create_stream(self._name, aside=self._aside)
        for part in parts:
            self._stream.write(part)

    def write_frame(self, data: bytes) -> None:
        """Write the data after its length, for ``frames_of``."""
        self.write(len(data).to_bytes(_HEAD, "big"), data)

    def finish(self) -> tuple[str, int, str]:
        """Make the file durable. Return its address, size and hash.

        The address is a full one, because another job may restore the checkpoint.
        """
        assert self._stream is not None
        stream, self._stream = self._stream, None
        handle = stream.close()
        return self._files.location(self._name), handle.size, handle.hash

    def drop(self) -> None:
        """Delete the file, whether it is finished or not."""
        if self._stream is None:
            self._files.delete(self._name)
        self.close()

    def close(self) -> None:
        """Discard the file unless it is finished."""
        if self._stream is not None:
            self._stream.discard()
            self._stream = None


def frames_of(data: bytes) -> Iterator[bytes]:
    """Yield what ``write_frame`` wrote."""
    at = 0
    while at < len(data):
        start = at + _HEAD
        at = start + int.from_bytes(data[at:start], "big")
        yield data[start:at]


def file_at(address: str) -> tuple[Files, str]:
    """Split a full address into directory and name. After a restore the file may belong to another job's directory."""
    directory, _, name = address.rpartition("/")
    return Files(directory), name


def read_staged(address: str, size: int, content_hash: str) -> bytes:
    """Read a finished file and verify its content."""
    files, name = file_at(address)
    return files.read(FileHandle(name, size, content_hash))


def pickles_in(address: str) -> Iterator[Any]:
    """Load the pickles of a file one after another."""
    files, name = file_at(address)
    with files.open_stream(name) as stream:
        while True:
            try:
                yield load_stored_from(stream)
            except EOFError:
                return


def delete_staged(address: str) -> None:
    files, name = file_at(address)
    files.delete(name)


def delete_lingering(context: CommitterContext, listed: Collection[str], wanted: Collection[str], point: str) -> None:
    """Delete the listed files of a sink's staging directory, except the wanted addresses.

    The lease is checked after the listing and before the first delete (``Committer.abort_lingering``).
    """
    faults.point(point, files=len(listed))
    context.check_lease()
    files = Files(context.staging)
    for path in listed:
        if files.location(path) not in wanted:
            files.delete(path)


def number_of_round(context: WriterContext) -> int:
    """Return a number that grows with every round of an attempt and with every attempt."""
    return (context.lease << ROUND_BITS) + context.round


def number_of(context: WriterContext) -> int | None:
    """Return the number of a round's committables. None: the next barrier decides.

    A sink that calls this sets ``marks_checkpoints``.
    """
    return number_of_round(context) if context.publishes else context.checkpoint_id


def with_numbers(committables: Iterable[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Pair each committable with its number, in the given order.

    Committables after the last barrier belong to a job without checkpoints. Their output is committed once, at the end of the job,
    under the number of the last round.
    """
    every = list(committables)
    following = max((item["round"] for item in every), default=0)
    found: list[tuple[int, dict[str, Any]]] = []
    for item in reversed(every):
        following = item["checkpoint"] if item["checkpoint"] is not None else following
        found.append((following, item))
    return found[::-1]


def without_done(done: int | None, numbered: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield the committables that neither the commit under ``done`` nor an earlier commit contained."""
    return (item for number, item in numbered if done is None or number > done)


_FILE = "directory-mark"
_LENGTH = 12


def mark_for(context: CommitterContext) -> str:
    """Return the mark, and write it if it is missing. Called on the driver, before any writer needs the mark.

    A mark on storage is never replaced. Jobs of the same directory get the same mark.
    """
    files = Files(context.staging)
    content = files.read_if_exists(_FILE)
    if content is None:
        content = new_mark(context).encode()
        files.replace(_FILE, content)
    return content.decode()


def new_mark(context: CommitterContext) -> str:
    """From the first claim of the directory, which stays for ever; a random one for a directory without claims."""
    claim = None if context.root is None else read_undamaged(Files(context.root), claim_path(1), Claim)
    return (claim.nonce if claim is not None else new_token())[:_LENGTH]


def mark_of(context: WriterContext) -> str:
    """Read the mark in a task. Not cached: a worker may outlive the directory and see another one in its place."""
    content = Files(context.staging).read_if_exists(_FILE)
    if content is None:
        raise StorageError(
            "The mark of a sink's staging directory is missing, and names in outside systems contain it",
            where=Files(context.staging).location(_FILE),
            found="no such file",
            cure="do not change the job's directory while the job runs; restart the job to write the mark again",
        )
    return content.decode()
