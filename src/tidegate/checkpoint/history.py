"""The history of a job's checkpoints (C19): what is known of each, and the file it is kept in.

The file is bounded, outlives the driver, and never blocks a job.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from tidegate.base.errors import RestoreError, StorageError
from tidegate.base.files import Files
from tidegate.checkpoint.envelope import seal, unseal
from tidegate.checkpoint.metadata import CHECKPOINT, CheckpointMetadata

logger = logging.getLogger(__name__)

MAGIC, VERSION, PATH = "tidegate-history", 1, "history.json"
DEFAULT_LIMIT = 200
"""Written whole with every checkpoint: a thousand entries would cost 10 ms each time, these cost 2 or 3."""

_MOST_OPERATORS = 1000
"""In all entries together, the newest first: older ones of a job with many operators keep their sums only."""
_LONGEST_MESSAGE = 2000

NO_ID = 0
"""In place of a checkpoint's id: something failed that counts as one, and none had been triggered."""


STEPS = ("trigger", "run", "align", "snapshot", "complete", "commit", "subsume")
"""The steps of the protocol that take time: 1, 3 with all it contains, 4, 5, 7, 8 and 9."""


class CheckpointStatus(Enum):
    COMPLETED = "completed"
    FAILED = "failed"


class OperatorFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operator in a checkpoint; times are those of its slowest subtask, in milliseconds.

    The operators of a chain run in one loop: how long that took, how long its barriers took to come in, and what was on its way
    to it, is said of the first one. ``size``: of all state files it refers to; ``incremental``: of those the checkpoint before did
    not have. ``behind``: records a source knows of and has not read yet, None where it cannot tell.
    """

    name: str = ""
    run_ms: float = 0.0
    align_ms: float = 0.0
    snapshot_ms: float = 0.0
    size: int = 0
    incremental: int = 0
    in_flight_bytes: int = 0
    in_flight_records: int = 0
    behind: int | None = None

    def with_subtask(self, other: OperatorFigures) -> OperatorFigures:
        """With one more subtask."""
        return msgspec.structs.replace(
            self,
            name=other.name,
            run_ms=max(self.run_ms, other.run_ms),
            align_ms=max(self.align_ms, other.align_ms),
            snapshot_ms=max(self.snapshot_ms, other.snapshot_ms),
            in_flight_bytes=self.in_flight_bytes + other.in_flight_bytes,
            in_flight_records=self.in_flight_records + other.in_flight_records,
        )


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One checkpoint: a completed one has a size, a failed one a reason. Times of the wall clock, in milliseconds.

    ``steps_ms``: how long the steps took (``STEPS``), as far as it came; what took long after the entry was written, steps
    8 and 9, comes with the next one. ``duration_ms``: steps 1 to 7. ``incremental``: bytes the checkpoint before did not have.
    ``behind``: records the sources knew of and had not read, None if none of them can tell.
    """

    checkpoint_id: int
    token: int
    kind: str
    status: CheckpointStatus
    trigger_ms: int
    end_ms: int
    duration_ms: float
    round: int = 0
    size: int = 0
    operators_ms: dict[str, float] = {}
    """Longest snapshot of each operator, in files of earlier versions."""
    reason: str = ""
    message: str = ""
    incremental: int = 0
    in_flight_bytes: int = 0
    in_flight_records: int = 0
    behind: int | None = None
    output: int | None = None
    """Committables it holds, for step 8 to commit; None: not known."""
    steps_ms: dict[str, float] = {}
    operators: dict[str, OperatorFigures] = {}
    """By uid hash."""


class CheckpointHistory:
    """Newest last. Written whole after every checkpoint; some hundred bytes for each of at most ``limit`` entries."""

    def __init__(self, files: Files, limit: int = DEFAULT_LIMIT) -> None:
        self._files, self._limit = files, limit
        self._entries = _read_or_begin(files)
        self.unstored = False
        """Whether there is anything that should be stored soon."""
        self._amended = False

    @property
    def entries(self) -> list[HistoryEntry]:
        return list(self._entries)

    @property
    def highest_id(self) -> int:
        return max((entry.checkpoint_id for entry in self._entries), default=0)

    def add(self, *entries: HistoryEntry) -> None:
        """Remember and store."""
        self.remember(*entries)
        self.store()

    def remember(self, *entries: HistoryEntry) -> None:
        """To be stored with the next ``store``: nobody waits for storage here."""
        if entries:
            self._entries = _bounded([*self._entries, *map(_shortened, entries)], self._limit)
            self.unstored = True

    def amend(self, entry: HistoryEntry, **changes: Any) -> HistoryEntry:
        """Note what was not known when the entry was remembered, if it is still here. It is stored with the next entry, or at the
        end: nothing is written for it."""
        changed = msgspec.structs.replace(entry, **changes)
        for index in range(len(self._entries) - 1, -1, -1):
            if self._entries[index].checkpoint_id == entry.checkpoint_id:
                kept = msgspec.structs.replace(self._entries[index], **changes)
                self._entries = [*self._entries[:index], kept, *self._entries[index + 1 :]]
                self._amended = True
                break
        return changed

    def store(self) -> None:
        """May run in another thread than ``remember``. A storage failure is logged: a later one writes the whole anyway."""
        if not (self.unstored or self._amended):
            return
        self.unstored = self._amended = False
        try:
            self._files.replace(PATH, seal(MAGIC, VERSION, self._entries))
        except StorageError as error:
            logger.warning("checkpoint history not written: %s", error)


