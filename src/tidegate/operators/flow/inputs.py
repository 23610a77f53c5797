"""Receive from channels: chunks in order, exactly one barrier each, the combined watermark."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from tidegate.base.clock import Stopwatch
from tidegate.base.errors import RoundError
from tidegate.graph.plan import Chain, Edge
from tidegate.operators.contracts.watermarks import ChannelWatermarks
from tidegate.operators.flow.packing import Packer
from tidegate.operators.flow.rows import BARRIER, MAX_WATERMARK, MIN_WATERMARK, Barrier, Row, Status, seen_tokens
from tidegate.state.key_groups import range_for
from tidegate.state.refs import KeyGroupRange

Channel = tuple[int, int]
"""Edge id, sending subtask."""


@dataclass(frozen=True)
class ChannelSide:
    """Hold what a subtask knows of its input channels, in all rounds. The dicts are keyed by edge id."""

    chain: str
    """The name of the chain, for messages."""
    index: int
    """Of the subtask, among those of the chain."""
    channels: list[tuple[Edge, int]]
    """An edge and a sending subtask each."""
    packers: dict[int, Packer]
    inputs: dict[int, int]
    """Which input of the chain's first operator the records belong to."""
    edges: dict[str, int]
    """Edge id by the edge's name, which is the same in every run of the program."""
    deferrable: dict[int, str]
    """Edges whose records may wait for a later round, by name."""
    pinned: frozenset[str]
    """Names of edges whose records cannot go to another subtask."""
    groups: KeyGroupRange | None
    """The key groups of the subtask, if records come with keys."""
    max_parallelism: int
    moves_time: bool
    """The chain makes watermarks from records, in the order in which they are taken."""

    @classmethod
    def of(cls, chain: Chain, index: int, senders: dict[int, int], *, forced: bool) -> ChannelSide:
        """Return the channels of a subtask. ``senders``: operator id -> its parallelism. ``forced``: pinned records may
        wait too."""
        maximum = chain.head.operator.max_parallelism
        return cls(
            chain=chain.name,
            index=index,
            channels=[(edge, sender) for edge in chain.inputs for sender in range(senders[edge.source])],
            packers={edge.id: Packer(edge.record_type, chain.head.place) for edge in chain.inputs},
            inputs={edge.id: edge.input for edge in chain.inputs},
            edges={edge.name: edge.id for edge in chain.inputs},
            deferrable={edge.id: edge.name for edge in chain.inputs if chain.may_keep(edge, forced=forced)},
            pinned=frozenset(edge.name for edge in chain.inputs if chain.pins(edge)),
            groups=range_for(index, chain.parallelism, maximum) if chain.has_keys else None,
            max_parallelism=maximum,
            moves_time=any(operator.spec.moves_time for operator in chain.operators),
        )


_MOST_HELD = 256 << 20
"""Bytes of chunks that wait for their turn. Beyond this size chunks are taken as they come. This makes no record late,
because the watermark is that of the slowest channel. Only where channels are ``even``, an assigner may see one channel
far ahead of the others."""


