"""Processor time of all processes of a session (setsid), sampled while they run: workers that nobody waits for count too."""

from __future__ import annotations

import os
import threading
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
PERIOD_SECONDS = 0.1
"""What a process uses after its last sample is not seen: at most this long."""


class CpuTime:
    """``with CpuTime(session) as used: ...``; afterwards ``used.seconds``."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._ticks: dict[tuple[int, int], int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def seconds(self) -> float:
        return sum(self._ticks.values()) / TICK

    def __enter__(self) -> CpuTime:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(PERIOD_SECONDS):
            self._sample()

    def _sample(self) -> None:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if int(fields[3]) == self._session:
                # a process is its number and its start: numbers are used again
                self._ticks[int(stat.parent.name), int(fields[19])] = int(fields[11]) + int(fields[12])
