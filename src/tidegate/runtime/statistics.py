"""What a round did, for listeners, faces and the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RoundStatistics:
    """An accepted round."""

    round: int
    checkpoint_id: int | None
    started_ms: int
    seconds: float
    records_in: int
    """Records the sources read."""
    records_out: int
    """Records that crossed an edge."""
    commit_seconds: float
    """How long the checkpoint lane has stored, committed and cleaned up since the round before: beside rounds, not between them."""

    @property
    def records_per_second(self) -> float:
        """What the sources read, by the time of the round."""
        return self.records_in / self.seconds if self.seconds > 0 else 0.0


Listener = Callable[[RoundStatistics], None]
