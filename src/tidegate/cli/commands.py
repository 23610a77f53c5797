"""Commands to a running job (``checkpoint``, ``savepoint``, ``stop``, ``cancel``), and commands that follow a job.

``logs`` and ``wait`` follow a job from another shell. They change nothing.
"""

from __future__ import annotations

import codecs
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, BinaryIO

import msgspec
import typer

from tidegate.base.errors import NoLogError, TidegateError
from tidegate.base.plain_text import duration, plain
from tidegate.checkpoint.owner import is_alive
from tidegate.cli.jobs import JobArgument, facts_of, job_ids, shown_state
from tidegate.cli.outcome import ExitCode, Json, Verbose, command, print_json, say
from tidegate.cli.screen import Terminal
from tidegate.common.job_status import JobStatus
from tidegate.control import registry
from tidegate.control.client import DriverClient, driver_of, find
from tidegate.control.launch import is_supervised, jobs_of, log_of
from tidegate.control.letters import LOOK_S, PostedDriver
from tidegate.control.messages import CancelRequest, Operation, SavepointRequest, StopRequest
from tidegate.control.place import JobPlace, last_sign_ms, refreshed
from tidegate.control.printed import Printed
from tidegate.control.registry import LOGS, DriverLife, JobRecord, home

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

        delete(dispose, registry.directories_in_use(), force=force)
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
    driver = driver_of(find(job))
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


def _copying(driver: DriverClient | PostedDriver, seconds: float) -> str:
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


_LOOK_S = 0.2
_PART = 1 << 16
_CODES = {
    JobStatus.FINISHED.name: ExitCode.OK,
    JobStatus.FAILED.name: ExitCode.FAILED,
    JobStatus.CANCELED.name: ExitCode.CANCELLED,
    JobStatus.SUSPENDED.name: ExitCode.SUSPENDED,
}


@command
def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue until the driver has ended.")] = False,
    lines: Annotated[int | None, typer.Option("-n", "--lines", min=0, help="Start with this many last lines.")] = None,
    verbose: Verbose = False,
) -> None:
    """Print what the driver of a job in the background (run -d), or on a cluster, has printed: output, logs and errors."""
    record = find(job)
    if record.printed and record.place is not None and record.launch is not None:
        _print_stored(record, lines, follow=follow)
        return
    path = log_of(record)
    if path is None:
        raise _no_log(record)
    with open(path, "rb") as log:
        _print_from(log, lines)
        while follow:
            over = _driver_is_over(record)  # asked first: then the log of an ended driver is complete
            _print_rest(log)
            if over:
                return
            time.sleep(_LOOK_S)


@command
def wait(
    job: JobArgument,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="Wait this long at most.")
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Wait until a job has ended. The exit code says how: 0 finished, 1 failed, 14 cancelled, 18 suspended, 11 its driver died."""
    record = find(job)
    ended = _awaited(record, timeout)
    if json:
        print_json(facts_of(ended))
    else:
        say(f"job '{ended.name}' ({ended.job_id}) is {shown_state(ended)}")
        if ended.error is not None and ended.state == JobStatus.FAILED.name:
            say(ended.error, err=True)
    life = ended.life()
    if life is DriverLife.DIED:
        sys.exit(ExitCode.DIED)
    sys.exit(_CODES[ended.state] if life is DriverLife.ENDED else ExitCode.TIMED_OUT)


def _print_stored(record: JobRecord, lines: int | None, *, follow: bool) -> None:
    """Print what drivers in containers have stored in the job's directory."""
    printed = Printed(JobPlace(record.place or "").files, record.launch or "")
    content = b"".join(printed.rest())
    _write(content if lines is None else b"".join(deque(content.splitlines(keepends=True), maxlen=lines)))
    sys.stdout.flush()
    heard = time.monotonic()
    while follow:
        over = _is_over(_latest(record))  # asked first, as above
        for part in printed.rest():
            _write(part)
            heard = time.monotonic()
        sys.stdout.flush()
        # A program may go on after its job. A driver that was killed, or is of an older version, does not say that it has ended.
        if over and (printed.is_complete or time.monotonic() - heard > _QUIET_S):
            return
        time.sleep(LOOK_S)


