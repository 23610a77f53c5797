"""Restart strategies (C18), which decide whether and when a failed job restarts from its latest checkpoint."""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tidegate.base.errors import ConfigurationError, RoundError, TidegateError, UserCodeError
from tidegate.base.plain_text import count
from tidegate.base.portable_errors import kinds_of, with_causes
from tidegate.base.user_code import users_line
from tidegate.common import options

PREFIX = "restart-strategy."
UNLIMITED: int = options.EXPONENTIAL_ATTEMPTS.default

N = TypeVar("N", int, float)


class RestartStrategy(ABC):
    """Decide about a restart, once for each failure of the job, in order. The counts live as long as the driver, not longer.

    ``tolerates``: the number of failures that the user has configured; 0 if the strategy has no such number.
    """

    tolerates = 0

    def next_delay_ms(self, failure: BaseException, now_ms: float) -> int | None:
        """Return how long to wait before the restart; None: do not restart, the job has failed.

        If the error says that a restart cannot help, the job is not restarted, whatever the strategy.
        """
        if isinstance(failure, TidegateError) and not failure.restart_helps:
            return None
        return self._delay(now_ms)

    @abstractmethod
    def _delay(self, now_ms: float) -> int | None: ...

    @abstractmethod
    def __str__(self) -> str:
        """Describe the strategy, for logs and for the error of a job that has failed for good."""


class NoRestart(RestartStrategy):
    def _delay(self, now_ms: float) -> int | None:
        return None

    def __str__(self) -> str:
        return "no restart"


class FixedDelayRestart(RestartStrategy):
    """Allow a total number of restarts, with the same delay before each."""

    def __init__(
        self, attempts: int = options.FIXED_ATTEMPTS.default, delay_ms: int = options.FIXED_DELAY.default
    ) -> None:
        self._attempts = _at_least("fixed-delay.attempts", attempts, 0)
        self._delay_ms = _at_least("fixed-delay.delay", delay_ms, 0)
        self.tolerates = _named(attempts)
        self._used = 0

    def _delay(self, now_ms: float) -> int | None:
        if self._used >= self._attempts:
            return None
        self._used += 1
        return self._delay_ms

    def __str__(self) -> str:
        return f"fixed delay of {self._delay_ms} ms, {self._used} of {count(self._attempts, 'restart')} used"


