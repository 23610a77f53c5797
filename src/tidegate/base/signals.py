"""SIGTERM ends a process: also the first one of a container, and also one that hangs."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


def end_at_once(number: int, frame: FrameType | None = None) -> None:
    """As a signal does that nobody handles, with the exit code that a shell shows for it."""
    os._exit(128 + number)


def heed_sigterm() -> None:
    """The kernel keeps signals from process 1 that it has no handler for. Main thread only."""
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end_at_once)


def end_after(seconds: float, number: int) -> threading.Timer:
    """End this process at once if it still lives by then and nobody has cancelled the timer."""
    timer = threading.Timer(seconds, end_at_once, (number,))
    timer.daemon = True
    timer.start()
    return timer
