"""Rolling policies: they decide when a file sink finishes a part file and begins another."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.base.errors import ConfigurationError


@dataclass(frozen=True)
class PartInfo:
    """The facts that a policy decides on."""

    bucket: str
    size: int
    created_ms: int
    updated_ms: int


class RollingPolicy:
    """Extend it for a rule of your own. Time is the start of the round. The end of input finishes every part."""

    def should_roll_on_event(self, part: PartInfo) -> bool:
        """Called before a record is added."""
        return False

    def should_roll_on_checkpoint(self, part: PartInfo) -> bool:
        """Called in rounds that carry the barrier of a checkpoint."""
        return False

    def should_roll_on_processing_time(self, part: PartInfo, now_ms: int) -> bool:
        """Called at the end of every round."""
        return False

    def free_bytes(self, size: int) -> int:
        """Return how many bytes may be added to a part of this size before ``should_roll_on_event`` can return True.

        Writing whole batches is much faster than a call for each record. 0: always call.
        """
        return 0

    @staticmethod
    def default_rolling_policy(
        part_size: int = 1024 * 1024 * 128, rollover_interval: int = 60 * 1000, inactivity_interval: int = 60 * 1000
    ) -> DefaultRollingPolicy:
        """Finish a part above ``part_size`` bytes, after ``rollover_interval`` ms, or after ``inactivity_interval`` ms without a
        record.
        """
        return DefaultRollingPolicy(part_size, rollover_interval, inactivity_interval)

    @staticmethod
    def on_checkpoint_rolling_policy() -> OnCheckpointRollingPolicy:
        """Finish parts with every checkpoint, and only then."""
        return OnCheckpointRollingPolicy()


class DefaultRollingPolicy(RollingPolicy):
    """Begin a new file by size, age or idleness."""

    def __init__(self, part_size: int, rollover_interval: int, inactivity_interval: int) -> None:
        limits = {
            "part_size": part_size,
            "rollover_interval": rollover_interval,
            "inactivity_interval": inactivity_interval,
        }
        for name, value in limits.items():
            if value <= 0:
                raise ConfigurationError(
                    f"{name} of a rolling policy is not above zero",
                    where="RollingPolicy.default_rolling_policy",
                    found=str(value),
                    cure="pass 1 or more",
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
    """Begin a new file with every checkpoint."""

    def should_roll_on_checkpoint(self, part: PartInfo) -> bool:
        return True

    def free_bytes(self, size: int) -> int:
        return 1 << 62
