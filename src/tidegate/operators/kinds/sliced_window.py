"""Run event-time windows that are the same for all keys and fire when the watermark passes them: tumbling and sliding
windows.

Lines in the loop add a record to the value of its key in its slice of time (``windows/slices.py``): usually one access
to a dict. At the end of a window all keys of the window are at hand, slice by slice, so no key needs a timer. The list
of open slices is part of the snapshot, and tells when something has to be done. Records that are older than the
watermark take another way (``_behind``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count, repeat
from typing import ClassVar, NoReturn

import numpy as np

from tidegate.base.clock import MAX_WATERMARK, MIN_WATERMARK
from tidegate.base.user_code import UserValue
from tidegate.graph.plan import ChainNode
from tidegate.operators.contracts.batch import INT, Batch, Int64s
from tidegate.operators.contracts.functions import SubtaskRuntimeContext
from tidegate.operators.contracts.operator import EndOfInput, OperatorRound, OperatorSetup
from tidegate.operators.contracts.specs import WindowingSpec
from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.loop.blame import user_error
from tidegate.operators.loop.codegen import LoopSource
from tidegate.operators.loop.ownership import ATOMS, own
from tidegate.operators.windows.assigner import aligned_event_time, no_timestamp
from tidegate.operators.windows.contexts import LATE_RECORDS_DROPPED, Emission, WindowContext
from tidegate.operators.windows.operation import CONTENTS, Shape
from tidegate.operators.windows.slices import Group, Slices, adding_to, whole_record
from tidegate.operators.windows.window import TimeWindow, TimeWindowSerializer, bytes_of
from tidegate.state import namespaces
from tidegate.state.key_groups import encode_and_group
from tidegate.state.keys import visible
from tidegate.state.refs import KeyGroupRange
from tidegate.state.slices import SliceCells, SliceStateDescriptor
from tidegate.state.snapshot import ListPart, OperatorSnapshot, Part, Redistribution

SLICES = "slices"
"""The part with the starts of the slices that have contents."""
FIRED = "fired"
"""The part with key groups, first and last, and the watermark up to which their windows have fired."""
_FIRE, _CLEAN_UP = 0, 1
_SAFE = -(1 << 62)
"""Arithmetic on the times of a column cannot leave 64 bits from here to its opposite."""
_LEAST, _PATIENCE = 64, 16
"""The least number of records to add at once, and the number of refusals after which no batch is tried."""
_SERIALIZER = TimeWindowSerializer()


class SlicedWindowOperator(FunctionOperator):
    """Add records to slices, and fire windows. ``watermark``: windows have fired up to it."""

    emits_fresh: ClassVar[bool] = True

    def __init__(self, node: ChainNode, setup: OperatorSetup) -> None:
        super().__init__(node, setup)
        assert self.backend is not None
        operation = self.operator.spec_as(WindowingSpec).function
        aligned = aligned_event_time(operation.assigner)
        assert aligned is not None
        self._operation, backend = operation, self.backend
        self._slices = Slices(aligned.size, aligned.slide, aligned.offset)
        self.windows = namespaces.slices(aligned.size, aligned.slide, aligned.offset)
        self._lateness = operation.lateness
        self._adding = adding_to(operation.contents)
        self._refusals = 0
        """Consecutive batches that the aggregation could not add as a whole."""
        runtime = SubtaskRuntimeContext(self.operator, setup.index, backend, setup.settings.parameters, self.metrics)
        self._context = WindowContext(self, runtime, backend, merging=False)
        self._call, self._clear = operation.caller(), operation.clearer()
        self._is_single = operation.is_single
        self._out = Emission(setup.emit, operation.convert, self.operator.output_type)
        self._dropped = runtime.get_metrics_group().counter(LATE_RECORDS_DROPPED)
        self._keys = backend.context
        self.watermark = MIN_WATERMARK
        self._stored: set[int] = set()
        self._open: set[int] = set()
        """Starts of slices that may have contents; ``_stored``: in the files."""
        self._due: list[tuple[int, int, int]] = []
        """A heap: when a window has to be fired or cleaned up, which of the two, its start."""
        self._windows: set[int] = set()
        """Starts of the windows in the heap."""
        self._ahead: list[tuple[KeyGroupRange, int]] = []
        """Key groups of former subtasks whose windows have fired beyond ``watermark``. Subtasks of an unaligned
        checkpoint are not at the same event time, and after a rescale the slowest subtask counts."""
        self._groups: dict[Group, dict[UserValue, UserValue]] = {}
        """Results of groups of slices, by key. A result is made when a window that contains the whole group fires: from
        then on only records older than the watermark can change it."""

    def processing_time(self) -> int:
        return self._keys.time

    # -- a round -----------------------------------------------------------------------------------------------------

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        assert self.backend is not None
        self._state = self.backend.state(SliceStateDescriptor(CONTENTS, self._adding.type))
        self.watermark = self.output_time.watermark
        fired = [(KeyGroupRange(first, last), mark) for first, last, mark in snapshot.values(FIRED)]
        mine = self.backend.groups
        self._ahead = [(groups, mark) for groups, mark in fired if mark > self.watermark and groups.intersect(mine)]
        self._out.clear()
        self._due, self._windows, self._open = [], set(), set()
        self._stored = set(filter(self._is_open, snapshot.values(SLICES)))
        for start in self._stored:
            self._begin_slice(start)

    def _is_open(self, start: int) -> bool:
        """Tell whether a slice may have contents. Slices of other subtasks may have ended here."""
        windows = self._slices.windows_of(start)
        return bool(windows) and self._cleanup_time(windows[0]) > self.watermark

    def begin(self) -> None:
        super().begin()
        assert self.backend is not None
        self._state.keep_only(self._stored)
        if not self.backend.unbroken:
            self._groups.clear()

    def parts(self) -> dict[str, Part]:
        if not self._open:
            return super().parts()
        assert self.backend is not None
        slices = ListPart.of(Redistribution.UNION, sorted(self._open))
        fired = [(self.backend.groups, self.watermark), *self._ahead]
        rows = [(groups.first, groups.last, mark) for groups, mark in fired if mark >= self.watermark]
        return {**super().parts(), SLICES: slices, FIRED: ListPart.of(Redistribution.UNION, rows)}

    # -- records -----------------------------------------------------------------------------------------------------

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        n, owner = self.id, source.owner(self.node, value)
        if not source.timed:
            source.line(depth, f"{source.bind(f'n{n}', _refuse)}()", owner)
            return
        low, high, cells = f"tg_lo{n}", f"tg_hi{n}", f"tg_c{n}"
        source.once(f"{low} = {high} = {cells} = 0")
        key = "tg_k" if keyed else f"{source.bind(f'B{n}', self.key_context)}.slot"
        source.line(depth, "try:", owner)
        source.line(depth + 1, f"if not {low} <= tg_t < {high}:", owner)
        source.line(depth + 2, f"{low}, {high}, {cells} = {source.bind(f'o{n}', self._slice_at)}(tg_t)", owner)
        source.line(depth, f"except {source.bind('TypeError', TypeError)}:", owner)
        source.line(depth + 1, f"{source.bind(f'n{n}', _refuse)}()", owner)
        if not keyed:  # a function of this chain may still change a record that it has emitted
            atoms, copied, mine = source.bind("atoms", ATOMS), source.bind("own", own), f"tg_w{n}"
            source.line(depth, f"{mine} = {value} if {value}.__class__ in {atoms} else {copied}({value})", owner)
            value = mine
        source.line(depth, f"if {cells} is None:", owner)
        source.line(
            depth + 1, f"{source.bind(f'l{n}', self._behind)}({key}, {whole_record(source, value)}, tg_t)", owner
        )
        source.line(depth, "else:", owner)
        self._adding.write(source, f"{n}", cells, key, value, depth + 1, owner, keyed)

    def fold_batch(self, batch: Batch) -> bool:
        """Add a batch of columns, one call for all records of a key and slice, if the aggregation can."""
        fold = self._adding.fold
        if fold is None or len(batch) < _LEAST or self._refusals > _PATIENCE:
            return False
        times = batch.time_column()
        if times is None or not _SAFE <= int(times.min()) <= int(times.max()) <= -_SAFE:
            return False
        starts = self._slices.starts_of(times)
        one = int(starts[0]) if (starts == starts[0]).all() else None
        if any(self._is_behind(start) for start in ([one] if one is not None else np.unique(starts).tolist())):
            return False  # the loop finds the late records
        keys, groups = keys_of(batch)
        if one is None:
            every, numbers = np.unique(starts, return_inverse=True)
            pairs, groups = _in_order(numbers * len(keys) + groups)
            slices = [self._cells(start) for start in every.tolist()]
            places = [(slices[pair // len(keys)], keys[pair % len(keys)]) for pair in pairs]
        else:
            places = list(zip(repeat(self._cells(one)), keys))
        folded = fold(batch.widened(), groups, [cells[key] for cells, key in places])
        if folded is None:
            self._refusals += 1
            return False
        self._refusals = 0
        for (cells, key), value in zip(places, folded, strict=True):
            cells[key] = value
        return True

    def _is_behind(self, start: int) -> bool:
        """Tell whether records of the slice are older than the watermark, or in no window at all."""
        windows = self._slices.windows_of(start)
        return not windows or windows[-1] + self._slices.size - 1 <= self.watermark

    def _slice_at(self, time: int) -> tuple[int, int, SliceCells | None]:
        """Return the slice of a record, and the cells to which it is added. None: the record is older than the
        watermark, or in no window at all."""
        start, end = self._slices.around(time)
        if self._is_behind(start):
            return start, end, None
        return start, end, self._cells(start)

    def _cells(self, start: int) -> SliceCells:
        if start not in self._open:
            self._begin_slice(start)
        cells: SliceCells = self._state.cells(start, stored=start in self._stored)
        return cells

    def _begin_slice(self, start: int) -> None:
        self._open.add(start)
        last_ms = self._slices.size - 1
        for window in self._slices.windows_of(start):
            if window not in self._windows and self._cleanup_time(window) > self.watermark:
                self._windows.add(window)
                if window + last_ms > self.watermark:
                    heappush(self._due, (window + last_ms, _FIRE, window))
                heappush(self._due, (self._cleanup_time(window), _CLEAN_UP, window))

    def _cleanup_time(self, window: int) -> int:
        return min(window + self._slices.size - 1 + self._lateness, MAX_WATERMARK)

    def _behind(self, key: UserValue, value: UserValue, time: int) -> None:
        """Take a record for which a window has fired already: the record is late, or its windows fire again at once."""
        start, _ = self._slices.around(time)
        last_ms = self._slices.size - 1
        alive = [w for w in self._slices.windows_of(start) if self._cleanup_time(w) > self.watermark]
        if alive:
            self._forget_groups(start)
            self._adding.add(self._cells(start), key, value)
            for window in alive:
                if window + last_ms <= self.watermark:
                    self._fire_key(key, window)
        elif time + self._lateness <= self.watermark:
            if self._operation.late_tag is not None:
                self._out.late(self._operation.late_tag, value, time)
            else:
                self._dropped.inc()

    # -- time --------------------------------------------------------------------------------------------------------

    def on_watermark(self, now_ms: int) -> None:
        self._out.flush()
        self.watermark, self._keys.time = self.input_time.watermark, now_ms
        if self.round.end_of_input is not EndOfInput.PAST:
            self._pass_windows()
        self._pass_time_on()

    def end_input(self, now_ms: int) -> None:
        self.on_watermark(now_ms)

    def _pass_windows(self) -> None:
        while self._due and self._due[0][0] <= self.watermark:
            _, what, window = heappop(self._due)
            try:
                (self._fire_window if what == _FIRE else self._clean_up)(window)
            except BaseException as error:
                where = f"operator '{self.operator.name}', {self._window(window)!r}"
                raise user_error(error, where, None) from error
            self._out.flush_full()
        self._out.flush()

    def _clean_up(self, window: int) -> None:
        self._windows.discard(window)
        if self._clear is not None:
            self._clear_keys(window)
        for start in self._slices.last_of(window):
            if start in self._open:
                self._state.drop(start, stored=start in self._stored)
                self._forget_groups(start)
                self._open.discard(start)

    def _clear_keys(self, window: int) -> None:
        assert self._clear is not None
        self._enter(window)
        for key in self._contents(window):
            self._keys.slot = key
            self._clear(self._context)

    # -- the contents of a window ------------------------------------------------------------------------------------

    def _fire_window(self, window: int) -> None:
        contents = self._contents(window)
        if self._ahead:
            contents = self._not_fired(contents, window + self._slices.size - 1)
        last = window + self._slices.size - 1
        if self._operation.shape is Shape.NONE:
            results = [self._adding.result(value) for value in contents.values() if value is not None]
            if self._lateness or not self._slices.are_windows:
                results = list(map(own, results))  # an object that stays in the state must not be emitted itself
            self._out.owned([result for result in results if result is not None], last)
            return
        self._enter(window)
        for key, value in contents.items():
            if value is not None:
                self._call_function(key, self._adding.result(value), last)
                self._out.flush_full()

    def _not_fired(self, contents: dict[UserValue, UserValue], end: int) -> dict[UserValue, UserValue]:
        """Return the contents without the keys for which a former subtask has fired the window."""
        self._ahead = [(groups, mark) for groups, mark in self._ahead if mark >= end]
        if not self._ahead or not contents:
            return contents
        assert self.backend is not None
        groups = encode_and_group(list(contents), self.backend.max_parallelism)[1].tolist()
        fired = {group for group in set(groups) if any(group in ahead for ahead, _ in self._ahead)}
        return {key: value for (key, value), group in zip(contents.items(), groups, strict=True) if group not in fired}

    def _fire_key(self, key: UserValue, window: int) -> None:
        """Fire the window for one key only: a late record has arrived."""
        found = [value for start in self._open_slices(window) if (value := self._cells(start)[key]) is not None]
        if found:
            self._enter(window)
            result = self._adding.result(own(self._adding.merged(found)))
            self._call_function(key, result, window + self._slices.size - 1)

    def _call_function(self, key: UserValue, result: UserValue, last: int) -> None:
        """Call the window function for a key. ``last``: the last millisecond of the window, which was entered before."""
        if result is not None:
            self._keys.slot = key
            records = [result] if self._is_single else result
            self._out.results(self._call(visible(key), self._context, records), last)

    def _contents(self, window: int) -> dict[UserValue, UserValue]:
        """Return the value of each key in a window; None: the key has nothing."""
        return self._merged(self._slices.pieces_of(window))

    def _merged(self, pieces: Iterable[Group | list[int]]) -> dict[UserValue, UserValue]:
        every: list[dict[UserValue, UserValue]] = []
        for piece in pieces:
            if isinstance(piece, Group):
                every += filter(None, [self._of_group(piece)])
            else:
                every += (self._cells(start).everything() for start in piece if start in self._open)
        return every[0] if len(every) == 1 else self._adding.merged_by_key(every)

    def _of_group(self, group: Group) -> dict[UserValue, UserValue]:
        if group not in self._groups:
            merged = self._merged(self._slices.halves(group))
            # cells move their values into the state with the round
            self._groups[group] = dict(merged) if isinstance(merged, SliceCells) else merged
        return self._groups[group]

    def _forget_groups(self, start: int) -> None:
        for group in self._slices.groups_of(start):
            self._groups.pop(group, None)

    def _open_slices(self, window: int) -> list[int]:
        return [start for start in self._slices.of_window(window) if start in self._open]

    def _enter(self, window: int) -> None:
        """Set the window in the function's context: one object for all keys."""
        found = self._window(window)
        self._context.enter(found, lambda: bytes_of(found, _SERIALIZER))

    def _window(self, start: int) -> TimeWindow:
        return TimeWindow(start, start + self._slices.size)


