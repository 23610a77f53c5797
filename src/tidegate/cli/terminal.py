"""Shows running jobs on a terminal. ``execute`` finds the face by the entry point ``tidegate.faces``.

The face does nothing where standard error is not a terminal.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tidegate.cli.job_lines import end_line, live_line, start_line
from tidegate.cli.screen import Terminal, is_terminal
from tidegate.runtime.handle import StartedJob

log = logging.getLogger(__name__)

_EVERY_S = 0.5
_LAST_LINE_S = 2.0


class TerminalFace:
    """Shows every job of this process, from a thread beside the job: the face neither slows nor breaks a job."""

    def watch(self, job: Any, *, awaited: bool) -> Callable[[], None]:
        """Show the job until its end. The returned function waits until the end is shown. Without ``awaited`` there is no changing
        line: the program may ask for input on the terminal, and Python writes a prompt without using the streams."""
        if isinstance(job, StartedJob) and _remembered is not None:
            _remembered.append(job)
        if not isinstance(job, StartedJob) or not is_terminal(sys.stderr):
            return lambda: None
        _say_start(job)
        watching = threading.Thread(target=_watch, args=(job, awaited), name=f"tidegate-face-{job.job_id}", daemon=True)
        _watching[watching] = job
        watching.start()
        return watching.join


_watching: dict[threading.Thread, StartedJob] = {}
_lock = threading.Lock()
_remembered: list[StartedJob] | None = None
_shared: Terminal | None = None
"""One terminal for all jobs of the process, closed after the last job."""


def remembered_jobs() -> list[StartedJob]:
    """Collect all jobs that this process starts from now on."""
    global _remembered
    _remembered = []
    return _remembered


def _terminal() -> Terminal | None:
    global _shared
    with _lock:
        _shared = _shared or Terminal.of(os.environ)
        return _shared


def _say_start(job: StartedJob) -> None:
    """Print the start line in the thread that starts the job, so that the line comes before all output of the job."""
    view, terminal = job.view(), _terminal()
    if terminal is not None and not view.finished_before:  # the log says so
        terminal.say(start_line(view))


def _watch(job: StartedJob, live: bool) -> None:
    global _shared
    try:
        terminal = _terminal()
        if terminal is not None:
            _follow(job, terminal, live)
    except Exception:
        log.debug("the terminal cannot be written to", exc_info=True)
    finally:
        with _lock:
            del _watching[threading.current_thread()]
            if not _watching and _shared is not None:
                _shared.close()
                _shared = None


@atexit.register
def _at_exit() -> None:
    """Show the end of a job, also if nobody waits for it any more. A job that still runs leaves no line."""
    for watching, job in list(_watching.items()):
        if job.wait(0):
            watching.join(_LAST_LINE_S)
    if _shared is not None:
        _shared.close()


def _follow(job: StartedJob, terminal: Terminal, live: bool) -> None:
    if job.view().finished_before:
        return
    while not job.wait(_EVERY_S):
        if live:
            terminal.show(live_line(job.view(), time.time_ns() // 1_000_000))
    terminal.say(end_line(job.view()))
