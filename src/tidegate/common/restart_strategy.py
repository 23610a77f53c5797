"""Restart strategies as objects; each is a set of ``restart-strategy.*`` keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any

from tidegate.base.arguments import expect_int
from tidegate.common.option_types import parse_duration
from tidegate.common.options import (
    EXPONENTIAL_INITIAL,
    EXPONENTIAL_JITTER,
    EXPONENTIAL_MAX,
    EXPONENTIAL_MULTIPLIER,
    EXPONENTIAL_RESET,
    FIXED_ATTEMPTS,
    FIXED_DELAY,
    RATE_DELAY,
    RATE_FAILURES,
    RATE_INTERVAL,
    RESTART_TYPE,
    Option,
)
from tidegate.common.time import Duration, Time

__all__ = ["RestartStrategies", "RestartStrategyConfiguration"]

Span = Duration | Time | timedelta | int
"""A time span; a bare number is milliseconds."""


class RestartStrategyConfiguration(ABC):
    """The argument of ``StreamExecutionEnvironment.set_restart_strategy``."""

    @abstractmethod
    def get_description(self) -> str:
        """Describe the strategy in a few words."""

    @abstractmethod
    def settings(self) -> dict[Option, Any]:
        """Return the options of this strategy; None: not set."""

    def __repr__(self) -> str:
        return self.get_description()


class RestartStrategies:
    """Makes restart strategies."""

    @staticmethod
    def no_restart() -> RestartStrategyConfiguration:
        """Return a strategy without restarts: the first failure fails the job."""
        return RestartStrategies.NoRestartStrategyConfiguration()

    @staticmethod
    def fall_back_restart() -> RestartStrategyConfiguration:
        """Return the strategy of the configuration."""
        return RestartStrategies.FallbackRestartStrategyConfiguration()

    @staticmethod
    def fixed_delay_restart(restart_attempts: int, delay_between_attempts: Span) -> RestartStrategyConfiguration:
        """Return a strategy with a fixed number of restarts, and the same pause before each."""
        return RestartStrategies.FixedDelayRestartStrategyConfiguration(restart_attempts, delay_between_attempts)

    @staticmethod
    def failure_rate_restart(
        failure_rate: int, failure_interval: Span, delay_interval: Span
    ) -> RestartStrategyConfiguration:
        """Return a strategy that restarts while no interval has more failures than ``failure_rate``."""
        return RestartStrategies.FailureRateRestartStrategyConfiguration(failure_rate, failure_interval, delay_interval)

    @staticmethod
    def exponential_delay_restart(
        initial_backoff: Span,
        max_backoff: Span,
        backoff_multiplier: float = 1.5,
        reset_backoff_threshold: Span = 3_600_000,
        jitter_factor: float = 0.1,
    ) -> RestartStrategyConfiguration:
        """Return a strategy with growing pauses, reset after a long enough time without failure."""
        return RestartStrategies.ExponentialDelayRestartStrategyConfiguration(
            initial_backoff, max_backoff, backoff_multiplier, reset_backoff_threshold, jitter_factor
        )

    class NoRestartStrategyConfiguration(RestartStrategyConfiguration):
        """The first failure fails the job."""

        def get_description(self) -> str:
            return "Restart deactivated."

        def settings(self) -> dict[Option, Any]:
            return {RESTART_TYPE: "none"}

    class FallbackRestartStrategyConfiguration(RestartStrategyConfiguration):
        """The strategy of the configuration file."""

        def get_description(self) -> str:
            return "Cluster level default restart strategy"

        def settings(self) -> dict[Option, Any]:
            return {RESTART_TYPE: None}

    class FixedDelayRestartStrategyConfiguration(RestartStrategyConfiguration):
        """A fixed number of restarts, with the same pause before each."""

        def __init__(self, restart_attempts: int, delay_between_attempts_interval: Span) -> None:
            self._attempts = expect_int("fixed_delay_restart", restart_attempts, "for example 3 attempts")
            self._delay = _millis(delay_between_attempts_interval)

        def get_restart_attempts(self) -> int:
            """Return how many restarts there are."""
            return self._attempts

        def get_delay_between_attempts_interval(self) -> timedelta:
            """Return the pause before each restart."""
            return timedelta(milliseconds=self._delay)

        def get_description(self) -> str:
            return f"Restart with fixed delay ({self._delay} ms). #{self._attempts} restart attempts."

        def settings(self) -> dict[Option, Any]:
            return {RESTART_TYPE: "fixed-delay", FIXED_ATTEMPTS: self._attempts, FIXED_DELAY: self._delay}

    class FailureRateRestartStrategyConfiguration(RestartStrategyConfiguration):
        """Restarts until there are too many failures in an interval."""

        def __init__(
            self, max_failure_rate: int, failure_interval: Span, delay_between_attempts_interval: Span
        ) -> None:
            self._rate = expect_int("failure_rate_restart", max_failure_rate, "for example 3 failures")
            self._interval, self._delay = _millis(failure_interval), _millis(delay_between_attempts_interval)

        def get_max_failure_rate(self) -> int:
            """Most failures in an interval."""
            return self._rate

        def get_failure_interval(self) -> timedelta:
            """The interval in which failures are counted."""
            return timedelta(milliseconds=self._interval)

        def get_delay_between_attempts_interval(self) -> timedelta:
            """Return the pause before each restart."""
            return timedelta(milliseconds=self._delay)

        def get_description(self) -> str:
            return (
                f"Failure rate restart with maximum of {self._rate} failures within interval {self._interval} ms"
                f" and fixed delay {self._delay} ms."
            )

        def settings(self) -> dict[Option, Any]:
            return {
                RESTART_TYPE: "failure-rate",
                RATE_FAILURES: self._rate,
                RATE_INTERVAL: self._interval,
                RATE_DELAY: self._delay,
            }

    class ExponentialDelayRestartStrategyConfiguration(RestartStrategyConfiguration):
        """Pauses that grow from failure to failure."""

        def __init__(
            self,
            initial_backoff: Span,
            max_backoff: Span,
            backoff_multiplier: float,
            reset_backoff_threshold: Span,
            jitter_factor: float,
        ) -> None:
            self._initial, self._most = _millis(initial_backoff), _millis(max_backoff)
            self._multiplier, self._jitter = backoff_multiplier, jitter_factor
            self._reset = _millis(reset_backoff_threshold)

        def get_description(self) -> str:
            return (
                f"Restart with exponential delay: starting at {self._initial} ms, increasing by {self._multiplier},"
                f" with maximum {self._most} ms. Delay resets after {self._reset} ms with jitter {self._jitter}"
            )

        def settings(self) -> dict[Option, Any]:
            return {
                RESTART_TYPE: "exponential-delay",
                EXPONENTIAL_INITIAL: self._initial,
                EXPONENTIAL_MAX: self._most,
                EXPONENTIAL_MULTIPLIER: self._multiplier,
                EXPONENTIAL_RESET: self._reset,
                EXPONENTIAL_JITTER: self._jitter,
            }


def _millis(span: Span) -> int:
    return parse_duration(span)
