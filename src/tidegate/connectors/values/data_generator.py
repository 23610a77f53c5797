"""A source that makes records with a function of their index, with an optional rate limit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.base.arguments import expect_int, wrong
from tidegate.base.errors import ArgumentTypeError, ProgramError, UserCodeError
from tidegate.base.faults import Killed
from tidegate.base.user_code import user_line
from tidegate.connectors.values.ranges import BATCH_SIZE, split_range
from tidegate.operators.contracts.source import (
    Batch,
    Boundedness,
    Lag,
    Source,
    SourcePlan,
    SplitEnumerator,
    SplitInterval,
    SplitReader,
)
from tidegate.operators.loop.blame import SEE_CAUSE


class RateLimiterStrategy:
    """Limit the rate of a generator, over all its subtasks together."""

    def __init__(self, records_per_second: float | None) -> None:
        if records_per_second is not None and not records_per_second > 0:
            raise ProgramError(
                "The rate of a generator is not above zero",
                where="RateLimiterStrategy.per_second",
                found=repr(records_per_second),
                cure="pass a positive number, or RateLimiterStrategy.no_op() for no limit",
            )
        self.records_per_second = records_per_second

    @staticmethod
    def per_second(records_per_second: float) -> RateLimiterStrategy:
        """Emit at most this many records per second, over all subtasks."""
        return RateLimiterStrategy(records_per_second)

    @staticmethod
    def no_op() -> RateLimiterStrategy:
        """Emit without a limit."""
        return RateLimiterStrategy(None)


class DataGeneratorSource(Source):
    """Emit ``generator_function(index)`` for index 0, 1, ... ``count - 1``, without end if ``count`` is None.

    The function (or an object with ``map(index)``) must return the same value for the same index, because it is called again after
    a failure. Every round divides the next indexes among the splits, so all subtasks move through the indexes together.
    """

    gives_time = False

    def __init__(
        self,
        generator_function: Callable[[int], Any] | Any,
        count: int | None = None,
        rate_limiter: RateLimiterStrategy | None = None,
        type_info: Any = None,
        *,
        records_per_second: float | None = None,
    ) -> None:
        self.function = getattr(generator_function, "map", generator_function)
        if not callable(self.function):
            raise ArgumentTypeError(
                "DataGeneratorSource takes a function of the index, or an object with map(index)",
                where="DataGeneratorSource",
                found=type(generator_function).__name__,
                cure="pass a function of the index",
            )
        if count is not None and expect_int("DataGeneratorSource", count, "pass the number of records, or None") < 0:
            raise ProgramError(
                "The count of a generator is negative",
                where="DataGeneratorSource",
                found=str(count),
                cure="pass None for no end",
            )
        if not isinstance(rate_limiter, RateLimiterStrategy | None):
            raise wrong("DataGeneratorSource", "a RateLimiterStrategy", rate_limiter, "records_per_second=1000")
        self.count = count
        self.rate = (rate_limiter or RateLimiterStrategy(records_per_second)).records_per_second
        self.type_info = type_info
        self.boundedness = Boundedness.CONTINUOUS_UNBOUNDED if count is None else Boundedness.BOUNDED

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        position = restored or {"next": 0, "splits": parallelism}
        return _GeneratorEnumerator(self.count, self.rate, parallelism, position["next"], position["splits"])

    def create_reader(self, subtask: int) -> SplitReader:
        """Make a reader that turns the indexes of its splits into records."""
        return _GeneratorReader(self.function)


class _GeneratorEnumerator(SplitEnumerator):
    """Plan the indexes. The rate counts from the first plan, so the time of an outage is not caught up."""

    def __init__(self, count: int | None, rate: float | None, parallelism: int, next_index: int, splits: int) -> None:
        self._count, self._rate, self._parallelism = count, rate, parallelism
        self._next, self._splits = next_index, splits
        self._since: tuple[int, int] | None = None
        self._left: int | None = None

    @property
    def behind(self) -> int | None:
        """Records that could have been made by now. None: neither an end nor a rate limits them."""
        return self._left

    @property
    def lag(self) -> Lag | None:
        """Every split gets the same number of the records that are left, about."""
        if self._left is None:
            return None
        left: Counter[int] = Counter()
        for piece in split_range(0, self._left, self._splits):
            left[piece.number % self._parallelism] += piece.remaining
        return Lag(left)

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        available = self._due(now_ms)
        if self._count is not None:
            available = min(available, self._count)
        start, end = self._next, int(max(self._next, min(available, self._next + max(1, limit))))
        self._next = end
        self._left = None if math.isinf(available) else int(max(0, available - end))
        finished = self._count is not None and end >= self._count
        wake_up = self._due_at(end) if not finished and end >= available else None
        intervals = self._intervals(start, end, finished)
        return SourcePlan(intervals, backlog=end < available, wake_up_ms=wake_up, finished=finished)

    def _intervals(self, start: int, end: int, last: bool) -> list[SplitInterval]:
        # The start rotates the splits: with fewer records than splits, every split gets some in turn and its watermark advances.
        pieces = [((piece.number + start) % self._splits, piece) for piece in split_range(start, end, self._splits)]
        return [
            SplitInterval(str(split), split % self._parallelism, piece.position, piece.end, piece.remaining, last=last)
            for split, piece in pieces
        ]

    def _due(self, now_ms: int) -> float:
        """Return the index up to which records may be emitted now. The first record is due at once."""
        if self._rate is None:
            return math.inf
        if self._since is None:
            self._since = (now_ms, self._next)
        since_ms, first = self._since
        return first + 1 + math.floor((now_ms - since_ms) * self._rate / 1000)

    def _due_at(self, index: int) -> int | None:
        if self._rate is None or self._since is None:
            return None
        since_ms, first = self._since
        return since_ms + math.ceil((index - first) * 1000 / self._rate)

    def snapshot(self) -> Any:
        return {"next": self._next, "splits": self._splits}


class _GeneratorReader(SplitReader):
    interleaves = True

    def __init__(self, function: Callable[[int], Any]) -> None:
        self._function = function

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        for start in range(interval.start, interval.end, BATCH_SIZE):
            indexes = range(start, min(start + BATCH_SIZE, interval.end))
            yield Batch(self._values(indexes))

    def _values(self, indexes: range) -> list[Any]:
        values: list[Any] = []
        try:
            values.extend(map(self._function, indexes))  # after an exception the length is the failed index
            if len(values) < len(indexes):  # a StopIteration has ended the map: raise it
                self._function(indexes[len(values)])
                raise StopIteration
        except BaseException as error:
            raise self._blamed(error, indexes[len(values)]) from error
        return values

    def _blamed(self, error: BaseException, index: int) -> Exception:
        if isinstance(error, Killed):
            raise error
        return UserCodeError(
            "The generator function failed",
            where=f"DataGeneratorSource, {user_line(error) or _place(self._function)}",
            found=f"{type(error).__name__}: {error} (index {index})",
            cure=SEE_CAUSE,
        )


def _place(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
