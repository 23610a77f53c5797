"""Commands to a running job: ``checkpoint``, ``savepoint``, ``stop``, ``cancel``."""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec
import typer

from tidegate.base.counts import duration
from tidegate.base.errors import TidegateError
from tidegate.cli.jobs import JobArgument, job_ids
from tidegate.cli.outcome import Json, Verbose, command, print_json, say
from tidegate.cli.screen import Terminal
from tidegate.common.job_status import JobStatus
from tidegate.control import registry
from tidegate.control.client import DriverClient, find
from tidegate.control.messages import CancelRequest, Operation, SavepointRequest, StopRequest

_LONG_S = 1.0


@command
def checkpoint(job: JobArgument, json: Json = False, verbose: Verbose = False) -> None:
    """Take a checkpoint now. Prints its id when it is complete and committed."""
    done = carry_out(job, "checkpoint", "checkpoints")
    _say(done, json, f"checkpoint {done.result} is complete")


@command
def savepoint(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="The job's id, or its first characters.", autocompletion=job_ids)
    ] = None,
    directory: Annotated[
        str | None,
        typer.Argument(metavar="[DIR]", help="The directory for the savepoint; the configured one if not given."),
    ] = None,
    dispose: Annotated[
        str | None,
        typer.Option(
            "-d", "--dispose", metavar="PATH", help="Delete this savepoint, or this checkpoint of an ended job."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --dispose: delete it even if a job may need it, or that is unknown.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Take a savepoint of a job, which continues; prints its path. Or delete a savepoint, or a checkpoint that a job has left:
    savepoint --dispose PATH."""
    if (job is None) == (dispose is None):
        raise typer.BadParameter("give a job, or --dispose with the path of a savepoint")
    if dispose is not None:
        from tidegate.checkpoint.disposal import dispose as delete

        delete(dispose, _directories_in_use(), force=force)
        return print_json({"disposed": dispose}) if json else say(f"disposed of {dispose}")
    done = carry_out(str(job), "savepoint", "savepoints", SavepointRequest(target=_absolute(directory)))
    _say(done, json, done.result or "")


@command
def stop(
    job: JobArgument,
    directory: Annotated[
        str | None,
        typer.Option(
            "-p", "--savepoint-path", "--savepointPath", metavar="DIR", help="The directory for the savepoint."
        ),
    ] = None,
    drain: Annotated[
        bool,
        typer.Option(
            "-d", "--drain", help="Let all windows and event-time timers fire: the job cannot continue later."
        ),
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Stop a job with a savepoint: sources stop, all output is committed, the job is FINISHED. Prints the savepoint's path."""
    done = carry_out(job, "stop", "stop", StopRequest(target=_absolute(directory), drain=drain))
    _say(done, json, done.result or "")


@command
def cancel(
    names: Annotated[
        list[str],
        typer.Argument(metavar="[DIR] JOB", help="The job's id, or its first characters.", autocompletion=job_ids),
    ],
    savepoint: Annotated[
        bool, typer.Option("-s", "--with-savepoint", "--withSavepoint", help="Take a savepoint first, in DIR if given.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Cancel a job for good. With -s [DIR] it leaves a savepoint, whose path is printed; without, the retention decides whether its
    checkpoints stay."""
    directory, job = _directory_and_job(names, savepoint)
    done = carry_out(job, "cancel", "cancel", CancelRequest(target=_absolute(directory), savepoint=savepoint))
    _say(done, json, (done.result or "") if savepoint else f"the job is {done.result}")


def _directories_in_use() -> list[str]:
    """Return the directories of jobs that run, or may be started again."""
    jobs = registry.newest_runs(registry.records())
    over = (JobStatus.FINISHED.name, JobStatus.CANCELED.name)
    return [job.directory for job in jobs if job.checkpoint_interval_ms is not None and job.state not in over]


def _directory_and_job(names: list[str], savepoint: bool) -> tuple[str | None, str]:
    """Find out which name is the directory: ``-s`` may have a value or none, and a job id has no slash."""
    if len(names) == 1:
        return None, names[0]
    if len(names) > 2 or not savepoint:
        raise typer.BadParameter(
            f"cancel takes one job{', and with -s a directory' if savepoint else ''}; call it for each of several jobs"
        )
    first, second = names
    return (second, first) if "/" in second and "/" not in first else (first, second)


def _absolute(directory: str | None) -> str | None:
    """Resolve a relative path here: the driver has another working directory."""
    return directory if directory is None or "://" in directory else os.path.abspath(directory)


def carry_out(job: str, what: str, path: str, body: msgspec.Struct | None = None) -> Operation:
    """Begin a command and wait until it has ended. A terminal shows the progress."""
    driver = DriverClient(find(job))
    begun = driver.begin(path, body)
    terminal = Terminal.of(os.environ)
    name = f"{what} of job '{driver.record.name}' ({driver.record.job_id})"

    def show(seconds: float) -> None:
        if terminal is not None:
            terminal.show(f"{name}: {duration(round(seconds * 1000), coarse=True)}{_copying(driver, seconds)}")

    try:
        return driver.wait(begun, show)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{name} continues in the background (operation {begun.id})") from None
    finally:
        if terminal is not None:
            terminal.close()


def _copying(driver: DriverClient, seconds: float) -> str:
    """Return the progress of a copy, for a command that takes long."""
    if seconds < _LONG_S:
        return ""
    from tidegate.cli.job_lines import copying_line  # imports the runtime

    try:
        line = copying_line(driver.details().checkpoints)
    except TidegateError:  # the wait for the end reports it
        return ""
    return f", {line}" if line else ""


def _say(done: Operation, json: bool, text: str) -> Any:
    return print_json(done) if json else say(text)
