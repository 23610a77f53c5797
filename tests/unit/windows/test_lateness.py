"""Records behind the watermark: dropped, to the side output, or in a window that fires once more. Against a plain model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.unit.windows.window_jobs import WindowJob, cut, lives, timed
from tidegate.common import Time, Types
from tidegate.datastream import AggregateFunction, DataStream, OutputTag, ProcessWindowFunction
from tidegate.datastream.window import EventTimeTrigger, SlidingEventTimeWindows, TumblingEventTimeWindows

LATE = OutputTag("late")
ONE_BY_ONE: dict[str, Any] = {"tidegate.chunk.records": 1}
"""The watermark follows every record."""


class NotBuiltIn(EventTimeTrigger):
    """The same, but nobody knows."""


class Numbers(AggregateFunction):
    def create_accumulator(self) -> Any:
        return []

    def add(self, value: Any, accumulator: Any) -> Any:
        return [*accumulator, value[2]]

    def get_result(self, accumulator: Any) -> Any:
        return sorted(accumulator)

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a + acc_b


class Labelled(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        (numbers,) = elements
        yield [key, context.window().start, numbers]


class Model:
    """One key after the other is not needed: keys do not meet, but share the watermark."""

    def __init__(self, size: int, slide: int, lateness: int) -> None:
        self.size, self.slide, self.lateness = size, slide, lateness
        self.watermark = -(1 << 63)
        self.windows: dict[tuple[int, Any], list[int]] = {}
        self.fired: list[Any] = []
        self.late: list[Any] = []

    def take(self, record: Any) -> None:
        key, time, number = record
        last = time - time % self.slide
        starts = range(last, time - self.size, -self.slide)
        alive = [start for start in starts if start + self.size - 1 + self.lateness > self.watermark]
        for start in alive:
            self.windows.setdefault((start, key), []).append(number)
            if start + self.size - 1 <= self.watermark:
                self._fire(start, key)
        if not alive and time + self.lateness <= self.watermark:  # also where there is no window at all
            self.late.append(["late", *record])

    def _fire(self, start: int, key: Any) -> None:
        self.fired.append([key, start, sorted(self.windows[start, key])])

    def advance(self, watermark: int) -> None:
        for start, key in sorted(self.windows):
            if self.watermark < start + self.size - 1 <= watermark:
                self._fire(start, key)
        self.watermark = watermark
        gone = [w for w in self.windows if w[0] + self.size - 1 + self.lateness <= watermark]
        for window in gone:
            del self.windows[window]


def model_of(records: list[Any], size: int, slide: int, lateness: int) -> list[Any]:
    model = Model(size, slide, lateness)
    greatest = -(1 << 63)
    for record in records:
        model.take(record)
        greatest = max(greatest, record[1])
        model.advance(greatest - 1)
    model.advance((1 << 63) - 1)
    return sorted(model.fired + model.late, key=repr)


def late_records(seed: int, count: int = 150) -> list[Any]:
    chance = random.Random(seed)
    return [(f"k{chance.randrange(3)}", n - chance.choice((0, 0, 0, 5, 25, 60)), n) for n in range(count)]


def built(size: int, slide: int, lateness: int, sliced: bool) -> Any:
    def build(stream: DataStream) -> DataStream:
        windows = stream.key_by(lambda r: r[0], Types.STRING()).window(
            TumblingEventTimeWindows.of(Time.milliseconds(size))
            if size == slide
            else SlidingEventTimeWindows.of(Time.milliseconds(size), Time.milliseconds(slide))
        )
        if not sliced:
            windows = windows.trigger(NotBuiltIn())
        results = windows.allowed_lateness(lateness).side_output_late_data(LATE).aggregate(Numbers(), Labelled())
        late = results.get_side_output(LATE).map(lambda r: ["late", *r])
        return results.union(late)

    return build


@pytest.mark.parametrize("sliced", [True, False], ids=["sliced", "general"])
@pytest.mark.parametrize("lateness", [0, 12, 1000])
@pytest.mark.parametrize(("size", "slide"), [(10, 10), (20, 5), (15, 10), (5, 12), (40, 2), (41, 2)])
def test_late_records_as_in_the_model(size: int, slide: int, lateness: int, sliced: bool, tmp_path: Path) -> None:
    found = late_records(size + slide + lateness)
    job = WindowJob(tmp_path, built(size, slide, lateness, sliced), timed(found))
    results = sorted(job.run(1, **ONE_BY_ONE), key=repr)
    assert results == model_of(found, size, slide, lateness)
    if (lateness, size > slide) == (0, False):
        assert any(result[0] == "late" for result in results)


@pytest.mark.parametrize("sliced", [True, False], ids=["sliced", "general"])
def test_a_restart_does_not_make_records_late_or_early(sliced: bool, tmp_path: Path) -> None:
    found = late_records(8)
    steps = cut(timed(found), tmp_path, 30, 31, 90, 120)
    job = WindowJob(tmp_path, built(15, 10, 12, sliced), steps, limit=2)
    assert sorted(job.run(1, **ONE_BY_ONE), key=repr) == model_of(found, 15, 10, 12)


@pytest.mark.parametrize("sliced", [True, False], ids=["sliced", "general"])
def test_the_last_result_of_a_window_has_all_records_that_were_not_late_after_rescales(
    sliced: bool, tmp_path: Path
) -> None:
    """How often a window fires again depends on where the watermark stands; what it has at last does not."""
    found = [r for r in late_records(9) if r[1] >= r[2] - 25]
    steps = cut(timed(found), tmp_path, 40, 80)
    job = WindowJob(tmp_path, built(20, 5, 1000, sliced), steps, limit=3)
    results = lives(job, (2, 3, 1), **ONE_BY_ONE)
    longest: dict[Any, list[int]] = {}
    for key, start, numbers in results:
        longest[key, start] = max(longest.get((key, start), []), numbers, key=len)
    expected: dict[Any, list[int]] = {}
    for key, time, number in found:
        for start in range(time - time % 5, time - 20, -5):
            expected.setdefault((key, start), []).append(number)
    assert longest == expected


def test_late_records_nobody_asks_for_are_dropped(tmp_path: Path) -> None:
    def build(stream: DataStream) -> DataStream:
        windows = stream.key_by(lambda r: r[0]).window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
        return windows.aggregate(Numbers())

    job = WindowJob(tmp_path, build, timed([("a", 5, 0), ("a", 25, 1), ("a", 6, 2), ("a", 26, 3)]))
    assert sorted(job.run(1, **ONE_BY_ONE)) == [[0], [1, 3]]


@pytest.mark.parametrize("sliced", [True, False], ids=["sliced", "general"])
def test_records_that_are_dropped_are_counted(sliced: bool, tmp_path: Path) -> None:
    def build(stream: DataStream) -> DataStream:
        windows = stream.key_by(lambda r: r[0]).window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
        return (windows if sliced else windows.trigger(NotBuiltIn())).aggregate(Numbers())

    job = WindowJob(tmp_path, build, timed([("a", 5, 0), ("a", 25, 1), ("a", 6, 2), ("a", 7, 3), ("a", 26, 4)]))
    job.run(1, **ONE_BY_ONE)
    metrics = job.master.view().metrics.values()
    [dropped] = [m.value for m in metrics if m.name == "numLateRecordsDropped"]
    assert dropped == 2
