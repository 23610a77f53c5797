"""The answers about jobs, their vertices and subtasks: pure functions of a ``JobNow``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tidegate.base.secrets import masked_settings
from tidegate.common import options
from tidegate.common.job_status import JobStatus
from tidegate.control.flink.job import NEVER, JobNow, Vertex, executor_id
from tidegate.control.flink.throwables import serialized
from tidegate.runtime.view import ExceptionView, SubtaskView

_EXECUTIONS = (
    "created", "scheduled", "deploying", "running", "finished", "canceling", "canceled", "failed", "reconciling", "initializing",
)  # fmt: skip
_STATUSES = ("INITIALIZING", *JobStatus.__members__)
_STAGES = ("CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING")
_BETWEEN_EXCEPTIONS = 20


def id_and_status(job: JobNow) -> dict[str, Any]:
    return {"id": job.id, "status": job.status.name}


def overview(job: JobNow) -> dict[str, Any]:
    """One line of ``/jobs/overview``."""
    return {
        "jid": job.id,
        "name": job.details.name,
        "start-time": job.details.started_ms,
        "end-time": job.end_ms,
        "duration": job.duration_ms,
        "state": job.status.name,
        "last-modification": _last_change(job),
        "tasks": _counts(job, job.vertices, total=True),
        "pending-operators": 0,
        "jobType": "BATCH" if job.is_batch else "STREAMING",
        "schedulerType": "Default",
        "tidegate-job-id": job.details.job_id,
        "tidegate-guarantee": job.details.guarantee or "",
    }


def details(job: JobNow) -> dict[str, Any]:
    """``/jobs/{jobid}``."""
    return {
        "jid": job.id,
        "name": job.details.name,
        "isStoppable": False,
        "state": job.status.name,
        "job-type": "BATCH" if job.is_batch else "STREAMING",
        "application-id": job.id,
        "start-time": job.details.started_ms,
        "end-time": job.end_ms,
        "duration": job.duration_ms,
        "maxParallelism": max((vertex.max_parallelism for vertex in job.vertices), default=1),
        "now": job.now_ms,
        "timestamps": timestamps(job),
        "vertices": [_vertex(job, vertex) for vertex in job.vertices],
        "status-counts": {name.upper(): count for name, count in _counts(job, job.vertices, by_vertex=True).items()},
        "plan": plan(job),
        "stream-graph": {},
        "pending-operators": 0,
        "schedulerType": "Default",
        "tidegate-job-id": job.details.job_id,
        "tidegate-guarantee": job.details.guarantee or "",
    }


def timestamps(job: JobNow) -> dict[str, int]:
    """When the job came into each state, 0 if never."""
    times = dict.fromkeys(_STATUSES, 0)
    times["INITIALIZING"] = times["CREATED"] = job.details.started_ms
    for attempt in job.details.attempts:
        times["RUNNING"] = attempt.started_ms
        if attempt.reason is not None and attempt.ended_ms is not None:
            times["FAILING"] = attempt.ended_ms
            if attempt is not job.details.attempts[-1] or not job.has_ended:
                times["RESTARTING"] = attempt.ended_ms
    if job.has_ended:
        times[job.status.name] = job.end_ms
    return times


def _last_change(job: JobNow) -> int:
    return max(timestamps(job).values())


def _counts(job: JobNow, vertices: Iterable[Vertex], *, total: bool = False, by_vertex: bool = False) -> dict[str, int]:
    counts = dict.fromkeys(_EXECUTIONS, 0)
    number = sum(1 if by_vertex else vertex.parallelism for vertex in vertices)
    counts[job.execution.lower()] += number
    return {"total": number, **counts} if total else counts


def _upper_counts(job: JobNow, number: int) -> dict[str, int]:
    counts = dict.fromkeys((name.upper() for name in _EXECUTIONS), 0)
    counts[job.execution] += number
    return counts


def _vertex(job: JobNow, vertex: Vertex) -> dict[str, Any]:
    return {
        "id": vertex.id,
        "slotSharingGroupId": job.id,
        "name": vertex.name,
        "maxParallelism": vertex.max_parallelism,
        "parallelism": vertex.parallelism,
        "status": job.execution,
        "start-time": job.attempt_started_ms,
        "end-time": job.end_ms,
        "duration": job.attempt_ms,
        "tasks": _upper_counts(job, vertex.parallelism),
        "metrics": io_metrics(job, vertex.subtasks, vertex),
    }


def io_metrics(job: JobNow, subtasks: Sequence[SubtaskView], vertex: Vertex | None = None) -> dict[str, Any]:
    """Sum what the subtasks read and wrote. ``vertex``: the subtasks are all of this vertex, whose own sums serve where a driver
    of an earlier version counts none for each subtask. Accumulated times are those of the latest attempt."""
    head, last = (vertex.operators[0], vertex.operators[-1]) if vertex is not None else (None, None)
    busy, waited = (
        1000 * sum(each.busy_seconds for each in subtasks),
        1000 * sum(each.back_pressured_seconds for each in subtasks),
    )
    elapsed = len(subtasks) * max(0, job.attempt_ms)
    return {
        "read-bytes": sum(each.bytes_in for each in subtasks),
        "read-bytes-complete": True,
        "write-bytes": sum(each.bytes_out for each in subtasks),
        "write-bytes-complete": True,
        "read-records": sum(each.records_in for each in subtasks) or (head.records_in if head else 0) or 0,
        "read-records-complete": True,
        "write-records": sum(each.records_out for each in subtasks) or (last.records_out if last else 0) or 0,
        "write-records-complete": True,
        "accumulated-backpressured-time": round(waited),
        "accumulated-idle-time": round(max(0.0, elapsed - busy - waited)),
        "accumulated-busy-time": busy,
    }


# -- plan and configuration ------------------------------------------------------------------------------------------------


def plan(job: JobNow) -> dict[str, Any]:
    return {
        "jid": job.id,
        "name": job.details.name,
        "type": "BATCH" if job.is_batch else "STREAMING",
        "nodes": [
            {
                "id": vertex.id,
                "parallelism": vertex.parallelism,
                "operator": "",
                "operator_strategy": "",
                "description": vertex.name,
                "optimizer_properties": {},
                "inputs": [
                    {
                        "num": number,
                        "id": id,
                        "ship_strategy": ship,
                        "exchange": "pipelined_bounded",
                        "local_strategy": "",
                        "caching": "",
                    }
                    for number, (id, ship) in enumerate(vertex.inputs)
                ],
            }
            for vertex in job.vertices
        ],
    }


def configuration(job: JobNow) -> list[dict[str, str]]:
    """The entries of a ``.../jobmanager/config``: what the job was started with. Secrets are masked, whoever made the view."""
    return [{"key": key, "value": value} for key, value in masked_settings(job.details.configuration).items()]


def execution_config(job: JobNow) -> dict[str, Any]:
    """``/jobs/{jobid}/config``, with the names that Flink sends and those of its description."""
    info = {
        "restart-strategy": str(job.option(options.RESTART_TYPE) or _usual_restarts(job)),
        "job-parallelism": job.option(options.PARALLELISM) or job.parallelism,
        "object-reuse-mode": bool(job.option(options.OBJECT_REUSE)),
        "user-config": masked_settings(job.option(options.JOB_PARAMETERS) or {}),
    }
    name = job.details.name
    return {
        "jid": job.id,
        "name": name,
        "execution-config": info,
        "jobId": job.id,
        "jobName": name,
        "executionConfigInfo": info,
    }


def _usual_restarts(job: JobNow) -> str:
    return "none" if job.details.checkpoint_interval_ms is None else "exponential-delay"


def resource_requirements(job: JobNow) -> dict[str, Any]:
    """A job runs with the parallelism it was started with, so both bounds are this number."""
    return {
        vertex.id: {"parallelism": {"lowerBound": vertex.parallelism, "upperBound": vertex.parallelism}}
        for vertex in job.vertices
    }


# -- end and exceptions ----------------------------------------------------------------------------------------------------


def execution_result(job: JobNow) -> dict[str, Any]:
    """``/jobs/{jobid}/execution-result``. Flink's client reads no other names in the result."""
    if not job.has_ended:
        return {"status": {"id": "IN_PROGRESS"}}
    result: dict[str, Any] = {
        "id": job.id,
        "name": job.details.name,
        "application-status": _ENDS[job.status],
        "accumulator-results": {},
        "net-runtime": job.duration_ms,
        "application-id": job.id,
        "start-time": job.details.started_ms,
        "end-time": job.end_ms,
    }
    if job.status is JobStatus.FAILED:
        latest = job.details.exceptions[-1] if job.details.exceptions else None
        failure = serialized(latest.kind, latest.message) if latest else serialized("JobFailedError", "The job failed.")
        result["failure-cause"] = failure
    return {"status": {"id": "COMPLETED"}, "job-execution-result": result}