class ChannelInput:
    """Receive from all channels of one chain's subtask in one round. ``index``: of the subtask, to which barriers refer.

    Spark does not promise an order of shuffled rows, so chunks are numbered and held back until their turn. Two
    barriers on one channel, no barrier, or chunks beyond the barrier's count mean that rows of different attempts were
    mixed: the round fails.

    Spark hands over the rows of one sender after the other. Event time is that of the slowest channel. Processed in
    Spark's order, event time would stand still until the last sender's rows come, and a round of days would keep all
    its timers and windows open. So the channel with the lowest watermark has its turn, and the others wait for it.
    Without watermarks all channels are equal and nothing waits, unless channels are ``even``: then the channel of these
    with the fewest processed chunks has its turn. An assigner of watermarks that takes the records of several senders
    needs this: otherwise the last sender's records would all be late.

    Most channels of a job with thousands of subtasks are empty in a round: their barrier says that they have no chunk. Such a
    barrier takes no turn. It comes after all chunks of its channel, and no other channel has to wait for it.
    """

    def __init__(
        self, statuses: dict[Channel, Status], before: int = MIN_WATERMARK, *, index: int = 0, even: bool = False
    ) -> None:
        self.watermarks = ChannelWatermarks(statuses, before)
        self.failed = False
        self.aligns_since: float | None = None
        """When the first barrier came."""
        self._channels, self._index = statuses.keys(), index
        self._barriers: dict[Channel, Row] = {}
        """That have come. A channel is complete once as many of its chunks have passed as its barrier says."""
        self._next: dict[Channel, int] = {}
        self._held: dict[Channel, dict[int, Row]] = {}
        self._unfinished = len(statuses)
        self._open = len(statuses)
        """How many channels are not complete."""
        self._turns = _Turns({channel: status.watermark for channel, status in statuses.items()}, even)

    def ready(self, row: Row) -> list[Row]:
        """Return the rows that can be processed now that this row has arrived, in channel order."""
        channel, number = (row[3], row[4]), row[5]
        if row[2] == BARRIER:
            return self._align(channel, row)
        if channel not in self._channels:
            raise _unknown(row)
        following, barrier = self._next.get(channel, 0), self._barriers.get(channel)
        if barrier is not None and number >= self._count(barrier):
            raise self._mixed(channel)
        if number != following:
            held = self._held.setdefault(channel, {})
            if number in held or number < following:
                raise self._mixed(channel)
            held[number] = row
            return []
        self._turns.add(channel, row)
        self._next[channel] = following + 1
        self._pass_on(channel)
        return self._turns.take()

    def align_empty(self, rows: list[Row]) -> list[Row]:
        """Take barriers of channels without a chunk for this subtask. Return the chunks and barriers that have waited for them."""
        barriers, channels, turns = self._barriers, self._channels, self._turns
        if not barriers:
            self.aligns_since = Stopwatch.now()
        for row in rows:
            channel = (row[3], row[4])
            if channel not in channels:
                raise _unknown(row)
            if channel in barriers or channel in self._next or channel in self._held:
                raise self._mixed(channel)
            barriers[channel] = row
            barrier: Barrier = row[7]
            self.failed |= barrier.failed
            self._unfinished -= barrier.finished
            turns.close(channel)
        self._open -= len(rows)
        return turns.take()

    def _align(self, channel: Channel, row: Row) -> list[Row]:
        """Take the barrier of a channel, which may come before its last chunks do."""
        if channel in self._barriers:
            raise self._mixed(channel)
        if channel not in self._channels:
            raise _unknown(row)
        if not self._barriers:
            self.aligns_since = Stopwatch.now()
        self._barriers[channel] = row
        barrier: Barrier = row[7]
        self.failed |= barrier.failed
        self._unfinished -= barrier.finished
        count = self._count(row)
        if self._next.get(channel, 0) > count or any(number >= count for number in self._held.get(channel, ())):
            raise self._mixed(channel)
        self._pass_on(channel)
        return self._turns.take()

    def _count(self, barrier: Row) -> int:
        """Return how many chunks this subtask was sent."""
        count: int = barrier[7].chunks.get(self._index, 0)
        return count

    def _pass_on(self, channel: Channel) -> None:
        """Give a turn to the chunks that are next, and to the barrier after the last chunk."""
        following, held = self._next.get(channel, 0), self._held.get(channel)
        while held and following in held:
            self._turns.add(channel, held.pop(following))
            following += 1
        self._next[channel] = following
        barrier = self._barriers.get(channel)
        if barrier is not None and following == self._count(barrier):
            self._open -= 1
            self._turns.add(channel, barrier)

    def seen(self) -> dict[int, str]:
        """Return, by edge, the digest of the attempts that have sent the barriers, in the order of the senders."""
        tokens: dict[int, list[str]] = {}
        for channel in self._channels:  # in the order of edges and senders
            tokens.setdefault(channel[0], []).append(self._barriers[channel][7].token)
        return {edge: seen_tokens(each) for edge, each in tokens.items()}

    def check_complete(self, chain: str) -> None:
        """Step 4, align: raise unless every channel has had its barrier and no row is left over."""
        if self._open:
            missing = sorted(self._channels - self._barriers.keys())
            raise RoundError(
                "A subtask must see exactly one barrier on every channel",
                where=f"chain '{chain}'",
                found=f"no barrier from (edge, subtask) {missing}" if missing else "fewer chunks than a barrier says",
                cure="wait: the round is run again; if the error repeats, report a bug in Tidegate",
            )

    @property
    def bytes(self) -> int:
        """Return the size of all received chunks."""
        return self._turns.bytes

    @property
    def finished(self) -> bool:
        """Tell whether every upstream subtask has reached its end of input."""
        return self._unfinished == 0

    def _mixed(self, channel: Channel) -> RoundError:
        return RoundError(
            "Rows of two attempts of the same task were mixed", where=f"edge {channel[0]}, sending subtask {channel[1]}"
        )


