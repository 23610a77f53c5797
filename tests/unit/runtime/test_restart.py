"""Restart strategies: when, how often, and never where it cannot help."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.base.errors import ConfigurationError, CorruptFileError, RoundError
from tidegate.runtime.restart import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategy,
    from_configuration,
)

FAILURE = RoundError("a round failed")


def delays(strategy: RestartStrategy, *times: float) -> list[int | None]:
    return [strategy.next_delay_ms(FAILURE, now) for now in times]


def test_no_restart() -> None:
    assert delays(NoRestart(), 0) == [None]


def test_fixed_delay() -> None:
    strategy = FixedDelayRestart(attempts=2, delay_ms=500)
    assert delays(strategy, 0, 1_000_000, 2_000_000) == [500, 500, None]
    assert str(strategy) == "fixed delay of 500 ms, 2 of 2 restarts used"


def test_exponential_delay_grows_to_its_maximum() -> None:
    strategy = ExponentialDelayRestart(initial_ms=100, maximum_ms=500, multiplier=2, jitter=0)
    assert delays(strategy, 0, 1, 2, 3, 4) == [100, 200, 400, 500, 500]


def test_exponential_delay_with_jitter_stays_around_the_delay_and_below_the_maximum() -> None:
    up = ExponentialDelayRestart(
        initial_ms=100, maximum_ms=150, multiplier=2, jitter=0.1, uniform=lambda low, high: high
    )
    assert delays(up, 0, 1) == [110, 150]
    down = ExponentialDelayRestart(initial_ms=100, multiplier=2, jitter=0.1, uniform=lambda low, high: low)
    assert delays(down, 0, 1) == [90, 180]


def test_exponential_delay_begins_anew_after_a_quiet_time() -> None:
    strategy = ExponentialDelayRestart(initial_ms=100, multiplier=2, jitter=0, reset_threshold_ms=1000, attempts=2)
    # The quiet time counts from the end of the delay: 0 + 100 ms.
    assert delays(strategy, 0, 1099, 1300, 2299, 2301) == [100, 200, None, 100, 200]


def test_failure_rate() -> None:
    strategy = FailureRateRestart(max_failures=2, interval_ms=1000, delay_ms=10)
    assert delays(strategy, 0, 500, 1001, 1400) == [10, 10, 10, None]


def test_what_a_restart_cannot_help_is_not_restarted() -> None:
    strategy = FixedDelayRestart(attempts=1)
    assert strategy.next_delay_ms(CorruptFileError("torn"), 0) is None
    assert strategy.next_delay_ms(ValueError("of a library"), 0) == 1000


def test_defaults() -> None:
    assert isinstance(from_configuration({}, checkpointing_enabled=True), ExponentialDelayRestart)
    assert isinstance(from_configuration({}, checkpointing_enabled=False), NoRestart)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", NoRestart),
        ("off", NoRestart),
        ("disable", NoRestart),
        ("fixed-delay", FixedDelayRestart),
        ("fixeddelay", FixedDelayRestart),
        ("EXPONENTIAL_DELAY", ExponentialDelayRestart),
        ("failure-rate", FailureRateRestart),
    ],
)
def test_names_of_flink(name: str, expected: type[RestartStrategy]) -> None:
    assert isinstance(from_configuration({"restart-strategy.type": name}, True), expected)
    assert isinstance(from_configuration({"restart-strategy": name}, True), expected)


def test_options_of_flink() -> None:
    fixed = {"restart-strategy.fixed-delay.attempts": 1, "restart-strategy.fixed-delay.delay": 7}
    assert delays(from_configuration({"restart-strategy.type": "fixed-delay", **fixed}, True), 0, 0) == [7, None]
    rate = {
        "restart-strategy.failure-rate.max-failures-per-interval": 1,
        "restart-strategy.failure-rate.failure-rate-interval": 10,
        "restart-strategy.failure-rate.delay": 3,
    }
    assert delays(from_configuration({"restart-strategy.type": "failure-rate", **rate}, True), 0, 5) == [3, None]
    exponential = {
        "restart-strategy.exponential-delay.initial-backoff": 10,
        "restart-strategy.exponential-delay.max-backoff": 25,
        "restart-strategy.exponential-delay.backoff-multiplier": 2.0,
        "restart-strategy.exponential-delay.reset-backoff-threshold": 1000,
        "restart-strategy.exponential-delay.jitter-factor": 0.0,
        "restart-strategy.exponential-delay.attempts-before-reset-backoff": 3,
    }
    assert delays(from_configuration(exponential, True), 0, 1, 2, 3) == [10, 20, 25, None]


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"restart-strategy.type": "always"}, "is not a known strategy"),
        (
            {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": -1},
            "attempts must be at least 0",
        ),
        ({"restart-strategy.exponential-delay.jitter-factor": 1.5}, "jitter-factor must be between 0 and 1"),
        ({"restart-strategy.exponential-delay.max-backoff": 5}, "max-backoff must be at least 1000"),
        ({"restart-strategy.exponential-delay.backoff-multiplier": "2"}, "backoff-multiplier must be at least 1"),
    ],
)
def test_bad_options(configuration: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        from_configuration(configuration, True)
    assert caught.value.found
    assert caught.value.cure
