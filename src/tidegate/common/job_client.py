"""JobClient: a running job, for its program."""

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
    """A started job. Usable from any thread of the process that started it."""

    @property
    def job_id(self) -> str: ...

    def status(self) -> JobStatus: ...

    def cancel(self) -> None:
        """Ask the job to stop. Returns at once; may be called again and after the end."""
        ...

    def suspend(self) -> None:
        """Ask the job to end in this process and keep everything that a new start needs to continue. Returns at once."""
        ...

    def result(self, timeout: float | None = None) -> JobExecutionResult:
        """Wait for the end. Raises JobFailedError, JobCancelledError, JobSuspendedError, or TimeoutError after ``timeout``
        seconds."""
        ...

    def trigger_savepoint(self, directory: str | None = None) -> Future[str]:
        """Take a savepoint in the directory, or the configured one, while the job continues. The result is the savepoint's
        address."""
        ...

    def stop_with_savepoint(self, directory: str | None = None, *, drain: bool = False) -> Future[str]:
        """Take a savepoint and end the job with it, after committing all its output. ``drain``: event time ends first."""
        ...

    def html(self) -> str:
        """The job at this moment as a part of a page. Every text in it is escaped."""
        ...

    def add_listener(self, listener: Callable[[Any], object]) -> None:
        """Call ``listener`` with the statistics of every round from now on, in the job's thread."""
        ...


class JobClient:
    """A client of a running job. Its results are futures, as in PyFlink."""

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        self._result: CompletableFuture[JobExecutionResult] | None = None

    def get_job_id(self) -> JobID:
        """Return the id of the job, which names its directory of checkpoints."""
        return JobID(self._job.job_id)

    def get_job_status(self) -> CompletableFuture[JobStatus]:
        """A future of the status the job has now."""
        return CompletableFuture.completed(self._job.status())

    def cancel(self) -> CompletableFuture[None]:
        """Stop the job. The configured retention decides whether its checkpoints stay."""
        self._job.cancel()
        return CompletableFuture.completed(None)

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        """Take a savepoint while the job continues; the result is its path. The default directory is
        ``execution.checkpointing.savepoint-dir``."""
        return CompletableFuture(self._job.trigger_savepoint(savepoint_directory))

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        """Stop the sources, take a savepoint, commit all output and end the job as FINISHED. The result, after the end, is the
        savepoint's path. ``advance_to_end_of_event_time``: first let all event-time timers and windows fire, for a job that will
        not continue."""
        drain = advance_to_end_of_event_time
        return CompletableFuture(self._job.stop_with_savepoint(savepoint_directory, drain=drain))

    def add_round_listener(self, listener: Callable[[Any], object]) -> None:
        """Call ``listener`` after every accepted round with its figures: ``round``, ``checkpoint_id`` (None if it carried none),
        ``seconds``, ``records_in``, ``records_out``, ``commit_seconds``. It runs in the job's thread, so it should be quick.

        PyFlink has no counterpart.
        """
        self._job.add_listener(listener)

    def _repr_html_(self) -> str:
        """The job in a notebook: state, rates, checkpoints and graph as they are when the cell is shown."""
        return self._job.html()

    def get_accumulators(self) -> CompletableFuture[dict[str, Any]]:
        """Return a future of the accumulators, which are known when the job has ended."""
        return CompletableFuture.of(lambda: self._job.result().get_all_accumulator_results())

    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        """Return a future of the result; it has the error if the job fails or is cancelled."""
        if self._result is None:
            self._result = CompletableFuture.of(self._job.result)
        return self._result
