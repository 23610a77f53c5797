"""The history of a job's checkpoints (C19), its file, and the list of checkpoints that faces show.

The file is bounded, outlives the driver, and never blocks a job. The list combines the history on storage with the
checkpoints that still exist.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from tidegate.base.errors import RestoreError, StorageError, TidegateError
from tidegate.base.files import Files
from tidegate.checkpoint.envelope import seal, unseal
from tidegate.checkpoint.locate import locate_exactly, read_lineage
from tidegate.checkpoint.metadata import CHECKPOINT, CheckpointMetadata

logger = logging.getLogger(__name__)

MAGIC, VERSION, PATH = "tidegate-history", 1, "history.json"
DEFAULT_LIMIT = 200
"""The whole file is written with every checkpoint: a thousand entries would cost 10 ms each time, 200 entries cost 2 or 3."""

_MOST_OPERATORS = 1000
"""In all entries together, the newest first: older entries of a job with many operators keep only their sums."""
_MOST_SUBTASKS = 1000
"""Rows of subtasks in all entries together, the newest first: some 100 bytes each, and 0.6 ms for all of them when the file is
written."""
MOST_SHOWN = 3
_LONGEST_MESSAGE = 2000

NO_ID = 0
"""In place of a checkpoint's id: a failure that counts as a failed checkpoint, while no checkpoint was triggered."""


STEPS = ("trigger", "run", "align", "snapshot", "complete", "commit", "subsume")
"""The steps of the protocol that take time: 1, 3 with all it contains, 4, 5, 7, 8 and 9."""


class CheckpointStatus(Enum):
    COMPLETED = "completed"
    FAILED = "failed"


class OperatorFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operator in a checkpoint. Times are those of its slowest subtask, in milliseconds.

    The operators of a chain run in one loop. The run time of the loop, the time until its barriers arrived, and its records in
    flight belong to the chain's first operator. ``size``: bytes of all state files that the operator refers to; ``incremental``:
    bytes that the previous checkpoint did not have. ``behind``: records that a source knows of and has not read, None if unknown.
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
        """Return the figures with one more subtask."""
        return msgspec.structs.replace(
            self,
            name=other.name,
            run_ms=max(self.run_ms, other.run_ms),
            align_ms=max(self.align_ms, other.align_ms),
            snapshot_ms=max(self.snapshot_ms, other.snapshot_ms),
            in_flight_bytes=self.in_flight_bytes + other.in_flight_bytes,
            in_flight_records=self.in_flight_records + other.in_flight_records,
        )


@dataclass(frozen=True, slots=True)
class SubtaskFigures:
    """One subtask of an operator in a checkpoint. Times are in milliseconds, sizes in bytes. ``operator``: its id in the run.

    Run and alignment belong to the chain, and so to its first operator. Another operator has figures if it has state, or a snapshot
    that took time.
    """

    operator: int
    subtask: int
    run_ms: float = 0.0
    align_ms: float = 0.0
    snapshot_ms: float = 0.0
    size: int = 0
    incremental: int = 0
    in_flight_bytes: int = 0
    acknowledged_ms: int | None = None
    """When (wall clock) the subtask had its snapshot."""


SubtaskRow = tuple[int, float, float, float, int, int, int, int]
"""The fields of ``SubtaskFigures`` from ``subtask`` on. The last one: milliseconds after the trigger, 0 if unknown."""


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One checkpoint: a completed one has a size, a failed one a reason. Times are of the wall clock, in milliseconds.

    ``steps_ms``: how long the steps took (``STEPS``), as far as the checkpoint got. Steps 8 and 9 end after the entry is written,
    so their times are stored with the next entry. ``duration_ms``: steps 1 to 7. ``incremental``: bytes that the previous
    checkpoint did not have. ``behind``: records that the sources knew of and had not read, None if no source knows it.
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
    """How many committables step 8 has to commit; None: not known."""
    steps_ms: dict[str, float] = {}
    operators: dict[str, OperatorFigures] = {}
    """By uid hash."""
    subtasks: dict[str, list[SubtaskRow]] = {}
    """By uid hash: only the slowest and the largest subtasks of each operator (``MOST_SHOWN`` of both)."""

    def figures(self, ids: Mapping[str, int]) -> tuple[SubtaskFigures, ...]:
        """Return the figures of single subtasks, as far as the entry has them. ``ids``: the operators by uid hash."""
        return tuple(
            SubtaskFigures(ids[uid_hash], *row[:-1], self.trigger_ms + row[-1] if row[-1] else None)
            for uid_hash, rows in self.subtasks.items()
            if uid_hash in ids
            for row in rows
        )


