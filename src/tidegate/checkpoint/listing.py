"""A job's checkpoints as faces list them: the history on storage, and which checkpoints still exist."""

from __future__ import annotations

import msgspec

from tidegate.base.errors import TidegateError
from tidegate.base.files import Files
from tidegate.checkpoint.history import CheckpointStatus, HistoryEntry, blank_entry, entry_of, read_history
from tidegate.checkpoint.lineage import read_lineage
from tidegate.checkpoint.locate import locate_exactly


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