_ENDS = {
    JobStatus.FINISHED: "SUCCEEDED",
    JobStatus.FAILED: "FAILED",
    JobStatus.CANCELED: "CANCELED",
    JobStatus.SUSPENDED: "UNKNOWN",
}


def exceptions(job: JobNow, most: int | None, labels: dict[str, str]) -> dict[str, Any]:
    """``/jobs/{jobid}/exceptions``: newest first. ``labels``: only exceptions that have all of them."""
    limit = _BETWEEN_EXCEPTIONS if most is None else most
    entries = [_exception(job, each) for each in reversed(job.details.exceptions)]
    entries = [entry for entry in entries if labels.items() <= entry["failureLabels"].items()]
    return {"exceptionHistory": {"entries": entries[:limit], "truncated": len(entries) > limit}}


def _exception(job: JobNow, each: ExceptionView) -> dict[str, Any]:
    labels = {"attempt": str(each.attempt)}
    labels |= {} if each.checkpoint_id is None else {"checkpoint": str(each.checkpoint_id)}
    labels |= {} if each.operator is None else {"operator": each.operator}
    shown: dict[str, Any] = {
        "exceptionName": each.kind,
        "stacktrace": each.traceback or f"{each.kind}: {each.message}",
        "timestamp": each.at_ms,
        "failureLabels": labels,
        "concurrentExceptions": [],
    }
    if each.operator is not None:
        subtask = "" if each.subtask is None else f" ({each.subtask + 1})"
        host = _host(job, each)
        shown["taskName"] = f"{each.operator}{subtask}"
        shown |= {} if host is None else {"endpoint": host, "taskManagerId": executor_id(host)}
    for name, value in (("record", each.record), ("key", each.key), ("debug", each.debug_command)):
        if value is not None:
            shown[f"tidegate-{name}"] = value
    return shown


