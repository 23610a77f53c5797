"""Asynchronous I/O in whole programs: order, capacity, timeouts, retries, watermarks, failures."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.simulation.executor import simulated_environment
from tidegate.base.errors import JobFailedError
from tidegate.common import Duration, Row, Time, Types, WatermarkStrategy
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.datastream import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.async_retry_predicates import (
    empty_result_predicate,
    exception_type_predicate,
    has_exception_predicate,
)
from tidegate.datastream.async_retry_strategies import (
    ExponentialBackoffDelayRetryStrategy,
    FixedDelayRetryStrategy,
    NoRetryStrategy,
)
from tidegate.operators.kinds.async_io import AsyncCall, AsyncCalls, Stretch, event_loop, in_event_loop
from tidegate.testing.simulation.engine import Chances

WAITS = [AsyncDataStream.ordered_wait, AsyncDataStream.unordered_wait]
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, before: value)


FAULTY = Chances(die=0.1, zombie=0.1, rerun=0.1, lose_store=0.1)


@pytest.fixture(autouse=True)
def by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what the classes count in this process can be looked at."""
    for each in (Meter, Flaky):
        monkeypatch.setattr(each, "now", 0, raising=False)
        monkeypatch.setattr(each, "most", 0, raising=False)
        monkeypatch.setattr(each, "calls", {}, raising=False)


def environment(directory: Path, **options: Any) -> StreamExecutionEnvironment:
    keys = {
        "execution.checkpointing.interval": "10 ms",
        "tidegate.chunk.records": 50,
        "tidegate.round.max-records": 100,
        "parallelism.default": 1,
        **options,
    }
    return simulated_environment(directory, seed=3, **keys)


def numbers(env: StreamExecutionEnvironment, end: int, strategy: WatermarkStrategy = MONOTONOUS) -> Any:
    return env.from_source(NumberSequenceSource(0, end), strategy, "numbers", Types.LONG()).set_parallelism(1)


class Doubles(AsyncFunction):
    """Some records take longer than those after them."""

    async def async_invoke(self, value: int) -> list[int]:
        await asyncio.sleep(0.002 * (value % 3))
        return [] if value % 10 == 9 else [value * 2] * (1 + value % 2)


def doubled(end: int) -> list[int]:
    return [2 * v for v in range(end + 1) if v % 10 != 9 for _ in range(1 + v % 2)]


class Meter(AsyncFunction):
    now: ClassVar[int] = 0
    most: ClassVar[int] = 0
    calls: ClassVar[dict[int, int]] = {}

    async def async_invoke(self, value: int) -> list[int]:
        Meter.now += 1
        Meter.most = max(Meter.most, Meter.now)
        await asyncio.sleep(0.001)
        Meter.now -= 1
        return [value]


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("limit", [1, 13, 1000])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_every_record_is_called_for_once(tmp_path: Path, wait: Any, limit: int, parallelism: int) -> None:
    env = environment(tmp_path, **{"tidegate.round.max-records": limit, "parallelism.default": parallelism})
    stream = wait(numbers(env, 59).rebalance(), Doubles(), Time.seconds(10), 7, Types.LONG())
    found = list(stream.execute_and_collect())
    assert sorted(found) == sorted(doubled(59))
    if parallelism == 1 and wait is AsyncDataStream.ordered_wait:
        assert found == doubled(59)


@pytest.mark.parametrize("wait", WAITS)
def test_nothing_is_lost_or_doubled_when_tasks_die(tmp_path: Path, wait: Any) -> None:
    options = {"chances": FAULTY, "restart-strategy.type": "fixed-delay", "tidegate.round.max-records": 20}
    options |= {"restart-strategy.fixed-delay.attempts": 1000, "restart-strategy.fixed-delay.delay": "1 ms"}
    env = environment(tmp_path, **options)
    stream = wait(numbers(env, 199).rebalance(), Doubles(), Time.seconds(10))
    assert sorted(stream.execute_and_collect()) == sorted(doubled(199))


