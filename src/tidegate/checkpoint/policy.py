"""The rules of checkpointing that the user sets: how often, how long, how many, what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidegate.base.errors import ConfigurationError
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
    """Of a subtask of an operator, where checkpoints are kept in memory."""
    at_least_once: bool = False
    """Output is committed with its round, and does not wait for a checkpoint."""
    unaligned: bool = False
    """Records in flight may be part of a checkpoint, after so long: ``aligned_timeout_ms``."""
    aligned_timeout_ms: int = options.ALIGNED_TIMEOUT.default
    after_finish: bool = True
    """Checkpoints are taken also when sources have ended, and a last one when all have."""

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
        """How many checkpoints may be under way: a pause between two leaves room for one only."""
        return 1 if self.min_pause_ms > 0 else self.max_concurrent

    @staticmethod
    def from_configuration(configuration: Mapping[str, Any]) -> CheckpointPolicy | None:
        """From Flink's keys with typed values (times as milliseconds). None: checkpointing is off."""
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
            f"{PREFIX}externalized-checkpoint-retention must be one of Flink's names.",
            found=repr(value),
            cure=f"use one of {', '.join(Retention.__members__)}",
        )
    return Retention[name]
