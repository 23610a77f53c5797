"""The answers about checkpoints and savepoints: pure functions of a ``JobNow`` and a ``CheckpointView``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from tidegate.checkpoint.metadata import SAVEPOINT
from tidegate.common import options
from tidegate.common.job_status import JobStatus
from tidegate.control.flink.job import NEVER, JobNow, Vertex
from tidegate.control.flink.jobs import quantile
from tidegate.control.flink.requests import ApiError
from tidegate.runtime.view import CheckpointView, Outcome, SubtaskFigures

_CLASSES = {Outcome.IN_PROGRESS: "in_progress", Outcome.COMPLETED: "completed", Outcome.FAILED: "failed"}
_STATUSES = {Outcome.IN_PROGRESS: "IN_PROGRESS", Outcome.COMPLETED: "COMPLETED", Outcome.FAILED: "FAILED"}
_DISABLED = "The job takes no checkpoints: execution.checkpointing.interval is not set."
_NUMBER = re.compile(r"chk-(\d+)/*$")
_TRIGGERED, _ACKNOWLEDGED, _STORED = 1, 6, 7


def checkpoint_config(job: JobNow) -> dict[str, Any]:
    interval = job.details.checkpoint_interval_ms
    if interval is None:
        raise ApiError(404, _DISABLED)
    retention = job.option(options.CHECKPOINT_RETENTION)
    return {
        "mode": job.option(options.CHECKPOINT_MODE),
        "interval": interval,
        "timeout": job.option(options.CHECKPOINT_TIMEOUT),
        "min_pause": job.option(options.CHECKPOINT_MIN_PAUSE),
        "max_concurrent": job.option(options.CHECKPOINT_CONCURRENT),
        "externalization": {
            "enabled": retention != "NO_EXTERNALIZED_CHECKPOINTS",
            "delete_on_cancellation": retention != "RETAIN_ON_CANCELLATION",
        },
        "state_backend": job.option(options.STATE_BACKEND),
        "checkpoint_storage": job.option(options.CHECKPOINT_STORAGE),
        "unaligned_checkpoints": job.option(options.UNALIGNED),
        "tolerable_failed_checkpoints": job.option(options.CHECKPOINT_TOLERABLE),
        "aligned_checkpoint_timeout": job.option(options.ALIGNED_TIMEOUT),
        "checkpoints_after_tasks_finish": job.option(options.CHECKPOINT_AFTER_FINISH),
        "state_changelog_enabled": job.option(options.REGISTRY["state.changelog.enabled"]),
        "changelog_periodic_materialization_interval": job.option(
            options.REGISTRY["state.changelog.periodic-materialize.interval"]
        ),
        "changelog_storage": job.option(options.CHECKPOINT_STORAGE),
    }


def checkpointing(job: JobNow) -> dict[str, Any]:
    """``/jobs/{jobid}/checkpoints``: newest first."""
    shown = job.details.checkpoints
    if job.details.checkpoint_interval_ms is None and not shown:
        raise ApiError(404, _DISABLED)
    completed = [each for each in shown if each.status is Outcome.COMPLETED]
    return {
        "counts": _counts(job),
        "summary": {name: summary([_size(job, each)[name] for each in completed]) for name in _SIZES},
        "latest": _latest(job),
        "history": [checkpoint(job, each) for each in reversed(shown)],
    }


def _counts(job: JobNow) -> dict[str, int]:
    shown = job.details.checkpoints
    completed = job.details.totals.checkpoints + job.details.totals.savepoints
    failed = sum(job.details.totals.failed_checkpoints.values())
    pending = sum(each.status is Outcome.IN_PROGRESS for each in shown)
    return {
        "restored": job.details.totals.restored,
        "total": completed + failed + pending,
        "in_progress": pending,
        "completed": completed,
        "failed": failed,
    }


def _latest(job: JobNow) -> dict[str, Any]:
    shown = job.details.checkpoints
    completed = [each for each in shown if each.status is Outcome.COMPLETED]
    latest = {
        "completed": next((each for each in reversed(completed) if not _is_savepoint(each)), None),
        "savepoint": next((each for each in reversed(completed) if _is_savepoint(each)), None),
        "failed": next((each for each in reversed(shown) if each.status is Outcome.FAILED), None),
    }
    found = {name: checkpoint(job, each) for name, each in latest.items() if each is not None}
    restored = next((each for each in reversed(job.details.attempts) if each.checkpoint is not None), None)
    if restored is not None and restored.checkpoint is not None:
        number = _NUMBER.search(restored.checkpoint)
        found["restored"] = {
            "id": NEVER if number is None else int(number[1]),
            "restore_timestamp": restored.started_ms,
            "is_savepoint": number is None,
            "external_path": restored.checkpoint,
        }
    return found


_SIZES = (
    "checkpointed_size", "state_size", "end_to_end_duration", "alignment_buffered", "processed_data", "persisted_data",
)  # fmt: skip


def _size(job: JobNow, each: CheckpointView) -> dict[str, int]:
    entry = each.entry
    in_flight = entry.in_flight_bytes if entry is not None else sum(one.in_flight_bytes for one in each.subtasks)
    return {
        "checkpointed_size": entry.incremental if entry is not None else sum(one.incremental for one in each.subtasks),
        "state_size": entry.size if entry is not None and entry.size else each.size,
        "end_to_end_duration": _duration(job, each),
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": in_flight,
    }


def _triggered(each: CheckpointView) -> int:
    return each.passed_ms.get(_TRIGGERED, each.entry.trigger_ms if each.entry is not None else 0)


def _duration(job: JobNow, each: CheckpointView) -> int:
    if each.entry is not None:
        return round(each.entry.duration_ms)
    end = each.passed_ms.get(_STORED, job.at_ms if each.status is Outcome.IN_PROGRESS else _triggered(each))
    return max(0, end - _triggered(each))


def _is_savepoint(each: CheckpointView) -> bool:
    """The last checkpoint of a job that ends with a savepoint has its address: it is both."""
    return each.kind == SAVEPOINT or each.address is not None


def checkpoint(job: JobNow, each: CheckpointView, *, with_tasks: bool = False) -> dict[str, Any]:
    """One checkpoint or savepoint. ``with_tasks``: with its vertices."""
    is_savepoint = _is_savepoint(each)
    shown: dict[str, Any] = {
        "className": _CLASSES[each.status],
        "id": each.checkpoint_id,
        "status": _STATUSES[each.status],
        "is_savepoint": is_savepoint,
        "trigger_timestamp": _triggered(each),
        "latest_ack_timestamp": each.passed_ms.get(_ACKNOWLEDGED, NEVER),
        **_size(job, each),
        **_acknowledged(each, sum(vertex.parallelism for vertex in job.vertices)),
        "checkpoint_type": _type(job, each),
        "tasks": {vertex.id: _task(job, vertex, each) for vertex in job.vertices} if with_tasks else {},
    }
    if is_savepoint:
        shown["savepointFormat"] = "CANONICAL"
    if each.status is Outcome.COMPLETED:
        shown |= {"external_path": _address(job, each), "discarded": _is_discarded(job, each)}
    elif each.status is Outcome.FAILED:
        failed_ms = each.entry.end_ms if each.entry is not None else each.passed_ms.get(_ACKNOWLEDGED, NEVER)
        shown |= {"failure_timestamp": failed_ms, "failure_message": each.message or ""}
    return shown


def _acknowledged(each: CheckpointView, number: int) -> dict[str, int]:
    """A round ends as a whole: all its subtasks have acknowledged after step 6, and none before."""
    return {"num_subtasks": number, "num_acknowledged_subtasks": number if _ACKNOWLEDGED in each.passed_ms else 0}


def _type(job: JobNow, each: CheckpointView) -> str:
    if _is_savepoint(each):
        ends = each.kind != SAVEPOINT and job.status is not JobStatus.CANCELED
        return "SYNC_SAVEPOINT" if ends else "SAVEPOINT"
    in_flight = each.entry is not None and each.entry.in_flight_records > 0
    return "UNALIGNED_CHECKPOINT" if in_flight else "CHECKPOINT"


def _address(job: JobNow, each: CheckpointView) -> str:
    return each.address or f"{job.details.directory.rstrip('/')}/chk-{each.checkpoint_id}"


def _is_discarded(job: JobNow, each: CheckpointView) -> bool:
    """Whether later checkpoints have subsumed this one. A savepoint belongs to the user."""
    if _is_savepoint(each):
        return False
    later = [
        other
        for other in job.details.checkpoints
        if other.status is Outcome.COMPLETED and other.kind != SAVEPOINT and other.checkpoint_id > each.checkpoint_id
    ]
    return len(later) >= int(job.option(options.CHECKPOINT_RETAINED))


# -- vertices --------------------------------------------------------------------------------------------------------------


def _figures(vertex: Vertex, each: CheckpointView) -> dict[int, list[SubtaskFigures]]:
    """Return the figures of the vertex's operators, by subtask. The first operator of a chain comes first."""
    order = {operator.id: place for place, operator in enumerate(vertex.operators)}
    found: dict[int, list[SubtaskFigures]] = {}
    for figures in sorted((one for one in each.subtasks if one.operator in order), key=lambda one: order[one.operator]):
        found.setdefault(figures.subtask, []).append(figures)
    return found


