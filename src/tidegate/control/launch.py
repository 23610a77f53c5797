"""What a driver in the background and its launcher tell each other: a name in the environment, and files below home."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidegate.base.errors import ConfigurationError
from tidegate.checkpoint.owner import Owner, is_alive, this_process
from tidegate.control import registry
from tidegate.control.registry import LOGS, JobRecord, folder, home, write_private

VARIABLE = "TIDEGATE_LAUNCH"
_program = ""
_application: str | None = None


def log_file(launch: str) -> Path:
    """Return the file for the output of the driver and of Spark."""
    try:
        return folder(LOGS) / f"{launch}.log"
    except OSError as error:
        raise ConfigurationError(
            "TIDEGATE_HOME is not writable, and a job in the background reports through it",
            where=str(home()),
            found=f"{type(error).__name__}: {error}",
            cure="set TIDEGATE_HOME to a directory that you can write to",
        ) from error


def log_of(record: JobRecord) -> Path | None:
    """Return the file that the driver prints to; None for a driver in the foreground, or if the file is missing."""
    path = None if record.launch is None else home() / LOGS / f"{Path(record.launch).name}.log"
    return path if path is not None and path.is_file() else None


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """How a driver in the background was started: ``tidegate run`` with these options, in this working directory."""

    options: list[str]
    script: str
    arguments: list[str]
    directory: str


def record_start(launch: str, start: Start) -> None:
    """Write down how the driver is started, for those who start its program again. Its options may be secret, so the file is
    private."""
    with contextlib.suppress(OSError):
        write_private(folder(LOGS) / f"{launch}.start", msgspec.json.encode(start))


def start_of(launch: str) -> Start | None:
    """Return how the driver was started; None if nobody wrote it down."""
    try:
        content = (folder(LOGS, create=False) / f"{Path(launch).name}.start").read_bytes()
        return msgspec.json.decode(content, type=Start)
    except (OSError, msgspec.MsgspecError):
        return None


@contextlib.contextmanager
def supervises(launch: str) -> Iterator[None]:
    """Mark this process as one that starts dead drivers of the launch again: until it ends, a dead driver does not end its job."""
    place = home() / LOGS / f"{Path(launch).name}.supervisor"
    with contextlib.suppress(OSError):
        write_private(folder(LOGS) / place.name, msgspec.json.encode(this_process()))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)


def is_supervised(launch: str | None) -> bool:
    if launch is None:
        return False
    try:
        content = (home() / LOGS / f"{Path(launch).name}.supervisor").read_bytes()
        return is_alive(msgspec.json.decode(content, type=Owner)) is not False
    except (OSError, msgspec.MsgspecError):
        return False


def report_to_launcher(text: str) -> None:
    """Write the error of this process for the launcher, which waits for the job to run."""
    launch = os.environ.get(VARIABLE)
    if launch:
        with contextlib.suppress(OSError):
            write_private(folder(LOGS) / f"{Path(launch).name}.error", text.encode())


def reported_error(launch: str) -> str | None:
    try:
        return (folder(LOGS, create=False) / f"{launch}.error").read_text()
    except OSError:
        return None


def runs_on_cluster(application: str) -> None:
    """Note that this process is a driver in a container of a cluster, which its user cannot reach. ``application``: its id."""
    global _application
    _application = application


def application() -> str | None:
    """Return the id of the application whose driver this process is, if it runs in a container of a cluster."""
    return _application


def runs_program(path: str) -> None:
    """Note that this process runs a function of this file, which is not its ``__main__``."""
    global _program
    _program = os.path.abspath(path)


def program() -> str:
    """Return the user's file that this process runs; empty if there is none."""
    file = _program or getattr(sys.modules.get("__main__"), "__file__", None) or (sys.argv[0] if sys.argv else "")
    return os.path.abspath(file) if file else ""


def jobs_of(launch: str) -> list[JobRecord]:
    """Return all runs of the launch's drivers, oldest first."""
    return [record for record in registry.records() if record.launch == launch]
