"""The protocols of executors, which run programs, and of faces, which show them; how both are found; interruption.

Ctrl-C or SIGTERM while a program executes ends the driver in order, and the job can continue later.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import entry_points
from types import FrameType
from typing import Any, Protocol, Self, runtime_checkable

from tidegate.base.errors import ConfigurationError, TidegateError
from tidegate.base.process import end_after, end_at_once, quiet_libraries
from tidegate.common.job_client import RunningJob
from tidegate.common.job_execution_result import JobExecutionResult
from tidegate.common.options import TARGET
from tidegate.graph.transformation import Program

GROUP = "tidegate.executors"
FACES = "tidegate.faces"

log = logging.getLogger(__name__)


def started(program: Program, *, awaited: bool) -> tuple[RunningJob, Callable[[], None]]:
    """Hand the program to its executor. Faces show the job before it starts. The returned function waits until they have shown
    its end."""
    quiet_libraries()
    waits: list[Callable[[], None]] = []
    shown = replace(program, told=lambda job: waits.append(watch(job, awaited=awaited)))
    return find_executor(program.configuration[TARGET.key]).execute_async(shown), lambda: _each(waits)


@runtime_checkable
class Executor(Protocol):
    """Runs programs, one after another. The entry point makes it without arguments."""

    def execute_async(self, program: Program) -> RunningJob:
        """Check the program, call its ``told``, and start it. Return as soon as it runs. Raise if the program is invalid."""
        ...


class Face(Protocol):
    """Shows jobs to a person. The entry point makes it without arguments. It must not slow or break the job."""

    def watch(self, job: RunningJob, *, awaited: bool) -> Callable[[], None]:
        """Show the job in the background. The returned function is called after the job's end and waits until the face has shown
        it.

        ``awaited``: the program only waits for the job. Otherwise the program may use the terminal itself.
        """
        ...


def watch(job: RunningJob, *, awaited: bool) -> Callable[[], None]:
    """Let all installed faces show the job. The returned function waits until they have shown its end."""
    waits: list[Callable[[], None]] = []
    for point in entry_points(group=FACES):
        try:
            waits.append(point.load()().watch(job, awaited=awaited))
        except Exception:
            log.debug("face %s does not show the job", point.name, exc_info=True)
    return lambda: _each(waits)


def _each(waits: list[Callable[[], None]]) -> None:
    for wait in waits:
        try:
            wait()
        except Exception:
            log.debug("a face failed", exc_info=True)


_registered: dict[str, Callable[[], Executor]] = {}


def register_executor(target: str, factory: Callable[[], Executor]) -> None:
    """Register an executor in this process, for tests and embedded engines. It takes precedence over an installed one."""
    _registered[target] = factory


_instead: list[Callable[[], Executor]] = []


@contextmanager
def instead_of_all(factory: Callable[[], Executor]) -> Iterator[None]:
    """Hand every program to this executor, whatever ``execution.target`` it sets."""
    _instead.append(factory)
    try:
        yield
    finally:
        _instead.pop()


def find_executor(target: str) -> Executor:
    """Return the executor of ``execution.target``."""
    if _instead:
        return _instead[-1]()
    if target in _registered:
        return _registered[target]()
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if target not in installed:
        known = sorted({*installed, *_registered})
        raise ConfigurationError(
            f"'{TARGET.key}' names no installed executor",
            found=repr(target),
            cure=f"use one of {', '.join(known)}" if known else "install tidegate with its executor",
        )
    factory: Callable[[], Executor] = installed[target].load()
    return factory()


_DEFAULTS: dict[int, tuple[Any, ...]] = {
    signal.SIGINT: (signal.default_int_handler,),
    signal.SIGTERM: (signal.SIG_DFL, end_at_once),
}
"""Handlers that we may replace. The user's own handler stays, and so does an ignored signal."""
START_S, END_S = 10.0, 60.0
"""How long after a SIGTERM a job may take to start, and then to end in order. A system that does not answer, Spark that does not
start or a hanging function could take for ever. After that time the process ends as by a kill, which loses nothing."""


class Interruption:
    """Suspend the job at the first signal. The second signal finds the original handlers and ends the process at once.

    Python calls and sets handlers only in the main thread. In other threads this does nothing, and an exception that other code
    raises in the waiting thread (a notebook, the user's handler) counts as the first signal.

    While the job starts, a signal waits: the start claims the lease and commits restored output, and an interruption at any line
    would leave its state unknown. Usually there is no second SIGTERM, so after the first the time is limited.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._received: int | None = None
        self._waiting = False
        self._limit: threading.Timer | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number, defaults in _DEFAULTS.items():
                if signal.getsignal(number) in defaults:
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._restore()
        self._end_within(None)
        if self._received is not None and (error is None or isinstance(error, Exception)):
            raise _ending(self._received) from error  # the signal came before or after the wait

    def result_of(self, job: RunningJob) -> JobExecutionResult:
        """Wait for the job. Raise KeyboardInterrupt or SystemExit when it was interrupted and has ended."""
        try:
            self._waiting = True
            if self._received is not None:
                raise _ending(self._received)
            return job.result()
        except (KeyboardInterrupt, SystemExit) as ending:
            self._waiting = False
            self._end_within(END_S)
            raise _after(job, ending) from None
        finally:
            self._waiting = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._restore()
        self._received = number
        if self._waiting:
            raise _ending(number)
        self._end_within(START_S)

    def _end_within(self, seconds: float | None) -> None:
        """Limit the time after a SIGTERM; None: the job has ended."""
        if self._limit is not None:
            self._limit.cancel()
        if seconds is not None and self._received == signal.SIGTERM:
            self._limit = end_after(seconds, self._received)

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            if signal.getsignal(number) == self._receive:
                signal.signal(number, handler)


def _ending(number: int) -> KeyboardInterrupt | SystemExit:
    """Return the exception that ends the process: KeyboardInterrupt for Ctrl-C; else SystemExit with the status that a shell
    shows."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


def _after(job: RunningJob, ending: KeyboardInterrupt | SystemExit) -> KeyboardInterrupt | SystemExit:
    """Suspend the job, wait for its end, and return the exception with the outcome of the job as its text."""
    log.warning("job %s: interrupted, it ends in order; a second interrupt ends it at once", job.job_id)
    job.suspend()
    try:
        job.result()
        text = f"Job {job.job_id} had finished"
    except TidegateError as outcome:
        text = str(outcome)
    if isinstance(ending, KeyboardInterrupt):
        return KeyboardInterrupt(text)
    log.warning("%s", text)  # a SystemExit has no text
    return ending
