"""The user's rules for checkpoints, and the counters for them: when the next checkpoint is due, how many may fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidegate.base.errors import CheckpointError, ConfigurationError
from tidegate.checkpoint.checkpoint import CheckpointFailureReason
from tidegate.common import options

PREFIX = "execution.checkpointing."
MINIMUM_MS = 10


class Retention(Enum):
    """What happens to completed checkpoints when the job is cancelled. A failed job always keeps them."""

    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"
    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"


_DEFAULT_RETENTION = Retention(options.CHECKPOINT_RETENTION.default)


@dataclass(frozen=True)
class CheckpointPolicy:
    """Checked when made: a policy that exists is valid. All times in milliseconds."""

    interval_ms: int
    timeout_ms: int = options.CHECKPOINT_TIMEOUT.default
    min_pause_ms: int = options.CHECKPOINT_MIN_PAUSE.default
    max_concurrent: int = options.CHECKPOINT_CONCURRENT.default
    tolerable_failures: int = options.CHECKPOINT_TOLERABLE.default
    retained: int = options.CHECKPOINT_RETAINED.default
    retention: Retention = _DEFAULT_RETENTION
    max_state_bytes: int | None = None
    """The limit for one subtask of an operator, if checkpoints are stored in memory."""
    at_least_once: bool = False
    """Whether output is committed with its round, and does not wait for a checkpoint."""
    unaligned: bool = False
    """Whether records in flight may be part of a checkpoint, after ``aligned_timeout_ms``."""
    aligned_timeout_ms: int = options.ALIGNED_TIMEOUT.default
    after_finish: bool = True
    """Whether checkpoints continue after some sources have ended, with a last checkpoint after all have ended."""

    def __post_init__(self) -> None:
        _at_least("interval", self.interval_ms, MINIMUM_MS, " ms")
        _at_least("timeout", self.timeout_ms, MINIMUM_MS, " ms")
        _at_least("min-pause", self.min_pause_ms, 0, " ms")
        _at_least("max-concurrent-checkpoints", self.max_concurrent, 1)
        _at_least("tolerable-failed-checkpoints", self.tolerable_failures, 0)
        _at_least("num-retained", self.retained, 1)
        _at_least("aligned-checkpoint-timeout", self.aligned_timeout_ms, 0, " ms")

    @property
    def concurrency(self) -> int:
        """How many checkpoints may be under way. With a pause between two, only one."""
        return 1 if self.min_pause_ms > 0 else self.max_concurrent

    @staticmethod
    def from_configuration(configuration: Mapping[str, Any]) -> CheckpointPolicy | None:
        """Make the policy from Flink's keys with typed values (times as milliseconds). None: checkpointing is off."""
        interval = configuration.get(PREFIX + "interval")
        if interval is None:
            return None
        given = {
            field: configuration[PREFIX + key]
            for field, key in _KEYS.items()
            if configuration.get(PREFIX + key) is not None
        }
        retention = configuration.get(PREFIX + "externalized-checkpoint-retention")
        if retention is not None:
            given["retention"] = _retention(retention)
        if configuration.get(PREFIX + "storage") == "jobmanager":
            given["max_state_bytes"] = configuration.get(options.MAX_STATE_SIZE.key) or options.MAX_STATE_SIZE.default
        given["at_least_once"] = configuration.get(PREFIX + "mode") == "AT_LEAST_ONCE"
        given["after_finish"] = configuration.get(options.CHECKPOINT_AFTER_FINISH.key) is not False
        return CheckpointPolicy(interval_ms=interval, **given)


_KEYS = {
    "timeout_ms": "timeout",
    "min_pause_ms": "min-pause",
    "max_concurrent": "max-concurrent-checkpoints",
    "tolerable_failures": "tolerable-failed-checkpoints",
    "retained": "num-retained",
    "unaligned": "unaligned.enabled",
    "aligned_timeout_ms": "aligned-checkpoint-timeout",
}