def shown_subtasks(
    figures: Iterable[SubtaskFigures], uid_hashes: Mapping[int, str], trigger_ms: int
) -> dict[str, list[SubtaskRow]]:
    """Return the rows for an entry: of each operator the slowest and the largest subtasks."""
    rows: dict[str, list[SubtaskRow]] = {}
    for each in slowest_and_largest(figures):
        rows.setdefault(uid_hashes[each.operator], []).append(_row(each, trigger_ms))
    return rows


def slowest_and_largest(figures: Iterable[SubtaskFigures]) -> tuple[SubtaskFigures, ...]:
    """Return the figures of the ``MOST_SHOWN`` slowest and the ``MOST_SHOWN`` largest subtasks of each operator."""
    by_operator: dict[int, list[SubtaskFigures]] = {}
    for each in figures:
        by_operator.setdefault(each.operator, []).append(each)
    found: list[SubtaskFigures] = []
    for every in by_operator.values():
        slowest = heapq.nlargest(MOST_SHOWN, every, key=lambda each: each.run_ms + each.snapshot_ms)
        largest = heapq.nlargest(MOST_SHOWN, every, key=lambda each: (each.incremental, each.size))
        kept = {each.subtask: each for each in (*slowest, *largest)}
        found += [kept[subtask] for subtask in sorted(kept)]
    return tuple(found)


def _row(of: SubtaskFigures, trigger_ms: int) -> SubtaskRow:
    after = max(0, of.acknowledged_ms - trigger_ms) if of.acknowledged_ms else 0
    times = of.run_ms, of.align_ms, of.snapshot_ms
    return of.subtask, *times, of.size, of.incremental, of.in_flight_bytes, after


class CheckpointHistory:
    """The entries, newest last. The whole file is written after every checkpoint, with some hundred bytes for each of at most
    ``limit`` entries."""

    def __init__(self, files: Files, limit: int = DEFAULT_LIMIT) -> None:
        self._files, self._limit = files, limit
        self._entries = _read_or_begin(files)
        self.unstored = False
        """Whether some entry should be stored soon."""
        self._amended = False

    @property
    def entries(self) -> list[HistoryEntry]:
        return list(self._entries)

    @property
    def highest_id(self) -> int:
        return max((entry.checkpoint_id for entry in self._entries), default=0)

    def add(self, *entries: HistoryEntry) -> None:
        """Remember the entries and store them."""
        self.remember(*entries)
        self.store()

    def remember(self, *entries: HistoryEntry) -> None:
        """Remember the entries for the next ``store``. This call does not wait for storage."""
        if entries:
            self._entries = _bounded([*self._entries, *map(_shortened, entries)], self._limit)
            self.unstored = True

    def amend(self, entry: HistoryEntry, **changes: Any) -> HistoryEntry:
        """Add facts that were not known when the entry was remembered, if the history still has the entry. They are stored with
        the next entry, or at the end: this call writes nothing."""
        changed = msgspec.structs.replace(entry, **changes)
        for index in range(len(self._entries) - 1, -1, -1):
            if self._entries[index].checkpoint_id == entry.checkpoint_id:
                kept = msgspec.structs.replace(self._entries[index], **changes)
                self._entries = [*self._entries[:index], kept, *self._entries[index + 1 :]]
                self._amended = True
                break
        return changed

    def store(self) -> None:
        """Write the file. May run in another thread than ``remember``. A storage failure is logged: a later call writes the whole
        file anyway."""
        if not (self.unstored or self._amended):
            return
        self.unstored = self._amended = False
        try:
            self._files.replace(PATH, seal(MAGIC, VERSION, self._entries))
        except StorageError as error:
            logger.warning("checkpoint history not written: %s", error)


