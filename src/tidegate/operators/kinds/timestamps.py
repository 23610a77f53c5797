"""Assigners of timestamps and watermarks inside a chain."""

from __future__ import annotations

from typing import ClassVar

from tidegate.graph.plan import ChainNode
from tidegate.operators.contracts import watermarks
from tidegate.operators.contracts.generators import strategy_of
from tidegate.operators.contracts.operator import EndOfInput, OperatorRound, Site
from tidegate.operators.contracts.specs import TimestampsSpec
from tidegate.operators.contracts.watermarks import Domain
from tidegate.operators.flow.rows import MAX_WATERMARK
from tidegate.operators.kinds.collecting import CollectingOperator
from tidegate.operators.loop.blame import record_in, user_error
from tidegate.state.snapshot import GENERATOR, ListPart, OperatorSnapshot, Part, Redistribution


class TimestampsOperator(CollectingOperator):
    """Gives records timestamps and the part of the chain behind it a watermark of its own.

    As in Flink, watermarks from upstream are ignored, except the last one at the end of input.
    """

    follows_input: ClassVar[bool] = False

    def __init__(self, node: ChainNode, site: Site) -> None:
        super().__init__(node, site)
        self.below = Domain()
        self._strategy = strategy_of(self.operator.spec_as(TimestampsSpec).watermarks, site, self.operator.name)

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        self._generator = self._strategy.restored(snapshot.values(GENERATOR), round.now_ms())

    def settle(self) -> None:
        if not self.values:
            return
        values, former = self.values.copy(), self.timestamps.copy()
        self.clear()
        try:
            timestamps = self._strategy.timestamps(values, former or None)
        except BaseException as error:
            record = record_in(error, watermarks.__file__, "value")
            raise user_error(error, f"timestamp assigner of operator '{self.operator.name}'", record) from error
        now = self.round.now_ms()
        for generator, piece, times in self._strategy.pieces(self._generator, values, timestamps, now):
            self._generator = generator
            self.site.emit(piece, times)
            if self._strategy.cuts_batches:
                self._advance(now)
                self.site.advance(now, True)
        self._strategy.periodic(self._generator, now)
        self._advance(now)

    def _advance(self, now_ms: int) -> None:
        if self.round.holds_time:
            return
        self.below.watermark = max(self.below.watermark, self._strategy.watermark(self._generator))
        self.below.idle = self._strategy.emits and self._strategy.is_idle(self._generator, now_ms)

    def end_input(self, now_ms: int) -> None:
        self.below.watermark, self.below.idle = MAX_WATERMARK, False

    def end_round(self, now_ms: int) -> None:
        self._strategy.periodic(self._generator, now_ms)
        self._advance(now_ms)

    def wake_up_ms(self, now_ms: int) -> int | None:
        """When it turns idle, or its generator wants to be asked."""
        if self.round.end_of_input is not EndOfInput.AHEAD or not self._strategy.emits:
            return None
        if self.below.idle and not self._strategy.cuts_batches:
            return None
        return self._strategy.next_look_ms(self._generator, now_ms)

    def parts(self) -> dict[str, Part]:
        return {GENERATOR: ListPart.of(Redistribution.SUBTASK, self._strategy.row(self._generator))}