def _at_least(key: str, value: Any, minimum: int, unit: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigurationError(
            f"{PREFIX}{key} must be at least {minimum}{unit}.",
            found=f"{value!r}{unit if isinstance(value, int) else ''}",
            cure=f"set {PREFIX}{key} to {minimum}{unit} or more",
        )


def _retention(value: object) -> Retention:
    if isinstance(value, Retention):
        return value
    name = str(getattr(value, "name", value)).strip().upper().replace("-", "_")
    if name not in Retention.__members__:
        raise ConfigurationError(
            f"{PREFIX}externalized-checkpoint-retention is not one of Flink's names.",
            found=repr(value),
            cure=f"use one of {', '.join(Retention.__members__)}",
        )
    return Retention[name]


class CheckpointTrigger:
    """Decides when a checkpoint is due: interval since the last trigger, pause since the last end, room for one more. All times
    are on one monotonic clock."""

    def __init__(self, policy: CheckpointPolicy, now_ms: float) -> None:
        self._policy = policy
        self.under_way = 0
        self._interval_over = now_ms + policy.interval_ms
        self._pause_over = now_ms + policy.min_pause_ms

    def due(self, now_ms: float, early_ms: float = 0.0) -> bool:
        """Whether a checkpoint is due. ``early_ms``: how much before its time it may start; the pause is never shortened."""
        next_due = self.next_due()
        return next_due is not None and now_ms >= max(next_due - early_ms, self._pause_over)

    def late(self, now_ms: float, early_ms: float = 0.0) -> bool:
        """Whether a checkpoint would be due at once if there were room for it."""
        has_room = self.next_due() is not None
        return not has_room and self._policy.min_pause_ms == 0 and now_ms >= self._interval_over - early_ms

    def next_due(self) -> float | None:
        """Return the time of the next trigger; None while the next checkpoint has to wait for the end of another."""
        if self.under_way >= self._policy.concurrency:
            return None
        return max(self._interval_over, self._pause_over)

    def expected(self, now_ms: float) -> float:
        """Return when the next checkpoint will be due. A late checkpoint under way may take long: nothing hurries because of it."""
        policy = self._policy
        room = now_ms + max(policy.min_pause_ms, policy.interval_ms / 2) if self.under_way else self._pause_over
        return max(self._interval_over, room)

    def started(self, now_ms: float) -> None:
        """Count a checkpoint as under way, triggered by time or by request."""
        self.under_way += 1
        self._interval_over = now_ms + self._policy.interval_ms

    def ended(self, now_ms: float) -> None:
        """Count a checkpoint as ended, completed or aborted: the pause follows a failed checkpoint too."""
        self.under_way = max(0, self.under_way - 1)
        self._pause_over = now_ms + self._policy.min_pause_ms


class FailureCounter:
    """Counts consecutive failures. More failures than tolerated raise ``CheckpointError``, which a restart may help."""

    def __init__(self, tolerable: int) -> None:
        self._tolerable = tolerable
        self.consecutive = 0

    @property
    def tolerated(self) -> int:
        """How many more checkpoints in a row may fail."""
        return self._tolerable - self.consecutive

    def completed(self) -> None:
        self.consecutive = 0

    def use_up(self) -> None:
        """Count all tolerated failures as used: the next failure fails the job."""
        self.consecutive = max(self.consecutive, self._tolerable)

    def failed(self, checkpoint_id: int, reason: CheckpointFailureReason, message: str) -> None:
        if not reason.counts:
            return
        self.consecutive += 1
        if self.consecutive > self._tolerable:
            raise CheckpointError(
                f"At most {self._tolerable} checkpoints in a row may fail.",
                where=f"checkpoint {checkpoint_id}" if checkpoint_id else "no checkpoint was under way",
                found=f"{self.consecutive} failed; the last: {reason.text}: {message}",
                cure="fix the cause, or raise execution.checkpointing.tolerable-failed-checkpoints",
            )
