"""The output of the command ``checkpoints``: a job's history on storage as a table, as JSON or as bars. The job need not run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tidegate.base.errors import RestoreError
from tidegate.base.files import Files
from tidegate.base.plain_text import duration, plain_line
from tidegate.checkpoint.history import (
    CheckpointList,
    CheckpointStatus,
    ListedCheckpoint,
    OperatorFigures,
    list_checkpoints,
)
from tidegate.checkpoint.lease_records import DIRECTORY as LEASES
from tidegate.checkpoint.locate import names_in
from tidegate.checkpoint.metadata import FILE_NAME
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


# -- bars ----------------------------------------------------------------------------------------------------------------

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_HEIGHT = 6
FAILED = "×"


def plots(entries: Sequence[ListedCheckpoint], width: int) -> list[str]:
    """Return the lines of both plots, with one column for each of the latest checkpoints that fit into ``width``."""
    took = _plot("duration", entries, width, lambda e: e.duration_ms, lambda ms: duration(round(ms)))
    size = _plot("size", entries, width, lambda e: float(e.size), _bytes)
    return [*took, "", *size]


def _plot(
    name: str,
    entries: Sequence[ListedCheckpoint],
    width: int,
    value: Callable[[ListedCheckpoint], float],
    text: Callable[[float], str],
) -> list[str]:
    done = [entry for entry in entries if entry.status is CheckpointStatus.COMPLETED]
    top = max((value(entry) for entry in done), default=0.0)
    label = max(len(text(top)), len(text(top / 2)), 1)
    shown = list(entries)[-max(width - label - 2, 1) :]
    bars = [
        _bar(value(e), top) if e.status is CheckpointStatus.COMPLETED else [*" " * (_HEIGHT - 1), FAILED] for e in shown
    ]
    head = f"{name}, checkpoints {shown[0].checkpoint_id} to {shown[-1].checkpoint_id}" if shown else name
    failed = sum(entry.status is not CheckpointStatus.COMPLETED for entry in shown)
    if failed:
        head += f"; {FAILED} failed: {failed}"
    marks = {0: text(top), _HEIGHT // 2: text(top / 2), _HEIGHT - 1: "0"}
    rows = [
        f"{marks.get(row, ''):>{label}} {'┤' if row in marks else '│'}{''.join(bar[row] for bar in bars)}".rstrip()
        for row in range(_HEIGHT)
    ]
    return [head, *rows]


def _bar(value: float, top: float) -> list[str]:
    """One column from top to bottom. A value above 0 is never invisible."""
    eighths = round(value / top * _HEIGHT * 8) if top else 0
    eighths = max(eighths, 1) if value else eighths
    cells = [_EIGHTHS[min(max(eighths - 8 * row, 0), 8)] for row in range(_HEIGHT)]
    return cells[::-1]


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError
