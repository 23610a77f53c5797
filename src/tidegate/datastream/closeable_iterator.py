"""CloseableIterator: the records of a running job, in the program that started it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any

from tidegate.common.errors import JobCancelledError
from tidegate.common.job_client import RunningJob

__all__ = ["CloseableIterator"]


class CloseableIterator:
    """Iterate, or call ``next``; ``close`` ends the job if it still runs. Best used in a ``with`` statement.

    An iterator that nobody holds any more ends its job too: no one could read what it collects.
    """

    def __init__(self, values: Iterator[Any], job: RunningJob) -> None:
        self._values, self._job = values, job
        self._closed = False
        self._dropped = weakref.finalize(self, _abandon, job)
        self._dropped.atexit = False  # the job ends with the process anyway

    def next(self) -> Any:
        """The next record; waits for it. StopIteration when the job has ended and all records are read."""
        if self._closed:
            raise StopIteration
        return next(self._values)

    def close(self) -> None:
        """Cancel the job unless it is over, and wait for its end. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._dropped.detach()
        self._values = iter(())  # what was collected and not read is released
        if _cancel(self._job):
            with suppress(JobCancelledError):  # what was asked for
                self._job.result()

    def __iter__(self) -> CloseableIterator:
        return self

    def __next__(self) -> Any:
        return self.next()

    def __enter__(self) -> CloseableIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _abandon(job: RunningJob) -> None:
    """In a thread of its own: objects may die anywhere, also where the job's locks are held."""
    threading.Thread(target=_cancel, args=(job,), name="tidegate-abandoned", daemon=True).start()


def _cancel(job: RunningJob) -> bool:
    """Whether it was still running. Does not wait for its end."""
    running = not job.status().is_globally_terminal_state()
    if running:
        job.cancel()
    return running
