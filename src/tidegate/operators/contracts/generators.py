"""Run the user's own watermark generators: called for every record, and their attributes stored with every round."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence

from tidegate.base.errors import ArgumentTypeError, UserCodeError
from tidegate.base.pickling import load_stored
from tidegate.base.user_code import UserFunction, UserValue
from tidegate.common.watermark_strategy import WatermarkGenerator, WatermarkOutput, WatermarkStrategy
from tidegate.operators.contracts.batch import HIGHEST, LOWEST, Batch
from tidegate.operators.contracts.operator import OperatorSetup, Settings
from tidegate.operators.contracts.watermarks import Piece, Strategy
from tidegate.operators.flow.rows import MIN_WATERMARK
from tidegate.operators.loop.blame import reprlib_repr, user_error


class LiveGenerator(WatermarkOutput):
    """Hold a generator object in a round, and its output so far. ``active_ms``: when a record was last seen."""

    __slots__ = ("active_ms", "idle", "moved", "user", "watermark")

    def __init__(self, user: WatermarkGenerator, watermark: int, active_ms: int, idle: bool) -> None:
        self.user, self.watermark, self.active_ms, self.idle = user, watermark, active_ms, idle
        self.moved = False
        """The generator has emitted something since the last look."""

    def emit_watermark(self, watermark: int) -> None:
        if not isinstance(watermark, int) or isinstance(watermark, bool) or not LOWEST <= watermark <= HIGHEST:
            raise ArgumentTypeError(
                "emit_watermark needs event time in milliseconds, an int of 64 bits",
                found=f"{reprlib_repr(watermark)} of type {type(watermark).__name__}",
                cure="pass an int, for example int(watermark)",
            )
        if self.idle or watermark > self.watermark:
            self.watermark, self.idle, self.moved = max(self.watermark, watermark), False, True

    def mark_idle(self) -> None:
        self.moved = self.moved or not self.idle
        self.idle = True

    def mark_active(self) -> None:
        self.moved = self.moved or self.idle
        self.idle = False


class GeneratorStrategy(Strategy):
    """Run a strategy of the kind "custom": its generators are ``LiveGenerator`` objects, made from a row and turned
    into a row again."""

    divides_batches = True

    def __init__(self, strategy: WatermarkStrategy, settings: Settings, operator: str) -> None:
        super().__init__(strategy)
        assert strategy.generator is not None  # a strategy of the kind "custom" has a generator
        self.operator, self._make = operator, strategy.generator
        self._interval_ms = settings.watermark_interval_ms

    # -- as plain data: watermark, active_ms, idle, the attributes ---------------------------------------------------------

    def restored(self, row: Sequence[UserValue], now_ms: int) -> LiveGenerator:
        """Return a generator. ``row``: of an earlier round, possibly of a program with another kind of strategy; empty:
        a new generator."""
        user = self._called("making a generator", self._make)
        if not isinstance(user, WatermarkGenerator):
            raise UserCodeError(
                "The function of WatermarkStrategy.for_generator must return a WatermarkGenerator",
                where=f"operator '{self.operator}'",
                found=f"{reprlib_repr(user)} of type {type(user).__name__}",
                cure="return an object of a class that extends WatermarkGenerator",
            )
        if len(row) == 4:
            watermark, active_ms, idle, state = row
            self._called("restoring the attributes", _set_state, user, state)
            return LiveGenerator(user, watermark, active_ms, idle)
        return LiveGenerator(user, MIN_WATERMARK, row[1] if row else now_ms, False)

    def row(self, generator: LiveGenerator) -> tuple[object, ...]:
        try:
            state = pickle.dumps(generator.user.__getstate__(), 5)
        except Exception as error:
            raise UserCodeError(
                "The attributes of a watermark generator are its state and must be picklable",
                where=f"{type(generator.user).__name__} of operator '{self.operator}'",
                found=f"{type(error).__name__}: {error}",
                cure="keep plain data only, or choose the data to store in __getstate__",
            ) from error
        return generator.watermark, generator.active_ms, generator.idle, state

    # -- records and time --------------------------------------------------------------------------------------------------

    def pieces(self, generator: LiveGenerator, batch: Batch, now_ms: int) -> Iterator[Piece]:
        """Divide the batch: a piece ends with each record for which the generator has emitted something."""
        batch = Batch(batch.rows(), batch.time_list())  # the user's code receives them
        times = batch.time_list() or [None] * len(batch)
        generator.active_ms = now_ms
        on_event, start, at = generator.user.on_event, 0, -1
        for at, (value, moment) in enumerate(zip(batch.rows(), times, strict=True)):
            try:
                on_event(value, MIN_WATERMARK if moment is None else moment, generator)
            except BaseException as error:
                raise user_error(error, self._where("on_event"), reprlib_repr(value)) from error
            if generator.moved:
                generator.moved = False
                yield generator, batch.part(start, at + 1)
                start = at + 1
        if start <= at:
            yield generator, batch.part(start, at + 1)

    def periodic(self, generator: LiveGenerator, now_ms: int) -> None:
        if self._interval_ms and not self._timed_out(generator, now_ms):
            self._called("on_periodic_emit", generator.user.on_periodic_emit, generator)
            generator.moved = False

    def watermark(self, generator: LiveGenerator) -> int:
        return generator.watermark

    def _timed_out(self, generator: LiveGenerator, now_ms: int) -> bool:
        return super().is_idle(generator, now_ms)

    def held(self, generator: LiveGenerator, now_ms: int) -> LiveGenerator:
        generator.active_ms = now_ms
        return generator

    def is_idle(self, generator: LiveGenerator, now_ms: int) -> bool:
        return generator.idle or self._timed_out(generator, now_ms)

    def next_look_ms(self, generator: LiveGenerator, now_ms: int) -> int | None:
        """Return the time of the next look: the generator may emit a watermark although no record comes."""
        return now_ms + self._interval_ms if self._interval_ms else super().next_look_ms(generator, now_ms)

    def _called(self, what: str, function: UserFunction, *arguments: object) -> UserValue:
        try:
            return function(*arguments)
        except BaseException as error:
            raise user_error(error, self._where(what), None) from error

    def _where(self, what: str) -> str:
        return f"watermark generator of operator '{self.operator}', {what}"


def _set_state(user: WatermarkGenerator, state: bytes) -> None:
    kept = load_stored(state)
    if hasattr(user, "__setstate__"):
        user.__setstate__(kept)
        return
    attributes, slots = kept if isinstance(kept, tuple) else (kept, None)
    for name, value in {**(attributes or {}), **(slots or {})}.items():
        setattr(user, name, value)


def strategy_of(
    strategy: WatermarkStrategy | None, setup: OperatorSetup, operator: str, *, rows: bool = False
) -> Strategy:
    """Return the strategy of a WatermarkStrategy, or of None, in a subtask of the operator. ``rows``: its records are rows by
    their declared type."""
    settings = setup.settings
    if strategy is not None and strategy.kind == "custom" and not settings.batch_mode:
        return GeneratorStrategy(strategy, settings, operator)
    meant = Strategy(strategy, settings.batch_mode, settings.watermark_interval_ms)
    meant.operator = operator
    meant.of_column = None if meant.extract is None else setup.column_of(meant.extract, rows)
    return meant
