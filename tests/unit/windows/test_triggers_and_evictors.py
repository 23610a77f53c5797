"""Triggers, evictors, count and processing-time windows, state of windows: what happens when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sources import At, Pause
from tests.unit.windows.window_jobs import WindowJob, cut, lives, timed
from tidegate.common import Time, Types
from tidegate.datastream import AggregateFunction, DataStream, ProcessWindowFunction, Trigger, TriggerResult
from tidegate.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from tidegate.datastream.window import (
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    GlobalWindows,
    ProcessingTimeoutTrigger,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from tidegate.operators.kinds import window as window_operator

ONE_BY_ONE: dict[str, Any] = {"tidegate.chunk.records": 1}
RECORDS = [("a", 1, 0), ("a", 3, 1), ("a", 4, 2), ("b", 5, 3), ("a", 12, 4), ("b", 18, 5), ("a", 25, 6), ("b", 60, 7)]


def ms(value: int) -> Time:
    return Time.milliseconds(value)


class Listed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield [key, *[e[2] for e in elements]]


def run(place: Path, describe: Any, records: Any = RECORDS, **settings: Any) -> list[Any]:
    def build(stream: DataStream) -> DataStream:
        return describe(stream.key_by(lambda r: r[0], Types.STRING()))

    steps = records if not isinstance(records[0], tuple) else timed(records)
    return sorted(WindowJob(place, build, steps).run(1, **ONE_BY_ONE, **settings))


def test_count_windows_start_anew_with_every_window(tmp_path: Path) -> None:
    assert run(tmp_path, lambda s: s.count_window(2).process(Listed())) == [["a", 0, 1], ["a", 2, 4], ["b", 3, 5]]


def test_sliding_count_windows_hold_the_last_records(tmp_path: Path) -> None:
    found = run(tmp_path, lambda s: s.count_window(3, 1).process(Listed()))
    assert found == [["a", 0, 1, 2], ["a", 1, 2, 4], ["a", 2, 4, 6], ["b", 3, 5, 7]]


def test_a_global_window_never_fires_by_itself(tmp_path: Path) -> None:
    assert run(tmp_path, lambda s: s.window(GlobalWindows.create()).process(Listed())) == []


def test_a_trigger_that_does_not_purge_fires_with_all_that_came(tmp_path: Path) -> None:
    found = run(tmp_path, lambda s: s.window(GlobalWindows.create()).trigger(CountTrigger.of(2)).process(Listed()))
    assert found == [["a", 0, 1], ["a", 0, 1, 2, 4], ["b", 3, 5]]


def test_a_delta_trigger_fires_when_a_record_is_far_from_the_last(tmp_path: Path) -> None:
    delta = DeltaTrigger.of(5, lambda old, new: new[1] - old[1])
    found = run(
        tmp_path, lambda s: s.window(GlobalWindows.create()).trigger(PurgingTrigger.of(delta)).process(Listed())
    )
    assert found == [["a", 0, 1, 2, 4], ["a", 6], ["b", 3, 5], ["b", 7]]


def test_a_continuous_trigger_fires_between_and_at_the_end(tmp_path: Path) -> None:
    windows = TumblingEventTimeWindows.of(ms(20))
    trigger = ContinuousEventTimeTrigger.of(ms(8))
    found = run(tmp_path, lambda s: s.window(windows).trigger(trigger).process(Listed()))
    assert found == [
        *([["a", 0, 1, 2, 4]] * 3),  # at 8, 16 and 19
        *([["a", 6]] * 2),  # at 32 and 39
        ["b", 3],
        *([["b", 3, 5]] * 2),
        *([["b", 7]] * 3),
    ]


@pytest.mark.parametrize(
    ("evictor", "expected"),
    [
        (CountEvictor.of(2), [["a", 1, 2], ["a", 4], ["a", 6], ["b", 3], ["b", 5], ["b", 7]]),
        (TimeEvictor.of(ms(2)), [["a", 1, 2], ["a", 4], ["a", 6], ["b", 3], ["b", 5], ["b", 7]]),
        (
            DeltaEvictor.of(1, lambda r, last: last[1] - r[1]),
            [["a", 2], ["a", 4], ["a", 6], ["b", 3], ["b", 5], ["b", 7]],
        ),
        (CountEvictor.of(1, True), [["a", 0, 1, 2], ["a", 4], ["a", 6], ["b", 3], ["b", 5], ["b", 7]]),
    ],
    ids=["count", "time", "delta", "after"],
)
def test_evictors_take_records_out(evictor: Any, expected: Any, tmp_path: Path) -> None:
    windows = TumblingEventTimeWindows.of(ms(10))
    assert run(tmp_path, lambda s: s.window(windows).evictor(evictor).process(Listed())) == expected


class EvenOnly(Evictor[Any, Any]):
    def evict_before(self, elements: Any, size: int, window: Any, evictor_context: Any) -> None:
        assert size == len(elements) and evictor_context.get_current_watermark() >= window.max_timestamp()
        elements[:] = [e for e in elements if e.get_value()[2] % 2 == 0]

    def evict_after(self, elements: Any, size: int, window: Any, evictor_context: Any) -> None:
        pass


def test_an_evictor_of_the_users_own_with_a_reduction(tmp_path: Path) -> None:
    """What was evicted is not reduced; where nothing is left nothing is emitted."""
    windows = TumblingEventTimeWindows.of(ms(10))
    found = run(
        tmp_path, lambda s: s.window(windows).evictor(EvenOnly()).reduce(lambda a, b: (a[0], b[1], a[2] + b[2]))
    )
    assert found == [["a", 4, 2], ["a", 12, 4], ["a", 25, 6]]


def test_what_is_evicted_after_a_firing_is_gone_in_the_next(tmp_path: Path) -> None:
    windows = GlobalWindows.create()
    found = run(
        tmp_path,
        lambda s: s.window(windows).trigger(CountTrigger.of(2)).evictor(CountEvictor.of(1, True)).process(Listed()),
    )
    assert found == [["a", 0, 1], ["a", 1, 2, 4], ["b", 3, 5]]


# -- processing time -----------------------------------------------------------------------------------------------------

PAUSED = [At(0, ("a", 0, 0)), At(0, ("b", 0, 1)), Pause(7), At(0, ("a", 0, 2)), Pause(40), At(0, ("a", 0, 3))]


def test_processing_time_windows_end_by_the_clock_and_not_with_the_input(tmp_path: Path) -> None:
    found = run(tmp_path, lambda s: s.window(TumblingProcessingTimeWindows.of(ms(20))).process(Listed()), PAUSED)
    assert sorted(n for result in found for n in result[1:]) == [0, 1, 2]


def test_sliding_processing_time_windows(tmp_path: Path) -> None:
    """The end of the input is seen soon after the last record: before the first of its windows ends."""
    paused = [*PAUSED[:-2], Pause(400), PAUSED[-1]]
    found = run(
        tmp_path, lambda s: s.window(SlidingProcessingTimeWindows.of(ms(200), ms(100))).process(Listed()), paused
    )
    assert sorted(n for result in found for n in result[1:]) == [0, 0, 1, 1, 2, 2]


def test_processing_time_sessions(tmp_path: Path) -> None:
    found = run(tmp_path, lambda s: s.window(ProcessingTimeSessionWindows.with_gap(ms(15))).process(Listed()), PAUSED)
    assert found == [["a", 0, 2], ["b", 1]]


def test_a_timeout_fires_what_its_trigger_does_not(tmp_path: Path) -> None:
    trigger = ProcessingTimeoutTrigger.of(PurgingTrigger.of(CountTrigger.of(2)), ms(20))
    found = run(tmp_path, lambda s: s.window(GlobalWindows.create()).trigger(trigger).process(Listed()), PAUSED)
    assert found == [["a", 0, 2], ["b", 1]]


class OfTheUser(TumblingProcessingTimeWindows):
    """A subclass: its ``assign_windows`` is called."""


@pytest.mark.parametrize("most_slots", [50_000, 1])
@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows, TumblingProcessingTimeWindows, OfTheUser])
def test_records_belong_to_their_key_and_window_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assigner: Any, most_slots: int
) -> None:
    """Several records in a row have one window. Then another window is next, and an earlier window comes again."""
    monkeypatch.setattr(window_operator, "_MOST_SLOTS", most_slots)
    size = 10 if assigner is TumblingEventTimeWindows else 1 << 45  # the clock stays in one window
    records = [(f"k{n % 3}", n // 5 * 13 % 40, n) for n in range(60)]
    expected, open_windows = [], dict[Any, list[int]]()
    for key, time, number in records:
        kept = open_windows.setdefault((key, time // size), [])
        kept.append(number)
        if len(kept) == 3:
            expected.append([key, *kept])
            kept.clear()

    def build(stream: DataStream) -> DataStream:
        windows = stream.key_by(lambda r: r[0], Types.STRING()).window(assigner(size))
        return windows.trigger(PurgingTrigger.of(CountTrigger.of(3))).aggregate(Numbers(), NumbersOfKey())

    found = WindowJob(tmp_path, build, timed(records), disorder_ms=100).run(1)
    assert sorted(found) == sorted(expected)


class Numbers(AggregateFunction):
    """The numbers of records, in a list that is changed in place."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        accumulator.append(value[2])
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return acc_a + acc_b


