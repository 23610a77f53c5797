"""``tidegate checkpoints --plot``: duration and size of a job's checkpoints as bars in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.base.plain_text import duration
from tidegate.checkpoint.history import CheckpointStatus, ListedCheckpoint

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
