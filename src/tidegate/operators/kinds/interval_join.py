"""Interval join: pairs of records of two keyed streams whose times lie close to each other.

A record of either side waits in the buffer of its key until nothing can come any more that it belongs to. Buffers are Python
objects as long as the worker runs one round after the other (``KeyedBackend.unbroken``); in the state is, at the end of every
round, what is left in them. What comes and goes within a round never gets there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from typing import Any

from tidegate.common.errors import ProgramError
from tidegate.common.typeinfo import Types
from tidegate.common.watermarks import MIN_WATERMARK
from tidegate.graph.plan import ChainNode
from tidegate.operators.codegen import LoopSource
from tidegate.operators.function_operator import FunctionOperator
from tidegate.operators.operator import OperatorRound, Site
from tidegate.operators.ownership import ATOMS, own
from tidegate.state.descriptors import MapStateDescriptor
from tidegate.state.snapshot import OperatorSnapshot, Part

LEFT, RIGHT = 0, 1
MOST_BUFFERED = 1_000_000
"""Records of finished rounds that stay in memory, roughly. More are read from the state when their key comes again."""


class Buffer:
    """The records of a key and side that wait. ``times``: sorted. ``stored``: times that are in the state, ``changed``: those that
    are not there as they are here."""

    __slots__ = ("changed", "records", "stored", "times")

    def __init__(self, found: Iterable[tuple[int, list[Any]]]) -> None:
        self.records: dict[int, list[Any]] = dict(found)
        self.times = sorted(self.records)
        self.stored = set(self.times)
        self.changed: set[int] = set()

    def add(self, moment: int, value: Any) -> None:
        records = self.records.get(moment)
        if records is None:
            self.records[moment] = [value]
            if not self.times or moment > self.times[-1]:
                self.times.append(moment)
            else:
                insort(self.times, moment)
        else:
            records.append(value)
        self.changed.add(moment)

    def drop(self, up_to: int) -> None:
        """What is not younger than ``up_to``."""
        end = bisect_right(self.times, up_to)
        for moment in self.times[:end]:
            del self.records[moment]
            if moment in self.stored:
                self.changed.add(moment)
            else:
                self.changed.discard(moment)
        del self.times[:end]


Pair = tuple[Any, Any, int]
"""A record, one that belongs to it, and the time of the latter."""


class JoinContext:
    """The ``ctx`` of ``ProcessJoinFunction``. Set by the loop for every pair."""

    __slots__ = ("left", "right")

    left: int
    right: int

    def get_left_timestamp(self) -> int:
        return self.left

    def get_right_timestamp(self) -> int:
        return self.right

    def get_timestamp(self) -> int:
        return max(self.left, self.right)


class IntervalJoinOperator(FunctionOperator):
    """A key has one timer: for when the first of its records may go, on whichever side that is."""

    def __init__(self, node: ChainNode, site: Site) -> None:
        super().__init__(node, site)
        assert self.by_key is not None
        spec = self.operator.spec
        self._pair, self._reuse = JoinContext(), site.settings.object_reuse
        self._buffers: tuple[dict[Any, Buffer], dict[Any, Buffer]] = ({}, {})
        # of a record at t, on either side: partners are at t + reach[0] to t + reach[1], and it may go at t + stay
        self._reach = ((spec.lower, spec.upper), (-spec.upper, -spec.lower))
        self._stay = (max(spec.upper, 0), max(-spec.lower, 0))
        self._late = (spec.left_late, spec.right_late)
        self._is_whole = False
        """What is in no buffer is not in the state either."""

    # -- the loop ----------------------------------------------------------------------------------------------------

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        owner, n = source.owner(self.node, value), self.id
        meet = source.bind(f"m{n}", (self._meet_left, self._meet_right)[input])
        if not source.timed:
            source.line(depth, f"{meet}({value}, None)", owner)
            return
        found, own, other, moment, now = (f"tg_j{n}_{what}" for what in ("found", "own", "other", "moment", "now"))
        context = source.bind(f"c{n}", self._pair)
        source.line(depth, f"{found} = {meet}({value}, tg_t)", owner)
        source.line(depth, f"if {found} is None:", owner)
        late = self._late[input]
        source.consumers(self, late, value, depth + 1) if late else source.line(depth + 1, "pass", owner)
        source.line(depth, f"elif {found}:", owner)
        source.line(depth + 1, f"{now} = tg_t", owner)
        source.line(depth + 1, f"for {own}, {other}, {moment} in {found}:", owner)
        mine, others = ("left", "right") if input == LEFT else ("right", "left")
        source.line(depth + 2, f"{context}.{mine}, {context}.{others} = {now}, {moment}", owner)
        source.line(depth + 2, f"tg_t = {now} if {now} > {moment} else {moment}", owner)
        pair = [own, other] if input == LEFT else [other, own]
        source.call_each(f"{n}", self.function, [*pair, context], depth + 2, owner, False, source.emitter(self))

    def _meet_left(self, value: Any, moment: int) -> list[Pair] | None:
        return self._meet(LEFT, value, moment)

    def _meet_right(self, value: Any, moment: int) -> list[Pair] | None:
        return self._meet(RIGHT, value, moment)

    def _meet(self, side: int, value: Any, moment: int) -> list[Pair] | None:
        """The pairs of a record with those that are there, and it waits for more. None: it is late.

        A function may change what it is handed: each pair is of copies, unless a record cannot change."""
        if moment is None:
            raise ProgramError(
                "An interval join takes records with timestamps",
                found="a record without one",
                cure="call assign_timestamps_and_watermarks(...) on both streams before key_by",
            )
        watermark = self.above.watermark
        if moment < watermark and watermark != MIN_WATERMARK:
            return None
        slot = self.key_context.slot
        mine = self._buffers[side].get(slot)
        if mine is None:
            mine = self._load(side, slot)
        others = self._buffers[1 - side].get(slot)
        if others is None:
            others = self._load(1 - side, slot)
        if not mine.times or moment < mine.times[0]:
            self.by_key.backend.event_timers.register(moment + self._stay[side])  # type: ignore[union-attr]
        kept = value if self._reuse or value.__class__ in ATOMS else own(value)
        mine.add(moment, kept)
        times = others.times
        if not times:
            return []
        least, most = self._reach[side]
        start = bisect_left(times, moment + least)
        end = bisect_right(times, moment + most, start)
        if start == end:
            return []
        records = others.records
        if self._reuse:
            return [(value, other, at) for at in times[start:end] for other in records[at]]
        fixed = kept is value  # what needs no copy gets none
        return [
            (value if fixed else own(value), other if other.__class__ in ATOMS else own(other), at)
            for at in times[start:end]
            for other in records[at]
        ]

    # -- buffers -----------------------------------------------------------------------------------------------------

    def _load(self, side: int, slot: Any) -> Buffer:
        """The buffer of the current key, from the state."""
        found = () if self._is_whole else self._states[side].items()
        buffer = self._buffers[side][slot] = Buffer(found)
        return buffer

    def on_timer(self, moment: int) -> None:
        """Records that the watermark has left behind go; the key's next timer is for the first of those that stay."""
        assert self.by_key is not None
        slot, first = self.key_context.slot, None
        for side in (LEFT, RIGHT):
            buffer = self._buffers[side].get(slot) or self._load(side, slot)
            buffer.drop(self.above.watermark - self._stay[side])
            if buffer.times:
                due = buffer.times[0] + self._stay[side]
                first = due if first is None else min(first, due)
        if first is not None:
            self.by_key.backend.event_timers.register(first)

    # -- a round -----------------------------------------------------------------------------------------------------

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        assert self.by_key is not None
        backend = self.by_key.backend
        # values are pickled: they may be of any type
        self._states = [backend.state(MapStateDescriptor(name, Types.LONG(), None)) for name in ("_left", "_right")]
        self._is_new = snapshot.keyed is None or not snapshot.keyed.files

    def begin(self) -> None:
        super().begin()
        assert self.by_key is not None
        kept = sum(len(buffer.times) for buffers in self._buffers for buffer in buffers.values())
        if not self.by_key.backend.unbroken or kept > MOST_BUFFERED:
            self._forget()
            self._is_whole = self._is_new

    def _forget(self) -> None:
        for buffers in self._buffers:
            buffers.clear()

    def parts(self) -> dict[str, Part]:
        context = self.key_context
        for state, buffers in zip(self._states, self._buffers, strict=True):
            for slot, buffer in buffers.items():
                if buffer.changed:
                    context.slot = slot
                    for moment in buffer.changed:
                        records = buffer.records.get(moment)
                        if records is not None:
                            state.put(moment, records)
                        else:
                            state.remove(moment)
                    buffer.stored = set(buffer.times)
                    buffer.changed = set()
        for buffers in self._buffers:
            for slot in [slot for slot, buffer in buffers.items() if not buffer.times]:
                del buffers[slot]
        return super().parts()