@pytest.mark.parametrize("capacity", [1, 5])
def test_so_many_calls_at_once_as_the_capacity_allows(tmp_path: Path, capacity: int) -> None:
    stream = AsyncDataStream.unordered_wait(numbers(environment(tmp_path), 49), Meter(), Time.seconds(10), capacity)
    assert sorted(stream.execute_and_collect()) == list(range(50))
    assert Meter.most == capacity and Meter.now == 0


def test_calls_of_several_batches_overlap(tmp_path: Path) -> None:
    """A batch does not wait for the slowest call of the one before."""
    env = environment(tmp_path, **{"tidegate.chunk.records": 1})
    stream = AsyncDataStream.unordered_wait(numbers(env, 49).rebalance(), Meter(), Time.seconds(10), 20)
    assert sorted(stream.execute_and_collect()) == list(range(50))
    assert Meter.most > 5


class Late(KeyedProcessFunction):
    def process_element(self, value: int, ctx: Any) -> Any:
        yield value, ctx.timestamp(), ctx.timestamp() <= ctx.timer_service().current_watermark()


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("limit", [7, 1000])
def test_watermarks_do_not_overtake_records(tmp_path: Path, wait: Any, limit: int) -> None:
    env = environment(tmp_path, **{"tidegate.round.max-records": limit, "tidegate.chunk.records": 3})
    stream = wait(numbers(env, 99).rebalance(), Meter(), Time.seconds(10), 50)
    found = sorted(stream.key_by(lambda v: v % 3).process(Late()).execute_and_collect())
    assert found == [(v, v, False) for v in range(100)]


# -- time ------------------------------------------------------------------------------------------------------------------


class Sleeps(AsyncFunction):
    async def async_invoke(self, value: int) -> list[Any]:
        if value % 5 == 0:
            await asyncio.sleep(60)
        return [value]

    def timeout(self, value: int) -> list[Any]:
        return [-value, -value]


@pytest.mark.parametrize("wait", WAITS)
def test_what_takes_too_long_is_replaced(tmp_path: Path, wait: Any) -> None:
    stream = wait(numbers(environment(tmp_path), 9), Sleeps(), Time.milliseconds(20))
    found = list(stream.execute_and_collect())
    assert sorted(found) == [-5, -5, 0, 0, 1, 2, 3, 4, 6, 7, 8, 9]
    if wait is AsyncDataStream.ordered_wait:
        assert found == [0, 0, 1, 2, 3, 4, -5, -5, 6, 7, 8, 9]


class TimesOut(Sleeps):
    timeout = AsyncFunction.timeout  # type: ignore[assignment]


class Flaky(AsyncFunction):
    """Every record fails, or has no result, for the first three calls."""

    calls: ClassVar[dict[int, int]] = {}

    async def async_invoke(self, value: int) -> list[int]:
        Flaky.calls[value] = Flaky.calls.get(value, 0) + 1
        if Flaky.calls[value] <= 3:
            if value % 2:
                raise ConnectionError(f"call {Flaky.calls[value]}")
            return []
        return [value]


RETRIES = [
    AsyncRetryStrategy.fixed_delay(3, 1, empty_result_predicate, has_exception_predicate),
    AsyncRetryStrategy.exponential_backoff(
        3, 1, 4, 2.0, empty_result_predicate, lambda error: exception_type_predicate(error, ConnectionError)
    ),
]


@pytest.mark.parametrize("retry", RETRIES)
@pytest.mark.parametrize("wait", [AsyncDataStream.ordered_wait_with_retry, AsyncDataStream.unordered_wait_with_retry])
def test_calls_are_made_again(tmp_path: Path, wait: Any, retry: AsyncRetryStrategy) -> None:
    stream = wait(numbers(environment(tmp_path), 9), Flaky(), Time.seconds(10), retry)
    assert sorted(stream.execute_and_collect()) == list(range(10))
    assert Flaky.calls == dict.fromkeys(range(10), 4)