def _unknown(row: Row) -> RoundError:
    return RoundError("A row came from a channel that does not exist", found=f"edge {row[3]}, subtask {row[4]}")


_Mark = tuple[int, int]
"""A watermark, and where channels are even the number of chunks taken."""
_CLOSED: _Mark = (MAX_WATERMARK + 1, 0)
"""The mark of a channel whose barrier is taken: no other channel waits for it."""


class _Turns:
    """Give channels their turns by their marks. A channel is open until its barrier has been taken."""

    def __init__(self, watermarks: dict[Channel, int], even: bool) -> None:
        self._even = even
        self._marks: dict[Channel, _Mark] = {channel: (watermark, 0) for channel, watermark in watermarks.items()}
        self._waiting: dict[Channel, deque[Row]] = {}
        self._open = [(mark, channel) for channel, mark in self._marks.items()]
        """A heap; an entry whose mark is no longer that of its channel is skipped."""
        heapq.heapify(self._open)
        self._at_hand: list[tuple[_Mark, Channel]] = []
        """A heap of the channels with waiting rows."""
        self._held_bytes = self.bytes = 0

    def add(self, channel: Channel, row: Row) -> None:
        """Add the next row of a channel."""
        waiting = self._waiting.get(channel)
        if waiting is None:
            waiting = self._waiting[channel] = deque()
        if not waiting:
            heapq.heappush(self._at_hand, (self._marks[channel], channel))
        waiting.append(row)
        size = _size(row)
        self._held_bytes += size
        self.bytes += size

    def take(self) -> list[Row]:
        """Return all rows whose turn it is."""
        rows = []
        while self._at_hand and (self._at_hand[0][0] <= self._least() or self._held_bytes > _MOST_HELD):
            _, channel = heapq.heappop(self._at_hand)
            waiting = self._waiting[channel]
            row = waiting.popleft()
            rows.append(row)
            self._held_bytes -= _size(row)
            self._reach(channel, _CLOSED if row[2] == BARRIER else (row[6], row[5] + 1 if self._even else 0))
            if waiting:
                heapq.heappush(self._at_hand, (self._marks[channel], channel))
        return rows

    def close(self, channel: Channel) -> None:
        """Let no channel wait for this one: it has no row."""
        self._marks[channel] = _CLOSED

    def _reach(self, channel: Channel, mark: _Mark) -> None:
        if mark > self._marks[channel]:
            self._marks[channel] = mark
            if mark != _CLOSED:
                heapq.heappush(self._open, (mark, channel))

    def _least(self) -> _Mark:
        while self._open and self._marks[self._open[0][1]] != self._open[0][0]:
            heapq.heappop(self._open)
        return self._open[0][0] if self._open else _CLOSED


def _size(row: Row) -> int:
    return 0 if row[2] == BARRIER or row[7] is None else sum(len(part) for part in row[7] if part is not None)