# -- waiting -----------------------------------------------------------------------------------------------------------


def _awaited(record: JobRecord, timeout: float | None) -> JobRecord:
    """Return the run when it has ended, or after the time."""
    terminal, began = Terminal.of(os.environ), time.monotonic()
    try:
        while True:
            record = _latest(record)
            seconds = time.monotonic() - began
            if _is_over(record) or (timeout is not None and seconds >= timeout):
                return record
            if terminal is not None:
                passed = duration(round(seconds * 1000), coarse=True)
                terminal.show(f"waiting for job '{record.name}' ({record.job_id}), {shown_state(record)}: {passed}")
            pause = _LOOK_S if record.place is None else LOOK_S
            time.sleep(pause if timeout is None else min(pause, max(0.0, timeout - seconds)))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"job '{record.name}' ({record.job_id}) continues in the background") from None
    finally:
        if terminal is not None:
            terminal.close()


def _latest(record: JobRecord) -> JobRecord:
    """Return the latest run: a supervisor starts a dead driver again as another run of the job."""
    if record.place is not None:
        return refreshed(registry.read(record.run) or record)
    known = registry.read(record.run) or record
    if known.life() is DriverLife.DIED and known.launch is not None:
        again = [run for run in jobs_of(known.launch) if run.job_id == known.job_id]
        return again[-1] if again else known
    return known


def _is_over(record: JobRecord) -> bool:
    life = record.life()
    if life is DriverLife.DIED and record.application is not None:
        return not _may_be_started_again(record)
    return life is DriverLife.ENDED or (life is DriverLife.DIED and not is_supervised(record.launch))


_QUIET_S = 30.0
_NEXT_ATTEMPT_MS = 120_000
"""A cluster needs some time to start the next attempt of a driver that died."""


def _may_be_started_again(record: JobRecord) -> bool:
    return time.time_ns() // 1_000_000 - last_sign_ms(record) < _NEXT_ATTEMPT_MS


# -- logs --------------------------------------------------------------------------------------------------------------


def _driver_is_over(record: JobRecord) -> bool:
    """Return whether the driver has ended. A program may print something after its job, for example why the job failed."""
    latest = _latest(record)
    if is_supervised(latest.launch):
        return False
    alive = is_alive(latest.owner)
    return not alive if alive is not None else latest.has_ended


def _print_from(log: BinaryIO, lines: int | None) -> None:
    if lines is None:
        return _print_rest(log)
    for line in deque(log, maxlen=lines):
        _write(line)
    sys.stdout.flush()


def _print_rest(log: BinaryIO) -> None:
    while part := log.read(_PART):
        _write(part)
    sys.stdout.flush()


def _write(part: bytes) -> None:
    """Write the log as it was printed, but no escape sequences to a terminal: the log may hold texts of strangers."""
    below: Callable[[bytes], object] | None = getattr(getattr(sys.stdout, "buffer", None), "write", None)
    if below is None or sys.stdout.isatty():
        sys.stdout.write(plain(_decoder.decode(part)))
    else:
        below(part)


_decoder = codecs.getincrementaldecoder("utf-8")("replace")
"""Keeps the first bytes of a character between two parts of the log."""


def _no_log(record: JobRecord) -> NoLogError:
    return NoLogError(
        "The driver of the job has no log file: only a driver in the background has one",
        where=f"job {record.job_id} ('{record.name}'), {record.owner}",
        found="it was started in the foreground: its output goes to its terminal or service"
        if record.launch is None
        else f"its log is missing in {home() / LOGS}, or its supervisor ran in the foreground",
        cure="start it with tidegate run -d; for a service, read the service's log (journalctl, kubectl logs)",
    )
