"""Run event-time sessions that fire when the watermark passes them: intervals in memory, written to state with the round.

What is stored is what ``window.py`` stores: the set of windows of a key, contents in the namespace of a window, timers.
So a snapshot of either kind restores in the other. Between two snapshots a session is a list of plain values
(``Session``). Lines in the loop extend the last session of a key, usually by one access to a dict. Everything else, a
new session, a merge or a late record, is a call (``_place``).

Timers of sessions that have changed in this round are in a heap. An entry of the heap may be too early: a session that
was extended since is put back. Timers of unchanged sessions stay in the store. The order of firing is that of
``TimerQueue``: by time, then stored timers, then others in the order in which the sessions got their bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush, heapreplace
from itertools import count
from operator import add, itemgetter
from typing import Any

from tidegate.base.clock import MAX_WATERMARK, MIN_WATERMARK
from tidegate.base.user_code import UserValue
from tidegate.graph.plan import ChainNode
from tidegate.operators.contracts.functions import TimeDomain
from tidegate.operators.contracts.operator import EndOfInput, OperatorRound, OperatorSetup
from tidegate.operators.contracts.specs import SessionWindowSpec
from tidegate.operators.kinds.window import WindowOperator
from tidegate.operators.loop.blame import user_error
from tidegate.operators.loop.codegen import LoopSource
from tidegate.operators.loop.ownership import ATOMS, own
from tidegate.operators.windows.assigner import timed
from tidegate.operators.windows.operation import Aggregated, Buffered, Contents
from tidegate.operators.windows.slices import adding_to, whole_record
from tidegate.operators.windows.window import TimeWindow, interval_bytes, interval_of
from tidegate.state.context import Scoped
from tidegate.state.keys import visible
from tidegate.state.snapshot import OperatorSnapshot, Part
from tidegate.state.timers import TimerQueue

Session = list[Any]
"""A session: a plain list, because the generated loop reads it for every record. The positions of its values follow."""
START, END, CONTENTS, ORDER, PLACE, KEY, STORED, KEPT, DUE, FIRED = range(10)
"""``CONTENTS``: None if there are none. ``ORDER``: grows whenever a session gets new bounds. ``PLACE``: the namespace of the
contents. ``STORED``: the namespace of the stored timers; None: its timers are in the heap. ``KEPT``: the state has
contents at ``PLACE``. ``DUE``: the time of its entry in the heap. ``FIRED``: the watermark has passed the session."""
_CLOSED: Session = [1, 0]
"""No record is in this session."""
_UNREAD = object()
"""Contents that were not read from state yet."""
_NEVER = MAX_WATERMARK + 1
"""The time of an entry that no watermark reaches."""
_SESSION_BYTES = 600
"""About the memory of a key with one session."""
_MANY = 4
"""Fewer keys are not read together."""


class SessionWindowOperator(WindowOperator):
    """Merge records into sessions, and fire the sessions."""

    def __init__(self, node: ChainNode, setup: OperatorSetup) -> None:
        super().__init__(node, setup)
        operation = self._operation
        self._spec = self.operator.spec_as(SessionWindowSpec)
        # With lateness, sessions that have fired wait in the state, and every change of a key would write all of them again.
        self._in_memory = setup.settings.sessions_in_memory and not self._spec.function.lateness
        self._gap = operation.assigner._gap  # type: ignore[attr-defined]
        self._lateness = operation.lateness
        self._adding = adding_to(operation.contents)
        self._merge_contents = _merging(operation.contents)
        self._clears_by_none = isinstance(operation.contents, Aggregated)
        """Flink: a record None empties an aggregating state."""
        self._next_order = count().__next__
        self._sessions: dict[UserValue, list[Session]] = {}
        """The sessions of each key that was read since the memory was emptied; never removed within a round."""
        self._last: dict[UserValue, Session] = {}
        """The last session of a key, if its timers are in the heap and it has not fired. The loop extends it."""
        self._heap: list[tuple[int, int, Session]] = []
        self._dirty: set[UserValue] = set()
        """Keys to look at when the round is written."""
        self._resized: dict[UserValue, bool] = {}
        """Keys whose set of windows has changed in this round, and whether the state has a set."""
        self._gone: list[Scoped] = []
        """Where stored contents have to be deleted."""

    # -- a round -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        super().begin()
        too_large = len(self._sessions) * _SESSION_BYTES > self._backend.cache_bytes // 2
        if too_large or not self._backend.unbroken:
            self._sessions.clear()
        self._forget_changes()

    def _forget_changes(self) -> None:
        self._last.clear()
        self._heap.clear()
        self._dirty.clear()
        self._resized.clear()
        self._gone.clear()

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        self._keys.scoped = True

    def begin_batch(self, keys: list[UserValue] | None, now_ms: int) -> None:
        if not self._in_memory:
            super().begin_batch(keys, now_ms)
            return
        self._keys.time = now_ms
        self._backend.trim_caches()
        if keys is not None and len(keys) >= _MANY:
            self._read_ahead(keys)

    def _read_ahead(self, keys: list[UserValue]) -> None:
        """Read sets and contents of many keys together."""
        unknown = set(keys).difference(self._sessions)
        if len(unknown) < _MANY:
            return
        self._sets.prefetch(unknown)
        for key in unknown:
            self._load(key)
        places = [Scoped(key, session[PLACE]) for key in unknown for session in self._sessions[key]]
        if len(places) >= _MANY:
            self._contents.prefetch(places)

    def parts(self) -> dict[str, Part]:
        if self._in_memory:
            self._write_back()
        return super().parts()

    def _write_back(self) -> None:
        """Write what has changed into states and timers."""
        sets: dict[UserValue, UserValue] = {}
        contents: dict[UserValue, UserValue] = dict.fromkeys(self._gone)
        keeps = self._contents.codec.immutable
        for key in self._dirty:
            mine = self._sessions[key]
            if not mine:
                del self._sessions[key]
            elif len(mine) > 1:
                mine.sort(key=itemgetter(ORDER))
            for session in mine:
                self._store_timers(session)
                kept = session[CONTENTS]
                if kept is not _UNREAD and (kept is not None or session[KEPT]):
                    contents[Scoped(key, session[PLACE])] = kept
                    session[KEPT] = kept is not None
                if not keeps:
                    session[CONTENTS] = _UNREAD
            if mine and key in self._resized:
                sets[key] = [(session[STORED], session[PLACE]) for session in mine]
            elif self._resized.get(key):
                sets[key] = None
        self._sets.store_all(sets)
        self._contents.store_all(contents)
        self._forget_changes()

    def _store_timers(self, session: Session) -> None:
        if session[STORED] is not None:
            return
        session[STORED] = interval_bytes(session[START], session[END])
        session[DUE] = _NEVER  # the heap is about to be emptied
        self._keys.slot = Scoped(session[KEY], session[STORED])
        timers, last = self._backend.event_timers, session[END] - 1
        if not session[FIRED]:
            timers.register(last)
        if self._lateness:  # else one timer fires and ends the session
            cleanup = self._cleanup_at(last)
            if cleanup != MAX_WATERMARK:
                timers.register(cleanup)

    # -- records -----------------------------------------------------------------------------------------------------

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        if not (self._in_memory and source.timed):
            super().write(source, value, depth, keyed=keyed, input=input)
            return
        n, owner = self.id, source.owner(self.node, value)
        session, end, inside = f"tg_session{n}", f"tg_end{n}", f"tg_inside{n}"
        key = "tg_k" if keyed else f"{source.bind(f'B{n}', self.key_context)}.slot"
        # A function of this chain, or the same object in a chunk, may change the record
        if source.fields(value) is None:
            atoms, copied, mine = source.bind("atoms", ATOMS), source.bind("own", own), f"tg_w{n}"
            source.line(depth, f"{mine} = {value} if {value}.__class__ in {atoms} else {copied}({value})", owner)
            value = mine
        closed = source.bind("closed", _CLOSED)
        source.line(depth, f"{session} = {source.bind(f'last{n}', self._last.get)}({key}, {closed})", owner)
        a_record = f" and {value} is not None" if self._clears_by_none and source.fields(value) is None else ""
        source.line(depth, "try:", owner)
        source.line(depth + 1, f"{inside} = {session}[0] <= tg_t <= {session}[1]{a_record}", owner)
        source.line(depth, f"except {source.bind('TypeError', TypeError)}:", owner)
        source.line(depth + 1, f"{inside} = False", owner)
        source.line(depth, f"if {inside}:", owner)
        source.line(depth + 1, f"{end} = tg_t + {self._gap_text(source, value)}", owner)
        source.line(depth + 1, f"if {end} > {session}[1]:", owner)
        source.line(depth + 2, f"if {end} > {MAX_WATERMARK}:", owner)
        source.line(depth + 3, f"{source.bind('interval', interval_bytes)}({session}[0], {end})", owner)  # raises
        source.line(depth + 2, f"{session}[1] = {end}", owner)
        source.line(depth + 2, f"{session}[3] = {source.bind(f'order{n}', self._next_order)}()", owner)
        self._adding.write(source, f"{n}", session, "2", value, depth + 1, owner, keyed)
        source.line(depth, "else:", owner)
        record = whole_record(source, value)
        source.line(depth + 1, f"{source.bind(f'place{n}', self._place)}({key}, {record}, tg_t)", owner)

    def _gap_text(self, source: LoopSource, value: str) -> str:
        if self._spec.fixed_gap is not None:
            return str(self._spec.fixed_gap)
        return f"{source.bind(f'gap{self.id}', self._gap)}({whole_record(source, value)})"

    def _place(self, key: UserValue, value: UserValue, timestamp: int | None) -> None:
        """Put a record into a session: as ``take`` does with windows."""
        time = timed(MIN_WATERMARK if timestamp is None else timestamp)
        end = time + self._gap(value)
        mine = self._sessions.get(key)
        if mine is None:
            mine = self._load(key)
        met = [session for session in mine if session[START] <= end and session[END] >= time]
        if met:
            session = self._join(key, mine, met, time, end)
        elif self._cleanup_at(end - 1) > self.watermark:
            session = self._begin_session(key, mine, time, end)
        else:
            session = None
        if session is None:
            self._keys.slot = key
            self._late(value, timestamp)
            return
        if session[CONTENTS] is _UNREAD:
            self._read(session)
        self._dirty.add(key)
        if value is None and self._clears_by_none:
            session[CONTENTS] = None
        else:
            self._adding.add(session, CONTENTS, value)  # type: ignore[arg-type]
        if session[FIRED]:
            self._fire_session(session)
        self._keys.slot = key
        last = session if len(mine) == 1 else max(mine, key=itemgetter(START))
        if last[STORED] is None and not last[FIRED] and last[CONTENTS] is not _UNREAD:
            self._last[key] = last
        else:
            self._last.pop(key, None)

    def _begin_session(self, key: UserValue, mine: list[Session], time: int, end: int) -> Session:
        self._resize(key, mine)
        fired, order = end - 1 <= self.watermark, self._next_order()
        session: Session = [time, end, None, order, interval_bytes(time, end), key, None, False, _NEVER, fired]
        mine.append(session)
        self._schedule(session)
        return session

    def _join(self, key: UserValue, mine: list[Session], met: list[Session], time: int, end: int) -> Session | None:
        """Merge the sessions that a record meets. Return the session with the record; None if the record is late."""
        if len(met) > 1:
            met.sort(key=itemgetter(START))
        session, low, high = met[0], min(met[0][START], time), max(met[-1][END], end)
        ended = self._cleanup_at(high - 1) <= self.watermark
        if len(met) == 1 and low == session[START] and high == session[END]:
            if ended:  # only if the allowed lateness has become shorter since
                self._resize(key, mine)
                self._retire(session, mine)
                return None
            self._renew_timers(session)
            return session
        if ended:
            self._refuse_ended(TimeWindow(low, high))
        interval_bytes(low, high)  # a time beyond 64 bits is refused with its record
        self._resize(key, mine)
        for other in met:
            self._take_over_timers(other)
        for other in met[1:]:
            self._absorb(session, other, mine)
        session[START], session[END], session[ORDER] = low, high, self._next_order()
        session[FIRED] = high - 1 <= self.watermark
        self._schedule(session)
        return session

    def _absorb(self, session: Session, other: Session, mine: list[Session]) -> None:
        for each in (session, other):
            if each[CONTENTS] is _UNREAD:
                self._read(each)
        first, second = session[CONTENTS], other[CONTENTS]
        if first is None or second is None:
            session[CONTENTS] = second if first is None else first
        else:
            session[CONTENTS] = self._merge_contents(first, second)
        self._delete_contents(other)
        self._retire(other, mine)

    def _resize(self, key: UserValue, mine: list[Session]) -> None:
        """Note that the set of windows is about to change."""
        self._dirty.add(key)
        if key not in self._resized:
            self._resized[key] = any(session[STORED] is not None for session in mine)

    def _take_over_timers(self, session: Session) -> None:
        """Delete the stored timers of a session whose bounds change."""
        if session[STORED] is not None:
            self._keys.slot = Scoped(session[KEY], session[STORED])
            last = session[END] - 1
            self._backend.event_timers.delete(last)
            if self._lateness:
                self._backend.event_timers.delete(self._cleanup_at(last))
            session[STORED] = None

    def _renew_timers(self, session: Session) -> None:
        """Register the timers of an unchanged session again. Usually they are in the store. After a rescale of an
        unaligned checkpoint, time may be earlier than in the subtask that has fired the session: it fires again."""
        if session[STORED] is not None:
            self._keys.slot = Scoped(session[KEY], session[STORED])
            timers, last = self._backend.event_timers, session[END] - 1
            session[FIRED] = last <= self.watermark
            for time in {self._cleanup_at(last)} if session[FIRED] else {last, self._cleanup_at(last)}:
                if time != MAX_WATERMARK or time == last:
                    timers.register(time)

    def _schedule(self, session: Session) -> None:
        """Make sure that the heap has an entry for the session that is not too late."""
        last = session[END] - 1
        due = self._cleanup_at(last) if session[FIRED] else last
        if session[FIRED] and due == MAX_WATERMARK:  # the end of time needs no cleanup
            return
        if due < session[DUE]:
            session[DUE] = due
            heappush(self._heap, (due, session[ORDER], session))

    def _retire(self, session: Session, mine: list[Session]) -> None:
        """Take a session out of the set."""
        mine[:] = [other for other in mine if other is not session]
        session[DUE] = _NEVER
        if self._last.get(session[KEY]) is session:
            del self._last[session[KEY]]

    def _delete_contents(self, session: Session) -> None:
        if session[KEPT]:
            self._gone.append(Scoped(session[KEY], session[PLACE]))

    def _load(self, key: UserValue) -> list[Session]:
        """Read the sessions of a key, without their contents."""
        self._keys.slot = key
        mine = self._sessions[key] = [
            [*interval_of(window), _UNREAD, self._next_order(), place, key, window, True, _NEVER, False]
            for window, place in self._sets.value() or ()
        ]
        for session in mine:
            session[FIRED] = session[END] - 1 <= self.watermark
        if not mine:
            self._dirty.add(key)  # to forget the key with the round
        return mine

    def _read(self, session: Session) -> None:
        self._keys.slot = Scoped(session[KEY], session[PLACE])
        session[CONTENTS] = self._contents._current()

    # -- time --------------------------------------------------------------------------------------------------------

    def _fire_due(self, queue: TimerQueue, up_to: int, kind: TimeDomain) -> None:
        if not self._in_memory or kind is not TimeDomain.EVENT_TIME:
            super()._fire_due(queue, up_to, kind)
            return
        if self.round.end_of_input is EndOfInput.PAST:
            return  # Flink: no timer fires in a task that has ended
        while True:
            stored, mine = queue.next_time(), self._next_due(up_to)
            if stored is not None and stored <= up_to and (mine is None or stored <= mine):
                self._fire_stored(queue.due(up_to if mine is None else mine))
            elif mine is not None:
                self._fire_changed(mine)
            else:
                break
        self._out.flush()

    def _next_due(self, up_to: int) -> int | None:
        """Return the time of the first entry of the heap, if it is due. The entry is exact then."""
        heap = self._heap
        while heap and heap[0][0] <= up_to:
            time, order, session = heap[0]
            if session[DUE] != time:  # merged, ended, or due earlier by another entry
                heappop(heap)
                continue
            last = session[END] - 1
            due = self._cleanup_at(last) if session[FIRED] else last
            if due == time and order == session[ORDER]:
                return time
            session[DUE] = due
            heapreplace(heap, (due, session[ORDER], session))
        return None

    def _fire_stored(self, timers: Iterable[tuple[int, UserValue, bytes]]) -> None:
        for moment, key, namespace in timers:
            mine = self._sessions.get(key)
            if mine is None:
                mine = self._load(key)
            for session in mine:
                if session[STORED] == namespace:
                    self._on_due(moment, session, mine)
                    break

    def _fire_changed(self, moment: int) -> None:
        session = heappop(self._heap)[2]
        session[DUE] = _NEVER
        self._on_due(moment, session, self._sessions[session[KEY]])

    def _on_due(self, moment: int, session: Session, mine: list[Session]) -> None:
        last = session[END] - 1
        try:
            if moment == last:
                self._fire_session(session)
                session[FIRED] = True
            if moment == self._cleanup_at(last):
                self._end_session(session, mine)
            elif session[STORED] is None:
                self._last.pop(session[KEY], None)
                self._schedule(session)
            elif session[KEY] not in self._dirty and not self._contents.codec.immutable:
                session[CONTENTS] = _UNREAD  # a value that can change does not outlive the round
        except BaseException as error:
            where = f"operator '{self.operator.name}', {_window(session)!r} of key {visible(session[KEY])!r}"
            raise user_error(error, where, None) from error
        self._out.flush_full()

    def _fire_session(self, session: Session) -> None:
        if session[CONTENTS] is _UNREAD:
            self._read(session)
        kept = session[CONTENTS]
        result = None if kept is None else self._adding.result(kept)
        if result is not None:
            records = [result] if self._operation.is_single else result
            self._emit(session[KEY], _window(session), session[PLACE], records)

    def _end_session(self, session: Session, mine: list[Session]) -> None:
        key = session[KEY]
        self._resize(key, mine)
        self._delete_contents(session)
        if self._clear is not None:
            self._keys.slot = key
            self._window_context.enter(_window(session), lambda: b"")
            self._clear(self._window_context)
        self._retire(session, mine)

    def end_of_key(self, now_ms: int) -> None:
        if self._in_memory:  # all timers of the key fire, wherever they are
            self._write_back()
            self._sessions.clear()
        super().end_of_key(now_ms)

    def _cleanup_at(self, last: int) -> int:
        return min(last + self._lateness, MAX_WATERMARK)


def _window(session: Session) -> TimeWindow:
    return TimeWindow(session[START], session[END])


def _merging(contents: Contents) -> Callable[[UserValue, UserValue], UserValue]:
    return add if isinstance(contents, Buffered) else contents.merge
