"""What the command ``checkpoints`` shows: a job's history on storage, also when nothing of the job runs any more."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidegate.checkpoint.history import CheckpointStatus, HistoryEntry, read_history
from tidegate.checkpoint.lease_records import DIRECTORY as LEASES
from tidegate.checkpoint.lineage import read_lineage
from tidegate.checkpoint.metadata import CHECKPOINT, FILE_NAME
from tidegate.cli.durations import duration
from tidegate.cli.jobs import moment
from tidegate.cli.outcome import print_json, table
from tidegate.common.errors import RestoreError
from tidegate.common.files import Files
from tidegate.control.client import find


def show(job: str, *, json: bool) -> None:
    files = Files(directory_of(job))
    kept = _kept(files)
    entries = _with_unentered(read_history(files), kept)
    if json:
        listed = [{**msgspec.to_builtins(entry), "kept": kept.get(entry.checkpoint_id)} for entry in entries]
        print_json({"directory": files.root, "checkpoints": listed})
    elif entries:
        rows = [_row(entry, kept) for entry in entries]
        print(table(("ID", "KIND", "STATUS", "AT", "TOOK", "BYTES", ""), rows))
    else:
        print(f"no checkpoints in {files.root}")


def directory_of(text: str) -> str:
    """Of a job: by a path, else by its id. A path of storage has a slash; a directory here may have none."""
    if "/" not in text and not Path(text).is_dir():
        return find(text).directory
    here = text.rstrip("/").removesuffix(f"/{FILE_NAME}")
    parent, _, name = here.rpartition("/")
    for place in (here, parent) if name.startswith("chk-") else (here,):
        files = Files(place)
        if files.exists("history.json") or files.exists(LEASES):
            return place
    names = Files(here).list_names()
    raise RestoreError(
        "The history of checkpoints is in the directory of a job",
        where=text,
        found=f"no history.json in it: {', '.join(names[:5])}" if names else "no such directory, or it is empty",
        cure="give the job's directory (with chk-<n>, lease, shared in it), or the job's id",
    )


def _kept(files: Files) -> dict[int, str]:
    """Address of every checkpoint that is still there."""
    lineage = read_lineage(files)
    points = (*lineage.retained, *lineage.protected)
    return {p.checkpoint_id: p.directory or files.location(f"chk-{p.checkpoint_id}") for p in points}


def _with_unentered(entries: list[HistoryEntry], kept: dict[int, str]) -> list[HistoryEntry]:
    """The history is written last of all: a checkpoint that has just been completed, or was when the driver died, is not in it."""
    missing = sorted(kept.keys() - {entry.checkpoint_id for entry in entries})
    done = CheckpointStatus.COMPLETED
    return entries + [
        HistoryEntry(checkpoint_id=n, token=0, kind=CHECKPOINT, status=done, trigger_ms=0, end_ms=0, duration_ms=0)
        for n in missing
    ]


def _row(entry: HistoryEntry, kept: dict[int, str]) -> tuple[str, ...]:
    failed = f"{entry.reason}: {entry.message}".partition("\n")[0].strip(": ")
    waiting = f"{entry.in_flight_records:,} records in flight" if entry.in_flight_records else ""
    return (
        str(entry.checkpoint_id),
        entry.kind,
        entry.status.value,
        moment(entry.trigger_ms) if entry.trigger_ms else "",
        duration(round(entry.duration_ms)) if entry.trigger_ms else "",
        f"{entry.size:,}" if entry.size else "",
        ", ".join(filter(None, (kept.get(entry.checkpoint_id, "") or failed, waiting))),
    )
