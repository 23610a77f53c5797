"""Starts programs for people on the page: uploaded ones, and those of jobs that are stopped to run with another parallelism."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import msgspec

from tidegate.base.errors import CommandFailedError, ConfigurationError, RefusedError, TidegateError
from tidegate.common.options import (
    JOB_ID,
    PARALLELISM,
    PYTHON_FILES,
    RECOVERY_CLAIM,
    RECOVERY_IGNORE_UNCLAIMED,
    RECOVERY_PATH,
)
from tidegate.control.flink import programs as flink
from tidegate.control.jobs import Operations
from tidegate.control.launch import Start, start_of
from tidegate.control.messages import Operation, OperationStatus, StopRequest
from tidegate.control.registry import LOGS, JobRecord, home
from tidegate.control.shown import ShownJob
from tidegate.control.web.programs import LARGEST_PROGRAM, Program, Programs

_LONGEST_START_S = 300.0
_LOOK_S = 20.0
_TAIL = 4_000


class RescaleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``target``: the directory for the savepoint between, None: the configured one."""

    parallelism: int
    target: str | None = None


class Restarts:
    """The operations of this server itself. They continue while the page is closed, and end with the server."""

    def __init__(self, programs: Programs, run: Callable[[list[str], str], str] | None = None) -> None:
        self._programs, self._run = programs, run or _started
        self._operations = Operations(lambda: False)
        self._jobs: dict[str, str] = {}

    def operation(self, id: str) -> Operation | None:
        return self._operations.get(id)

    def wait(self, id: str, seconds: float) -> Operation | None:
        return self._operations.wait(id, seconds)

    def operations(self, job_id: str) -> list[Operation]:
        return [each for each in self._operations.latest if self._jobs.get(each.id) == job_id]

    def why_not(self, job: ShownJob) -> str | None:
        """Return why the job's program cannot be started from here; None if it can."""
        record = getattr(job, "record", None)
        if not isinstance(record, JobRecord) or record.launch is None:
            return "The job was not started with tidegate run -d, so it is not known how to start it again."
        start = start_of(record.launch)
        if start is None:
            return f"The record of how the job was started is missing in {home() / LOGS}."
        if not os.path.isfile(os.path.join(start.directory, start.script)):
            return f"The job's program is missing: {os.path.join(start.directory, start.script)}."
        return None

    def rescale(self, job: ShownJob, asked: RescaleRequest) -> Operation:
        """Stop the job with a savepoint, and start its program from there. Raise RefusedError if that is not possible."""
        refusal = self.why_not(job)
        if refusal is not None:
            raise RefusedError(refusal)
        record: JobRecord = job.record  # type: ignore[attr-defined]
        start = start_of(str(record.launch))
        assert start is not None
        stopping = job.begin("stop", StopRequest(target=asked.target))

        def rest() -> str:
            path = _ended(job, stopping)
            try:
                return self._run(_with(start, asked.parallelism, path), start.directory)
            except TidegateError as error:
                raise CommandFailedError(
                    "The job was stopped, but its program did not start again",
                    where=f"its savepoint is {path}",
                    found=str(error),
                    cure=f"start it by hand: tidegate run -d -s {path} -p {asked.parallelism} {start.script}",
                ) from error

        return self._begin("rescale", rest, job.job_id)

    def start(self, program: Program, asked: flink.RunRequest) -> Operation:
        """Run an uploaded program in the background. The result of the operation is the id of its job."""
        options, place = self._options(program, asked)
        return self._begin("run", lambda: self._run(options, place), "")

    def start_now(self, program: Program, asked: flink.RunRequest) -> str:
        """Run an uploaded program in the background, and return the id of its job when it runs."""
        return self._run(*self._options(program, asked))

    def _options(self, program: Program, asked: flink.RunRequest) -> tuple[list[str], str]:
        file, function, place = self._programs.file(program, asked.entry)
        if asked.parallelism is not None and asked.parallelism < 1:
            raise ConfigurationError("The parallelism is a number of at least 1", found=str(asked.parallelism))
        keys = dict(asked.configuration)
        if program.name.endswith(".zip"):
            keys.setdefault(PYTHON_FILES.key, str(place))
        keys |= {PARALLELISM.key: str(asked.parallelism)} if asked.parallelism is not None else {}
        keys |= {RECOVERY_PATH.key: asked.savepoint} if asked.savepoint else {}
        keys |= {RECOVERY_IGNORE_UNCLAIMED.key: "true"} if asked.allow_non_restored_state else {}
        keys |= {RECOVERY_CLAIM.key: asked.claim_mode} if asked.claim_mode else {}
        keys |= {JOB_ID.key: asked.job_id} if asked.job_id else {}
        for key, value in keys.items():
            if not key.strip() or "=" in key or any(ord(c) < 32 for c in key + value):
                raise ConfigurationError("A key of the configuration is invalid", found=repr(f"{key}={value}")[:200])
        options = [f"-D{key}={value}" for key, value in keys.items()]
        options += [] if function is None else ["-c", function]
        return [*options, "--", str(file), *asked.arguments], str(place)

    def _begin(self, kind: str, act: Callable[[], str], job_id: str) -> Operation:
        answer: Future[str] = Future()

        def carry_out() -> None:
            try:
                answer.set_result(act())
            except BaseException as error:
                answer.set_exception(error)

        begun = self._operations.begin(kind, answer)
        self._jobs[begun.id] = job_id
        threading.Thread(target=carry_out, name=f"tidegate-{kind}", daemon=True).start()
        return begun


