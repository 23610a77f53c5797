"""JobClient: a running job as its program sees it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from tidegate.common.completable_future import CompletableFuture
from tidegate.common.job_execution_result import JobExecutionResult
from tidegate.common.job_id import JobID
from tidegate.common.job_status import JobStatus

__all__ = ["JobClient", "RunningJob"]


class RunningJob(Protocol):
    """What a client needs of the job it stands for. ``datastream/executor.py`` has the executor's full protocol."""

    @property
    def job_id(self) -> str: ...

    def status(self) -> JobStatus: ...

    def cancel(self) -> None:
        """Ask the job to stop; returns at once, may be called again and after the end."""
        ...

    def suspend(self) -> None:
        """Ask the job to end in this process, and to leave all that a new start needs to go on; returns at once."""
        ...

    def result(self, timeout: float | None = None) -> JobExecutionResult:
        """Wait for the end. JobFailedError, JobCancelledError, JobSuspendedError, or TimeoutError after ``timeout`` seconds."""
        ...

    def trigger_savepoint(self, directory: str | None = None) -> Future[str]:
        """Take a savepoint in the directory, or the configured one; the job goes on. The answer is the savepoint's own address."""
        ...

    def stop_with_savepoint(self, directory: str | None = None, *, drain: bool = False) -> Future[str]:
        """As ``trigger_savepoint``, and the job ends with it, all its output committed. ``drain``: event time ends first."""
        ...

    def add_listener(self, listener: Callable[[Any], None]) -> None:
        """Call ``listener`` with the statistics of every round from now on, in the job's thread."""
        ...


class JobClient:
    """Answers are futures, as in PyFlink."""

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        self._result: CompletableFuture[JobExecutionResult] | None = None

    def get_job_id(self) -> JobID:
        """The id of the job, which names its directory of checkpoints."""
        return JobID(self._job.job_id)

    def get_job_status(self) -> CompletableFuture[JobStatus]:
        """A future of the status the job has now."""
        return CompletableFuture.completed(self._job.status())

    def cancel(self) -> CompletableFuture[None]:
        """Stop the job; its checkpoints stay or go as the configured retention says."""
        self._job.cancel()
        return CompletableFuture.completed(None)

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        """Take a savepoint while the job goes on; the answer is its path. Without a directory that of
        ``execution.checkpointing.savepoint-dir``."""
        return CompletableFuture(self._job.trigger_savepoint(savepoint_directory))

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        """Stop the sources, take a savepoint, commit all output and end the job as FINISHED; the answer, when it has ended, is the
        savepoint's path. ``advance_to_end_of_event_time``: first let all event-time timers and windows fire, for a job that will
        not go on."""
        drain = advance_to_end_of_event_time
        return CompletableFuture(self._job.stop_with_savepoint(savepoint_directory, drain=drain))

    def add_round_listener(self, listener: Callable[[Any], None]) -> None:
        """Call ``listener`` after every accepted round with what it did: ``round``, ``checkpoint_id`` (None if it carried none),
        ``seconds``, ``records_in``, ``records_out``, ``commit_seconds``. It runs in the job's thread, so it should be quick.

        PyFlink has no counterpart.
        """
        self._job.add_listener(listener)

    def get_accumulators(self) -> CompletableFuture[dict[str, Any]]:
        """Known when the job is over; before, the future waits."""
        return CompletableFuture.of(lambda: self._job.result().get_all_accumulator_results())

    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        """A future of the result; it has the error if the job fails or is cancelled."""
        if self._result is None:
            self._result = CompletableFuture.of(self._job.result)
        return self._result
