"""When a worker looks for garbage: it has large caches, and Spark's daemon has it search all of them behind every task.

Records are plain data that reference counting frees. What is left are cycles of user code, which may wait a little. So behind a
task everything is put aside (``gc.freeze``, which costs nothing), and the daemon has nothing to search, unless the last search was
so long ago that all of them together take a fiftieth of the time at most. The next task takes everything back, so whatever it
allocates is watched as ever.
"""

from __future__ import annotations

import gc
import time
from typing import Any

SHARE = 50
_ALL = 2


class _Searches:
    """The last search through everything: when it ended, how long it took."""

    def __init__(self) -> None:
        self._begun = self._ended = self._took = 0.0
        self.put_aside = False

    @property
    def due(self) -> bool:
        return time.monotonic() - self._ended >= SHARE * self._took

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if self.put_aside or info["generation"] != _ALL:
            return
        if phase == "start":
            self._begun = time.monotonic()
        else:
            self._ended = time.monotonic()
            self._took = self._ended - self._begun


_searches = _Searches()


def task_begins() -> None:
    """The collector's default, a look at new objects every 700 allocations, costs a tenth of a loop over records."""
    if _searches not in gc.callbacks:
        gc.callbacks.append(_searches)
    gc.set_threshold(200_000, 20, 50)
    take_back()


def task_over() -> None:
    """The daemon searches when this task is through."""
    if not _searches.due:
        _searches.put_aside = True
        gc.freeze()


def take_back() -> None:
    """What was put aside is searched the next time."""
    _searches.put_aside = False
    gc.unfreeze()