def _task(job: JobNow, vertex: Vertex, each: CheckpointView) -> dict[str, Any]:
    inside = [figures for of_subtask in _figures(vertex, each).values() for figures in of_subtask]
    acknowledged = [figures.acknowledged_ms for figures in inside if figures.acknowledged_ms is not None]
    latest = max(acknowledged, default=each.passed_ms.get(_ACKNOWLEDGED, NEVER))
    return {
        "id": each.checkpoint_id,
        "status": _STATUSES[each.status],
        "latest_ack_timestamp": latest,
        "checkpointed_size": sum(figures.incremental for figures in inside),
        "state_size": sum(figures.size for figures in inside),
        "end_to_end_duration": max(0, latest - _triggered(each)) if latest != NEVER else NEVER,
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": sum(figures.in_flight_bytes for figures in inside),
        **_acknowledged(each, vertex.parallelism),
    }


def checkpoint_of_vertex(job: JobNow, vertex: Vertex, each: CheckpointView) -> dict[str, Any]:
    """``.../checkpoints/details/{checkpointid}/subtasks/{vertexid}``."""
    found = _figures(vertex, each)
    subtasks = [_subtask(each, number, found.get(number, [])) for number in range(vertex.parallelism)]
    done = [subtask for subtask in subtasks if subtask["className"] == "completed"]

    def over(*path: str) -> dict[str, Any]:
        return summary([_at(subtask, path) for subtask in done])

    return _task(job, vertex, each) | {
        "summary": {
            "checkpointed_size": over("checkpointed_size"),
            "state_size": over("state_size"),
            "end_to_end_duration": over("end_to_end_duration"),
            "start_delay": over("start_delay"),
            "checkpoint_duration": {"sync": over("checkpoint", "sync"), "async": over("checkpoint", "async")},
            "alignment": {name: over("alignment", name) for name in ("buffered", "processed", "persisted", "duration")},
        },
        "subtasks": subtasks,
    }


