"""When a file sink finishes a part file and begins another."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.base.errors import ConfigurationError


@dataclass(frozen=True)
class PartInfo:
    """What a policy decides on."""

    bucket: str
    size: int
    created_ms: int
    updated_ms: int


class RollingPolicy:
    """Subclass it for a rule of your own. Time is the time the round started; the end of input finishes every part."""

    def should_roll_on_event(self, part: PartInfo) -> bool:
        """Asked before a record is added."""
        return False

    def should_roll_on_checkpoint(self, part: PartInfo) -> bool:
        """Asked in rounds that carry a checkpoint's barrier."""
        return False

    def should_roll_on_processing_time(self, part: PartInfo, now_ms: int) -> bool:
        """Asked at the end of every round."""
        return False

    def free_bytes(self, size: int) -> int:
        """Bytes that may be added to a part of this size before ``should_roll_on_event`` can say yes: writing whole
        batches is much faster than asking for each record. 0: always ask."""
        return 0

    @staticmethod
    def default_rolling_policy(
        part_size: int = 1024 * 1024 * 128, rollover_interval: int = 60 * 1000, inactivity_interval: int = 60 * 1000
    ) -> DefaultRollingPolicy:
        """Rolls a part above ``part_size`` bytes, open for ``rollover_interval`` ms, or not written to for
        ``inactivity_interval`` ms.
        """
        return DefaultRollingPolicy(part_size, rollover_interval, inactivity_interval)

    @staticmethod
    def on_checkpoint_rolling_policy() -> OnCheckpointRollingPolicy:
        """Rolls on every checkpoint and only then."""
        return OnCheckpointRollingPolicy()


class DefaultRollingPolicy(RollingPolicy):
    """A new file by size, age or idleness."""

    def __init__(self, part_size: int, rollover_interval: int, inactivity_interval: int) -> None:
        limits = {
            "part_size": part_size,
            "rollover_interval": rollover_interval,
            "inactivity_interval": inactivity_interval,
        }
        for name, value in limits.items():
            if value <= 0:
                raise ConfigurationError(
                    f"{name} must be above zero", where="RollingPolicy.default_rolling_policy", found=str(value)
                )
        self._part_size, self._rollover_ms, self._inactivity_ms = part_size, rollover_interval, inactivity_interval

    def should_roll_on_event(self, part: PartInfo) -> bool:
        return part.size > self._part_size

    def should_roll_on_checkpoint(self, part: PartInfo) -> bool:
        return part.size > self._part_size

    def should_roll_on_processing_time(self, part: PartInfo, now_ms: int) -> bool:
        return now_ms - part.created_ms >= self._rollover_ms or now_ms - part.updated_ms >= self._inactivity_ms

    def free_bytes(self, size: int) -> int:
        return max(0, self._part_size - size)


class OnCheckpointRollingPolicy(RollingPolicy):
    """A new file with every checkpoint."""

    def should_roll_on_checkpoint(self, part: PartInfo) -> bool:
        return True

    def free_bytes(self, size: int) -> int:
        return 1 << 62
