"""Whether a job has been asked to stop, and how."""

from __future__ import annotations

import threading

from tidegate.base.errors import JobCancelledError, JobSuspendedError

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
