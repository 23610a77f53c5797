"""``run -d``: a driver in a session of its own, that outlives the shell; and the wait until its job really runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import NoReturn

from tidegate.base.ids import new_token
from tidegate.cli.outcome import as_line, print_json, say
from tidegate.cli.screen import Terminal
from tidegate.control.launch import VARIABLE, jobs_of, log_file, told_error
from tidegate.control.registry import JobRecord

_LOOK_S = 0.1
_TAIL = 4_000


def driver_command(options: list[str]) -> list[str]:
    return [sys.executable, "-m", "tidegate.cli", "run", *options]


def start(options: list[str], *, json: bool) -> None:
    """Prints the id of the job when it runs; else the error of the driver, and exits with its code."""
    launch = new_token()
    log = log_file(launch)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    before = signal.signal(signal.SIGTERM, _told_to_end)
    try:
        driver = subprocess.Popen(
            driver_command(options),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={**os.environ, VARIABLE: launch},
        )
        try:
            job = _running(driver, launch)
        except (KeyboardInterrupt, SystemExit) as ending:
            driver.terminate()
            raise type(ending)(*(ending.args or ("interrupted: the driver was told to end",))) from None
    finally:
        signal.signal(signal.SIGTERM, before)
        os.close(out)
    if job is None:
        _fail(told_error(launch) or log.read_text(errors="replace")[-_TAIL:], driver.returncode, json=json)
    if json:
        return print_json({"job_id": job.job_id, "state": job.state, "pid": job.owner.pid, "log": str(log)})
    say(f"job '{job.name}' is {job.state} in process {job.owner.pid}, its output goes to {log}", err=True)
    say(job.job_id)


def _told_to_end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _fail(text: str, returncode: int, *, json: bool) -> NoReturn:
    code = returncode if returncode > 0 else 1
    kind, _, message = text.partition(": ")
    if json:
        text = as_line({"error": kind, "message": message.rstrip(), "exit_code": code}) + "\n"
    say(text, err=True, nl=False)
    sys.exit(code)


def _running(driver: subprocess.Popen[bytes], launch: str) -> JobRecord | None:
    """The job once it runs, or has ended well; None: the driver has ended without one."""
    terminal, started = Terminal.of(os.environ), time.monotonic()
    try:
        while True:
            over = driver.poll() is not None  # looked at first: what it has written by then is all there will be
            jobs = jobs_of(launch)
            if jobs and jobs[0].state in ("RUNNING", "FINISHED", "RESTARTING"):
                return jobs[0]
            if over:
                return None
            if terminal is not None:
                terminal.show(f"the job starts: {time.monotonic() - started:.0f} s")
            time.sleep(_LOOK_S)
    finally:
        if terminal is not None:
            terminal.close()
