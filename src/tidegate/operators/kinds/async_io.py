"""Run asynchronous functions: the operator, and the calls on the worker's event loop.

Many calls run at once, up to the capacity. Results come in the order of the input or of completion, never past a
watermark.

**Rounds.** Unfinished calls are part of the round: at its end all calls are awaited, and then the snapshot is taken.
Flink writes the inputs of unfinished calls into the checkpoint instead, because its barriers come between any two
records. Here a barrier comes after the last record of a round. The next round may run on another host, and starts when
this round has ended. Calls that continued beyond the round would have to be repeated there in any case. So a round
takes as long as its last call, at most the timeout longer. A restore never repeats a call of an accepted round.

**Threads.** A worker has a single event loop, in its own thread, for as long as the worker lives. All of ``AsyncCalls``
but ``submit``, ``drain`` and ``cancel`` runs in that thread, so nothing there needs a lock. Finished calls come back
through queues that two threads may use at once.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

from tidegate.base.errors import UserCodeError
from tidegate.base.user_code import UserValue
from tidegate.graph.plan import ChainNode
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.functions import AsyncInvoked, Hooks, RetryRules
from tidegate.operators.contracts.operator import CollectingOperator, OperatorRound, OperatorSetup
from tidegate.operators.contracts.specs import AsyncSpec
from tidegate.operators.contracts.watermarks import EventTime
from tidegate.operators.loop.blame import reprlib_repr, user_error
from tidegate.state.snapshot import OperatorSnapshot

R = TypeVar("R")

_loop: asyncio.AbstractEventLoop | None = None
_loop_of = 0
_starting = threading.Lock()


def event_loop() -> asyncio.AbstractEventLoop:
    """Return the worker's event loop. A forked process has an event loop of its own."""
    global _loop, _loop_of
    with _starting:
        if _loop is None or _loop_of != os.getpid():
            _loop, _loop_of = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_loop.run_forever, name="tidegate-async", daemon=True).start()
        return _loop


def in_event_loop(function: Callable[..., R], *arguments: object) -> R:
    """Call the function in the thread of the loop, and wait for it. The function may then make objects that need a
    running loop (a session, a lock)."""
    answer: Future[R] = Future()

    def act() -> None:
        try:
            answer.set_result(function(*arguments))
        except BaseException as error:
            answer.set_exception(error)

    event_loop().call_soon_threadsafe(act)
    return answer.result()


class Stretch:
    """Hold the records between two watermarks, in any order among each other. ``watermark`` is the watermark after
    these records; None: more records may come."""

    __slots__ = ("calls", "done", "open", "watermark")

    def __init__(self) -> None:
        self.calls: deque[AsyncCall] = deque()
        """In the order of the input."""
        self.done: deque[AsyncCall] = deque()
        """In the order in which they finished; filled by the event loop."""
        self.open = 0
        self.watermark: int | None = None


class AsyncCall:
    """Hold one record while its call runs. ``results``: the function's results, once the call is done."""

    __slots__ = ("done", "results", "stretch", "task", "timestamp", "value")

    def __init__(self, value: UserValue, timestamp: int | None, stretch: Stretch) -> None:
        self.value, self.timestamp, self.stretch = value, timestamp, stretch
        self.done = False
        self.results: Iterable[UserValue] = ()
        self.task: asyncio.Task[Iterable[UserValue]] | None = None


