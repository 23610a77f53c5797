"""Trigger ids of Flink's asynchronous operations, over the operations of jobs, and the disposal of snapshots."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from tidegate.control.messages import Operation

_MOST = 1000
_DIGITS = 32


@dataclass(frozen=True)
class Begun:
    """An operation that a client has triggered. ``family``: the path that answers for it."""

    job_id: str
    operation: str
    family: str


class Triggers:
    """Which operation a trigger id names. Usable from any thread.

    The id of an operation with zeros appended is its trigger id, so another server of the same job knows it too. A client may
    choose an id of its own. A request with the same id again begins nothing: the client repeats a request whose answer was lost.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: OrderedDict[tuple[str, str], Begun] = OrderedDict()
        self._uncollected: dict[tuple[str, str], float] = {}

    @staticmethod
    def id_of(operation: Operation) -> str:
        return operation.id.ljust(_DIGITS, "0")[:_DIGITS]

    def known(self, job_id: str, trigger: str) -> Begun | None:
        with self._lock:
            return self._begun.get((job_id, trigger))

    def remember(self, job_id: str, trigger: str, family: str, operation: Operation) -> None:
        with self._lock:
            self._begun[job_id, trigger] = Begun(job_id, operation.id, family)
            self._uncollected[job_id, trigger] = time.monotonic()
            while len(self._begun) > _MOST:
                old, _ = self._begun.popitem(last=False)
                self._uncollected.pop(old, None)

    def collected(self, job_id: str, trigger: str) -> None:
        """Note that the client has got the result."""
        with self._lock:
            self._uncollected.pop((job_id, trigger), None)

    def awaits(self, job_id: str) -> bool:
        """Return whether a client has yet to get the result of an operation of this job."""
        with self._lock:
            return any(of == job_id for of, _ in self._uncollected)


class Disposals:
    """Snapshots that are being deleted, by trigger id."""

    def __init__(self) -> None:
        self._lane = ThreadPoolExecutor(1, "tidegate-disposal")
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Future[None]] = OrderedDict()

    def begin(self, trigger: str, work: object, path: str) -> None:
        assert callable(work)
        with self._lock:
            self._known[trigger] = self._lane.submit(work, path)
            while len(self._known) > _MOST:
                self._known.popitem(last=False)

    def get(self, trigger: str) -> Future[None] | None:
        with self._lock:
            return self._known.get(trigger)