def test_the_last_outcome_counts_when_no_call_is_left(tmp_path: Path) -> None:
    retry = AsyncRetryStrategy.fixed_delay(1, 1, empty_result_predicate, None)
    wait = AsyncDataStream.ordered_wait_with_retry
    evens = numbers(environment(tmp_path), 9).filter(lambda v: v % 2 == 0)
    assert list(wait(evens, Flaky(), Time.seconds(10), retry).execute_and_collect()) == []
    assert Flaky.calls == dict.fromkeys(range(0, 10, 2), 2)


def test_delays_of_the_strategies() -> None:
    growing = ExponentialBackoffDelayRetryStrategy(5, 10, 50, 2.0, None, None)
    assert [growing.get_backoff_time_millis(n) for n in range(1, 6)] == [10, 20, 40, 50, 50]
    assert [growing.can_retry(n) for n in (1, 5, 6)] == [True, True, False]
    fixed = FixedDelayRetryStrategy(2, 10, None, None)
    assert [fixed.get_backoff_time_millis(n) for n in (1, 2)] == [10, 10]
    assert not NoRetryStrategy().can_retry(1)


# -- the event loop --------------------------------------------------------------------------------------------------------


class NeedsLoop(AsyncFunction):
    """As a session of an HTTP library: made in ``open``, and it needs a running loop."""

    def open(self, runtime_context: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.gate = asyncio.Semaphore(2)
        self.name = runtime_context.get_task_name()

    async def async_invoke(self, value: int) -> list[Any]:
        async with self.gate:
            return [(value, self.name, asyncio.get_running_loop() is self.loop)]


def test_functions_are_opened_in_the_loop_that_calls_them(tmp_path: Path) -> None:
    stream = AsyncDataStream.ordered_wait(numbers(environment(tmp_path), 2), NeedsLoop(), Time.seconds(10))
    assert list(stream.execute_and_collect()) == [(v, "async wait operator", True) for v in range(3)]


def test_results_have_the_declared_type(tmp_path: Path) -> None:
    class Pairs(AsyncFunction):
        async def async_invoke(self, value: int) -> list[Any]:
            return [(value, str(value))]

    info = Types.ROW_NAMED(["n", "text"], [Types.LONG(), Types.STRING()])
    stream = AsyncDataStream.ordered_wait(numbers(environment(tmp_path), 1), Pairs(), Duration.of_seconds(1), 3, info)  # type: ignore[arg-type]
    assert list(stream.execute_and_collect()) == [Row(n=0, text="0"), Row(n=1, text="1")]


def test_all_calls_are_done_when_they_are_awaited() -> None:
    """Calls end at any moment, also while the task asks whether all have."""

    class Turns(AsyncFunction):
        async def async_invoke(self, value: int) -> list[int]:
            for _ in range(value % 7):
                await asyncio.sleep(0)
            return [value]

    for _ in range(200):
        done: list[AsyncCall] = []
        calls = AsyncCalls(Turns(), None, 0, 5, done.append)
        calls.submit([AsyncCall(n, None, Stretch()) for n in range(20)])
        assert len(done) >= 15, "no more than the capacity is open"
        calls.drain()
        assert len(done) == 20 and calls.error is None


# -- mistakes --------------------------------------------------------------------------------------------------------------


class Blocking:
    def async_invoke(self, value: Any) -> list[Any]:
        return [value]


class Yields:
    async def async_invoke(self, value: Any) -> Any:
        yield value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Blocking(), Time.seconds(1)), "declared as 'async def'[\\s\\S]*class Blocking[\\s\\S]*a plain function"),
        ((Yields(), Time.seconds(1)), "declared as 'async def'[\\s\\S]*an async generator"),
        ((Doubles, Time.seconds(1)), "takes an AsyncFunction object"),
        ((lambda v: v, Time.seconds(1)), "takes an AsyncFunction object"),
        ((Doubles(), Time.seconds(1), 0), "capacity of ordered_wait is less than 1[\\s\\S]*found: 0"),
        ((Doubles(), Time.seconds(1), -5), "capacity of ordered_wait is less than 1"),
        ((Doubles(), Time.seconds(1), "many"), "ordered_wait takes"),
        ((Doubles(), 5), "ordered_wait"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, arguments: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        AsyncDataStream.ordered_wait(numbers(environment(tmp_path), 1), *arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FixedDelayRetryStrategy(0, 10, None, None),
            "max_attempts of a FixedDelayRetryStrategy is not above zero",
        ),
        (lambda: FixedDelayRetryStrategy(1, -1, None, None), "backoff_time_millis of a Fixed"),
        (lambda: ExponentialBackoffDelayRetryStrategy(1, 1, 1, 0, None, None), "multiplier of a Exponential"),
    ],
)
def test_strategies_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_retries_need_a_timeout_and_a_strategy(tmp_path: Path) -> None:
    stream, wait = numbers(environment(tmp_path), 1), AsyncDataStream.ordered_wait_with_retry
    with pytest.raises(ValueError, match="Retries need a timeout"):
        wait(stream, Doubles(), Time.milliseconds(0), RETRIES[0])
    with pytest.raises(TypeError, match="takes an AsyncRetryStrategy"):
        wait(stream, Doubles(), Time.milliseconds(10), None)  # type: ignore[arg-type]


