"""The output of the command ``checkpoints``: a job's history on storage, also when the job does not run any more."""

from __future__ import annotations

import shutil
from pathlib import Path

from tidegate.base.errors import RestoreError
from tidegate.base.files import Files
from tidegate.base.plain_text import duration, plain_line
from tidegate.checkpoint.history import CheckpointList, ListedCheckpoint, OperatorFigures, list_checkpoints
from tidegate.checkpoint.lease_records import DIRECTORY as LEASES
from tidegate.checkpoint.locate import names_in
from tidegate.checkpoint.metadata import FILE_NAME
from tidegate.cli.checkpoint_plot import plots
from tidegate.cli.jobs import moment
from tidegate.cli.outcome import print_json, say, table
from tidegate.control.client import find


def show(job: str, *, json: bool, only: int | None = None, plot: bool = False) -> None:
    """Print all checkpoints, or with ``only`` this one and its operators, or with ``plot`` the shape of the latest ones."""
    files = Files(directory_of(job))
    entries = list_checkpoints(files).checkpoints
    if only is not None:
        entries = [_one(files, entries, only)]
    if json:
        return print_json(CheckpointList(directory=files.root, checkpoints=entries))
    if not entries:
        return say(plain_line(f"no checkpoints in {files.root}"))
    if plot:
        return say("\n".join(plots(entries, shutil.get_terminal_size().columns)))
    say(_table([_cells(entry) for entry in entries]))
    if only is not None:
        say("\n" + _table([_operator_cells(figures) for figures in entries[0].operators.values()]))


def _one(files: Files, entries: list[ListedCheckpoint], checkpoint_id: int) -> ListedCheckpoint:
    for entry in entries:
        if entry.checkpoint_id == checkpoint_id:
            return entry
    known = f"{entries[0].checkpoint_id} to {entries[-1].checkpoint_id}" if entries else "none"
    raise RestoreError(
        "The history of the job does not contain this checkpoint; it holds the latest ones",
        where=files.root,
        found=f"no checkpoint {checkpoint_id}; there are: {known}",
        cure="omit --id to list all of them",
    )


def directory_of(text: str) -> str:
    """Return the directory of a job, given by path or by id. A path on storage has a slash; a local directory may have none."""
    if "/" not in text and not Path(text).is_dir():
        return find(text).directory
    here = text.rstrip("/").removesuffix(f"/{FILE_NAME}")
    parent, _, name = here.rpartition("/")
    for place in (here, parent) if name.startswith("chk-") else (here,):
        files = Files(place)
        if files.exists("history.json") or files.exists(LEASES):
            return place
    names = names_in(Files(here))
    found = "a file" if names is None else "no such directory, or it is empty"
    raise RestoreError(
        "There is no history of checkpoints at this path",
        where=text,
        found=f"no history.json in it: {', '.join(names[:5])}" if names else found,
        cure="give the job's directory (with chk-<n>, lease, shared in it), or the job's id",
    )


# -- tables --------------------------------------------------------------------------------------------------------------

Cells = dict[str, str]
_SHOWN_STEPS = ("run", "align", "snapshot", "complete", "commit")
_ALWAYS = ("ID", "KIND", "STATUS", "AT", "TOOK", "BYTES", "")


def _table(rows: list[Cells]) -> str:
    """Omit columns that are empty in all rows."""
    head = [name for name in rows[0] if name in _ALWAYS or any(row[name] for row in rows)] if rows else []
    return table(head, [[row[name] for name in head] for row in rows]) if rows else "no figures of its operators"


def _cells(entry: ListedCheckpoint) -> Cells:
    failed = f"{entry.reason}: {entry.message}".partition("\n")[0].strip(": ")
    return {
        "ID": str(entry.checkpoint_id),
        "KIND": entry.kind,
        "STATUS": entry.status.value,
        "AT": moment(entry.trigger_ms) if entry.trigger_ms else "",
        "TOOK": _took(entry.duration_ms) if entry.trigger_ms else "",
        **{step.upper(): _took(entry.steps_ms.get(step)) for step in _SHOWN_STEPS},
        "BYTES": _number(entry.size),
        "NEW": _number(entry.incremental),
        "IN FLIGHT": _number(entry.in_flight_records),
        "BEHIND": "" if entry.behind is None else f"{entry.behind:,}",
        "": entry.kept or failed,
    }


def _operator_cells(figures: OperatorFigures) -> Cells:
    return {
        "OPERATOR": figures.name,
        "RUN": _took(figures.run_ms or None),
        "ALIGN": _took(figures.align_ms or None),
        "SNAPSHOT": _took(figures.snapshot_ms),
        "BYTES": _number(figures.size),
        "NEW": _number(figures.incremental),
        "IN FLIGHT": _number(figures.in_flight_records),
        "IN FLIGHT BYTES": _number(figures.in_flight_bytes),
        "BEHIND": "" if figures.behind is None else f"{figures.behind:,}",
    }


def _took(ms: float | None) -> str:
    return "" if ms is None else duration(round(ms))


def _number(value: int) -> str:
    return f"{value:,}" if value else ""
