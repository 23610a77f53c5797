"""Describes a job in one line: when it starts, while it runs, and when it has ended."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.base.plain_text import count, duration
from tidegate.common.job_status import JobStatus
from tidegate.runtime.view import CheckpointView, JobView, Outcome

_ENDS = {
    JobStatus.FINISHED: "has finished",
    JobStatus.FAILED: "has failed",
    JobStatus.CANCELED: "was cancelled",
    JobStatus.SUSPENDED: "was suspended and can continue",
}


def start_line(view: JobView) -> str:
    """Say which job starts, from where, what it guarantees, and where its checkpoints are."""
    restored = view.attempts[0].checkpoint if view.attempts else None
    begins = "starts from the beginning" if restored is None else f"continues from {_place(restored, view.directory)}"
    parts = [f"job '{view.name}' ({view.job_id}) {begins}"]
    if view.guarantee is not None:
        parts.append(str(view.guarantee))
    if view.checkpoint_interval_ms is not None:
        note = " (for this run only: set execution.checkpointing.dir)" if view.is_temporary else ""
        parts.append(f"a checkpoint every {duration(view.checkpoint_interval_ms)} in {view.directory}{note}")
    return "; ".join(parts)


def _place(checkpoint: str, directory: str) -> str:
    """Name a checkpoint briefly if it is in the job's directory, which the start line names; else name it in full."""
    name = checkpoint.removeprefix(f"{directory}/").removeprefix("file://")
    return f"checkpoint {name.removeprefix('chk-')}" if name.startswith("chk-") else name


def live_line(view: JobView, now_ms: int) -> str:
    """Say what the job does now. A narrow terminal cuts off the end of the line, so the most important comes first."""
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
    """Say how the job ended, and what it did."""
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
    """Say how many files of a savepoint are copied, if one is being copied."""
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
