"""Assign timestamps and watermarks inside a chain."""

from __future__ import annotations

from typing import ClassVar

from tidegate.graph.plan import ChainNode
from tidegate.operators.contracts import watermarks
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.generators import strategy_of
from tidegate.operators.contracts.operator import CollectingOperator, EndOfInput, OperatorRound, OperatorSetup
from tidegate.operators.contracts.specs import TimestampsSpec
from tidegate.operators.contracts.watermarks import EventTime
from tidegate.operators.flow.rows import MAX_WATERMARK
from tidegate.operators.loop.blame import record_in, user_error
from tidegate.state.snapshot import GENERATOR, ListPart, OperatorSnapshot, Part, Redistribution


class TimestampsOperator(CollectingOperator):
    """Give records timestamps, and the operators downstream a watermark of their own.

    As in Flink, watermarks from upstream are ignored, except the last one at the end of input.
    """

    follows_input: ClassVar[bool] = False

    def __init__(self, node: ChainNode, setup: OperatorSetup) -> None:
        super().__init__(node, setup)
        self.output_time = EventTime()
        self._strategy = strategy_of(self.operator.spec_as(TimestampsSpec).watermarks, setup, self.operator.name)

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        self._generator = self._strategy.restored(snapshot.values(GENERATOR), round.now_ms())

    def settle(self) -> None:
        if not self.values:
            return
        batch = Batch(self.values.copy(), self.timestamps.copy() or None)
        self.clear()
        try:
            batch = self._strategy.timed(batch)
        except BaseException as error:
            record = record_in(error, watermarks.__file__, "value")
            raise user_error(error, f"timestamp assigner of operator '{self.operator.name}'", record) from error
        now = self.round.now_ms()
        for generator, piece in self._strategy.pieces(self._generator, batch, now):
            self._generator = generator
            self.setup.emit(piece)
            if self._strategy.divides_batches:
                self._advance(now)
                self.setup.advance(now, True)
        self._strategy.periodic(self._generator, now)
        self._advance(now)

    def _advance(self, now_ms: int) -> None:
        if self.round.holds_time:
            return
        self.output_time.watermark = max(self.output_time.watermark, self._strategy.watermark(self._generator))
        self.output_time.idle = self._strategy.emits and self._strategy.is_idle(self._generator, now_ms)

    def end_input(self, now_ms: int) -> None:
        self.output_time.watermark, self.output_time.idle = MAX_WATERMARK, False

    def end_round(self, now_ms: int) -> None:
        self._strategy.periodic(self._generator, now_ms)
        self._advance(now_ms)

    def wake_up_ms(self, now_ms: int) -> int | None:
        """Return when the operator turns idle, or when its generator wants to be called."""
        if self.round.end_of_input is not EndOfInput.AHEAD or not self._strategy.emits:
            return None
        if self.output_time.idle and not self._strategy.divides_batches:
            return None
        return self._strategy.next_look_ms(self._generator, now_ms)

    def parts(self) -> dict[str, Part]:
        return {GENERATOR: ListPart.of(Redistribution.SUBTASK, self._strategy.row(self._generator))}
