"""Sources: read the intervals of their splits, give records timestamps and the chain its watermark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from tidegate.graph.plan import ChainNode
from tidegate.operators import watermarks
from tidegate.operators.blame import record_in, user_error
from tidegate.operators.column_batch import Values
from tidegate.operators.operator import EndOfInput, OperatorRound, Site, StreamOperator
from tidegate.operators.rows import Generator
from tidegate.operators.source import Batch, SplitInterval
from tidegate.operators.watermarks import SplitWatermarks, Strategy
from tidegate.state.snapshot import SPLITS, ListPart, OperatorSnapshot, Part, Redistribution


class SourceOperator(StreamOperator):
    """The head of a chain that has no input. ``read`` and ``seen`` take turns: the watermark follows the records."""

    emits_fresh: ClassVar[bool] = True

    def __init__(self, node: ChainNode, site: Site) -> None:
        super().__init__(node, site)
        self._strategy = Strategy(self.operator.spec.watermarks, site.settings.batch_mode)
        self._reader: Any = None

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        self.below.watermark, self.below.idle = snapshot.watermark, snapshot.idle
        generators = {split: Generator(*state) for split, *state in snapshot.values(SPLITS)}
        self._marks = SplitWatermarks(self._strategy, generators)

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        """The batches of an interval, with the timestamps of the assigner, if there is one."""
        self._marks.start(interval.split, self.round.now_ms())
        self._reader = self._reader or self.operator.spec.source.create_reader(self.site.index)
        for values, timestamps in self._reader.read(interval):
            try:
                timestamps = self._strategy.timestamps(values, timestamps)
            except BaseException as error:
                where = f"timestamp assigner of operator '{self.operator.name}'"
                raise user_error(error, where, record_in(error, watermarks.__file__, "value")) from error
            yield values, timestamps

    def seen(self, split: str, timestamps: list[int] | None, values: Values) -> None:
        """The records of a batch of the split are through."""
        now = self.round.now_ms()
        self._marks.seen(split, timestamps, now, values)
        self._advance(now)

    def finish(self, split: str) -> None:
        """There is nothing more in the split, now or ever."""
        self._marks.finish(split)

    def _advance(self, now_ms: int) -> None:
        self.below.watermark, self.below.idle = self._marks.status(self.below.watermark, now_ms)

    def end_round(self, now_ms: int) -> None:
        self._advance(now_ms)

    def wake_up_ms(self, now_ms: int) -> int | None:
        ended = self.round.end_of_input is not EndOfInput.AHEAD
        return None if ended else self._marks.next_idle_ms(now_ms)

    def parts(self) -> dict[str, Part]:
        rows = [(split, *generator) for split, generator in self._marks.splits.items()]
        return {SPLITS: ListPart.of(Redistribution.EVEN_SPLIT, rows)} if rows else {}

    def close(self) -> None:
        super().close()
        if self._reader is not None:
            self._reader.close()
