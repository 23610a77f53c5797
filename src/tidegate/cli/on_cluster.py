"""The driver in a container of a cluster: what ``spark/driver_main.py`` calls when all packages are there.

A cluster may start the driver a second time (YARN's next attempt). The job continues from its latest checkpoint then: its id was
fixed when it was submitted. A driver that has ended by itself is not run again: its job has failed, finished or was cancelled.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from tidegate.base.errors import ConfigurationError, JobCancelledError, StorageError, TidegateError
from tidegate.base.files import Files
from tidegate.checkpoint.owner import Owner, declare_dead, this_process
from tidegate.cli.outcome import ExitCode, exit_code, readable, say
from tidegate.cli.script import run_script
from tidegate.common.global_configuration import set_dynamic_properties
from tidegate.common.job_status import JobStatus
from tidegate.common.options import JOB_ID, RESTART_COVERS_START
from tidegate.control.launch import VARIABLE, runs_on_cluster
from tidegate.control.place import DIRECTORY, JobPlace
from tidegate.control.printed import Printing
from tidegate.control.registry import TOKEN_VARIABLE
from tidegate.control.registry import VARIABLE as HOME
from tidegate.datastream.executor import Executor, instead_of_all
from tidegate.graph.transformation import Program
from tidegate.spark.engine import SparkExecutor

_CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+_\d+)_(\d+)_\d+")
_HADOOP_FILES = "__spark_conf__/__hadoop_conf__"
_ENDS = {JobStatus.FINISHED.name: 0, JobStatus.CANCELED.name: 0, JobStatus.FAILED.name: 1}
"""Exit codes of a driver whose job has ended before. A cancelled job is no failure: YARN would start it again."""


class LaunchError(msgspec.Struct, frozen=True):
    """Why a driver ended without a job that runs (``control/error-<launch>``)."""

    text: str
    code: int


def error_path(launch: str) -> str:
    return f"{DIRECTORY}/error-{launch}"


def run(job: dict[str, Any], place: str) -> None:
    """Run the program in this container, and exit as it ends. ``place``: the directory of the archive."""
    _prepare_environment(job, place)
    application, attempt = container(os.environ.get("CONTAINER_ID", ""))
    runs_on_cluster(application)
    files = JobPlace(job["place"]).files
    printing = Printing(files, job["launch"], attempt)
    try:
        code = _run(job, place, files, application, attempt)
    except BaseException as error:
        code = _report(error, files, job)
    finally:
        printing.close()
    sys.exit(code)


def container(name: str) -> tuple[str, int]:
    """Return the application and its attempt, from the name of YARN's container."""
    found = _CONTAINER.fullmatch(name)
    return (f"application_{found[1]}", int(found[2])) if found else ("", 1)


def _prepare_environment(job: dict[str, Any], place: str) -> None:
    for name in ("token", *_secret_files(place)):
        os.chmod(Path(place, name), 0o600)
    os.environ[VARIABLE] = job["launch"]
    os.environ[TOKEN_VARIABLE] = os.path.abspath(os.path.join(place, "token"))
    os.environ.setdefault(HOME, os.path.abspath(".tidegate"))  # goes with the container
    if os.path.isdir(_HADOOP_FILES):
        os.environ.setdefault("HADOOP_CONF_DIR", os.path.abspath(_HADOOP_FILES))


def _secret_files(place: str) -> list[str]:
    return [
        str(path.relative_to(place))
        for path in Path(place, "files").rglob("*")
        if path.is_file() and "key" in str(path)
    ]


def _run(job: dict[str, Any], place: str, files: Files, application: str, attempt: int) -> int:
    try:
        before = _end_of_earlier(job, files, application, attempt)
        if before is not None:
            say(f"attempt {attempt} of {application} does nothing: {before.text}", err=True)
            return before.code
        me = f"{DIRECTORY}/attempt-{application}-{attempt}.json"
        files.replace(me, msgspec.json.encode(this_process()))
    except StorageError as error:
        if attempt == 1:
            raise
        # An error that is left in the job's directory would end the job. The next attempt asks again instead.
        say(f"attempt {attempt} of {application} cannot find out how the job ended before: {error}", err=True)
        return ExitCode.FAILED
    set_dynamic_properties(_properties(job, attempt))
    script = os.path.join(place, job["script"])
    jobs = OneEach(SparkExecutor())
    with instead_of_all(lambda: jobs):
        run_script(script, job["arguments"], pyflink=job["pyflink"], entry=job["entry"])
    return 0


def _properties(job: dict[str, Any], attempt: int) -> dict[str, Any]:
    """Return the keys of the program. A later attempt must survive the outages that the restart strategy of its job covers."""
    return {**({RESTART_COVERS_START.key: True} if attempt > 1 else {}), **job["properties"]}


class OneEach:
    """Refuses a second job with the id that was fixed when the program was submitted. It would find the first one finished, and do
    nothing."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._ids: set[str] = set()

    def execute_async(self, program: Program) -> Any:
        job_id = str(program.configuration.get(JOB_ID.key))
        if job_id in self._ids:
            raise ConfigurationError(
                "A program in a container of a cluster starts one job, because the job's id is fixed when it is submitted",
                where=f"execute('{program.name}')",
                found=f"a second job with the id {job_id}",
                cure=f"submit one program for each job, or set {JOB_ID.key} in the program, another one for each job",
            )
        self._ids.add(job_id)
        return self._executor.execute_async(program)


def _end_of_earlier(job: dict[str, Any], files: Files, application: str, attempt: int) -> LaunchError | None:
    """Return how an earlier attempt ended by itself. Else the job is taken over from the attempts that died.

    The cluster says that they are dead, so their lease is not waited for. If one of them lives all the same, on a host that the
    cluster has lost, the lease fences it.
    """
    if attempt == 1:
        return None
    error = files.read_if_exists(error_path(job["launch"]))
    if error is not None:
        return msgspec.json.decode(error, type=LaunchError)
    record = JobPlace(job["place"]).newest()
    if record is not None and record.application == application:
        if record.state in _ENDS:
            return LaunchError(f"its job was {record.state}", _ENDS[record.state])
        if record.checkpoint_interval_ms is None:
            return LaunchError("its job has no checkpoints to continue from (execution.checkpointing.interval)", 1)
    for number in range(1, attempt):
        content = files.read_if_exists(f"{DIRECTORY}/attempt-{application}-{number}.json")
        if content is not None:
            declare_dead(msgspec.json.decode(content, type=Owner))
    return None


def _report(error: BaseException, files: Files, job: dict[str, Any]) -> int:
    """Print the error, leave it for the user's command, and return the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    if isinstance(error, JobCancelledError):
        say(readable(error), err=True, nl=False)
        return 0
    text, code = readable(error), int(exit_code(error))
    say(text, err=True, nl=False)
    try:
        files.replace(error_path(job["launch"]), msgspec.json.encode(LaunchError(text, code)))
    except TidegateError as failed:
        say(f"the error is not reported in the job's directory: {failed}", err=True)
    return code