def _at(value: Any, path: Iterable[str]) -> int:
    for name in path:
        value = value[name]
    return int(value)


def _subtask(each: CheckpointView, number: int, figures: Sequence[SubtaskFigures]) -> dict[str, Any]:
    if _ACKNOWLEDGED not in each.passed_ms:
        return {"className": "pending", "index": number, "status": "pending_or_failed"}
    acknowledged = [one.acknowledged_ms for one in figures if one.acknowledged_ms is not None]
    at = max(acknowledged, default=each.passed_ms[_ACKNOWLEDGED])
    in_flight = sum(one.in_flight_bytes for one in figures)
    align, snapshot = (
        round(max((one.align_ms for one in figures), default=0.0)),
        round(sum(one.snapshot_ms for one in figures)),
    )
    took = max(0, at - _triggered(each))
    return {
        "className": "completed",
        "index": number,
        "status": "completed",
        "ack_timestamp": at,
        "end_to_end_duration": took,
        "checkpointed_size": sum(one.incremental for one in figures),
        "state_size": sum(one.size for one in figures),
        "checkpoint": {"sync": snapshot, "async": 0},
        "alignment": {"buffered": 0, "processed": 0, "persisted": in_flight, "duration": align},
        "start_delay": max(0, took - align - snapshot) if acknowledged else 0,
        "unaligned_checkpoint": in_flight > 0,
        "aborted": False,
    }


def summary(values: Sequence[int]) -> dict[str, Any]:
    """Return least, greatest, average and quantiles. Without values all are 0, as in Flink."""
    ordered = sorted(values) or [0]
    quantiles = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "avg": round(sum(ordered) / len(ordered)),
        **{name: float(quantile(ordered, part)) for name, part in quantiles.items()},
    }
