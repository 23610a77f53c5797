"""CompletableFuture: a result that may not be available yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

__all__ = ["CompletableFuture"]

T = TypeVar("T")


class CompletableFuture(Generic[T]):
    """PyFlink's names over a standard future; can also be awaited."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    @staticmethod
    def completed(value: T) -> CompletableFuture[T]:
        """A future that has this result from the start."""
        future: Future[T] = Future()
        future.set_result(value)
        return CompletableFuture(future)

    @staticmethod
    def of(work: Callable[[], T]) -> CompletableFuture[T]:
        """Return a future of ``work``, which runs in a daemon thread: waiting for a job must not keep the process alive."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except BaseException as error:  # the caller of ``result`` gets it
                future.set_exception(error)

        threading.Thread(target=run, name="tidegate-future", daemon=True).start()
        return CompletableFuture(future)

    def cancel(self) -> bool:
        """Cancel the computation; return whether it will not run. It does not cancel a job: use ``JobClient.cancel``."""
        return self._future.cancel()

    def cancelled(self) -> bool:
        """Return whether it was cancelled before it had a result."""
        return self._future.cancelled()

    def done(self) -> bool:
        """Return whether it has a result, an error, or was cancelled."""
        return self._future.done()

    def result(self) -> T:
        """Wait for the result, and raise the error of the work."""
        return self._future.result()

    def exception(self) -> BaseException | None:
        """Wait for the error; None if the work succeeded."""
        return self._future.exception()

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio  # slow to load, and few programs await

        return asyncio.wrap_future(self._future).__await__()
