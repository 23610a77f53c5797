"""Commands that tell a running job something: ``checkpoint``, ``savepoint``, ``stop``, ``cancel``."""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec
import typer

from tidegate.base.errors import TidegateError
from tidegate.cli.durations import duration
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
    """Take a checkpoint now, due or not. Prints its id when it is complete and committed."""
    done = tell(job, "checkpoint", "checkpoints")
    _say(done, json, f"checkpoint {done.result} is complete")


@command
def savepoint(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="The job's id, or the beginning of it.", autocompletion=job_ids)
    ] = None,
    directory: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="Where to make it; the configured directory if not given.")
    ] = None,
    dispose: Annotated[
        str | None,
        typer.Option(
            "-d", "--dispose", metavar="PATH", help="Delete this savepoint, or this checkpoint of a job that is over."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --dispose: delete it though a job may miss it, or nobody can tell.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Take a savepoint of a job, which goes on; prints its path. Or delete one, or a checkpoint that a job has left:
    savepoint --dispose PATH."""
    if (job is None) == (dispose is None):
        raise typer.BadParameter("give a job, or --dispose with the path of a savepoint")
    if dispose is not None:
        from tidegate.checkpoint.disposal import dispose as delete

        delete(dispose, _directories_in_use(), force=force)
        return print_json({"disposed": dispose}) if json else say(f"disposed of {dispose}")
    done = tell(str(job), "savepoint", "savepoints", SavepointRequest(target=_absolute(directory)))
    _say(done, json, done.result or "")


@command
def stop(
    job: JobArgument,
    directory: Annotated[
        str | None, typer.Option("-p", "--savepoint-path", "--savepointPath", metavar="DIR", help="Where to make it.")
    ] = None,
    drain: Annotated[
        bool, typer.Option("-d", "--drain", help="Let all windows and event-time timers fire: the job will not go on.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Stop a job with a savepoint: sources stop, all output is committed, the job is FINISHED. Prints the savepoint's path."""
    done = tell(job, "stop", "stop", StopRequest(target=_absolute(directory), drain=drain))
    _say(done, json, done.result or "")


@command
def cancel(
    names: Annotated[
        list[str],
        typer.Argument(metavar="[DIR] JOB", help="The job's id, or the beginning of it.", autocompletion=job_ids),
    ],
    savepoint: Annotated[
        bool, typer.Option("-s", "--with-savepoint", "--withSavepoint", help="Take a savepoint first, in DIR if given.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Cancel a job: it is over for good. With -s [DIR] it leaves a savepoint, whose path is printed; without, its checkpoints stay
    or go as the retention says."""
    directory, job = _directory_and_job(names, savepoint)
    done = tell(job, "cancel", "cancel", CancelRequest(target=_absolute(directory), savepoint=savepoint))
    _say(done, json, (done.result or "") if savepoint else f"the job is {done.result}")


def _directories_in_use() -> list[str]:
    """Of jobs that run, or may be started again."""
    jobs = registry.newest_runs(registry.records())
    over = (JobStatus.FINISHED.name, JobStatus.CANCELED.name)
    return [job.directory for job in jobs if job.checkpoint_interval_ms is not None and job.state not in over]


def _directory_and_job(names: list[str], savepoint: bool) -> tuple[str | None, str]:
    """``-s`` may have a value or none, so the directory is told from the job by its looks; job ids have no slash."""
    if len(names) == 1:
        return None, names[0]
    if len(names) > 2 or not savepoint:
        raise typer.BadParameter(
            f"cancel takes one job{', and with -s a directory' if savepoint else ''}; call it for each of several jobs"
        )
    first, second = names
    return (second, first) if "/" in second and "/" not in first else (first, second)


def _absolute(directory: str | None) -> str | None:
    """As the user of this shell means it: the driver is elsewhere."""
    return directory if directory is None or "://" in directory else os.path.abspath(directory)


def tell(job: str, what: str, path: str, body: msgspec.Struct | None = None) -> Operation:
    """Begin it and wait for its end, shown on a terminal."""
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
        raise KeyboardInterrupt(f"{name} goes on without you (operation {begun.id})") from None
    finally:
        if terminal is not None:
            terminal.close()


def _copying(driver: DriverClient, seconds: float) -> str:
    """What takes long is large: how far it is."""
    if seconds < _LONG_S:
        return ""
    from tidegate.cli.job_lines import copying_line  # brings the runtime along

    try:
        line = copying_line(driver.details().checkpoints)
    except TidegateError:  # whoever waits for the end is told of it there
        return ""
    return f", {line}" if line else ""


def _say(done: Operation, json: bool, text: str) -> Any:
    return print_json(done) if json else say(text)
