"""Records at a steady pace, and when each of them came out of a file sink, seen from another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.operators.contracts.source import (
    Batch,
    Boundedness,
    Source,
    SourcePlan,
    SplitEnumerator,
    SplitInterval,
    SplitReader,
)

LOOK_EVERY_S = 0.005


class PacedSource(Source):
    """Number ``n`` is there from ``began + n / pace`` on (wall clock), whoever reads it when."""

    boundedness = Boundedness.CONTINUOUS_UNBOUNDED

    def __init__(self, pace: int) -> None:
        self.pace, self.began = pace, time.time()

    def created(self, number: int) -> float:
        return self.began + number / self.pace

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        return _PacedEnumerator(self, parallelism, restored or 0)

    def create_reader(self, subtask: int) -> SplitReader:
        return _Reader()


class _PacedEnumerator(SplitEnumerator):
    def __init__(self, source: PacedSource, parallelism: int, position: int) -> None:
        self._source, self._parallelism, self._position = source, parallelism, position

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        source, start = self._source, self._position
        there = int((time.time() - source.began) * source.pace)
        self._position = end = min(there, start + limit)
        bounds = [start + (end - start) * i // self._parallelism for i in range(self._parallelism + 1)]
        intervals = [
            SplitInterval(f"paced-{i}", i, bounds[i], bounds[i + 1], units=bounds[i + 1] - bounds[i])
            for i in range(self._parallelism)
        ]
        wake_up_ms = int(source.created(end + 1) * 1000) + 1
        return SourcePlan(intervals if end > start else [], backlog=there > end, wake_up_ms=wake_up_ms)

    def snapshot(self) -> int:
        return self._position


class _Reader(SplitReader):
    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        yield Batch(list(range(interval.start, interval.end)))


class Watcher:
    """A process that looks for committed files again and again, and tells when it saw each of them first."""

    def __init__(self, directory: str) -> None:
        command = [sys.executable, os.path.abspath(__file__), directory]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seen(self) -> dict[str, float]:
        """File -> time. It ends with this."""
        output, _ = self._process.communicate("")
        found: dict[str, float] = json.loads(output)
        return found

    def latencies(self, source: PacedSource) -> list[tuple[float, float]]:
        """Of every record, in the order of their files: when it was created, and how long after that its file was seen."""
        pairs: list[tuple[float, float]] = []
        for path, seen in self.seen().items():
            created = [source.created(int(line)) for line in Path(path).read_text().split()]
            pairs += [(moment, seen - moment) for moment in created]
        return pairs


def _goes_on() -> bool:
    """Until who started it lets go of its input."""
    try:
        return bool(os.read(0, 1))
    except BlockingIOError:
        return True


def _watch(directory: str) -> None:
    seen: dict[str, float] = {}
    os.set_blocking(0, False)
    while _goes_on():
        for place, directories, names in os.walk(directory):
            directories[:] = [name for name in directories if name[0] not in "._"]
            for name in names:
                if name[0] not in "._":
                    seen.setdefault(f"{place}/{name}", time.time())
        time.sleep(LOOK_EVERY_S)
    print(json.dumps(seen))


if __name__ == "__main__":
    _watch(sys.argv[1])
