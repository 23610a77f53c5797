"""What passes between a driver in the background and whoever has started it: by a name in its environment, in files below home."""

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
from tidegate.control.home import LOGS, folder, home, write_private
from tidegate.control.registry import JobRecord

VARIABLE = "TIDEGATE_LAUNCH"
_program = ""


def log_file(launch: str) -> Path:
    """What the driver prints, and Spark."""
    try:
        return folder(LOGS) / f"{launch}.log"
    except OSError as error:
        raise ConfigurationError(
            "Who starts a job in the background hears of it through TIDEGATE_HOME, so that must be writable",
            where=str(home()),
            found=f"{type(error).__name__}: {error}",
            cure="set TIDEGATE_HOME to a directory of your own",
        ) from error


def log_of(record: JobRecord) -> Path | None:
    """Where its driver prints to; None for one in the foreground, or if the file is gone."""
    path = None if record.launch is None else home() / LOGS / f"{Path(record.launch).name}.log"
    return path if path is not None and path.is_file() else None


@contextlib.contextmanager
def supervises(launch: str) -> Iterator[None]:
    """This process starts drivers of the launch again: until it ends, a driver that died is not the end of its job."""
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


def tell_launcher(text: str) -> None:
    """The one readable error of this process, for who waits for its job to run."""
    launch = os.environ.get(VARIABLE)
    if launch:
        with contextlib.suppress(OSError):
            write_private(folder(LOGS) / f"{Path(launch).name}.error", text.encode())


def told_error(launch: str) -> str | None:
    try:
        return (folder(LOGS, create=False) / f"{launch}.error").read_text()
    except OSError:
        return None


def runs_program(path: str) -> None:
    """This process runs a function of this file, which is not its ``__main__``."""
    global _program
    _program = os.path.abspath(path)


def program() -> str:
    """The file of the user's that this process runs; empty if there is none."""
    file = _program or getattr(sys.modules.get("__main__"), "__file__", None) or (sys.argv[0] if sys.argv else "")
    return os.path.abspath(file) if file else ""


def jobs_of(launch: str) -> list[JobRecord]:
    """All runs of the launch's drivers, oldest first."""
    return [record for record in registry.records() if record.launch == launch]
