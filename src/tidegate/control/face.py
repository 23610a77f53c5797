"""Registers the jobs of this process and takes commands for them. ``execute`` finds the face by the entry point ``tidegate.faces``.

The face neither slows nor breaks a job: it works in a thread beside the job, and a home that cannot be written is only a warning.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.base.errors import TidegateError
from tidegate.checkpoint.owner import this_process
from tidegate.common.options import WEB_PASSWORD_FILE, WEB_TOKEN_FILE
from tidegate.control import registry
from tidegate.control.jobs import ControlledJob, JobDetails, Jobs
from tidegate.control.launch import VARIABLE, application, program
from tidegate.control.letters import LetterBox, Letters
from tidegate.control.place import JobPlace, is_remote
from tidegate.control.process_jobs import ProcessJob, ProcessJobs
from tidegate.control.server import Server
from tidegate.runtime.handle import StartedJob

if TYPE_CHECKING:
    from tidegate.control.web.server import PageServer

log = logging.getLogger(__name__)

_SHORT_S = 0.2
"""A job that ends earlier cannot have received a command: no server is started for it."""
_LOOK_S = 0.25
_COLLECT_S, _COLLECT_LOOK_S = 5.0, 0.02
_LAST_S = 10.0
"""A home that does not answer delays the end of a program by this time at most."""


class ControlFace:
    """Made anew for each job by the entry point."""

    def watch(self, job: Any, *, awaited: bool) -> Callable[[], None]:
        """Register the job until its end. The returned function waits until the end is written, but not for ever."""
        if not isinstance(job, StartedJob) or not job.settings.control_enabled:
            return lambda: None
        return _process.register(job)


class _Process:
    """The jobs of this process, the threads that write their records, and the one server for all of them."""

    def __init__(self) -> None:
        self._jobs = Jobs()
        self._lock = threading.Lock()
        self._server: Server | None = None
        self._has_pruned = False
        self._page: PageServer | None = None
        self._writers: dict[threading.Thread, StartedJob] = {}
        atexit.register(self._at_exit)

    def register(self, job: StartedJob) -> Callable[[], None]:
        writer = threading.Thread(target=self._write, args=(job,), name=f"tidegate-record-{job.job_id}", daemon=True)
        self._writers[writer] = job
        writer.start()
        return lambda: writer.join(_LAST_S)

    def _at_exit(self) -> None:
        """Let the end of a job be written, also if nobody waits for the job any more."""
        for writer, job in list(self._writers.items()):
            if job.wait(0):
                writer.join(_LAST_S)

    def _write(self, job: StartedJob) -> None:
        controlled = ControlledJob(job)
        try:
            self._jobs.add(controlled)
            self._follow(job, controlled)
        except (OSError, TidegateError) as error:
            log.warning("job %s: it is not registered, so no commands find it: %s", job.job_id, error)
        except Exception:
            log.warning("job %s: it is not registered, so no commands find it", job.job_id, exc_info=True)
        finally:
            job.wait(threading.TIMEOUT_MAX)
            self._let_collect(job)
            self._jobs.remove(controlled)
            self._writers.pop(threading.current_thread(), None)

    def _let_collect(self, job: StartedJob) -> None:
        """Keep the ended job for clients of Flink's API that still have to ask for the result of a stop or a savepoint. Such a
        client asks every two seconds at most. Other clients read the result in the record."""
        server, deadline = self._server, time.monotonic() + _COLLECT_S
        while server is not None and server.triggers.awaits(job.job_id) and time.monotonic() < deadline:
            time.sleep(_COLLECT_LOOK_S)

    def _follow(self, job: StartedJob, controlled: ControlledJob) -> None:
        record = _first_record(job)
        registry.write(record)
        self._open_page(job)
        over = job.wait(_SHORT_S)
        box = None if record.place is None else LetterBox(JobPlace(record.place), record)
        if not over:
            server = self._shared_server()
            record = msgspec.structs.replace(
                record, endpoint=server.address, socket=server.socket, driver=server.driver
            )
            if box is not None:
                box.take(Letters(box.place.files, record, server.token, ProcessJob(controlled), lambda: _details(job)))
        if box is not None:
            box.start()
        try:
            while True:
                current = _current(record, job, controlled)
                if current != record:
                    registry.write(current)
                    record = current
                if box is not None:
                    box.show(current)
                if over:
                    return self._prune(current)
                over = job.wait(_LOOK_S)
        finally:
            if box is not None:
                box.close(_LAST_S)

    def _open_page(self, job: StartedJob) -> None:
        """Show the jobs of this process on a page, if the first such job asks for it. A page that cannot be shown breaks no job."""
        web = job.settings.web
        with self._lock:
            if web is None or self._page is not None:
                return None
            from tidegate.control.web.login import read_secret
            from tidegate.control.web.server import PageServer

            try:
                self._page = PageServer(
                    ProcessJobs(self._jobs),
                    server="driver",
                    host=web.address,
                    ports=web.ports,
                    password=read_secret(web.password_file, WEB_PASSWORD_FILE.key) if web.password_file else None,
                    token=read_secret(web.token_file, WEB_TOKEN_FILE.key) if web.token_file else None,
                    code_used=self._tell_page,
                )
            except TidegateError as error:
                return log.warning("the page of the job is not shown: %s", error)
        return self._tell_page()

    def _tell_page(self) -> None:
        if self._page is not None:
            sys.stderr.write(f"the page of the job: {self._page.login_address()}\n")

    def _prune(self, ended: registry.JobRecord) -> None:
        """Prune the registry after the first job of the process, and then whenever it is crowded."""
        if not self._has_pruned or registry.is_crowded():
            self._has_pruned = True
            registry.prune(ended.ended_ms or ended.started_ms)

    def _shared_server(self) -> Server:
        with self._lock:
            if self._server is None:
                self._server = Server(self._jobs)
            return self._server


_process = _Process()


def _first_record(job: StartedJob) -> registry.JobRecord:
    view = job.view()
    return registry.JobRecord(
        run=registry.new_run(),
        job_id=view.job_id,
        name=view.name,
        program=program(),
        owner=this_process(),
        started_ms=view.created_ms,
        directory=view.directory,
        is_temporary=view.is_temporary,
        checkpoint_interval_ms=view.checkpoint_interval_ms,
        launch=os.environ.get(VARIABLE),
        place=_place(job),
        printed=application() is not None,
        application=application(),
    )


def _place(job: StartedJob) -> str | None:
    """Return the directory of the job on checkpoint storage, if commands may come from other hosts: it is on remote storage, or the
    driver runs on a cluster. A job without checkpoints has no directory of its own there; on a cluster it gets one."""
    base, wanted = job.settings.checkpoint_dir, job.settings.control_storage
    has_directory = job.settings.checkpoints is not None and (wanted == "always" or is_remote(base or ""))
    if not base or wanted == "never" or not (has_directory or application() is not None):
        return None
    return f"{base.rstrip('/')}/{job.job_id}"


def _details(job: StartedJob) -> JobDetails:
    return JobDetails.of(job.view(), time.time_ns() // 1_000_000)


def _current(record: registry.JobRecord, job: StartedJob, controlled: ControlledJob) -> registry.JobRecord:
    view = job.view()
    error = view.exceptions[-1] if view.exceptions else None
    return msgspec.structs.replace(
        record,
        state=view.status.name,
        ended_ms=view.ended_ms if view.status.is_terminal_state() else None,
        error=None if error is None else f"{error.kind}: {error.message}",
        operations=[o for o in controlled.operations.latest if o.ended_ms is not None],
    )
