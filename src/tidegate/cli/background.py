"""``run -d``: starts a driver in its own session, which outlives the shell, and waits until its job runs."""

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
from tidegate.control.launch import VARIABLE, jobs_of, log_file, reported_error
from tidegate.control.registry import JobRecord

_LOOK_S = 0.1
_TAIL = 4_000


def driver_command(options: list[str]) -> list[str]:
    return [sys.executable, "-m", "tidegate.cli", "run", *options]


def start(options: list[str], *, json: bool) -> None:
    """Print the id of the job when it runs. If it does not, print the driver's error and exit with the driver's code."""
    launch = new_token()
    log = log_file(launch)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    before = signal.signal(signal.SIGTERM, _on_sigterm)
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
            raise type(ending)(*(ending.args or ("interrupted: the driver was told to stop",))) from None
    finally:
        signal.signal(signal.SIGTERM, before)
        os.close(out)
    if job is None:
        _fail(reported_error(launch) or log.read_text(errors="replace")[-_TAIL:], driver.returncode, json=json)
    if json:
        return print_json({"job_id": job.job_id, "state": job.state, "pid": job.owner.pid, "log": str(log)})
    say(f"job '{job.name}' is {job.state} in process {job.owner.pid}, its output goes to {log}", err=True)
    say(job.job_id)


def _on_sigterm(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _fail(text: str, returncode: int, *, json: bool) -> NoReturn:
    code = returncode if returncode > 0 else 1
    kind, _, message = text.partition(": ")
    if json:
        text = as_line({"error": kind, "message": message.rstrip(), "exit_code": code}) + "\n"
    say(text, err=True, nl=False)
    sys.exit(code)


def _running(driver: subprocess.Popen[bytes], launch: str) -> JobRecord | None:
    """Return the job when it runs or has finished; None if the driver has ended without one."""
    terminal, started = Terminal.of(os.environ), time.monotonic()
    try:
        while True:
            over = driver.poll() is not None  # asked first: then the records of an ended driver are complete
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