def _bounded(entries: list[HistoryEntry], limit: int) -> list[HistoryEntry]:
    kept, room, rows = [], _MOST_OPERATORS, _MOST_SUBTASKS
    for entry in reversed(entries[-limit:]):
        room -= len(entry.operators)
        rows -= sum(map(len, entry.subtasks.values()))
        if rows < 0 and entry.subtasks:
            entry = msgspec.structs.replace(entry, subtasks={})
        kept.append(entry if room >= 0 or not entry.operators else msgspec.structs.replace(entry, operators={}))
    return kept[::-1]


def _shortened(entry: HistoryEntry) -> HistoryEntry:
    if len(entry.message) <= _LONGEST_MESSAGE:
        return entry
    return msgspec.structs.replace(entry, message=entry.message[:_LONGEST_MESSAGE] + " ...")


def entry_of(metadata: CheckpointMetadata, metadata_bytes: int = 0) -> HistoryEntry:
    """Make the entry of a completed checkpoint from its metadata alone, for a checkpoint that is in no history."""
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
    """Bytes of a checkpoint with its metadata: of all state files, and of those that the previous checkpoint did not have.
    ``operators``: the name and both figures by uid hash."""

    size: int
    incremental: int
    operators: dict[str, tuple[str, int, int]]


def sizes_of(metadata: CheckpointMetadata, metadata_bytes: int, before: Collection[str]) -> Sizes:
    """Measure a checkpoint. ``before``: paths of the state files of the previous checkpoint."""
    operators, seen = {}, set[str]()
    for operator in metadata.operators:
        files = {file.path: file.size for file in operator.state_files() if file.path not in seen}
        seen |= files.keys()  # every file counts once
        new = sum(size for path, size in files.items() if path not in before)
        operators[operator.uid_hash] = (operator.name, sum(files.values()), new)
    size = metadata_bytes + sum(size for _, size, _ in operators.values())
    return Sizes(size, metadata_bytes + sum(new for _, _, new in operators.values()), operators)


def output_of(metadata: CheckpointMetadata) -> int | None:
    """Return how many committables step 8 has to commit. None: the job ends with this checkpoint and leaves a savepoint
    (``savepoint.py``). Another job may have continued from that savepoint, so the checkpoint never counts as without output."""
    return None if metadata.properties else sum(len(operator.committables) for operator in metadata.operators)


def blank_entry(checkpoint_id: int, status: CheckpointStatus, reason: str = "") -> HistoryEntry:
    """Make the entry of a checkpoint of which only the outcome is known."""
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
    """Read the history, for readers other than the job. Damage raises ``CorruptFileError``; a missing file is an empty history."""
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


class ListedCheckpoint(HistoryEntry, frozen=True, kw_only=True, omit_defaults=True):
    """``kept``: the address of a checkpoint that still exists; None: it was subsumed, or it failed."""

    kept: str | None


class CheckpointList(msgspec.Struct, frozen=True, kw_only=True):
    """Oldest first."""

    directory: str
    checkpoints: list[ListedCheckpoint]


def list_checkpoints(files: Files) -> CheckpointList:
    """List the checkpoints of a job's directory, also when no driver of the job runs. Damage raises ``CorruptFileError``."""
    kept = _kept(files)
    entries = _with_unentered(read_history(files), kept)
    listed = [
        ListedCheckpoint(**msgspec.structs.asdict(entry), kept=kept.get(entry.checkpoint_id)) for entry in entries
    ]
    return CheckpointList(directory=files.root, checkpoints=listed)


def _kept(files: Files) -> dict[int, str]:
    """Return the address of every checkpoint that still exists."""
    lineage = read_lineage(files)
    points = (*lineage.retained, *lineage.protected)
    return {p.checkpoint_id: p.directory or files.location(f"chk-{p.checkpoint_id}") for p in points}


def _with_unentered(entries: list[HistoryEntry], kept: dict[int, str]) -> list[HistoryEntry]:
    """Add checkpoints that the history does not have. The history is written last: a checkpoint that was completed just now, or
    just before the driver died, is missing in it."""
    missing = sorted(kept.keys() - {entry.checkpoint_id for entry in entries})
    return entries + [_from_metadata(number, kept[number]) for number in missing]


def _from_metadata(checkpoint_id: int, address: str) -> HistoryEntry:
    try:
        return entry_of(locate_exactly(address).metadata)
    except TidegateError:  # the checkpoint is damaged, or is being deleted
        return blank_entry(checkpoint_id, CheckpointStatus.COMPLETED)
