"""Test the contract of sources.

Subclass ``SourceContract`` in a test module, define how to make a source, and run pytest::

class TestMySource(SourceContract):
    def make_source(self, directory):
        return MySource(...)

    def expected(self):
        return [...]
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import SkipTest

import cloudpickle

from tidegate.base.pickling import find_other
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.source import Boundedness, Source, SourcePlan, SplitEnumerator, SplitInterval

START_MS = 1_700_000_000_000


@dataclass
class Reading:
    """Hold the result of reading a source: all values, the same per split, and the intervals they came from."""

    values: list[Any] = field(default_factory=list)
    by_split: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    intervals: list[SplitInterval] = field(default_factory=list)
    finished: bool = False


def read_interval(source: Source, interval: SplitInterval) -> list[Any]:
    """Return the interval's values, through a fresh reader."""
    reader = source.create_reader(interval.subtask)
    try:
        values: list[Any] = []
        for batch in map(Batch.of, reader.read(interval)):
            assert batch.times is None or len(batch.times) == len(batch), "timestamps and values differ in number"
            values += batch
        return values
    finally:
        reader.close()


def read_all(source: Source, steps: Iterable[tuple[int, int]], *, rounds: int = 10_000) -> Reading:
    """Read to the end. ``steps``: (parallelism, limit) of the rounds, the last one repeated; a change of parallelism
    restores from a snapshot. Time jumps to each ``wake_up_ms``; an unbounded source ends when only time advances."""
    script, reading, now_ms = list(steps), Reading(), START_MS
    parallelism = script[0][0]
    enumerator, idle = source.create_enumerator(parallelism, None), 0
    for number in range(rounds):
        wanted, limit = script[min(number, len(script) - 1)]
        if wanted != parallelism:
            enumerator, parallelism = restored(source, enumerator, wanted), wanted
        plan = enumerator.plan(limit, now_ms)
        check_plan(plan, parallelism)
        _collect(source, plan, reading)
        idle = 0 if plan.intervals else idle + 1
        if plan.finished or (idle > 3 and source.boundedness is not Boundedness.BOUNDED):
            reading.finished = plan.finished
            break
        now_ms = max(now_ms, plan.wake_up_ms or now_ms)
    enumerator.close()
    return reading


def restored(source: Source, enumerator: SplitEnumerator, parallelism: int) -> SplitEnumerator:
    """Return a new enumerator from the old one's snapshot, as after a crash and a rescale."""
    snapshot = enumerator.snapshot()
    other = find_other(snapshot, allow_bytes=False)
    assert other is None, f"a snapshot is plain data, found {type(other).__name__}: {other!r}"
    enumerator.close()
    return source.create_enumerator(parallelism, snapshot)


def check_plan(plan: SourcePlan, parallelism: int) -> None:
    """Assert what every plan of a source must keep: known subtasks, plain positions, no backlog after the end."""
    for interval in plan.intervals:
        assert 0 <= interval.subtask < parallelism, f"subtask {interval.subtask} of {parallelism}: {interval}"
        ends = [interval.start, interval.end]
        assert find_other(ends, allow_bytes=False) is None, f"positions are plain data: {interval}"
    assert not (plan.finished and plan.backlog), "a finished source has no backlog"


def _collect(source: Source, plan: SourcePlan, reading: Reading) -> None:
    ended = {interval.split for interval in reading.intervals if interval.last}
    for interval in plan.intervals:
        assert interval.split not in ended, f"split {interval.split} continues after its last interval"
        values = read_interval(source, interval)
        reading.values += values
        reading.by_split[interval.split] += values
        reading.intervals.append(interval)


class SourceContract:
    """Test a source. Override ``make_source`` and ``expected``."""

    limits = (1, 3, 10, 1_000)
    """Limits of rounds to try, in the source's unit."""
    ordered_per_split = True

    def make_source(self, directory: Path) -> Source:
        """Return a fresh source; called several times in one test, always with the same records."""
        raise NotImplementedError

    def expected(self) -> list[Any]:
        """Return all records, in any order."""
        raise NotImplementedError

    def _check(self, reading: Reading, hint: str) -> None:
        assert Counter(reading.values) == Counter(self.expected()), f"records lost or duplicated: {hint}"

    def test_reads_everything_once_at_any_limit_and_parallelism(self, tmp_path: Path) -> None:
        for parallelism in (1, 2, 3, 7):
            for limit in self.limits:
                reading = read_all(self.make_source(tmp_path), [(parallelism, limit)])
                self._check(reading, f"parallelism {parallelism}, limit {limit}")

    def test_ends_if_bounded(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        reading = read_all(source, [(2, max(self.limits))])
        assert reading.finished == (source.boundedness is Boundedness.BOUNDED), "finished is for bounded sources"

    def test_snapshot_and_rescale_at_any_point_lose_and_double_nothing(self, tmp_path: Path) -> None:
        for seed in range(20):
            dice = random.Random(seed)
            steps = [(dice.choice((1, 2, 3, 5)), dice.choice(self.limits)) for _ in range(30)]
            self._check(read_all(self.make_source(tmp_path), steps), f"seed {seed}, steps {steps}")

    def test_an_interval_gives_the_same_again_in_another_process(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        copy: Source = cloudpickle.loads(cloudpickle.dumps(source))
        reading = read_all(source, [(2, self.limits[1])])
        assert reading.intervals, "nothing was read"
        for interval in reading.intervals:
            assert read_interval(copy, interval) == read_interval(source, interval), f"replay differs: {interval}"

    def test_a_reader_reads_intervals_of_many_rounds(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        reading = read_all(source, [(1, self.limits[1])])
        reader = source.create_reader(0)
        again = [
            value for interval in reading.intervals for batch in reader.read(interval) for value in Batch.of(batch)
        ]
        reader.close()
        assert again == reading.values

    def test_a_discarded_plan_is_planned_again(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        first = source.create_enumerator(2, None)
        before = first.snapshot()
        planned = first.plan(self.limits[2], START_MS)
        again = source.create_enumerator(2, before).plan(self.limits[2], START_MS)
        lost = [value for interval in planned.intervals for value in read_interval(source, interval)]
        values = [value for interval in again.intervals for value in read_interval(source, interval)]
        assert values == lost, "the same position gives the same records"

    def test_records_of_a_split_keep_their_order(self, tmp_path: Path) -> None:
        if not self.ordered_per_split:
            raise SkipTest("The source does not keep the order of a split.")
        place = {value: index for index, value in enumerate(self.expected())}
        steps = [(2, self.limits[1]), (3, self.limits[2]), (1, self.limits[1])]
        for split, values in read_all(self.make_source(tmp_path), steps).by_split.items():
            places = [place[value] for value in values]
            assert places == sorted(places), f"split {split} is out of order"