def _host(job: JobNow, each: ExceptionView) -> str | None:
    for vertex in job.vertices:
        if each.subtask is not None and any(each.operator in (o.name, o.label) for o in vertex.operators):
            return vertex.subtasks[each.subtask].host if each.subtask < len(vertex.subtasks) else None
    return None


# -- vertices and subtasks -------------------------------------------------------------------------------------------------


def vertex_details(job: JobNow, vertex: Vertex) -> dict[str, Any]:
    return {
        "id": vertex.id,
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "maxParallelism": vertex.max_parallelism,
        "now": job.now_ms,
        "subtasks": [subtask_details(job, subtask) for subtask in vertex.subtasks],
        "aggregated": _aggregated(job, vertex.subtasks),
    }


def subtask_details(job: JobNow, subtask: SubtaskView) -> dict[str, Any]:
    host = subtask.host or ""
    return {
        "subtask": subtask.subtask,
        "status": job.execution,
        "attempt": job.attempt,
        "endpoint": host,
        "start-time": job.attempt_started_ms,
        "start_time": job.attempt_started_ms,
        "end-time": job.end_ms,
        "duration": job.attempt_ms,
        "metrics": io_metrics(job, [subtask]),
        "taskmanager-id": executor_id(host) if host else "",
        "status-duration": _stage_durations(job),
        "other-concurrent-attempts": [],
    }


def _stage_durations(job: JobNow) -> dict[str, int]:
    durations = dict.fromkeys(_STAGES, NEVER)
    if job.attempt_ms != NEVER:
        durations["RUNNING"] = job.attempt_ms
    return durations


def _aggregated(job: JobNow, subtasks: Sequence[SubtaskView]) -> dict[str, Any]:
    each = [io_metrics(job, [subtask]) for subtask in subtasks]
    names = [name for name in (each[0] if each else {}) if not name.endswith("-complete")]
    running = _stage_durations(job)
    return {
        "metrics": {name: statistics([round(one[name]) for one in each]) for name in names},
        "status-duration": {stage: statistics([took] * len(subtasks)) for stage, took in running.items()},
    }


def statistics(values: Sequence[int]) -> dict[str, int]:
    ordered = sorted(values) or [0]
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "avg": round(sum(ordered) / len(ordered)),
        "sum": sum(ordered),
        "median": round(quantile(ordered, 0.5)),
        "p25": round(quantile(ordered, 0.25)),
        "p75": round(quantile(ordered, 0.75)),
        "p95": round(quantile(ordered, 0.95)),
    }


