"""Background drivers of ``run -d``, and the supervisor of ``run --supervise``, which starts a dead driver again.

``run -d`` starts a driver in its own session, which outlives the shell, and waits until its job runs.

``run --supervise`` starts a dead driver again, from the latest checkpoint of its job. A driver is dead if a signal
ended it that is not a request: SIGKILL (out of memory), SIGSEGV and the like. SIGINT and SIGTERM are requests: the job
is suspended, and its supervision ends. A driver that exits by itself is never started again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from tidegate.base.hashing import new_token
from tidegate.base.plain_text import count
from tidegate.cli.outcome import as_line, print_json, say
from tidegate.cli.screen import Terminal
from tidegate.common.options import JOB_ID, RESTART_COVERS_START
from tidegate.control.launch import VARIABLE, Start, jobs_of, log_file, record_start, reported_error, supervises
from tidegate.control.registry import JobRecord

_LOOK_S = 0.1
_TAIL = 4_000


def driver_command(options: list[str]) -> list[str]:
    """Return the command of a driver. It imports nothing from the working directory (-P), as ``tidegate run`` without -d: anybody
    may have written there, and a file such as ``typing.py`` would end the driver."""
    return [sys.executable, "-P", "-m", "tidegate.cli", "run", *options]


def start(options: list[str], *, json: bool) -> None:
    """Print the id of the job when it runs. If it does not, print the driver's error and exit with the driver's code."""
    launch = new_token()
    log = log_file(launch)
    after = options.index("--")
    record_start(
        launch,
        Start(
            options=options[:after], script=options[after + 1], arguments=options[after + 2 :], directory=os.getcwd()
        ),
    )
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


MOST_RESTARTS = 10
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_LONG_LIFE_S = 300.0
"""A driver that ran this long before it died was healthy: the restarts are counted from zero again."""
_WAITS = f"-D{RESTART_COVERS_START.key}=true"
"""A driver that is started again must survive the outages that its restart strategy covers."""
_REQUESTS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Supervisor:
    """``most`` is the number of restarts in a row. ``pause`` waits for a number of seconds."""

    def __init__(self, options: list[str], most: int, pause: Callable[[float], None] = time.sleep) -> None:
        self._options, self._most, self._pause = options, most, pause
        self._launch = os.environ.get(VARIABLE) or new_token()
        self._stopped = self._passed_on = False
        self._driver: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run drivers, and return the exit code of the last one."""
        with supervises(self._launch):
            return self._run()

    def _run(self) -> int:
        job_id: list[str] = []
        starts = restarts = 0
        while True:
            began = time.monotonic()
            driver, code = self._run_driver([*job_id, *([_WAITS] if starts else []), *self._options])
            starts += 1
            if code >= 0:
                return code
            restarts = 0 if time.monotonic() - began > _LONG_LIFE_S else restarts
            died = f"the driver (process {driver}) died of {signal.Signals(-code).name}"
            jobs = [job for job in jobs_of(self._launch) if job.owner.pid == driver]
            if (reason := self._why_not_again(-code, jobs, restarts)) is not None:
                say(f"{died}; it is not started again: {reason}", err=True)
                return 128 - code
            restarts += 1
            pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (restarts - 1))
            say(f"{died}; it is started again in {pause:.0f} s ({restarts} of {self._most})", err=True)
            self._pause(pause)
            job_id = [f"-D{JOB_ID.key}={jobs[0].job_id}"] if jobs else job_id

    def _why_not_again(self, number: int, jobs: list[JobRecord], restarts: int) -> str | None:
        if self._stopped or number in _REQUESTS:
            return "it was told to stop"
        if restarts >= self._most:
            return f"{count(restarts, 'restart')} in a row did not help"
        if len(jobs) > 1:
            return "the program had started more than one job, and would start again with the first"
        if jobs and jobs[0].has_ended:
            return f"its job was {jobs[0].state}"
        if jobs and (jobs[0].checkpoint_interval_ms is None or jobs[0].is_temporary):
            return "its job has no checkpoints to continue from (execution.checkpointing.interval and .dir)"
        return None

    def _run_driver(self, options: list[str]) -> tuple[int, int]:
        """Run one driver and return its pid and exit code, which is negative if a signal ended it."""
        with self._passing_on():
            self._driver = subprocess.Popen(driver_command(options), env={**os.environ, VARIABLE: self._launch})
            if self._stopped and not self._passed_on:  # there was no driver yet
                self._driver.terminate()
            try:
                return self._driver.pid, self._driver.wait()
            finally:
                self._driver = None

    @contextmanager
    def _passing_on(self) -> Iterator[None]:
        """Pass SIGTERM on to the driver. SIGINT of a terminal has reached the driver already."""

        def pass_on(number: int, frame: object) -> None:
            self._stopped = True
            if number != signal.SIGINT and self._driver is not None:
                self._passed_on = True
                self._driver.send_signal(number)

        before = {number: signal.signal(number, pass_on) for number in _REQUESTS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
