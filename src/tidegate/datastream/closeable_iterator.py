"""CloseableIterator: the records of a running job, in the program that started it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from tidegate.base.errors import JobCancelledError, JobSuspendedError
from tidegate.base.generics import Generic, TypeVar
from tidegate.common.job_client import RunningJob

__all__ = ["CloseableIterator"]

T = TypeVar("T", covariant=True, default=Any)


class CloseableIterator(Generic[T]):
    """Iterate, or call ``next``; ``close`` cancels the job if it still runs. Best used in a ``with`` statement.

    An iterator that is garbage-collected ends its job too, because its records cannot be read any more. That, and a ``with``
    statement that an exception leaves (also Ctrl-C), suspends the job: its checkpoints stay.
    """

    def __init__(self, values: Iterator[T], job: RunningJob) -> None:
        self._values, self._job = values, job
        self._closed = False
        self._dropped = weakref.finalize(self, _abandon, job)
        self._dropped.atexit = False  # the job ends with the process anyway

    def next(self) -> T:
        """Wait for the next record and return it. Raise StopIteration when the job has ended and all records are read."""
        if self._closed:
            raise StopIteration
        return next(self._values)

    def close(self) -> None:
        """Cancel the job unless it has ended, and wait for its end. May be called again."""
        self._end(self._job.cancel)

    def _end(self, stop: Callable[[], None]) -> None:
        if self._closed:
            return
        self._closed = True
        self._dropped.detach()
        self._values = iter(())  # release the unread records
        if _runs(self._job):
            stop()
            with suppress(JobCancelledError, JobSuspendedError):  # as requested
                self._job.result()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return self.next()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(self._job.cancel if error is None else self._job.suspend)


def _abandon(job: RunningJob) -> None:
    """Suspend the job in another thread, without waiting: an object may be collected anywhere, also where the job's locks are
    held."""
    if _runs(job):
        threading.Thread(target=job.suspend, name="tidegate-abandoned", daemon=True).start()


def _runs(job: RunningJob) -> bool:
    return not job.status().is_terminal_state()
