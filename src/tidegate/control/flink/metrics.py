"""Figures by Flink's names, for a job, a vertex, a subtask and a process; lists, values and aggregates of them."""

from __future__ import annotations

import math
import os
import re
import resource
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tidegate.common.job_status import JobStatus
from tidegate.control.flink.job import JobNow, Vertex, shown_watermark
from tidegate.control.flink.requests import ApiError
from tidegate.operators.contracts.metrics import DISTRIBUTION, METER
from tidegate.runtime.view import Outcome, SubtaskView

Values = Mapping[str, float]
_UNFIT = re.compile(r"[ .:,]")


# -- what there is ---------------------------------------------------------------------------------------------------------


def of_job(job: JobNow) -> dict[str, float]:
    details, shown = job.details, job.details.checkpoints
    completed = [each for each in shown if each.status is Outcome.COMPLETED]
    failed = sum(details.totals.failed_checkpoints.values())
    pending = sum(each.status is Outcome.IN_PROGRESS for each in shown)
    done = details.totals.checkpoints + details.totals.savepoints
    is_running = job.status is JobStatus.RUNNING
    found: dict[str, float] = {
        "uptime": job.attempt_ms if is_running else 0 if not job.has_ended else -1,
        "runningTime": job.attempt_ms if is_running else 0,
        "downtime": 0 if is_running else -1 if job.has_ended else _down(job),
        "restartingTime": _down(job) if job.status is JobStatus.RESTARTING else 0,
        "numRestarts": job.attempt,
        "fullRestarts": job.attempt,
        "numberOfCompletedCheckpoints": done,
        "numberOfFailedCheckpoints": failed,
        "numberOfInProgressCheckpoints": pending,
        "totalNumberOfCheckpoints": done + failed + pending,
        "tidegate.rounds": details.totals.rounds,
        "tidegate.records": details.totals.records,
        "tidegate.recordsPerSecond": details.records_per_second,
    }
    if completed:
        latest = completed[-1]
        found["lastCompletedCheckpointId"] = latest.checkpoint_id
        found["lastCheckpointFullSize"] = latest.size
        if latest.entry is not None:
            found["lastCheckpointDuration"] = latest.entry.duration_ms
            found["lastCheckpointSize"] = latest.entry.incremental
            found["lastCheckpointPersistedData"] = latest.entry.in_flight_bytes
    restored = [attempt.started_ms for attempt in details.attempts if attempt.checkpoint is not None]
    found["lastCheckpointRestoreTimestamp"] = restored[-1] if restored else -1
    return found


def _down(job: JobNow) -> int:
    ended = job.details.attempts[-1].ended_ms if job.details.attempts else None
    return 0 if ended is None else max(0, job.now_ms - ended)


def of_subtask(job: JobNow, vertex: Vertex, subtask: SubtaskView) -> dict[str, float]:
    """Return the figures of one subtask. ``busyTimeMsPerSecond`` and its like are those of the latest rounds."""
    found: dict[str, float] = {
        "numRecordsIn": subtask.records_in,
        "numRecordsOut": subtask.records_out,
        "numBytesIn": subtask.bytes_in,
        "numBytesOut": subtask.bytes_out,
        "numRecordsInPerSecond": subtask.records_in_per_second,
        "numRecordsOutPerSecond": subtask.records_out_per_second,
        "busyTimeMsPerSecond": round(1000 * subtask.busy, 1),
        "idleTimeMsPerSecond": round(1000 * subtask.idle, 1),
        "backPressuredTimeMsPerSecond": round(1000 * subtask.back_pressured, 1),
        "isBackPressured": float(subtask.back_pressured > 0.5),
        "tidegate.roundSeconds": subtask.seconds,
        "tidegate.stateBytes": subtask.state_bytes,
        "tidegate.retries": subtask.retries,
    }
    head = vertex.operators[0]
    if (watermark := shown_watermark(subtask.watermark)) is not None:
        found["currentInputWatermark" if head.inputs else "currentOutputWatermark"] = watermark
    if subtask.lag is not None:
        found["pendingRecords"] = subtask.lag
        found[f"{fitted(head.label or head.name)}.pendingRecords"] = subtask.lag
    return found | _of_functions(job, vertex, subtask.subtask)


