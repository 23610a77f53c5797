"""A job in its own thread, and the handle of the job."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future

from tidegate.base.errors import (
    JobCancelledError,
    JobFailedError,
    JobSuspendedError,
    RestoreError,
    TidegateError,
    UserCodeError,
)
from tidegate.common.job_execution_result import JobExecutionResult
from tidegate.common.job_id import JobID
from tidegate.common.job_status import JobStatus
from tidegate.operators.contracts.specs import sinks_of
from tidegate.runtime import job_html
from tidegate.runtime.commands import StopWithSavepoint, TriggerSavepoint
from tidegate.runtime.master import JobMaster
from tidegate.runtime.statistics import Listener

log = logging.getLogger(__name__)


class StartedJob:
    """Starts the job at once. The checks of ``JobMaster.prepare`` run in the caller's thread and raise there, except for an outage
    that the restart strategy covers. Faces are notified after the checks and before the job runs, so their report of the start
    comes before all output of the job."""

    def __init__(self, master: JobMaster, listeners: list[Listener]) -> None:
        self._master, self._listeners = master, listeners
        self._error: BaseException | None = None
        self._failure: TidegateError | None = None
        self._seconds = 0.0
        self._done = threading.Event()
        self.job_id, self.settings, self.directory = master.job_id, master.settings, master.directory
        # The job as it is now, its latest rounds, and what has happened to a checkpoint or round: for whoever shows it.
        self.view, self.rounds, self.story = master.view, master.statistics, master.story
        # Tell the job something (``commands.py``). The last two return at once, and ``result`` then raises JobCancelledError, or
        # JobSuspendedError if the job takes checkpoints: a new start then continues.
        self.submit, self.cancel, self.suspend = master.submit, master.cancel, master.suspend
        try:
            master.prepare()
        except Exception as error:
            if not master.waits_for(error):
                raise
        self._thread = threading.Thread(target=self._run, name=f"tidegate-{master.job_id}", daemon=True)
        if master.program.told is not None:
            master.program.told(self)
        self._thread.start()

    def _run(self) -> None:
        started = time.monotonic()
        try:
            self._master.run()
        except BaseException as error:
            self._error = error
        self._seconds = time.monotonic() - started
        try:
            self._failure = self._describe_failure()
            for node in sinks_of(self._master.graph):
                try:
                    node.spec.sink.job_ended(self._failure)
                except Exception:  # a hook of the user must not keep the others from being called
                    log.warning("job_ended of %s raised an error", node.label, exc_info=True)
        finally:
            self._done.set()

    def status(self) -> JobStatus:
        return self._master.status

    def result(self, timeout: float | None = None) -> JobExecutionResult:
        """Wait for the end. Raises JobFailedError (the cause chained), JobCancelledError or JobSuspendedError; RestoreError if its
        functions do not fit what it was to restore, and nothing was touched; TimeoutError if it still runs."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"job {self.job_id} is still {self.status().name}")
        if self._failure is not None:
            raise self._failure
        return JobExecutionResult(JobID(self.job_id), int(self._seconds * 1000))

    def wait(self, timeout: float) -> bool:
        """Wait at most so many seconds, and return whether the job has ended. Never raises."""
        return self._done.wait(timeout)

    def _describe_failure(self) -> TidegateError | None:
        if self._error is None or isinstance(self._error, JobCancelledError):
            return self._error if isinstance(self._error, JobCancelledError) else None
        if isinstance(self._error, JobSuspendedError):
            return self._describe_suspension()
        if isinstance(self._error, RestoreError) and not self._master.has_begun:
            return self._error  # as if it had been found before the job was started
        failure = JobFailedError(
            f"Job '{self._master.graph.name}' ({self.job_id}) failed", found=str(self._error), where=self._kept()
        )
        if isinstance(self._error, UserCodeError):
            self._error.__traceback__ = None  # only the traceback of the user's code matters, see below
        failure.__cause__ = self._error  # whoever raises it: here, or where collected records are read
        return failure

    def _describe_suspension(self) -> JobSuspendedError:
        kept = self._kept()
        if self._master.has_fixed_id:
            cure = "start the same program again: it continues from there"
        else:
            cure = "to continue from there, start the program with execution.state-recovery.path set to it (tidegate run -s)"
        return JobSuspendedError(
            f"Job '{self._master.graph.name}' ({self.job_id}) was interrupted; nothing is lost and nothing was deleted",
            where=kept or "no checkpoint was complete yet, so no output was committed with a checkpoint",
            cure=cure if kept else "start the program again: it starts with empty state",
        )

    def _kept(self) -> str | None:
        try:
            kept = self._master.kept_checkpoint()
        except TidegateError as error:  # storage may be why the job failed: that must not hide it
            return f"it is not known whether a checkpoint is retained: {error.rule}"
        return f"its latest checkpoint is retained: {kept}" if kept else None

    def trigger_savepoint(self, directory: str | None = None) -> Future[str]:
        return self.submit(TriggerSavepoint(directory)).answer

    def stop_with_savepoint(self, directory: str | None = None, *, drain: bool = False) -> Future[str]:
        return self.submit(StopWithSavepoint(directory, drain=drain)).answer

    def html(self) -> str:
        """The job at this moment as a part of a page, for a notebook."""
        return job_html.page(self.view(), round(time.time() * 1000))

    def add_listener(self, listener: Listener) -> None:
        """Call ``listener`` after every accepted round, in the job's thread."""
        self._listeners.append(listener)