class ExponentialDelayRestart(RestartStrategy):
    """Wait longer after every failure, with a random share. The delay is reset after a time without failures."""

    def __init__(
        self,
        *,
        initial_ms: int = options.EXPONENTIAL_INITIAL.default,
        maximum_ms: int = options.EXPONENTIAL_MAX.default,
        multiplier: float = options.EXPONENTIAL_MULTIPLIER.default,
        reset_threshold_ms: int = options.EXPONENTIAL_RESET.default,
        jitter: float = options.EXPONENTIAL_JITTER.default,
        attempts: int = UNLIMITED,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._initial = _at_least("exponential-delay.initial-backoff", initial_ms, 1)
        self._maximum = _at_least("exponential-delay.max-backoff", maximum_ms, initial_ms)
        self._multiplier = _at_least("exponential-delay.backoff-multiplier", multiplier, 1)
        self._threshold = _at_least("exponential-delay.reset-backoff-threshold", reset_threshold_ms, 1)
        self._jitter = _between("exponential-delay.jitter-factor", jitter, 0, 1)
        self._attempts = _at_least("exponential-delay.attempts-before-reset-backoff", attempts, 1)
        self.tolerates = _named(attempts)
        self._uniform = uniform
        self._used = 0
        self._current: float = self._initial
        self._running_since = float("-inf")

    def _delay(self, now_ms: float) -> int | None:
        # The time without a failure counts from the end of the last delay: waiting is no proof of health.
        if now_ms - self._running_since >= self._threshold:
            self._used, self._current = 0, self._initial
        if self._used >= self._attempts:
            return None
        self._used += 1
        share = self._current * self._jitter
        delay = round(min(self._current + self._uniform(-share, share), self._maximum))
        self._current = min(self._current * self._multiplier, self._maximum)
        self._running_since = now_ms + delay
        return delay

    def __str__(self) -> str:
        limit = "" if self._attempts == UNLIMITED else f" of {self._attempts}"
        return f"exponential delay up to {self._maximum} ms, {self._used}{limit} restarts since the last quiet time"


class FailureRateRestart(RestartStrategy):
    """Tolerate a number of failures within an interval. The next failure is final."""

    def __init__(
        self,
        max_failures: int = options.RATE_FAILURES.default,
        interval_ms: int = options.RATE_INTERVAL.default,
        delay_ms: int = options.RATE_DELAY.default,
    ) -> None:
        self._maximum = self.tolerates = _at_least("failure-rate.max-failures-per-interval", max_failures, 1)
        self._interval = _at_least("failure-rate.failure-rate-interval", interval_ms, 1)
        self._delay_ms = _at_least("failure-rate.delay", delay_ms, 0)
        self._failures: deque[float] = deque()

    def _delay(self, now_ms: float) -> int | None:
        while self._failures and now_ms - self._failures[0] > self._interval:
            self._failures.popleft()
        self._failures.append(now_ms)
        return self._delay_ms if len(self._failures) <= self._maximum else None

    def __str__(self) -> str:
        seen = len(self._failures)
        return f"failure rate, {count(seen, 'failure')} within {self._interval} ms, {self._maximum} tolerated"


class SameFailures:
    """Count failures that repeat after a restart: the same error at the same place, and no checkpoint completed in between.

    Two kinds count: a failure of user code, and an error of Spark or its workers while no round has ever succeeded. An outage of
    another system does not count, nor an error that hides an outage. The restart strategy has to survive outages.
    """

    def __init__(self, limit: int) -> None:
        """Create the counter. ``limit`` of 0 or less: no limit."""
        self.limit = limit
        self._checkpoints = 0
        self._counts: dict[tuple[str, ...], int] = {}
        self._last: tuple[str, ...] = ()

    @staticmethod
    def of(configuration: Mapping[str, Any], strategy: RestartStrategy) -> SameFailures:
        limit = configuration.get(options.SAME_FAILURE_LIMIT.key)
        return SameFailures(max(_FEW, strategy.tolerates + 1) if limit is None else limit)

    def add(self, failure: Exception, *, checkpoints: int, rounds: int) -> int:
        """Return how often this failure has happened; 0: it does not count. ``checkpoints``: the number completed since the
        driver's start. ``rounds``: the number accepted since the driver's start."""
        if checkpoints != self._checkpoints or len(self._counts) >= _MOST_KEPT:
            self._checkpoints, self._counts = checkpoints, {}
        identity = _identity(failure, rounds) if self.limit > 0 else None
        if identity is None:
            return 0
        self._counts[identity] = self._counts.get(identity, 0) + 1
        return self._counts[identity]

    def is_final(self, times: int) -> bool:
        return 0 < self.limit <= times

    def repeats(self, failure: Exception) -> bool:
        """Whether the previous failure was the same, so that the log already contains its traceback."""
        before, self._last = self._last, _what_failed(failure)
        return before == self._last


_FEW = 3
_MOST_KEPT = 100
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"\d+")
_OUTAGE = re.compile(
    r"connect|timeout|timedout|available|network|http|operationalerror|interfaceerror|rpcerror|kafka|clienterror|throttl"
    r"|toomanyrequests|serviceerror|storageerror|ratelimit|servererror|apierror|clusterdown|busy|retry",
    re.IGNORECASE,
)
"""Parts of names of exceptions that mean an outage: many clients of databases and services raise errors that are no OSError."""
_WRONG_PATHS = {
    "FileNotFoundError",
    "FileExistsError",
    "IsADirectoryError",
    "NotADirectoryError",
    "PermissionError",
}
_LOST = re.compile(r"ExecutorLostFailure|FetchFailed|Lost task|lost executor|decommission", re.IGNORECASE)
"""Spark's texts for lost hosts or executors: the next start may find other ones."""