class FlinkPrograms:
    """The uploaded programs as Flink's API shows and runs them (``flink.Programs``)."""

    largest_bytes = LARGEST_PROGRAM

    def __init__(self, programs: Programs, restarts: Restarts) -> None:
        self._programs, self._restarts = programs, restarts

    def list(self) -> Sequence[flink.Program]:
        return self._programs.all()

    def add(self, name: str, content: bytes) -> Program:
        return self._programs.add(name, content)

    def remove(self, id: str) -> None:
        self._programs.delete(id)

    def run(self, id: str, request: flink.RunRequest) -> str:
        return self._restarts.start_now(self._programs.get(id), request)


def _ended(job: ShownJob, operation: Operation) -> str:
    """Wait for the end of a stop, and return the path of its savepoint."""
    silent = 0
    while operation.status is OperationStatus.RUNNING:
        latest = job.operation(operation.id, _LOOK_S)
        silent = silent + 1 if latest is None else 0
        if silent > 3:
            raise CommandFailedError("The driver no longer answers, so it is not known whether the job has stopped")
        operation = latest or operation
    if operation.problem is not None or operation.result is None:
        raise CommandFailedError(
            "The job was not stopped", found=None if operation.problem is None else operation.problem.message
        )
    return operation.result


def _with(start: Start, parallelism: int, savepoint: str) -> list[str]:
    """Return the options of the new start: those of the old one, with another parallelism, from the savepoint."""
    new = {PARALLELISM.key: str(parallelism), RECOVERY_PATH.key: savepoint}
    replaced = {*new, *PARALLELISM.aliases, *RECOVERY_PATH.aliases, RECOVERY_CLAIM.key, *RECOVERY_CLAIM.aliases}
    kept = [
        option for option in start.options if not (option.startswith("-D") and option[2:].partition("=")[0] in replaced)
    ]
    return [*(f"-D{key}={value}" for key, value in new.items()), *kept, "--", start.script, *start.arguments]


def _started(options: list[str], directory: str) -> str:
    """Run ``tidegate run -d``, and return the id of the job when it runs."""
    # -P: nothing is imported from the directory, which may be one that others can write to.
    command = [sys.executable, "-P", "-m", "tidegate.cli", "run", "-d", "--json", *options]
    try:
        done = subprocess.run(
            command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LONGEST_START_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandFailedError("The program did not start", found=f"{type(error).__name__}: {error}") from error
    if done.returncode:
        raise CommandFailedError(
            "The program did not start", found=_said(done.stderr) or f"exit code {done.returncode}"
        )
    return str(json.loads(done.stdout)["job_id"])


def _said(errors: bytes) -> str:
    text = errors.decode(errors="replace").strip()
    try:
        return str(json.loads(text.splitlines()[-1])["message"])
    except (ValueError, KeyError, TypeError, IndexError):
        return text[-_TAIL:]
