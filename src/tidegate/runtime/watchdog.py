"""A round that does not end: cut off from outside, in time for the rules of failed checkpoints."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.runtime.engine import Engine

log = logging.getLogger(__name__)

_AGAIN_S = 1.0


@contextmanager
def cut_off(engine: Engine, seconds: float) -> Iterator[threading.Event]:
    """Cancel the round that runs inside if it takes longer than ``seconds``; the event says whether that was tried.

    When this returns nothing is cancelled any more: a cancellation that came late would hit the next round.
    """
    over, cut = threading.Event(), threading.Event()

    def watch() -> None:
        if over.wait(min(seconds, threading.TIMEOUT_MAX)):
            return
        cut.set()
        while not over.is_set():  # the engine may have been between two jobs, and have had nothing to cancel
            try:
                engine.cancel()
            except Exception as error:
                log.warning("a round that takes too long could not be cancelled: %s", error)
            over.wait(_AGAIN_S)

    watcher = threading.Thread(target=watch, name="tidegate-watchdog", daemon=True)
    watcher.start()
    try:
        yield cut
    finally:
        over.set()
        watcher.join()
