"""Success markers of a file sink: an empty file ``_SUCCESS`` in a bucket says that all files of the bucket are there.

**When it may be said.** All files of the bucket are visible, no subtask has one open, and no record will come for it. A subtask
knows that of itself alone: it may have ended while others go on, and its clock may be ahead of theirs. So with every barrier each
tells what it knows (``Unmarked.tell``), as a committable of that checkpoint, and the committer, which has them all, decides. A
bucket is complete that one has told to be over and none to be waiting, or any bucket when all subtasks have reached their end.
Whoever told that a bucket is over has finished its files in the same round, so they are in the same commit or an earlier one, in
front of the marker. What was told is in the checkpoint, and so is told again by a restore; a marker that is there stays as it is.

**Over** is what the bucket assigner says by the time at which the driver began the round. No subtask of that round, or of a later
one, takes an earlier time for its records' buckets, unless the clock is set back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tidegate.base import faults
from tidegate.base.files import Files
from tidegate.connectors.files.bucket_assigners import BucketAssigner
from tidegate.connectors.files.paths import SINK
from tidegate.operators.contracts.sink import WriterContext

NAME = "_SUCCESS"
_KEY = "marks"


class Unmarked:
    """Of a writer: the buckets that it, or one before it, has written to, and that were not told to be over."""

    def __init__(self, assigner: BucketAssigner, context: WriterContext, state: Sequence[dict[str, Any]]) -> None:
        self._assigner, self._context = assigner, context
        self._buckets: dict[str, tuple[str, int]] = {}
        for directory, bucket, written_ms in (entry for told in state for entry in told.get("unmarked", ())):
            self.written(directory, bucket, written_ms)

    def written(self, directory: str, bucket: str, at_ms: int) -> None:
        before = self._buckets.get(directory)
        self._buckets[directory] = bucket, at_ms if before is None else max(before[1], at_ms)

    def is_over(self, directory: str) -> bool:
        """Its parts are to be finished with this round: asked with a barrier, which the answer goes with."""
        if self._context.checkpoint_id is None:
            return False
        bucket, written_ms = self._buckets[directory]
        return self._assigner.is_over(bucket, written_ms, self._context.round_ms)

    def tell(self, ended: bool) -> list[dict[str, Any]]:
        """Behind the round's last file. Nothing is told of rounds without a barrier, but of the end: a job may have none."""
        context = self._context
        if context.checkpoint_id is None and not ended:
            return []
        over = [directory for directory in self._buckets if self.is_over(directory)]
        waiting = [directory for directory in self._buckets if directory not in over]
        for directory in over:
            del self._buckets[directory]
        if not (over or waiting or ended):
            return []
        told = {"checkpoint": context.checkpoint_id, "of": context.parallelism, "ended": ended}
        return [{_KEY: {**told, "over": over, "waiting": waiting}}]

    def to_state(self) -> list[Any]:
        return [[directory, *entry] for directory, entry in self._buckets.items()]


def without_marks(committables: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of files."""
    return [committable for committable in committables if _KEY not in committable]


def write_markers(committables: Iterable[dict[str, Any]], publishes: bool) -> None:
    """When all files of these committables are visible."""
    for directory in _complete([item[_KEY] for item in committables if _KEY in item], publishes):
        files = Files(directory, SINK)
        if files.size_if_exists(NAME) is None:
            faults.point("K3.file-sink.before-marker", bucket=directory)
            files.write(NAME, b"")  # if it is there by now, an older driver woke up, and the next try finds it
            faults.point("K3.file-sink.marked", bucket=directory)


def _complete(marks: list[dict[str, Any]], publishes: bool) -> list[str]:
    by_checkpoint: dict[int, list[dict[str, Any]]] = {}
    for mark in marks:
        if mark["checkpoint"] is not None:
            by_checkpoint.setdefault(mark["checkpoint"], []).append(mark)
    if not by_checkpoint and not publishes:  # a job without checkpoints: this is its only commit, at its end
        return sorted({directory for mark in marks for directory in mark["waiting"]})
    complete: set[str] = set()
    for _, told in sorted(by_checkpoint.items()):
        waiting = {directory for mark in told for directory in mark["waiting"]}
        complete.update(directory for mark in told for directory in mark["over"])
        if sum(mark["ended"] for mark in told) == told[0]["of"]:
            complete |= waiting
        else:
            complete -= waiting  # one of an earlier checkpoint too, that was written to again
    return sorted(complete)
