"""What the API needs of whatever runs programs, and how it is found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from tidegate.base.errors import ConfigurationError
from tidegate.base.library_logs import quiet_libraries
from tidegate.common.job_client import RunningJob
from tidegate.common.options import TARGET
from tidegate.graph.transformation import Program

GROUP = "tidegate.executors"
FACES = "tidegate.faces"

log = logging.getLogger(__name__)


def started(program: Program, *, awaited: bool) -> tuple[JobHandle, Callable[[], None]]:
    """Hand the program to its executor; faces show the job before it does anything. The function waits until they have shown its
    end."""
    quiet_libraries()
    waits: list[Callable[[], None]] = []
    shown = replace(program, told=lambda job: waits.append(watch(job, awaited=awaited)))
    return find_executor(program.configuration[TARGET.key]).execute_async(shown), lambda: _each(waits)


class JobHandle(RunningJob, Protocol):
    """A started job. Usable from any thread of the process that started it."""

    def collect(self, channel_id: str) -> Iterator[Any]:
        """The records that reach the ``CollectSink`` of this id, as they are committed; ends with the job and raises the error
        it ended with."""
        ...


@runtime_checkable
class Executor(Protocol):
    """Made without arguments by the entry point; one program after another may be handed to it."""

    def execute_async(self, program: Program) -> JobHandle:
        """Check the program, call its ``told``, start it; returns as soon as it runs. What is wrong with the program is raised
        here."""
        ...


class Face(Protocol):
    """Shows jobs to a person. Made without arguments by the entry point; it must not slow or break what it shows."""

    def watch(self, job: RunningJob, *, awaited: bool) -> Callable[[], None]:
        """Show the job from now on, beside it. What is returned is called behind its end and waits until that has been shown.

        ``awaited``: the program does nothing else meanwhile; if not, it may want the terminal for itself.
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
    """Make an executor known in this process, for tests and embedded engines. It comes before an installed one."""
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
    """The executor of ``execution.target``."""
    if _instead:
        return _instead[-1]()
    if target in _registered:
        return _registered[target]()
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if target not in installed:
        known = sorted({*installed, *_registered})
        raise ConfigurationError(
            f"'{TARGET.key}' names an installed executor",
            found=repr(target),
            cure=f"use one of {', '.join(known)}" if known else "install tidegate with its executor",
        )
    factory: Callable[[], Executor] = installed[target].load()
    return factory()
