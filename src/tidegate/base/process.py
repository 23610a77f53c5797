"""The process: SIGTERM ends it, even process 1 of a container; logs of libraries are quiet; what surrounds it, for people."""

from __future__ import annotations

import getpass
import logging
import os
import platform
import re
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

from tidegate.base import secrets


def end_at_once(number: int, frame: FrameType | None = None) -> None:
    """End the process as an unhandled signal does, with the exit code that a shell shows for the signal."""
    os._exit(128 + number)


def heed_sigterm() -> None:
    """Let SIGTERM end process 1: the kernel discards signals that process 1 has no handler for. Main thread only."""
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end_at_once)


def end_after(seconds: float, number: int) -> threading.Timer:
    """End this process after ``seconds`` unless the returned timer is cancelled."""
    timer = threading.Timer(seconds, end_at_once, (number,))
    timer.daemon = True
    timer.start()
    return timer


# Their INFO lines say nothing about a job. connectors/kafka/cluster.py does the same for Kafka's client.
LIBRARIES = (
    "aiobotocore",
    "asyncio",
    "boto3",
    "botocore",
    "fsspec",
    "py4j",
    "pyspark",
    "s3fs",
    "s3transfer",
    "urllib3",
)
_ours: set[str] = set()


def quiet_libraries(least: int = logging.WARNING) -> None:
    """Show log lines of libraries from the level ``least`` on, at least WARNING. A level that the program has set stays."""
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET or name in _ours:
            _ours.add(name)
            logger.setLevel(max(least, logging.WARNING))


def environment(configuration: Mapping[str, Any], *, master: str | None = None) -> dict[str, str]:
    """Return what a person wants to know of a driver: versions, host, user, and how it was started, without secrets. Only what
    can be found at once. ``master``: of the engine, if it has one."""
    found = {
        "tidegate": _version("tidegate"),
        "python": platform.python_version(),
        "spark": _version("pyspark"),
        "java": _java(),
        "target": configuration.get("execution.target"),
        "master": master,
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "user": _user(),
        "directory": _directory(),
        "command": secrets.masked_command(sys.orig_argv),
    }
    return {name: secrets.masked(str(value)) for name, value in found.items() if value}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _java() -> str | None:
    """Return the version of the JDK of ``JAVA_HOME``, as its own file says it."""
    try:
        release = Path(os.environ["JAVA_HOME"], "release").read_text(errors="replace")
    except (KeyError, OSError):
        return None
    found = re.search(r'^JAVA_VERSION="(.*)"', release, re.MULTILINE)
    return found[1] if found else None


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as containers have them
        return str(os.getuid())


def _directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None
