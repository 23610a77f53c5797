"""Registers the jobs of this process and takes commands for them. ``execute`` finds it through the entry point ``tidegate.faces``.

A job is not slowed or broken by it: all of it happens in a thread beside the job, and a home that cannot be written is a warning.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.base.errors import TidegateError
from tidegate.checkpoint.owner import this_process
from tidegate.control import registry
from tidegate.control.jobs import ControlledJob, Jobs
from tidegate.control.launch import VARIABLE, program
from tidegate.control.server import Server
from tidegate.runtime.handle import StartedJob

log = logging.getLogger(__name__)

_SHORT_S = 0.2
"""A job that is over by then has taken no command."""
_LOOK_S = 0.25
_LAST_S = 10.0
"""A home that does not answer holds up the end of a program for so long, and no longer."""

_jobs = Jobs()
_lock = threading.Lock()
_server: Server | None = None
_tidied = False
_keeping: dict[threading.Thread, StartedJob] = {}


class ControlFace:
    def watch(self, job: Any, *, awaited: bool) -> Callable[[], None]:
        """Registers the job until its end. What is returned waits until that is written, in reason."""
        if not isinstance(job, StartedJob) or not job.settings.control_enabled:
            return lambda: None
        keeping = threading.Thread(target=_keep, args=(job,), name=f"tidegate-record-{job.job_id}", daemon=True)
        _keeping[keeping] = job
        keeping.start()
        return lambda: keeping.join(_LAST_S)


@atexit.register
def _at_exit() -> None:
    """The end of a job nobody waits for any more is written all the same."""
    for keeping, job in list(_keeping.items()):
        if job.wait(0):
            keeping.join(_LAST_S)


def _keep(job: StartedJob) -> None:
    controlled = ControlledJob(job)
    try:
        _jobs.add(controlled)
        _follow(job, controlled)
    except (OSError, TidegateError) as error:
        log.warning("job %s: it is not registered, so no commands find it: %s", job.job_id, error)
    except Exception:
        log.warning("job %s: it is not registered, so no commands find it", job.job_id, exc_info=True)
    finally:
        job.wait(threading.TIMEOUT_MAX)
        _jobs.remove(controlled)
        _keeping.pop(threading.current_thread(), None)


def _follow(job: StartedJob, controlled: ControlledJob) -> None:
    record = _first_record(job)
    registry.write(record)
    over = job.wait(_SHORT_S)
    if not over:
        server = _shared_server()
        record = msgspec.structs.replace(record, endpoint=server.address, socket=server.socket, driver=server.driver)
    while True:
        current = _current(record, job, controlled)
        if current != record:
            registry.write(current)
            record = current
        if over:
            return _tidy_up(current)
        over = job.wait(_LOOK_S)


def _tidy_up(ended: registry.JobRecord) -> None:
    """With the first job of the process, and then now and again."""
    global _tidied
    if not _tidied or registry.is_crowded():
        _tidied = True
        registry.prune(ended.ended_ms or ended.started_ms)


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
    )


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


def _shared_server() -> Server:
    global _server
    with _lock:
        if _server is None:
            _server = Server(_jobs)
        return _server
