"""Join pairs of records of two keyed streams whose times lie close to each other.

A record of either side waits with its key until no partner of it can arrive any more. Waiting records are Python
objects as long as the worker runs one round after the other (``KeyedBackend.unbroken``). At the end of every round, the
records that still wait are in the state. A record that comes and goes within a round never gets there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush
from itertools import groupby
from operator import itemgetter

from tidegate.base.clock import MIN_WATERMARK
from tidegate.base.errors import ProgramError
from tidegate.base.user_code import UserValue
from tidegate.common.typeinfo import Types
from tidegate.graph.plan import ChainNode
from tidegate.operators.contracts.operator import OperatorRound, OperatorSetup
from tidegate.operators.contracts.specs import IntervalJoinSpec
from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.loop.codegen import LoopSource
from tidegate.operators.loop.ownership import ATOMS, own
from tidegate.state.descriptors import MapStateDescriptor
from tidegate.state.snapshot import OperatorSnapshot, Part

LEFT, RIGHT = SIDES = 0, 1
MOST_BUFFERED = 1_000_000
"""Approximate number of records of finished rounds that stay in memory. More are read from the state when their key
comes again."""
MANY_READ = 256
"""Number of keys of a round that were looked up in the state: from then on a list of all keys in the state pays off."""
MOST_LISTED = 100_000
"""The greatest number of keys in the state for which a list is made."""
_STEPS = 8
"""Records are dropped within this part of the time they stay, not at the millisecond: then records of many keys are
dropped together."""

Found = tuple[list[int], list[UserValue]]
"""Times and records of the partners of a record, on the other side."""
NONE_FOUND: tuple[()] = ()


_NOT_STORED: tuple[AbstractSet[int], AbstractSet[int]] = (frozenset(), frozenset())


class Waiting:
    """Hold the waiting records of a key: ``times``, sorted, and ``records``, of each side. ``stored``: times of each
    side that are in the state. ``changed``: sides and times whose entry in the state is outdated. ``has_timer``: the
    state has a timer for the key. ``is_due``: the key is somewhere in the operator's list of records to drop next.
    ``touched``: the records differ from those at the end of the last round."""

    __slots__ = ("changed", "has_timer", "is_due", "records", "stored", "times", "touched")

    def __init__(self) -> None:
        self.times: tuple[list[int], list[int]] = ([], [])
        self.records: tuple[list[UserValue], list[UserValue]] = ([], [])
        self.stored = _NOT_STORED
        self.changed: set[tuple[int, int]] | None = None
        self.has_timer = self.is_due = self.touched = False

    def take(self, left: dict[int, list[UserValue]], right: dict[int, list[UserValue]]) -> None:
        """Take the records that the state has, by time."""
        for side, by_time in enumerate((left, right)):
            for time, records in sorted(by_time.items()):
                self.times[side].extend([time] * len(records))
                self.records[side].extend(records)
        self.stored = (left.keys(), right.keys())
        self.has_timer = bool(left or right)

    def change(self, side: int, time: int) -> None:
        """Note that a time which is in the state has more records now."""
        if self.changed is None:
            self.changed = set()
        self.changed.add((side, time))

    def insert(self, side: int, moment: int, record: UserValue) -> None:
        """Insert a record that is not the latest. Put it after records of the same time: records keep their order."""
        position = bisect_right(self.times[side], moment)
        self.times[side].insert(position, moment)
        self.records[side].insert(position, record)

    def drop(self, side: int, up_to: int) -> None:
        """Drop the records that are not younger than ``up_to``."""
        times = self.times[side]
        if times and times[0] <= up_to:
            end = bisect_right(times, up_to)
            del times[:end], self.records[side][:end]
            self.touched = True


class JoinContext:
    """Be the ``ctx`` of ``ProcessJoinFunction``. The loop sets it for every pair."""

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
    """Join the records of two inputs. In memory, steps of time list the records to drop next. In the state, a key with
    records has a timer: the timer tells a worker that does not have the records in memory when to look at them."""

    def __init__(self, node: ChainNode, setup: OperatorSetup) -> None:
        super().__init__(node, setup)
        assert self.backend is not None
        spec = self.operator.spec_as(IntervalJoinSpec)
        self._keys = self.backend.context
        self._pair, self._reuse = JoinContext(), setup.settings.object_reuse
        self._fixed = (self._reuse or spec.left_fixed, self._reuse or spec.right_fixed)
        self._waiting: dict[UserValue, Waiting] = {}
        # For a record at t, on either side: partners are at t + reach[0] to t + reach[1], and the record may be dropped
        # when t + stay is less than the watermark: a record at the watermark is not late, and still meets all its
        # partners.
        self._reach = ((spec.lower, spec.upper), (-spec.upper, -spec.lower))
        self._stay = (max(spec.upper, 0), max(-spec.lower, 0))
        self._late = (spec.left_late, spec.right_late)
        self._step = max(1, sum(self._stay) // _STEPS)
        self._due: dict[int, list[UserValue]] = {}
        """Number of the step -> the slots to look at when the step has ended. The numbers are in ``_steps``, a heap."""
        self._steps: list[int] = []
        self._listed: set[UserValue] | None = None
        """All slots that may have entries in the state and not in ``_waiting``. None: not known."""
        self._read = 0

    # -- the loop ----------------------------------------------------------------------------------------------------

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        """Write the code that joins a record. A function may change the records it receives: each pair consists of
        copies, unless a record is immutable."""
        owner, n = source.owner(self.node, value), self.id
        meet = source.bind(f"m{n}", self._meeting(input))
        if not source.timed:
            source.line(depth, f"{meet}({value}, None)", owner)
            return
        found, other, moment, now = (f"tg_j{n}_{what}" for what in ("found", "other", "moment", "now"))
        context = source.bind(f"c{n}", self._pair)
        source.line(depth, f"{found} = {meet}({value}, tg_t)", owner)
        source.line(depth, f"if {found} is None:", owner)
        late = self._late[input]
        source.consumers(self, late, value, depth + 1) if late else source.line(depth + 1, "pass", owner)
        source.line(depth, f"elif {found}:", owner)
        source.line(depth + 1, f"{now} = tg_t", owner)
        source.line(depth + 1, f"for {moment}, {other} in {source.bind('zip', zip)}(*{found}):", owner)
        mine, others = ("left", "right") if input == LEFT else ("right", "left")
        source.line(depth + 2, f"{context}.{mine}, {context}.{others} = {now}, {moment}", owner)
        source.line(depth + 2, f"tg_t = {now} if {now} > {moment} else {moment}", owner)
        pair = [value, other]
        for one, fixed in enumerate((self._fixed[input], self._fixed[1 - input])):
            if not fixed:
                copied = f"tg_j{n}_copy{one}"
                source.line(depth + 2, f"{copied} = {source.bind('own', own)}({pair[one]})", owner)
                pair[one] = copied
        arguments = [*(pair if input == LEFT else reversed(pair)), context]
        source.call_each(f"{n}", self.function, arguments, depth + 2, owner, False, source.emitter(self))

    def _meeting(self, side: int) -> Callable[[UserValue, int | None], Found | tuple[()] | None]:
        """Return a function that finds the partners of a record of this side, and lets the record wait for more. It
        returns None for a late record."""
        now, context, of_key = self.input_time, self._keys, self._waiting.get
        load, expect, fixed = self._load, self._expect, self._fixed[side]
        (least, most), stay = self._reach[side], self._stay[side]

        def meet(record: UserValue, moment: int | None) -> Found | tuple[()] | None:
            if moment is None:
                raise _no_timestamp()
            watermark = now.watermark
            if moment < watermark and watermark != MIN_WATERMARK:
                return None
            slot = context.slot
            waiting = of_key(slot)
            if waiting is None:
                waiting = load(slot)
            if not (fixed or record.__class__ in ATOMS):
                record = own(record)
            times = waiting.times[side]
            if times and moment < times[-1]:
                waiting.insert(side, moment, record)
            else:
                times.append(moment)
                waiting.records[side].append(record)
            if moment in waiting.stored[side]:
                waiting.change(side, moment)
            waiting.touched = True
            if not waiting.is_due:
                expect(slot, waiting, moment + stay)
            others = waiting.times[1 - side]
            if not others:
                return NONE_FOUND
            start = bisect_left(others, moment + least)
            end = bisect_right(others, moment + most, start)
            if start == end:
                return NONE_FOUND
            return others[start:end], waiting.records[1 - side][start:end]

        return meet

    # -- waiting records ---------------------------------------------------------------------------------------------

    def _load(self, slot: UserValue) -> Waiting:
        """Load the waiting records of the current key from the state."""
        if self._listed is None:
            self._read += 1
            if self._read == MANY_READ:
                assert self.backend is not None
                self._listed = self.backend.event_timers.stored_slots(MOST_LISTED)
        waiting = self._waiting[slot] = Waiting()
        if self._listed is None or slot in self._listed:
            waiting.take(*(dict(state.items()) for state in self._states))
        return waiting

    def _expect(self, slot: UserValue, waiting: Waiting, due: int) -> None:
        """Note that a record of a key has to be dropped when the watermark has passed a time, or some time later."""
        step = due // self._step
        slots = self._due.get(step)
        if slots is None:
            self._due[step] = [slot]
            heappush(self._steps, step)
        else:
            slots.append(slot)
        waiting.is_due = True

    def _let_go(self) -> None:
        """Drop the records that the watermark has passed."""
        watermark, steps = self.input_time.watermark, self._steps
        while steps and (steps[0] + 1) * self._step <= watermark:
            for slot in self._due.pop(heappop(steps)):
                waiting = self._waiting[slot]
                self._drop(slot, waiting, watermark)
                if not waiting.is_due and waiting.stored is _NOT_STORED:
                    del self._waiting[slot]

    def _drop(self, slot: UserValue, waiting: Waiting, watermark: int) -> None:
        waiting.is_due = False
        for side in SIDES:
            waiting.drop(side, watermark - self._stay[side] - 1)
        first = self._first_due(waiting)
        if first is not None:
            self._expect(slot, waiting, first)

    def _first_due(self, waiting: Waiting) -> int | None:
        left, right = waiting.times
        if left and right:
            return min(left[0] + self._stay[LEFT], right[0] + self._stay[RIGHT])
        if left or right:
            return left[0] + self._stay[LEFT] if left else right[0] + self._stay[RIGHT]
        return None

    def on_timer(self, moment: int) -> None:
        """Handle a timer of the state: only now is it known here when the next record of the key has to be dropped."""
        slot = self._keys.slot
        waiting = self._waiting.get(slot) or self._load(slot)
        waiting.has_timer, waiting.touched = False, True
        if not waiting.is_due:
            self._drop(slot, waiting, self.input_time.watermark)

    def on_watermark(self, now_ms: int) -> None:
        super().on_watermark(now_ms)
        self._let_go()

    def end_input(self, now_ms: int) -> None:
        super().end_input(now_ms)
        self._let_go()

    def end_of_key(self, now_ms: int) -> None:
        super().end_of_key(now_ms)
        self._forget()

    # -- a round -----------------------------------------------------------------------------------------------------

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        assert self.backend is not None
        backend = self.backend
        # values are pickled: they may be of any type
        self._states = [backend.state(MapStateDescriptor(name, Types.LONG(), None)) for name in ("_left", "_right")]
        self._is_new = snapshot.keyed is None or not snapshot.keyed.files

    def begin(self) -> None:
        super().begin()
        assert self.backend is not None
        kept = sum(len(times) for waiting in self._waiting.values() for times in waiting.times)
        if not self.backend.unbroken or kept > MOST_BUFFERED:
            self._forget()
            self._listed, self._read = set() if self._is_new else None, 0

    def _forget(self) -> None:
        self._waiting.clear()
        self._due.clear()
        self._steps.clear()

    def parts(self) -> dict[str, Part]:
        for slot, waiting in list(self._waiting.items()):
            if waiting.touched:
                self._keys.slot = slot
                self._store(waiting)
                if not any(waiting.times):
                    del self._waiting[slot]
        return super().parts()

    def _store(self, waiting: Waiting) -> None:
        """Update the state of the current key to the records that wait."""
        changed, now = waiting.changed or (), (set(waiting.times[LEFT]), set(waiting.times[RIGHT]))
        for side, state in enumerate(self._states):
            stored = waiting.stored[side]
            for moment in stored - now[side]:
                state.remove(moment)
            new = {moment for moment in now[side] if moment not in stored or (side, moment) in changed}
            records = zip(waiting.times[side], waiting.records[side], strict=True)
            for moment, same in groupby(records, itemgetter(0)) if new else ():
                if moment in new:
                    state.put(moment, [record for _, record in same])
        waiting.stored, waiting.changed = now if any(now) else _NOT_STORED, None
        first = self._first_due(waiting)
        if first is not None and not waiting.has_timer:
            self.backend.event_timers.register(first)  # type: ignore[union-attr]
            waiting.has_timer = True
        waiting.touched = False


def _no_timestamp() -> ProgramError:
    return ProgramError(
        "An interval join needs records with timestamps",
        found="a record without a timestamp",
        cure="call assign_timestamps_and_watermarks(...) on both streams before key_by",
    )
