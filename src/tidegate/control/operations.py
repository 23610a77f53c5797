"""What a job was told to do from outside, and what has become of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec

from tidegate.base.errors import (
    ConfigurationError,
    JobCancelledError,
    JobSuspendedError,
    NoTargetError,
    RefusedError,
    TidegateError,
)
from tidegate.base.ids import new_token
from tidegate.common.job_status import JobStatus
from tidegate.control.messages import Code, Operation, OperationStatus, Problem

_KEPT = 50


class Operations:
    """Of one job. Usable from any thread; answers come in the job's own, which is not held up."""

    def __init__(self, ended: Callable[[], bool]) -> None:
        self._ended = ended
        self._lock = threading.Lock()
        self._known: dict[str, Operation] = {}
        self._waits: dict[str, threading.Event] = {}

    def begin(self, kind: str, answer: Future[Any]) -> Operation:
        begun = Operation(id=new_token(), kind=kind, status=OperationStatus.RUNNING, started_ms=_now_ms())
        with self._lock:
            self._known[begun.id] = begun
            self._waits[begun.id] = threading.Event()
            for old in [id for id, known in self._known.items() if known.ended_ms is not None][:-_KEPT]:
                del self._known[old], self._waits[old]
        answer.add_done_callback(lambda future: self._answered(begun, future))
        return begun

    def get(self, id: str) -> Operation | None:
        return self._known.get(id)

    def wait(self, id: str, seconds: float) -> Operation | None:
        """As it is when it has come to its end, or after so long."""
        waiting = self._waits.get(id)
        if waiting is not None:
            waiting.wait(seconds)
        return self.get(id)

    @property
    def latest(self) -> list[Operation]:
        """Oldest first."""
        with self._lock:
            return list(self._known.values())

    def _answered(self, begun: Operation, future: Future[Any]) -> None:
        error = future.exception() if not future.cancelled() else TidegateError("Nobody waits for the answer any more")
        if error is None:
            changes: dict[str, Any] = {"status": OperationStatus.SUCCEEDED, "result": _text(future.result())}
        else:
            changes = {"status": OperationStatus.FAILED, "problem": problem_of(error, ended=self._ended())}
        with self._lock:
            self._known[begun.id] = msgspec.structs.replace(begun, ended_ms=_now_ms(), **changes)
            self._waits[begun.id].set()


def problem_of(error: BaseException, *, ended: bool = False) -> Problem:
    """``ended``: the job is over, which is why it did not do what it was told."""
    if isinstance(error, NoTargetError):
        code = Code.NO_TARGET
    elif isinstance(error, RefusedError | ConfigurationError):
        code = Code.REFUSED
    elif isinstance(error, JobCancelledError | JobSuspendedError):
        code = Code.ENDED
    else:
        code = Code.ENDED if ended else Code.FAILED
    return Problem(code, str(error) if isinstance(error, TidegateError) else f"{type(error).__name__}: {error}")


def _text(value: Any) -> str:
    return value.name if isinstance(value, JobStatus) else str(value)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
