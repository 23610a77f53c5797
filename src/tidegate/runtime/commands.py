"""What a running job can be told, from any thread: each command has an answer of its own. And whether it was told to stop."""

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
    """An event with an answer. The job's thread takes it and answers once, with a value or an error; a job that ends answers
    all that are left."""

    answer: Future[T] = field(default_factory=Future, compare=False, repr=False, kw_only=True)

    def succeed(self, value: T) -> None:
        with contextlib.suppress(InvalidStateError):  # whoever waited may have given up, at any moment
            self.answer.set_result(value)

    def fail(self, error: BaseException) -> None:
        with contextlib.suppress(InvalidStateError):
            self.answer.set_exception(error)


@dataclass(frozen=True)
class StopCommand(Command[JobStatus]):
    """The job ends in this driver. The running round is dropped; a checkpoint that is being published or committed is brought
    to its end first. Answer: how the job ended."""


@dataclass(frozen=True)
class Cancel(StopCommand):
    """It is over for good: checkpoints stay or go as the retention says."""


@dataclass(frozen=True)
class Suspend(StopCommand):
    """Only the driver ends: everything stays as a crash would leave it, whatever the retention, and the lease is given up. A
    job without checkpoints has nothing to go on from, and is cancelled."""


@dataclass(frozen=True)
class TriggerCheckpoint(Command[int]):
    """Take a checkpoint with the next round, due or not. Answer: its id, when it is complete and committed."""


@dataclass(frozen=True)
class SavepointCommand(Command[str]):
    """Something with a savepoint. ``target``: the directory it is made in; None: the configured one. Answer: the savepoint's own
    address. After an error the job goes on as if nobody had asked, unless the error says otherwise."""

    target: str | None = None


@dataclass(frozen=True)
class TriggerSavepoint(SavepointCommand):
    """Take a savepoint with the next round. Rounds go on while its files are copied, and nothing is committed because of it."""


@dataclass(frozen=True)
class LastSavepoint(SavepointCommand):
    """The job ends with this savepoint: nothing more is read, what was read is in it, and its output is committed. Answered when
    the job has ended."""

    @property
    def drains(self) -> bool:
        """Whether event time comes to its end first: all timers and windows fire, and functions hear of the end of input."""
        return False


@dataclass(frozen=True)
class StopWithSavepoint(LastSavepoint):
    """The job ends as FINISHED. Refused where a source cannot stop."""

    drain: bool = False

    @property
    def drains(self) -> bool:
        return self.drain


@dataclass(frozen=True)
class CancelWithSavepoint(LastSavepoint):
    """The job ends as CANCELED, its checkpoints stay or go as the retention says. For every source."""


STOPPED = (JobCancelledError, JobSuspendedError)
"""What ends an attempt because somebody asked for it."""


class Stop:
    """Asked from any thread, looked at by the job's. A cancel outweighs a suspension; neither is taken back."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True  # first: whoever sees that it was asked sees what
        self.asked.set()

    def suspend(self) -> bool:
        """Whether nobody has asked before."""
        first = not self.asked.is_set()
        self.asked.set()
        return first

    def error(self) -> JobCancelledError | JobSuspendedError:
        if self._cancelled:
            return JobCancelledError("The job was cancelled")
        return JobSuspendedError("The job was suspended")

    def check(self) -> None:
        """Raise what ends the attempt, if anybody has asked."""
        if self.asked.is_set():
            raise self.error()
