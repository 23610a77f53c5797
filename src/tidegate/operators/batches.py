"""Operators that work on whole batches inside a chain: sinks, and assigners of timestamps and watermarks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tidegate.common import faults
from tidegate.common.errors import UserCodeError
from tidegate.graph.plan import Operator
from tidegate.graph.transformation import SinkSpec, TimestampsSpec
from tidegate.operators import watermarks
from tidegate.operators.blame import record_in, user_error, user_line
from tidegate.operators.rows import MAX_WATERMARK, Generator
from tidegate.operators.sink import Prepared, Sink, SinkWriter, WriterContext
from tidegate.operators.column_batch import ColumnBatch, Values
from tidegate.operators.watermarks import Domain, Strategy

log = logging.getLogger(__name__)


class Collected:
    """The columns a loop has filled for a batch operator."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.values: list[Any] = []
        self.timestamps: list[Any] = []

    def extend(self, values: Values, timestamps: list[Any] | None, keys: list[Any] | None) -> None:
        """Take a whole batch (the operator is the head of its chain)."""
        self.values.extend(values.rows() if isinstance(values, ColumnBatch) else values)
        if timestamps is not None:
            self.timestamps.extend(timestamps)

    def clear(self) -> None:
        self.values.clear()
        self.timestamps.clear()


class TimestampAssigner(Collected):
    """Gives records timestamps and the part of the chain behind it a watermark of its own.

    As in Flink, watermarks from upstream are ignored, except the last one at the end of input.
    """

    def __init__(self, operator: Operator, below: Domain, batch: bool) -> None:
        super().__init__(operator)
        assert isinstance(operator.spec, TimestampsSpec)
        self._strategy = Strategy(operator.spec.watermarks, batch)
        self.below = below
        self.generator = Generator()

    def begin(self, generator: Generator | None, now_ms: int) -> None:
        self.clear()
        self.generator = generator or Generator(active_ms=now_ms)

    def take(self, now_ms: int) -> tuple[list[Any], list[Any] | None] | None:
        """What was collected, with its new timestamps, for the rest of the chain; ``advance`` follows behind it."""
        if not self.values:
            return None
        values, former = self.values.copy(), self.timestamps.copy()
        self.clear()
        try:
            timestamps = self._strategy.timestamps(values, former or None)
        except Exception as error:
            record = record_in(error, watermarks.__file__, "value")
            raise user_error(error, f"timestamp assigner of operator '{self.operator.name}'", record) from error
        self.generator = self._strategy.seen(self.generator, timestamps, now_ms)
        return values, timestamps

    def advance(self, now_ms: int) -> None:
        self.below.watermark = max(self.below.watermark, self._strategy.watermark(self.generator))
        self.below.idle = self._strategy.emits and self._strategy.is_idle(self.generator, now_ms)

    def end_of_round(self, now_ms: int, finished: bool) -> int | None:
        """Returns when the operator wants a round for its idleness."""
        if finished:
            self.below.watermark, self.below.idle = MAX_WATERMARK, False
            return None
        self.advance(now_ms)
        return None if self.below.idle or not self._strategy.emits else self._strategy.idle_at(self.generator)


class SinkOperator(Collected):
    """Runs a sink's writer for one round. What goes wrong in it declines the round; user functions in a sink fail it."""

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        assert isinstance(operator.spec, SinkSpec)
        self._sink: Sink = operator.spec.sink
        self._writer: SinkWriter | None = None
        self.declined: str | None = None

    def begin(self, context: WriterContext, state: list[Any]) -> None:
        self.clear()
        self._context, self._state, self.declined = context, state, None

    def drain(self) -> None:
        if self.values and self.declined is None:
            self._attempt(self._write)
        self.clear()

    def _write(self) -> None:
        if self._writer is None:
            self._writer = self._sink.create_writer(self._context, self._state)
        self._writer.write_batch(self.values, self.timestamps or None)

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        """Step 5. A sink that was given nothing and keeps nothing has nothing to prepare."""
        prepared = Prepared()

        def prepare() -> None:
            nonlocal prepared
            if self._writer is None and self._state:
                self._writer = self._sink.create_writer(self._context, self._state)
            if self._writer is not None:
                faults.point("K1.before-prepare", sink=self.operator.name, subtask=self._context.subtask)
                prepared = self._writer.prepare_commit(end_of_input)

        if self.declined is None:
            self._attempt(prepare)
        return prepared

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except UserCodeError as error:
            where = f"operator '{self.operator.name}', {error.where}"
            raise UserCodeError(error.rule, where=where, found=error.found, cure=error.cure) from error
        except Exception as error:
            line = user_line(error)
            place = f"sink '{self.operator.name}'" + (f", {line}" if line else "")
            self.declined = f"{place}: {type(error).__name__}: {error}"

    def end(self, *, abort: bool) -> None:
        """The ack is out: what fails here is left to ``abort_lingering``, and must not kill the task behind it."""
        writer, self._writer = self._writer, None
        for step in ([writer.abort] if abort else []) + [writer.close] if writer is not None else []:
            try:
                step()
            except Exception as error:
                log.warning("sink '%s': %s after the round failed: %s", self.operator.name, step.__name__, error)
