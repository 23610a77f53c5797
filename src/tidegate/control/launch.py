"""What passes between a driver in the background and whoever has started it: by a name in its environment, in files below home."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tidegate.common.errors import ConfigurationError
from tidegate.control import registry
from tidegate.control.home import folder, home, write_private
from tidegate.control.registry import JobRecord

VARIABLE = "TIDEGATE_LAUNCH"
LOGS = "logs"


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


def jobs_of(launch: str) -> list[JobRecord]:
    """All runs of the launch's drivers, oldest first."""
    return [record for record in registry.records() if record.launch == launch]