def _identity(failure: Exception, rounds: int) -> tuple[str, ...] | None:
    """Return what identifies the failure; None: the failure does not count."""
    if is_outage(failure):
        return None
    if isinstance(failure, RoundError):
        found = failure.found or ""
        counts = rounds == 0 and not _OUTAGE.search(found.partition(":")[0]) and not _LOST.search(found)
    elif isinstance(failure, TidegateError):
        counts = isinstance(failure, UserCodeError)
    else:
        counts = users_line(failure) is not None  # a source's enumerator runs on the driver
    return _what_failed(failure) if counts else None


def _what_failed(failure: Exception) -> tuple[str, ...]:
    """Return a value that is the same for the same failure in any attempt."""
    kind = type(failure).__name__
    if isinstance(failure, UserCodeError):
        return kind, failure.where or "", _ADDRESS.sub("0x", failure.found or "")
    if isinstance(failure, TidegateError):  # contains numbers of rounds, checkpoints, hosts and tasks, which change
        return kind, failure.rule, _NUMBER.sub("#", failure.found or "")
    return kind, users_line(failure) or "", _ADDRESS.sub("0x", str(failure))


def is_outage(failure: Exception) -> bool:
    """Whether another system did not answer, judged by the error or by one of its causes."""
    every = [kinds_of(cause) for cause, _ in with_causes(failure) if not isinstance(cause, TidegateError)]
    return any(
        ("OSError" in kinds and _WRONG_PATHS.isdisjoint(kinds)) or any(map(_OUTAGE.search, kinds)) for kinds in every
    )


def from_configuration(configuration: Mapping[str, Any], checkpointing_enabled: bool) -> RestartStrategy:
    """Make the strategy from Flink's keys with typed values (times as milliseconds).

    Without ``restart-strategy.type``, a job with checkpoints has exponential delay, a job without checkpoints has no restart.
    """
    name = configuration.get(PREFIX + "type") or configuration.get("restart-strategy")
    if name is None:
        name = "exponential-delay" if checkpointing_enabled else "none"
    kind = str(name).strip().lower().replace("_", "-").replace(" ", "-")
    kind = _ALIASES.get(kind, kind)
    if kind == "none":
        return NoRestart()
    if kind not in _OPTIONS:
        raise ConfigurationError(
            "restart-strategy.type is not a known strategy.",
            found=repr(name),
            cure="use one of none, fixed-delay, exponential-delay, failure-rate",
        )
    strategy, options = _OPTIONS[kind]
    keys = {field: f"{PREFIX}{kind}.{key}" for field, key in options.items()}
    return strategy(**{field: configuration[key] for field, key in keys.items() if configuration.get(key) is not None})


_ALIASES = {
    "off": "none",
    "disable": "none",
    "disabled": "none",
    "false": "none",
    "fixeddelay": "fixed-delay",
    "exponentialdelay": "exponential-delay",
    "failurerate": "failure-rate",
}

_OPTIONS: dict[str, tuple[Callable[..., RestartStrategy], dict[str, str]]] = {
    "fixed-delay": (FixedDelayRestart, {"attempts": "attempts", "delay_ms": "delay"}),
    "exponential-delay": (
        ExponentialDelayRestart,
        {
            "initial_ms": "initial-backoff",
            "maximum_ms": "max-backoff",
            "multiplier": "backoff-multiplier",
            "reset_threshold_ms": "reset-backoff-threshold",
            "jitter": "jitter-factor",
            "attempts": "attempts-before-reset-backoff",
        },
    ),
    "failure-rate": (
        FailureRateRestart,
        {"max_failures": "max-failures-per-interval", "interval_ms": "failure-rate-interval", "delay_ms": "delay"},
    ),
}


def _named(attempts: int) -> int:
    """Return the configured number, or 0 for an unlimited number, which Flink writes as the greatest int."""
    return attempts if attempts < UNLIMITED else 0


def _at_least(key: str, value: N, minimum: float) -> N:
    return _between(key, value, minimum, None)


def _between(key: str, value: N, minimum: float, maximum: float | None) -> N:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value < minimum or (maximum is not None and value > maximum):
        rule = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
        raise ConfigurationError(f"{PREFIX}{key} must be {rule}.", found=repr(value), cure=f"correct {PREFIX}{key}")
    return value
