"""Run asynchronous functions: many calls at once, results in the order of the input or of completion, never past a
watermark.

Unfinished calls are part of the round: at its end all calls are awaited, and then the snapshot is taken. Flink writes
the inputs of unfinished calls into the checkpoint instead, because its barriers come between any two records. Here a
barrier comes after the last record of a round. The next round may run on another host, and starts when this round has
ended. Calls that continued beyond the round would have to be repeated there in any case. So a round takes as long as
its last call, at most the timeout longer. A restore never repeats a call of an accepted round.
"""

from __future__ import annotations

from collections import deque

from tidegate.base.user_code import UserValue
from tidegate.graph.plan import ChainNode
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.functions import Hooks
from tidegate.operators.contracts.operator import CollectingOperator, OperatorRound, OperatorSetup
from tidegate.operators.contracts.specs import AsyncSpec
from tidegate.operators.contracts.watermarks import EventTime
from tidegate.operators.kinds.async_calls import AsyncCalls, Call, Stretch, in_event_loop
from tidegate.operators.loop.blame import reprlib_repr, user_error
from tidegate.state.snapshot import OperatorSnapshot


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
        calls = [Call(value, moment, stretch) for value, moment in zip(self.values, times, strict=True)]
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


def _report(call: Call) -> None:
    call.stretch.done.append(call)
