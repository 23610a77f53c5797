"""Commands to a running job, from any thread, each with its own answer; and whether the job was asked to stop."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tidegate.base.errors import JobCancelledError, JobSuspendedError
from tidegate.common.job_status import JobStatus
from tidegate.runtime.inbox import Event

T = TypeVar("T")


@dataclass(frozen=True)
class Command(Event, Generic[T]):
    """An event with an answer. The job's thread handles the command and answers once, with a value or an error. A job that ends
    answers all remaining commands."""

    answer: Future[T] = field(default_factory=Future, compare=False, repr=False, kw_only=True)

    def succeed(self, value: T) -> None:
        with contextlib.suppress(InvalidStateError):  # the waiting caller may have given up at any moment
            self.answer.set_result(value)

    def fail(self, error: BaseException) -> None:
        with contextlib.suppress(InvalidStateError):
            self.answer.set_exception(error)


@dataclass(frozen=True)
class StopCommand(Command[JobStatus]):
    """End the job in this driver. The running round is discarded; a checkpoint that is being published or committed finishes
    first. Answer: how the job ended."""


@dataclass(frozen=True)
class Cancel(StopCommand):
    """End the job for good: checkpoints are retained or deleted as the retention says."""


@dataclass(frozen=True)
class Suspend(StopCommand):
    """End only the driver: everything stays as after a crash, whatever the retention, and the lease is released. A job without
    checkpoints has nothing to continue from, and is cancelled."""


@dataclass(frozen=True)
class TriggerCheckpoint(Command[int]):
    """Take a checkpoint with the next round, due or not. Answer: its id, when it is complete and committed."""


@dataclass(frozen=True)
class SavepointCommand(Command[str]):
    """A command with a savepoint. ``target``: the parent directory of the savepoint; None: the configured one. Answer: the
    savepoint's own address. After an error the job continues as without the command, unless the error says otherwise."""

    target: str | None = None


@dataclass(frozen=True)
class TriggerSavepoint(SavepointCommand):
    """Take a savepoint with the next round. Rounds continue while its files are copied, and the savepoint commits nothing."""


@dataclass(frozen=True)
class LastSavepoint(SavepointCommand):
    """End the job with this savepoint: nothing more is read, the savepoint contains everything that was read, and its output is
    committed. Answered when the job has ended."""

    @property
    def drains(self) -> bool:
        """Whether event time ends first: all timers and windows fire, and functions are notified of the end of input."""
        return False


@dataclass(frozen=True)
class StopWithSavepoint(LastSavepoint):
    """End the job as FINISHED. Refused if a source cannot stop."""

    drain: bool = False

    @property
    def drains(self) -> bool:
        return self.drain


@dataclass(frozen=True)
class CancelWithSavepoint(LastSavepoint):
    """End the job as CANCELED; its checkpoints are retained or deleted as the retention says. Works with every source."""


STOPPED = (JobCancelledError, JobSuspendedError)
"""The errors that end an attempt because of a command."""


class Stop:
    """A request to stop, made from any thread and read by the job's thread. A cancellation overrides a suspension; neither can be
    withdrawn."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True  # first: a thread that sees the request also sees its kind
        self.asked.set()

    def suspend(self) -> bool:
        """Ask for a suspension, and return whether this is the first request."""
        first = not self.asked.is_set()
        self.asked.set()
        return first

    def error(self) -> JobCancelledError | JobSuspendedError:
        if self._cancelled:
            return JobCancelledError("The job was cancelled")
        return JobSuspendedError("The job was suspended")

    def check(self) -> None:
        """Raise the error that ends the attempt, if there is a request."""
        if self.asked.is_set():
            raise self.error()
