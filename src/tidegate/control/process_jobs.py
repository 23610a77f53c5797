"""The jobs of this process as servers show them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from tidegate.base.errors import RefusedError
from tidegate.base.hashing import flink_job_id
from tidegate.control.jobs import ControlledJob, JobDetails, Jobs
from tidegate.control.launch import VARIABLE
from tidegate.control.messages import CancelRequest, Operation, SavepointRequest, StopRequest
from tidegate.control.registry import LOGS, DriverLife, home
from tidegate.control.shown import ShownJob
from tidegate.runtime.prometheus import prometheus_text
from tidegate.runtime.view import CheckpointView, Note


class ProcessJob:
    """A job of this process (``ShownJob``). Nothing here waits."""

    def __init__(self, job: ControlledJob) -> None:
        self._job, self.job_id = job, job.handle.job_id

    @property
    def run(self) -> str:
        return f"{os.getpid()}-{self._job.handle.view().created_ms}"

    @property
    def life(self) -> DriverLife:
        return DriverLife.ENDED if self._job.handle.status().is_terminal_state() else DriverLife.LIVE

    def details(self) -> tuple[JobDetails, int]:
        now = time.time_ns() // 1_000_000
        return JobDetails.of(self._job.handle.view(), now), now

    def checkpoint(self, checkpoint_id: int) -> CheckpointView | None:
        shown = self._job.handle.view().checkpoints
        return next((each for each in shown if each.checkpoint_id == checkpoint_id), None)

    def story(self, kind: str, number: int) -> list[Note]:
        return self._job.handle.story(kind, number)

    def begin(self, command: str, request: msgspec.Struct | None = None) -> Operation:
        match command, request:
            case "checkpoints", None:
                return self._job.trigger_checkpoint()
            case "savepoints", SavepointRequest(target=target):
                return self._job.trigger_savepoint(target)
            case "stop", StopRequest(target=target, drain=drain):
                return self._job.stop(target, drain)
            case "cancel", CancelRequest(target=target, savepoint=savepoint):
                return self._job.cancel(target, savepoint)
            case _:
                raise RefusedError("The job does not know this command", found=command)

    def operation(self, id: str, wait_s: float = 0.0) -> Operation | None:
        return self._job.operations.wait(id, wait_s) if wait_s else self._job.operations.get(id)

    def operations(self) -> list[Operation]:
        return self._job.operations.latest

    def log_file(self) -> Path | None:
        launch = os.environ.get(VARIABLE)
        path = None if launch is None else home() / LOGS / f"{Path(launch).name}.log"
        return path if path is not None and path.is_file() else None

    def metrics_text(self) -> str:
        return prometheus_text(self._job.handle.view())


class ProcessJobs:
    """The jobs of this process (``ShownJobs``)."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def all(self) -> list[ShownJob]:
        newest = {job.handle.job_id: job for job in self._jobs.all()}
        return [ProcessJob(job) for job in newest.values()]

    def get(self, job_id: str) -> ShownJob | None:
        found = self._jobs.get(job_id) or next(
            (job for job in reversed(self._jobs.all()) if flink_job_id(job.handle.job_id) == job_id.lower()), None
        )
        return None if found is None else ProcessJob(found)
