"""When to trigger the next checkpoint."""

from __future__ import annotations

from tidegate.checkpoint.policy import CheckpointPolicy


class CheckpointTrigger:
    """Interval since the last trigger, pause since the last end, room for one more. All on one monotonic clock."""

    def __init__(self, policy: CheckpointPolicy, now_ms: float) -> None:
        self._policy = policy
        self._under_way = 0
        self._interval_over = now_ms + policy.interval_ms
        self._pause_over = now_ms + policy.min_pause_ms

    def due(self, now_ms: float, early_ms: float = 0.0) -> bool:
        """``early_ms``: how much earlier than its beat a checkpoint may start; the pause holds in full."""
        next_due = self.next_due()
        return next_due is not None and now_ms >= max(next_due - early_ms, self._pause_over)

    def late(self, now_ms: float, early_ms: float = 0.0) -> bool:
        """Whether one would be due at once if there were room for it."""
        has_room = self.next_due() is not None
        return not has_room and self._policy.min_pause_ms == 0 and now_ms >= self._interval_over - early_ms

    def next_due(self) -> float | None:
        """The time of the next trigger; None while nothing more may start until one has ended."""
        if self._under_way >= self._policy.concurrency:
            return None
        return max(self._interval_over, self._pause_over)

    def expected(self, now_ms: float) -> float:
        """When the next one will be due. One that is under way and late may take long: nothing is to be hurried for its sake."""
        policy = self._policy
        room = now_ms + max(policy.min_pause_ms, policy.interval_ms / 2) if self._under_way else self._pause_over
        return max(self._interval_over, room)

    def started(self, now_ms: float) -> None:
        """Count a checkpoint in, triggered by time or by request."""
        self._under_way += 1
        self._interval_over = now_ms + self._policy.interval_ms

    def ended(self, now_ms: float) -> None:
        """Count one out, completed or aborted: a failed one needs its pause too."""
        self._under_way = max(0, self._under_way - 1)
        self._pause_over = now_ms + self._policy.min_pause_ms