class AsyncCalls:
    """Run the calls of one operator in one round. ``done``: called in the thread of the loop for each call that
    finishes.

    A call that fails cancels all others, because the round has failed. ``error`` is then the failed call and its
    exception.
    """

    def __init__(
        self,
        function: AsyncInvoked,
        retry: RetryRules | None,
        timeout_ms: int,
        capacity: int,
        done: Callable[[AsyncCall], None],
    ) -> None:
        self._invoke, self._on_timeout, self._done = function.async_invoke, function.timeout, done
        self._timeout, self._capacity, self._retry = timeout_ms / 1000, capacity, retry
        self._loop = event_loop()
        self._waiting: deque[AsyncCall] = deque()
        self._running: set[AsyncCall] = set()
        self._deadlines: deque[tuple[float, AsyncCall]] = deque()
        """In the order of the calls, which all have the same time: only the first needs a timer."""
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._enough = threading.Event()
        self._wanted = 0
        self.error: tuple[AsyncCall, BaseException] | None = None

    # -- in the thread of the task ---------------------------------------------------------------------------------------

    def submit(self, calls: list[AsyncCall]) -> None:
        """Start the calls. Return when only as many calls as the capacity allows are unfinished, so that no call waits
        for its turn."""
        self._rest(calls, self._capacity)

    def drain(self) -> None:
        """Wait until all calls are done."""
        self._rest([], 0)

    def _rest(self, calls: list[AsyncCall], most: int) -> None:
        enough = threading.Event()  # a new one for each wait: a call that finishes now must not answer an earlier wait
        self._loop.call_soon_threadsafe(self._take, calls, most, enough)
        enough.wait()

    def cancel(self) -> None:
        """Cancel all calls, because no one waits for them any more. Do not wait for calls that resist cancellation."""
        self._loop.call_soon_threadsafe(self._stop)

    # -- in the thread of the loop ---------------------------------------------------------------------------------------

    def _take(self, calls: list[AsyncCall], wanted: int, enough: threading.Event) -> None:
        self._waiting.extend(calls)
        self._wanted, self._enough = wanted, enough
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._capacity and not self._over:
            self._begin(self._waiting.popleft())
        if self._over or (not self._waiting and len(self._running) <= self._wanted):
            self._enough.set()

    def _begin(self, call: AsyncCall) -> None:
        self._running.add(call)
        try:
            call.task = self._loop.create_task(
                self._invoke(call.value) if self._retry is None else self._tried(call.value)
            )
        except BaseException as error:
            self._fail(call, error)
            return
        call.task.add_done_callback(lambda task: self._ended(call, task))
        if self._timeout > 0:
            self._deadlines.append((self._loop.time() + self._timeout, call))
            if self._timer is None:
                self._timer = self._loop.call_at(self._deadlines[0][0], self._expire)

    async def _tried(self, value: UserValue) -> Iterable[UserValue]:
        assert self._retry is not None
        predicate, attempts = self._retry.get_retry_predicate(), 1
        again_for_result, again_for_error = predicate.result_predicate(), predicate.exception_predicate()
        while True:
            try:
                result = await self._invoke(value)
                if not (again_for_result and again_for_result(result) and self._retry.can_retry(attempts)):
                    return result
            except Exception as error:
                if not (again_for_error and again_for_error(error) and self._retry.can_retry(attempts)):
                    raise
            await asyncio.sleep(self._retry.get_backoff_time_millis(attempts) / 1000)
            attempts += 1

    def _ended(self, call: AsyncCall, task: asyncio.Task[Iterable[UserValue]]) -> None:
        if call.done or self._over:
            if not task.cancelled():
                task.exception()  # retrieve it: otherwise the loop logs that it was never retrieved
            return None
        if task.cancelled():  # by the function itself
            return self._fail(call, asyncio.CancelledError("the call was cancelled"))
        error = task.exception()
        if error is not None:
            return self._fail(call, error)
        self._complete(call, task.result())

    def _complete(self, call: AsyncCall, results: object) -> None:
        if results is None or isinstance(results, str | bytes) or not isinstance(results, Iterable):
            return self._fail(call, _no_list(results))
        call.results, call.done, call.task = results, True, None
        self._running.discard(call)
        self._done(call)
        self._fill()

    def _expire(self) -> None:
        self._timer, now = None, self._loop.time()
        while self._deadlines and (self._deadlines[0][1].done or self._deadlines[0][0] <= now):
            _, call = self._deadlines.popleft()
            if not call.done and not self._over:
                self._time_out(call)
        if self._deadlines and not self._over:
            self._timer = self._loop.call_at(self._deadlines[0][0], self._expire)

    def _time_out(self, call: AsyncCall) -> None:
        task = call.task
        try:
            self._complete(call, self._on_timeout(call.value))
        except BaseException as error:
            self._fail(call, error)
        if task is not None:
            task.cancel()

    def _fail(self, call: AsyncCall, error: BaseException) -> None:
        if not self._over:
            self.error = call, error
            self._stop()

    def _stop(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()
        self._deadlines.clear()
        for call in list(self._running):
            if call.task is not None:
                call.task.cancel()
        self._running.clear()
        self._enough.set()


def _no_list(results: object) -> UserCodeError:
    # The first words are PyFlink's: programs and people search for them.
    wrong = "cannot be none" if results is None else "should be of list type"
    return UserCodeError(
        f"The result of AsyncFunction {wrong}: async_invoke and timeout must return a list of results",
        found=f"{reprlib_repr(results)} of type {type(results).__name__}",
        cure="return [result], or [] without a result",
    )


class AsyncOperator(CollectingOperator):
    """Call an asynchronous function. Time advances downstream when the results of all records before the watermark have
    been emitted."""

    def __init__(self, node: ChainNode, setup: OperatorSetup) -> None:
        super().__init__(node, setup)
        self.output_time = EventTime()
        self._spec = spec = self.operator.spec_as(AsyncSpec)
        self.hooks.insert(0, self._hooks(spec.function, f"operator '{self.operator.name}'", kind=_LoopHooks))
        self._calls: AsyncCalls | None = None

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        self._give_up()
        spec = self._spec
        self._calls = AsyncCalls(spec.function, spec.retry, spec.timeout_ms, spec.capacity, _report)
        self._stretches = deque([Stretch()])
        self._passed = self.output_time.watermark

    # -- records ---------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        if not self.values:
            return
        stretch = self._stretches[-1]
        times = self.timestamps or [None] * len(self.values)
        calls = [AsyncCall(value, moment, stretch) for value, moment in zip(self.values, times, strict=True)]
        self.clear()
        stretch.open += len(calls)
        if self._spec.ordered:
            stretch.calls.extend(calls)
        assert self._calls is not None
        self._calls.submit(calls)
        self._emit_done(self.round.now_ms())

    def _emit_done(self, now_ms: int) -> None:
        assert self._calls is not None
        if self._calls.error is not None:
            call, error = self._calls.error
            where, record = f"operator '{self.operator.name}'", reprlib_repr(call.value)
            raise user_error(error, where, record, added=self.operator.place) from error
        while True:
            stretch = self._stretches[0]
            self._emit(stretch)
            if stretch.open or stretch.watermark is None:
                return
            self._stretches.popleft()
            self.output_time.watermark = max(self.output_time.watermark, stretch.watermark)
            self.setup.advance(now_ms, False)

    def _emit(self, stretch: Stretch) -> None:
        values: list[UserValue] = []
        times: list[int | None] = []
        done = stretch.calls if self._spec.ordered else stretch.done
        while done and done[0].done:
            call = done.popleft()
            stretch.open -= 1
            before = len(values)
            values.extend(call.results)
            times.extend([call.timestamp] * (len(values) - before))
        if values:
            self.setup.emit(Batch(values, times if any(moment is not None for moment in times) else None))

    # -- time ------------------------------------------------------------------------------------------------------------

    def on_watermark(self, now_ms: int) -> None:
        if self.input_time.watermark > self._passed:
            self._passed = self.input_time.watermark
            self._stretches[-1].watermark = self._passed
            self._stretches.append(Stretch())
        self._emit_done(now_ms)

    def end_round(self, now_ms: int) -> None:
        self._drain(now_ms)

    def end_input(self, now_ms: int) -> None:
        self._drain(now_ms)

    def _drain(self, now_ms: int) -> None:
        assert self._calls is not None
        self._calls.drain()
        self.on_watermark(now_ms)
        self.output_time.idle = self.input_time.idle

    def end(self, *, abort: bool) -> None:
        self._give_up()

    def _give_up(self) -> None:
        """Cancel all calls that a failed round has left running."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.cancel()


class _LoopHooks(Hooks):
    """Open and close the function in the event loop, where it is also called."""

    def _call(self, name: str, *arguments: object) -> None:
        in_event_loop(super()._call, name, *arguments)


def _report(call: AsyncCall) -> None:
    call.stretch.done.append(call)
