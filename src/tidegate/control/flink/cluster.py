"""The answers about the server itself and about executors, which take the place of Flink's job manager and task managers."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tidegate
from tidegate.common.job_status import JobStatus
from tidegate.control.flink.job import JobNow, Vertex, executor_id
from tidegate.control.flink.metrics import of_process, of_subtask, resident_bytes
from tidegate.control.flink.requests import ApiError
from tidegate.runtime.view import SubtaskView

FLINK_VERSION = "2.3.0"
"""Whose API this is: clients look at the version."""
_OVER = {JobStatus.FINISHED: "jobs-finished", JobStatus.CANCELED: "jobs-cancelled", JobStatus.FAILED: "jobs-failed"}
_NOTHING = {
    "cpuCores": 0.0,
    "taskHeapMemory": 0,
    "taskOffHeapMemory": 0,
    "managedMemory": 0,
    "networkMemory": 0,
    "extendedResources": {},
}


@dataclass(frozen=True)
class Executor:
    """An executor of Spark, or the driver itself in local mode, with the subtasks that ran there last."""

    host: str
    subtasks: tuple[tuple[JobNow, Vertex, SubtaskView], ...]

    @property
    def is_local(self) -> bool:
        """Whether its jobs run in local mode, so that the executor is in the driver."""
        return all(job.is_local for job, _, _ in self.subtasks)

    @property
    def id(self) -> str:
        return executor_id(self.host)

    @property
    def slots(self) -> int:
        """Each job takes as many slots as its widest vertex has subtasks here, as with Flink's slot sharing."""
        widest: dict[tuple[str, str], int] = {}
        for job, vertex, _ in self.subtasks:
            widest[job.id, vertex.id] = widest.get((job.id, vertex.id), 0) + 1
        of_jobs: dict[str, int] = {}
        for (job_id, _), number in widest.items():
            of_jobs[job_id] = max(of_jobs.get(job_id, 0), number)
        return sum(of_jobs.values())


def executors_of(jobs: Iterable[JobNow]) -> list[Executor]:
    """Return where the jobs that have not ended run. A job whose hosts are not known runs in its driver."""
    places: dict[str, list[tuple[JobNow, Vertex, SubtaskView]]] = {}
    for job in jobs:
        if job.has_ended:
            continue
        for vertex in job.vertices:
            for subtask in vertex.subtasks:
                places.setdefault(subtask.host or platform.node(), []).append((job, vertex, subtask))
    return [Executor(host, tuple(inside)) for host, inside in sorted(places.items())]


def executor(jobs: Iterable[JobNow], id: str) -> Executor:
    found = next((each for each in executors_of(jobs) if each.id == id), None)
    if found is None:
        raise ApiError(404, f"No executor has the id {id}. /taskmanagers lists those that run subtasks now.")
    return found


# -- the server ------------------------------------------------------------------------------------------------------------


def overview(jobs: Sequence[JobNow]) -> dict[str, Any]:
    executors = executors_of(jobs)
    counts = {"jobs-running": 0, "jobs-finished": 0, "jobs-cancelled": 0, "jobs-failed": 0}
    for job in jobs:
        if job.status is not JobStatus.SUSPENDED:
            counts[_OVER.get(job.status, "jobs-running")] += 1
    return {
        "taskmanagers": len(executors),
        "taskmanagers-blocked": 0,
        "slots-total": sum(each.slots for each in executors),
        "slots-available": 0,
        "slots-free-and-blocked": 0,
        **counts,
        "flink-version": FLINK_VERSION,
        "flink-commit": f"tidegate-{tidegate.__version__}",
        "tidegate-version": tidegate.__version__,
    }


def dashboard(takes_programs: bool) -> dict[str, Any]:
    now = time.localtime()
    return {
        "refresh-interval": 3000,
        "timezone-name": now.tm_zone or "UTC",
        "timezone-offset": (now.tm_gmtoff or 0) * 1000,
        "flink-version": FLINK_VERSION,
        "flink-revision": f"tidegate-{tidegate.__version__}",
        "features": {
            "web-submit": takes_programs,
            "web-cancel": True,
            "web-rescale": False,
            "web-history": False,
        },
        "tidegate-version": tidegate.__version__,
    }


def environment(job: JobNow | None = None) -> dict[str, Any]:
    """The Python that serves; for a job, what its driver reports. The command line is left out: it may contain secrets."""
    version = f"{platform.python_implementation()} {platform.python_version()}"
    facts = {} if job is None else dict(job.details.environment)
    return {
        "jvm": {
            "version": facts.get("python", version),
            "arch": platform.machine(),
            "options": [f"{name}={value}" for name, value in sorted(facts.items())],
        },
        "classpath": [path for path in sys.path if path] if job is None else [],
    }