def numbered(values: list[UserValue]) -> tuple[list[UserValue], Int64s]:
    """Return the different values in the order of their first place, and the number of each value."""
    numbers: dict[UserValue, int] = defaultdict(count().__next__)
    found = np.fromiter(map(numbers.__getitem__, values), np.int64, len(values))
    return list(numbers), found


def _in_order(values: Int64s) -> tuple[list[int], Int64s]:
    """Do the same for a column of ints."""
    found, first, numbers = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    places = np.empty(len(found), np.int64)
    places[order] = np.arange(len(found))
    return found[order].tolist(), places[numbers]


def keys_of(batch: Batch) -> tuple[list[UserValue], Int64s]:
    """Do the same for the keys of a batch. Ints that lie close together need no dict."""
    keys = None if batch.key_field is None else batch.column(batch.key_field)
    if keys is None or keys.dtype.kind != INT:
        return numbered(batch.keys or [])
    low, length = int(keys.min()), len(batch)
    span = int(keys.max()) - low + 1
    if span > 4 * length:
        return numbered(batch.keys or [])
    offsets = keys.astype(np.int64) - low
    first = np.full(span, length)
    first[offsets[::-1]] = np.arange(length - 1, -1, -1)  # of equal keys, the first record is written last
    found = np.flatnonzero(first < length)
    found = found[np.argsort(first[found])]
    numbers = np.empty(span, np.int64)
    numbers[found] = np.arange(len(found))
    return (found + low).tolist(), numbers[offsets]


def _refuse() -> NoReturn:
    raise no_timestamp()