def quantile(ordered: Sequence[float], part: float) -> float:
    """Return the value below which this part of the values lies, between the two nearest."""
    place = (len(ordered) - 1) * part
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def subtask_times(job: JobNow, vertex: Vertex) -> dict[str, Any]:
    times = dict.fromkeys((name.upper() for name in _EXECUTIONS), 0)
    if job.attempt_started_ms != NEVER:
        times["RUNNING"] = job.attempt_started_ms
    if job.has_ended:
        times[job.execution] = job.end_ms
    return {
        "id": vertex.id,
        "name": vertex.name,
        "now": job.now_ms,
        "subtasks": [
            {
                "subtask": each.subtask,
                "endpoint": each.host or "",
                "host": each.host or "",
                "duration": job.attempt_ms,
                "timestamps": times,
            }
            for each in vertex.subtasks
        ],
    }


def vertex_executors(job: JobNow, vertex: Vertex) -> dict[str, Any]:
    """``.../taskmanagers``: the subtasks of a vertex by the executor that ran them last."""
    places: dict[str, list[SubtaskView]] = {}
    for each in vertex.subtasks:
        places.setdefault(each.host or "", []).append(each)
    return {
        "id": vertex.id,
        "name": vertex.name,
        "now": job.now_ms,
        "taskmanagers": [
            {
                "endpoint": host,
                "host": host,
                "status": job.execution,
                "start-time": job.attempt_started_ms,
                "end-time": job.end_ms,
                "duration": job.attempt_ms,
                "metrics": io_metrics(job, subtasks),
                "status-counts": _upper_counts(job, len(subtasks)),
                "taskmanager-id": executor_id(host) if host else "(unassigned)",
                "aggregated": _aggregated(job, subtasks),
            }
            for host, subtasks in sorted(places.items())
        ],
    }


def back_pressure(job: JobNow, vertex: Vertex) -> dict[str, Any]:
    worst = max((each.back_pressured for each in vertex.subtasks), default=0.0)
    return {
        "status": "ok",
        "backpressureLevel": _level(worst),
        "backpressure-level": _level(worst),
        "end-timestamp": job.at_ms,
        "subtasks": [
            {
                "subtask": each.subtask,
                "attempt-number": job.attempt,
                "backpressureLevel": _level(each.back_pressured),
                "backpressure-level": _level(each.back_pressured),
                "ratio": each.back_pressured,
                "idleRatio": each.idle,
                "busyRatio": each.busy,
                "other-concurrent-attempts": [],
            }
            for each in vertex.subtasks
        ],
    }


def _level(ratio: float) -> str:
    return "ok" if ratio <= 0.1 else "low" if ratio <= 0.5 else "high"


# -- accumulators ----------------------------------------------------------------------------------------------------------
# PyFlink's API has no accumulators, so every list is empty. Counters of functions are metrics.


def accumulators() -> dict[str, Any]:
    return {"job-accumulators": [], "user-task-accumulators": [], "serialized-user-task-accumulators": {}}


def vertex_accumulators(vertex: Vertex) -> dict[str, Any]:
    return {"id": vertex.id, "user-accumulators": []}


def subtasks_accumulators(job: JobNow, vertex: Vertex) -> dict[str, Any]:
    return {
        "id": vertex.id,
        "parallelism": vertex.parallelism,
        "subtasks": [
            {
                "subtask": each.subtask,
                "attempt": job.attempt,
                "endpoint": each.host or "",
                "host": each.host or "",
                "user-accumulators": [],
            }
            for each in vertex.subtasks
        ],
    }


def subtask_accumulators(job: JobNow, subtask: SubtaskView) -> dict[str, Any]:
    return {"subtask": subtask.subtask, "attempt": job.attempt, "id": job.id, "user-accumulators": []}


# -- applications ----------------------------------------------------------------------------------------------------------
# Flink 2.3 groups jobs by the program that started them. Here each job is an application of its own, with the id of the job.


def application(job: JobNow) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.details.name,
        "status": job.status.name,
        "start-time": job.details.started_ms,
        "end-time": job.end_ms,
        "duration": job.duration_ms,
        "jobs": {name: int(name == job.status.name) for name in _STATUSES},
    }


def application_details(job: JobNow) -> dict[str, Any]:
    return application(job) | {"timestamps": timestamps(job), "jobs": [overview(job)]}


def application_exceptions(job: JobNow) -> dict[str, Any]:
    if job.status is not JobStatus.FAILED or not job.details.exceptions:
        return {"exceptionHistory": {"entries": []}}
    latest = job.details.exceptions[-1]
    entry = {
        "exceptionName": latest.kind,
        "stacktrace": latest.traceback or f"{latest.kind}: {latest.message}",
        "timestamp": latest.at_ms,
        "jobId": job.id,
    }
    return {"exceptionHistory": {"entries": [entry]}}
