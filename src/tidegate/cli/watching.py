"""Commands that follow a job from another shell, ``logs`` and ``wait``. They change nothing."""

from __future__ import annotations

import codecs
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Annotated, BinaryIO

import typer

from tidegate.base.counts import duration
from tidegate.base.errors import NoLogError
from tidegate.base.plain_text import plain
from tidegate.checkpoint.owner import is_alive
from tidegate.cli.jobs import JobArgument, facts_of, shown_state
from tidegate.cli.outcome import ExitCode, Json, Verbose, command, print_json, say
from tidegate.cli.screen import Terminal
from tidegate.common.job_status import JobStatus
from tidegate.control import registry
from tidegate.control.client import find
from tidegate.control.home import LOGS, home
from tidegate.control.launch import is_supervised, jobs_of, log_of
from tidegate.control.registry import DriverLife, JobRecord

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
    """Print what the driver of a job in the background (run -d) has printed: the program's output, logs and errors."""
    record = find(job)
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
            time.sleep(_LOOK_S if timeout is None else min(_LOOK_S, timeout - seconds))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"job '{record.name}' ({record.job_id}) continues in the background") from None
    finally:
        if terminal is not None:
            terminal.close()


def _latest(record: JobRecord) -> JobRecord:
    """Return the latest run: a supervisor starts a dead driver again as another run of the job."""
    known = registry.read(record.run) or record
    if known.life() is DriverLife.DIED and known.launch is not None:
        again = [run for run in jobs_of(known.launch) if run.job_id == known.job_id]
        return again[-1] if again else known
    return known


def _is_over(record: JobRecord) -> bool:
    life = record.life()
    return life is DriverLife.ENDED or (life is DriverLife.DIED and not is_supervised(record.launch))


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