def thread_dump() -> dict[str, Any]:
    """The threads of this process and where each of them is. No values of variables."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        "threadInfos": [
            {
                "threadName": names.get(ident, str(ident)),
                "stringifiedThreadInfo": f'"{names.get(ident, ident)}" Id={ident}\n'
                + "".join(traceback.format_stack(at)),
            }
            for ident, at in sys._current_frames().items()
        ]
    }


# -- executors -------------------------------------------------------------------------------------------------------------


def executor_facts(each: Executor) -> dict[str, Any]:
    latest = [job.details.rounds[-1] for job, _, _ in each.subtasks if job.details.rounds]
    heard = round(max((one.started_ms + 1000 * one.seconds for one in latest), default=0))
    memory = _memory() if each.is_local else (0, 0)
    return {
        "id": each.id,
        "path": each.host,
        "dataPort": 0,
        "jmxPort": -1,
        "timeSinceLastHeartbeat": heard,
        "slotsNumber": each.slots,
        "freeSlots": 0,
        "assignedTasks": len(each.subtasks),
        "blocked": False,
        "totalResource": _NOTHING | {"cpuCores": float(each.slots)},
        "freeResource": _NOTHING,
        "hardware": {
            "cpuCores": (os.cpu_count() or 0) if each.is_local else 0,
            "physicalMemory": memory[0],
            "freeMemory": memory[1],
            "managedMemory": 0,
        },
        "memoryConfiguration": _MEMORY_CONFIGURATION,
    }


_MEMORY_CONFIGURATION = dict.fromkeys(
    (
        "frameworkHeap", "taskHeap", "frameworkOffHeap", "taskOffHeap", "networkMemory", "managedMemory",
        "jvmMetaspace", "jvmOverhead", "totalFlinkMemory", "totalProcessMemory",
    ),
    0,
)  # fmt: skip
_JVM_FIGURES = (
    "heapUsed", "heapCommitted", "heapMax", "nonHeapUsed", "nonHeapCommitted", "nonHeapMax", "directCount", "directUsed",
    "directMax", "mappedCount", "mappedUsed", "mappedMax", "nettyShuffleMemorySegmentsAvailable",
    "nettyShuffleMemorySegmentsUsed", "nettyShuffleMemorySegmentsTotal", "nettyShuffleMemoryAvailable",
    "nettyShuffleMemoryUsed", "nettyShuffleMemoryTotal",
)  # fmt: skip


def executor_details(each: Executor) -> dict[str, Any]:
    """One executor. Figures of a JVM are 0: Python workers run the subtasks. ``metrics`` of the executor has their figures."""
    of_jobs: dict[str, int] = {}
    for job, _, _ in each.subtasks:
        of_jobs[job.id] = of_jobs.get(job.id, 0) + 1
    return executor_facts(each) | {
        "metrics": dict.fromkeys(_JVM_FIGURES, 0) | {"garbageCollectors": []},
        "allocatedSlots": [
            {"jobId": id, "resource": _NOTHING | {"cpuCores": 1.0}, "assignedTasks": number}
            for id, number in of_jobs.items()
        ],
    }


def executor_metrics(each: Executor, drives: bool) -> dict[str, float]:
    """Sum up the subtasks. ``drives``: this process is the driver, so its own figures belong to an executor in local mode."""
    names = ("numRecordsIn", "numRecordsOut", "numBytesIn", "numBytesOut", "tidegate.stateBytes", "tidegate.retries")
    found = dict.fromkeys(names, 0.0)
    for job, vertex, subtask in each.subtasks:
        values = of_subtask(job, vertex, subtask)
        for name in names:
            found[name] += values[name]
    found["tidegate.subtasks"] = len(each.subtasks)
    return found | (of_process() if drives and each.is_local else {})


def server_metrics(jobs: Sequence[JobNow]) -> dict[str, float]:
    shown = overview(jobs)
    return {
        "numRunningJobs": shown["jobs-running"],
        "numRegisteredTaskManagers": shown["taskmanagers"],
        "taskSlotsTotal": shown["slots-total"],
        "taskSlotsAvailable": shown["slots-available"],
        **of_process(),
    }


def _memory() -> tuple[int, int]:
    """Return how much memory the host has and how much of it is free."""
    try:
        with open("/proc/meminfo") as file:
            facts = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file}
        return facts["MemTotal"], facts["MemAvailable"]
    except (OSError, ValueError, KeyError, IndexError):  # not Linux
        return resident_bytes(), 0


# -- logs ------------------------------------------------------------------------------------------------------------------


def logs(files: Sequence[Path]) -> dict[str, Any]:
    listed = []
    for path in files:
        try:
            facts = path.stat()
        except OSError:  # pruned a moment ago
            continue
        listed.append({"name": path.name, "size": facts.st_size, "mtime": facts.st_mtime_ns // 1_000_000})
    return {"logs": listed}


def log_named(files: Sequence[Path], name: str | None) -> Path:
    """Return one of the listed files, or the newest one. The name only selects: it never becomes a path."""
    found = [path for path in files if name in (None, path.name)]
    if not found:
        raise ApiError(
            404,
            "No log file has this name. /jobmanager/logs lists the files."
            if name is not None
            else "There is no log file: the driver runs in the foreground, so its output is on its terminal. "
            "tidegate run -d writes a log file.",
        )
    return found[-1]