def _of_functions(job: JobNow, vertex: Vertex, subtask: int) -> dict[str, float]:
    names = {operator.id: operator.name for operator in vertex.operators}
    found: dict[str, float] = {}
    for metric in job.details.metrics:
        if metric.operator not in names or metric.subtask != subtask:
            continue
        groups = [part for pair in metric.groups for part in pair if part is not None]
        name = ".".join(fitted(part) for part in (names[metric.operator], *groups, metric.name))
        if metric.kind == METER:
            found[f"{name}.count"], found[f"{name}.rate"] = metric.value, metric.rate or 0.0
        elif metric.kind == DISTRIBUTION:
            found[f"{name}.count"], found[f"{name}.sum"] = metric.count or 0, metric.value
            found[f"{name}.min"], found[f"{name}.max"] = metric.least or 0, metric.greatest or 0
        else:
            found[name] = metric.value
    return found


def of_vertex(job: JobNow, vertex: Vertex) -> dict[str, float]:
    """Return the figures of all subtasks, each with the number of its subtask before the name."""
    return {
        f"{subtask.subtask}.{name}": value
        for subtask in vertex.subtasks
        for name, value in of_subtask(job, vertex, subtask).items()
    }


def watermarks(vertex: Vertex) -> list[dict[str, str]]:
    return [
        {"id": f"{subtask.subtask}.currentInputWatermark", "value": str(watermark)}
        for subtask in vertex.subtasks
        if (watermark := shown_watermark(subtask.watermark)) is not None
    ]


def of_process() -> dict[str, float]:
    """Return the figures of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "Status.Process.CPU.Time": round((usage.ru_utime + usage.ru_stime) * 1e9),
        "Status.Process.Memory.Resident": resident_bytes(),
        "Status.Process.Memory.ResidentMax": usage.ru_maxrss * 1024,
        "Status.Process.Threads.Count": threading.active_count(),
        "Status.Process.Uptime": round(1000 * (time.time() - _STARTED)),
    }


_STARTED = time.time()


def resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # not Linux
        return 0


def fitted(name: str) -> str:
    """Return a name as a part of a metric's id: the characters that separate parts become underscores."""
    return _UNFIT.sub("_", name)


# -- what a client asks for ------------------------------------------------------------------------------------------------


def collection(values: Values, get: list[str] | None) -> list[dict[str, str]]:
    """Return all names, or the values of those that the client names. Unknown names are left out, as in Flink."""
    if get is None:
        return [{"id": name} for name in values]
    return [{"id": name, "value": text(values[name])} for name in get if name in values]


def text(value: float) -> str:
    """Return the value as Java writes and reads it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(int(value)) if value == int(value) else str(value)


_AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "avg": lambda values: sum(values) / len(values),
    "sum": sum,
    "skew": lambda values: _skew(values),  # noqa: PLW0108 - it is defined below
}


def _skew(values: Sequence[float]) -> float:
    """Return the mean difference from the average in percent of the average: 0 if all are equal."""
    average = sum(values) / len(values)
    return 0.0 if not average else min(100.0, 100 * sum(abs(v - average) for v in values) / len(values) / abs(average))


def aggregated(of_each: Iterable[Values], get: list[str] | None, agg: list[str] | None) -> list[dict[str, Any]]:
    """Return all names, or the aggregates of those that the client names. ``agg`` None: all aggregates."""
    if agg is not None and (unknown := [name for name in agg if name.lower() not in _AGGREGATES]):
        known = ", ".join(name.upper() for name in _AGGREGATES)
        raise ApiError(400, f"The parameter agg is malformed. Found: {unknown[0][:50]!r}. Expected: {known}.")
    by_name: dict[str, list[float]] = {}
    for values in of_each:
        for name, value in values.items():
            by_name.setdefault(name, []).append(value)
    if get is None:
        return [{"id": name} for name in by_name]
    wanted = list(_AGGREGATES) if agg is None else [name.lower() for name in agg]
    return [
        {"id": name, **{one: float(_AGGREGATES[one](by_name[name])) for one in wanted}}
        for name in get
        if name in by_name
    ]


def chosen(ranges: list[str] | None, number: int) -> list[int]:
    """Return the subtasks of a list such as ``0-2,5``. None: all of them."""
    if ranges is None:
        return list(range(number))
    found: set[int] = set()
    for part in ranges:
        bounds = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part, re.ASCII)
        if bounds is None:
            raise ApiError(400, f"The parameter subtasks is malformed. Found: {part[:50]!r}. Expected: 0-2,5.")
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        found |= set(range(first, min(last, number - 1) + 1))
    return sorted(n for n in found if n < number)