class Raises(AsyncFunction):
    async def async_invoke(self, value: int) -> list[int]:
        await asyncio.sleep(0)
        return [10 // (value - 3)]


class ReturnsNone(AsyncFunction):
    async def async_invoke(self, value: int) -> list[int]:
        return None  # type: ignore[return-value]


class ReturnsText(AsyncFunction):
    async def async_invoke(self, value: int) -> list[int]:
        return "results"  # type: ignore[return-value]


class FailsToOpen(AsyncFunction):
    def open(self, runtime_context: Any) -> None:
        raise OSError("no network")

    async def async_invoke(self, value: int) -> list[int]:
        return []


@pytest.mark.parametrize(
    ("function", "messages"),
    [
        (
            Raises(),
            ["ZeroDivisionError", "record 3", "operator 'async wait operator'", f"{__file__}:", "in async_invoke"],
        ),
        (
            ReturnsNone(),
            ["The result of AsyncFunction cannot be none", "None of type NoneType", "operator 'async wait operator'"],
        ),
        (ReturnsText(), ["The result of AsyncFunction should be of list type", "'results' of type str"]),
        (TimesOut(), ["TimeoutError: Async function call has timed out for input: 0", "record 0"]),
        (FailsToOpen(), ["OSError: no network", "open() of operator 'async wait operator'"]),
    ],
)
@pytest.mark.parametrize("wait", WAITS)
def test_a_call_that_goes_wrong_is_named(tmp_path: Path, wait: Any, function: Any, messages: list[str]) -> None:
    with pytest.raises(JobFailedError) as failed:
        list(wait(numbers(environment(tmp_path), 9), function, Time.milliseconds(30)).execute_and_collect())
    for message in messages:
        assert message in str(failed.value.__cause__)


def test_a_failed_round_leaves_no_call_behind(tmp_path: Path) -> None:
    class OneFails(AsyncFunction):
        async def async_invoke(self, value: int) -> list[int]:
            if value == 30:
                raise ValueError("thirty")
            await asyncio.sleep(60 if value < 30 else 0)
            return [value]

    def pending() -> int:
        return sum("OneFails" in repr(task.get_coro()) for task in asyncio.all_tasks(event_loop()))

    stream = AsyncDataStream.unordered_wait(numbers(environment(tmp_path), 40), OneFails(), Time.seconds(100))
    with pytest.raises(JobFailedError):
        list(stream.execute_and_collect())
    for _ in range(3):  # each turn of the loop lets cancelled calls end
        left = in_event_loop(pending)
    assert left == 0
