"""What passes between a driver in the background and whoever has started it: by a name in its environment, in files below home."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from tidegate.common.errors import ConfigurationError
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