class NumbersOfKey(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield [key, *next(iter(elements))]


# -- triggers and state of the users' own ---------------------------------------------------------------------------------


class Early(Trigger[Any, Any]):
    """Fires with every third record of a window, however windows were merged, and at the end."""

    def __init__(self) -> None:
        self.seen = ReducingStateDescriptor("seen", lambda a, b: a + b, Types.LONG())

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp())
        seen = ctx.get_partitioned_state(self.seen)
        seen.add(1)
        return TriggerResult.FIRE if seen.get() % 3 == 0 else TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.merge_partitioned_state(self.seen)
        ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.get_partitioned_state(self.seen).clear()
        ctx.delete_event_time_timer(window.max_timestamp())


def test_the_state_of_a_trigger_survives_merges_and_restarts(tmp_path: Path) -> None:
    """Two sessions, of two records and one, become one by a fourth that fires nothing; the sixth does."""
    records = [("a", t, n) for n, t in enumerate((100, 102, 120, 111, 113, 114))]

    def build(stream: DataStream) -> DataStream:
        windows = stream.key_by(lambda r: r[0]).window(EventTimeSessionWindows.with_gap(ms(10)))
        return windows.trigger(Early()).reduce(lambda a, b: (a[0], 0, a[2] + b[2]), Sum())

    class Sum(ProcessWindowFunction):
        def process(self, key: Any, context: Any, elements: Any) -> Any:
            (total,) = elements
            yield [context.window().start, context.window().end, total[2]]

    job = WindowJob(tmp_path, build, cut(timed(records), tmp_path, 2, 3, 4, 5), disorder_ms=50, limit=1)
    assert lives(job, (2, 1, 2, 3, 1), **ONE_BY_ONE) == [[100, 130, 15], [100, 130, 15]]


