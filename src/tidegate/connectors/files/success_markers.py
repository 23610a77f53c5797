"""Success markers of a file sink: an empty file ``_SUCCESS`` in a bucket means that the bucket is complete.

**When a bucket is complete.** All its files are visible, no subtask has an open file of it, and no more records will come. A
subtask knows this of itself alone: it may have finished while others continue, and its clock may be ahead of theirs. So with
every barrier each subtask reports its buckets (``Unmarked.report``) as a committable of that checkpoint. The committer sees all
reports and decides. A bucket is complete if one subtask reports it as over and none as waiting. All buckets are complete when all
subtasks have finished. A subtask that reports a bucket as over has finished its files in the same round. So the files are in the
same commit or an earlier one, before the marker. Reports are in the checkpoint, so a restore repeats them. An existing marker is
not changed.

**Over** is what the bucket assigner returns for the start of the round, by the driver's clock. No subtask of that round or a later
round uses an earlier time for the buckets of its records, unless the clock is set back.
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
