"""CloseableIterator: the records of a running job, in the program that started it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any

from tidegate.common.errors import JobCancelledError
from tidegate.common.job_client import RunningJob

__all__ = ["CloseableIterator"]


class CloseableIterator:
    """Iterate, or call ``next``; ``close`` ends the job if it still runs. Best used in a ``with`` statement."""

    def __init__(self, values: Iterator[Any], job: RunningJob) -> None:
        self._values, self._job = values, job
        self._closed = False

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
        if not self._job.status().is_globally_terminal_state():
            self._job.cancel()
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
