"""The jobs of this process that take commands, and what each command is to a job."""

from __future__ import annotations

import threading
from typing import Any

from tidegate.base.errors import ConfigurationError
from tidegate.control.messages import Operation
from tidegate.control.operations import Operations
from tidegate.control.targets import checked_target
from tidegate.runtime.commands import (
    Cancel,
    CancelWithSavepoint,
    Command,
    StopWithSavepoint,
    TriggerCheckpoint,
    TriggerSavepoint,
)
from tidegate.runtime.handle import StartedJob


class ControlledJob:
    """A job as the endpoint sees it. Every method returns at once, with an operation to ask about; it raises what is wrong with
    the command itself, before the job hears of it."""

    def __init__(self, handle: StartedJob) -> None:
        self.handle = handle
        self.operations = Operations(lambda: handle.status().is_terminal_state())

    def trigger_checkpoint(self) -> Operation:
        return self._begin("checkpoint", TriggerCheckpoint())

    def trigger_savepoint(self, target: str | None) -> Operation:
        return self._begin("savepoint", TriggerSavepoint(self._checked(target)))

    def stop(self, target: str | None, drain: bool) -> Operation:
        return self._begin("stop", StopWithSavepoint(self._checked(target), drain=drain))

    def cancel(self, target: str | None, savepoint: bool) -> Operation:
        if not savepoint and target is not None:
            raise ConfigurationError("A directory belongs to a savepoint", found=target, cure="set savepoint to true")
        if savepoint:
            return self._begin("cancel", CancelWithSavepoint(self._checked(target)))
        return self._begin("cancel", Cancel())

    def _begin(self, kind: str, command: Command[Any]) -> Operation:
        return self.operations.begin(kind, self.handle.submit(command).answer)

    def _checked(self, target: str | None) -> str | None:
        settings = self.handle.settings
        return None if target is None else checked_target(target, settings.control_dirs, settings.savepoint_dir)


class Jobs:
    """By job id; of several runs of one id the latest of those that are not over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[ControlledJob] = []

    def add(self, job: ControlledJob) -> None:
        with self._lock:
            self._jobs.append(job)

    def remove(self, job: ControlledJob) -> None:
        with self._lock:
            if job in self._jobs:
                self._jobs.remove(job)

    def get(self, job_id: str) -> ControlledJob | None:
        return next((job for job in reversed(self.all()) if job.handle.job_id == job_id), None)

    def all(self) -> list[ControlledJob]:
        with self._lock:
            return list(self._jobs)
