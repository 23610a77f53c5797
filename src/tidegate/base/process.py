"""Process-wide behaviour: SIGTERM ends the process, even process 1 of a container, and logs of libraries are quiet."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType


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