def _bounded(entries: list[HistoryEntry], limit: int) -> list[HistoryEntry]:
    kept, room = [], _MOST_OPERATORS
    for entry in reversed(entries[-limit:]):
        room -= len(entry.operators)
        kept.append(entry if room >= 0 or not entry.operators else msgspec.structs.replace(entry, operators={}))
    return kept[::-1]


def _shortened(entry: HistoryEntry) -> HistoryEntry:
    if len(entry.message) <= _LONGEST_MESSAGE:
        return entry
    return msgspec.structs.replace(entry, message=entry.message[:_LONGEST_MESSAGE] + " ...")


def entry_of(metadata: CheckpointMetadata, metadata_bytes: int = 0) -> HistoryEntry:
    """Of a completed checkpoint, made from its metadata alone: for those that are in no history."""
    sizes = sizes_of(metadata, metadata_bytes, ())
    uids = {operator.uid_hash: operator.uid for operator in metadata.operators}
    return HistoryEntry(
        checkpoint_id=metadata.checkpoint_id,
        token=metadata.token,
        kind=metadata.kind,
        status=CheckpointStatus.COMPLETED,
        trigger_ms=metadata.trigger_ms,
        end_ms=metadata.complete_ms,
        duration_ms=metadata.complete_ms - metadata.trigger_ms,
        round=metadata.round,
        size=sizes.size,
        in_flight_bytes=metadata.in_flight_bytes,
        in_flight_records=metadata.in_flight_records,
        output=output_of(metadata),
        operators={
            hash: OperatorFigures(name=f"{name} '{uids[hash]}'" if uids[hash] else name, size=size)
            for hash, (name, size, _) in sizes.operators.items()
            if size
        },
    )


class Sizes(NamedTuple):
    """Bytes of a checkpoint with its metadata: of all state files it refers to, and of those the one before did not have.
    ``operators``: by uid hash the name and both figures."""

    size: int
    incremental: int
    operators: dict[str, tuple[str, int, int]]


def sizes_of(metadata: CheckpointMetadata, metadata_bytes: int, before: Collection[str]) -> Sizes:
    """``before``: paths of the state files of the checkpoint before."""
    operators, seen = {}, set[str]()
    for operator in metadata.operators:
        files = {file.path: file.size for file in operator.state_files() if file.path not in seen}
        seen |= files.keys()  # every file counts once
        new = sum(size for path, size in files.items() if path not in before)
        operators[operator.uid_hash] = (operator.name, sum(files.values()), new)
    size = metadata_bytes + sum(size for _, size, _ in operators.values())
    return Sizes(size, metadata_bytes + sum(new for _, _, new in operators.values()), operators)


def output_of(metadata: CheckpointMetadata) -> int | None:
    """How many committables step 8 has to commit. None: the job ends with it, and leaves a savepoint (``savepoint.py``), with which
    somebody may have gone on: nobody may take it for one without output."""
    return None if metadata.properties else sum(len(operator.committables) for operator in metadata.operators)


def blank_entry(checkpoint_id: int, status: CheckpointStatus, reason: str = "") -> HistoryEntry:
    """Of a checkpoint nothing is known of but how it ended."""
    return HistoryEntry(
        checkpoint_id=checkpoint_id,
        token=0,
        kind=CHECKPOINT,
        status=status,
        trigger_ms=0,
        end_ms=0,
        duration_ms=0,
        reason=reason,
    )


def read_history(files: Files) -> list[HistoryEntry]:
    """For readers beside the job. Damage raises ``CorruptFileError``; no history is an empty one."""
    content = files.read_if_exists(PATH)
    if content is None:
        return []
    return unseal(files.location(PATH), content, MAGIC, {1: _read_version_1})


def _read_or_begin(files: Files) -> list[HistoryEntry]:
    try:
        return read_history(files)
    except (StorageError, RestoreError) as error:
        logger.warning("checkpoint history is not readable and starts empty: %s", error)
        return []


def _read_version_1(body: bytes) -> list[HistoryEntry]:
    return msgspec.json.decode(body, type=list[HistoryEntry])
