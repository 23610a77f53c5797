"""The receiving end of channels: chunks in order, exactly one barrier each, the combined watermark."""

from __future__ import annotations

from tidegate.common.errors import RoundError
from tidegate.operators.rows import BARRIER, MIN_WATERMARK, Barrier, Row, Status
from tidegate.operators.watermarks import ChannelWatermarks

Channel = tuple[int, int]
"""Edge id, sending subtask."""


class ChannelInput:
    """All channels of one chain's subtask in one round.

    Spark does not promise an order of shuffled rows, so chunks are numbered and held back until their turn. Two barriers on one
    channel, none, or chunks beyond the barrier's count mean that rows of different attempts were mixed: the round fails.
    """

    def __init__(self, statuses: dict[Channel, Status], before: int = MIN_WATERMARK) -> None:
        self.watermarks = ChannelWatermarks(statuses, before)
        self.tokens: dict[Channel, str] = {}
        self.failed = False
        self._next = dict.fromkeys(statuses, 0)
        self._held: dict[Channel, dict[int, Row]] = {}
        self._unfinished = len(statuses)
        self._closed: set[Channel] = set()

    def ready(self, row: Row) -> list[Row]:
        """The rows that can be processed now that this one is here, in channel order."""
        channel, number = (row[3], row[4]), row[5]
        if channel not in self._next:
            raise RoundError("A row came from a channel that does not exist", found=f"edge {row[3]}, subtask {row[4]}")
        if number != self._next[channel]:
            held = self._held.setdefault(channel, {})
            if number in held or number < self._next[channel] or channel in self._closed:
                raise self._mixed(channel)
            held[number] = row
            return []
        rows = [row]
        self._pass(channel, row)
        held = self._held.get(channel, {})
        while self._next[channel] in held and channel not in self._closed:
            following = held.pop(self._next[channel])
            rows.append(following)
            self._pass(channel, following)
        return rows

    def _pass(self, channel: Channel, row: Row) -> None:
        if channel in self._closed:
            raise self._mixed(channel)
        if row[2] == BARRIER:
            barrier: Barrier = row[7]
            self._closed.add(channel)
            self.tokens[channel] = barrier.token
            self.failed |= barrier.failed
            self._unfinished -= barrier.finished
        else:
            self._next[channel] += 1

    def check_complete(self, chain: str) -> None:
        """Step 4, align: raise unless every channel has had its barrier and nothing is left over."""
        missing = sorted(set(self._next) - self._closed)
        if missing or any(self._held.values()):
            raise RoundError(
                "A subtask must see exactly one barrier on every channel",
                where=f"chain '{chain}'",
                found=f"no barrier from (edge, subtask) {missing}" if missing else "chunks behind a barrier",
                cure="the round is run again; if it repeats, this is a bug in Tidegate",
            )

    @property
    def finished(self) -> bool:
        """Every upstream subtask has reached its end of input."""
        return self._unfinished == 0

    def _mixed(self, channel: Channel) -> RoundError:
        return RoundError(
            "Rows of two attempts of the same task were mixed", where=f"edge {channel[0]}, sending subtask {channel[1]}"
        )
