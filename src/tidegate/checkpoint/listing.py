"""A job's checkpoints as faces list them: the history on storage, and which of them are still there."""

from __future__ import annotations

import msgspec

from tidegate.base.errors import TidegateError
from tidegate.base.files import Files
from tidegate.checkpoint.history import CheckpointStatus, HistoryEntry, blank_entry, entry_of, read_history
from tidegate.checkpoint.lineage import read_lineage
from tidegate.checkpoint.locate import locate_exactly


class ListedCheckpoint(HistoryEntry, frozen=True, kw_only=True, omit_defaults=True):
    """``kept``: the address of a checkpoint that is still there; None: it was subsumed, or has failed."""

    kept: str | None


class CheckpointList(msgspec.Struct, frozen=True, kw_only=True):
    """Oldest first."""

    directory: str
    checkpoints: list[ListedCheckpoint]


def list_checkpoints(files: Files) -> CheckpointList:
    """Of a job's directory, also when nothing of the job runs. Damage raises ``CorruptFileError``."""
    kept = _kept(files)
    entries = _with_unentered(read_history(files), kept)
    listed = [
        ListedCheckpoint(**msgspec.structs.asdict(entry), kept=kept.get(entry.checkpoint_id)) for entry in entries
    ]
    return CheckpointList(directory=files.root, checkpoints=listed)


def _kept(files: Files) -> dict[int, str]:
    """Address of every checkpoint that is still there."""
    lineage = read_lineage(files)
    points = (*lineage.retained, *lineage.protected)
    return {p.checkpoint_id: p.directory or files.location(f"chk-{p.checkpoint_id}") for p in points}


def _with_unentered(entries: list[HistoryEntry], kept: dict[int, str]) -> list[HistoryEntry]:
    """The history is written last of all: a checkpoint that has just been completed, or was when the driver died, is not in it."""
    missing = sorted(kept.keys() - {entry.checkpoint_id for entry in entries})
    return entries + [_from_metadata(number, kept[number]) for number in missing]


def _from_metadata(checkpoint_id: int, address: str) -> HistoryEntry:
    try:
        return entry_of(locate_exactly(address).metadata)
    except TidegateError:  # it is damaged, or just being deleted
        return blank_entry(checkpoint_id, CheckpointStatus.COMPLETED)
