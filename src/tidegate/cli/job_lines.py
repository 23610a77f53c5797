"""A job in words: one line when it starts, one while it runs, one when it has ended."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.base.counts import count
from tidegate.cli.durations import duration
from tidegate.common.job_status import JobStatus
from tidegate.runtime.view import CheckpointView, JobView, Outcome

_ENDS = {
    JobStatus.FINISHED: "has finished",
    JobStatus.FAILED: "has failed",
    JobStatus.CANCELED: "was cancelled",
    JobStatus.SUSPENDED: "was stopped and can go on",
}


def start_line(view: JobView) -> str:
    """Which job, where it begins, what it promises, where its checkpoints are."""
    restored = view.attempts[0].checkpoint if view.attempts else None
    begins = "starts from the beginning" if restored is None else f"continues from {_place(restored, view.directory)}"
    parts = [f"job '{view.name}' ({view.job_id}) {begins}"]
    if view.guarantee is not None:
        parts.append(str(view.guarantee))
    if view.checkpoint_interval_ms is not None:
        kept = " (for this run only: set execution.checkpointing.dir)" if view.is_temporary else ""
        parts.append(f"a checkpoint every {duration(view.checkpoint_interval_ms)} in {view.directory}{kept}")
    return "; ".join(parts)


def _place(checkpoint: str, directory: str) -> str:
    """The start line has the directory; what is not in it is named in full."""
    name = checkpoint.removeprefix(f"{directory}/").removeprefix("file://")
    return f"checkpoint {name.removeprefix('chk-')}" if name.startswith("chk-") else name


def live_line(view: JobView, now_ms: int) -> str:
    """What it does now; the end of the line is the first to go on a narrow terminal."""
    totals = view.totals
    parts = [f"{_state(view)} {duration(now_ms - view.created_ms, coarse=True)}"]
    if totals.rounds:
        did = f"{count(totals.rounds, 'round')}, {count(totals.records, 'record')}"
        parts.append(f"{did}, {view.records_per_second(now_ms):,.0f}/s")
    if view.checkpoint_interval_ms is not None and totals.rounds:
        parts.append(_last_checkpoint(view, now_ms))
    copying = copying_line(view.checkpoints)
    if copying is not None:
        parts.append(copying)
    if view.exceptions:
        parts.append(f"{count(len(view.exceptions), 'failure')}, the last: {_first_line(view.exceptions[-1].message)}")
    parts.append(view.name)
    if view.checkpoint_interval_ms is not None:
        parts.append(f"more in {view.directory}/history.json")
    return " · ".join(parts)


def end_line(view: JobView) -> str:
    """How it ended, and what it did."""
    totals, ended = view.totals, view.ended_ms if view.ended_ms is not None else view.created_ms
    did = f"{count(totals.records, 'record')} in {count(totals.rounds, 'round')}"
    if view.checkpoint_interval_ms is not None:
        did += f", {count(totals.checkpoints, 'checkpoint')}"
    return f"job '{view.name}' {_ENDS.get(view.status, view.status.name)}: {did}, {duration(ended - view.created_ms)}"


def _state(view: JobView) -> str:
    if view.status is JobStatus.CREATED or (view.status is JobStatus.RUNNING and not view.totals.rounds):
        return "STARTING"
    return view.status.name


def copying_line(checkpoints: Sequence[CheckpointView]) -> str | None:
    """Of the savepoint whose files are being copied, if there is one: how far that is."""
    for shown in checkpoints:
        if shown.copied is not None and shown.status is Outcome.IN_PROGRESS:
            copied = shown.copied
            share = f"{copied.bytes:,} of {copied.of_bytes:,} bytes"
            return (
                f"savepoint {shown.checkpoint_id}: {copied.files} of {count(copied.of_files, 'file')} copied, {share}"
            )
    return None


def _last_checkpoint(view: JobView, now_ms: int) -> str:
    done = [c for c in view.checkpoints if c.status is Outcome.COMPLETED]
    failed = [c for c in view.checkpoints if c.status is Outcome.FAILED]
    if failed and (not done or failed[-1].checkpoint_id > done[-1].checkpoint_id):
        return f"checkpoint {failed[-1].checkpoint_id} FAILED: {_first_line(failed[-1].message or '')}"
    return "no checkpoint yet" if not done else _completed(done[-1], now_ms)


def _completed(checkpoint: CheckpointView, now_ms: int) -> str:
    ago = duration(now_ms - checkpoint.passed_ms.get(7, now_ms), coarse=True)
    return f"checkpoint {checkpoint.checkpoint_id}, {ago} ago"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