class Remembering(ProcessWindowFunction):
    """All kinds of state, of the window and of the key, used in turns."""

    def open(self, runtime_context: Any) -> None:
        self.firings = runtime_context.get_state(ValueStateDescriptor("firings", Types.LONG()))

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        window, every = context.window_state(), context.global_state()
        count = window.get_state(ValueStateDescriptor("firings", Types.LONG()))
        numbers = window.get_list_state(ListStateDescriptor("numbers", Types.LONG()))
        latest = window.get_map_state(MapStateDescriptor("latest", Types.STRING(), Types.LONG()))
        count.update((count.value() or 0) + 1)
        self.firings.update((self.firings.value() or 0) + 1)
        assert every.get_state(ValueStateDescriptor("firings", Types.LONG())).value() == self.firings.value()
        numbers.add(len(elements))
        latest["n"] = len(elements)
        yield [key, context.window().start, count.value(), self.firings.value(), list(numbers), dict(latest.items())]

    def clear(self, context: Any) -> None:
        store = context.window_state()
        store.get_state(ValueStateDescriptor("firings", Types.LONG())).clear()
        store.get_list_state(ListStateDescriptor("numbers", Types.LONG())).clear()
        store.get_map_state(MapStateDescriptor("latest", Types.STRING(), Types.LONG())).clear()


@pytest.mark.parametrize("trigger", [EventTimeTrigger(), Early()], ids=["sliced", "general"])
def test_state_of_a_window_and_of_its_key(trigger: Any, tmp_path: Path) -> None:
    """The second window starts without state of its own; the first fires again for a late record."""
    records = [("a", 1, 0), ("a", 11, 1), ("a", 2, 2), ("a", 40, 3)]
    windows = TumblingEventTimeWindows.of(ms(10))
    found = run(
        tmp_path, lambda s: s.window(windows).trigger(trigger).allowed_lateness(5).process(Remembering()), records
    )
    assert found == [
        ["a", 0, 1, 1, [1], {"n": 1}],
        ["a", 0, 2, 2, [1, 2], {"n": 2}],
        ["a", 10, 1, 3, [1], {"n": 1}],
        ["a", 40, 1, 4, [1], {"n": 1}],
    ]
