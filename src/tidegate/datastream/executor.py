"""The protocol of executors, which run programs, and of faces, which show them; and how both are found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from tidegate.base.errors import ConfigurationError
from tidegate.base.process import quiet_libraries
from tidegate.common.job_client import RunningJob
from tidegate.common.options import TARGET
from tidegate.graph.transformation import Program

GROUP = "tidegate.executors"
FACES = "tidegate.faces"

log = logging.getLogger(__name__)


def started(program: Program, *, awaited: bool) -> tuple[JobHandle, Callable[[], None]]:
    """Hand the program to its executor. Faces show the job before it starts. The returned function waits until they have shown
    its end."""
    quiet_libraries()
    waits: list[Callable[[], None]] = []
    shown = replace(program, told=lambda job: waits.append(watch(job, awaited=awaited)))
    return find_executor(program.configuration[TARGET.key]).execute_async(shown), lambda: _each(waits)


class JobHandle(RunningJob, Protocol):
    """A started job. Usable from any thread of the process that started it."""

    def collect(self, channel_id: str) -> Iterator[Any]:
        """Yield the committed records of the ``CollectSink`` with this id. Ends with the job, and raises the job's error."""
        ...


@runtime_checkable
class Executor(Protocol):
    """Runs programs, one after another. The entry point makes it without arguments."""

    def execute_async(self, program: Program) -> JobHandle:
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
