"""Lanes in threads: rounds, and beside them what is stored and committed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from tidegate.runtime.inbox import Inbox, Lane, LaneBroken, Work


class ThreadedLanes:
    """One thread a lane, from its first work to ``close``: what a lane does is done in one thread, for Spark's sake and the
    sinks'. All of them are daemons: a driver whose main thread ends does not wait for storage."""

    def __init__(self, inbox: Inbox, name: str) -> None:
        self._inbox, self._name = inbox, name
        self._lock = threading.Lock()
        self._undone = 0
        self._queues: dict[Lane, queue.SimpleQueue[Work | None]] = {}

    def submit(self, lane: Lane, work: Work) -> None:
        with self._lock:
            if lane not in self._queues:
                todo: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
                name = f"tidegate-{lane.value}-{self._name}"
                # First of all: a system that has no thread left raises here, and then there is no lane and no work in it.
                threading.Thread(target=self._run, args=(todo,), name=name, daemon=True).start()
                self._queues[lane] = todo
            self._undone += 1
            self._queues[lane].put(work)

    def _run(self, todo: queue.SimpleQueue[Work | None]) -> None:
        while (work := todo.get()) is not None:
            try:
                for event in work:
                    if event is not None:
                        self._inbox.post(event)
            except BaseException as error:  # the job's thread decides what it means
                self._inbox.post(LaneBroken(error))
            with self._lock:
                self._undone -= 1
            self._inbox.wake()

    def aside(self, act: Callable[[], None]) -> None:
        threading.Thread(target=act, name=f"tidegate-aside-{self._name}", daemon=True).start()

    @property
    def busy(self) -> bool:
        return self._undone > 0

    def step(self) -> bool:
        return False

    def close(self) -> None:
        with self._lock:
            for todo in self._queues.values():
                todo.put(None)
            self._queues.clear()
