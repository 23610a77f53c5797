"""Collection, number sequence and data generator."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.base.errors import ArgumentTypeError, ProgramError, RestoreError, UserCodeError
from tidegate.connectors.values.data_generator import DataGeneratorSource, RateLimiterStrategy
from tidegate.connectors.values.ranges import CollectionSource, NumberSequenceSource, shares, split_range
from tidegate.operators.contracts.source import Boundedness, Source
from tidegate.testing.source_contract import START_MS, SourceContract, read_all, read_interval

STEPS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 40)), min_size=1, max_size=12)


class TestCollectionContract(SourceContract):
    def make_source(self, directory: Path) -> Source:
        return CollectionSource([f"value {n}" for n in range(37)])

    def expected(self) -> list[Any]:
        return [f"value {n}" for n in range(37)]


class TestNumberSequenceContract(SourceContract):
    def make_source(self, directory: Path) -> Source:
        return NumberSequenceSource(-5, 60)

    def expected(self) -> list[Any]:
        return list(range(-5, 61))


class TestGeneratorContract(SourceContract):
    def make_source(self, directory: Path) -> Source:
        return DataGeneratorSource(lambda index: f"order-{index}", 50)

    def expected(self) -> list[Any]:
        return [f"order-{n}" for n in range(50)]


class TestRateLimitedGeneratorContract(SourceContract):
    def make_source(self, directory: Path) -> Source:
        return DataGeneratorSource(lambda index: index, 40, RateLimiterStrategy.per_second(7))

    def expected(self) -> list[Any]:
        return list(range(40))


@given(st.integers(-100, 100), st.integers(0, 200), STEPS)
def test_any_sequence_any_rounds_any_rescales(start: int, length: int, steps: list[tuple[int, int]]) -> None:
    reading = read_all(NumberSequenceSource(start, start + length), steps)
    assert Counter(reading.values) == Counter(range(start, start + length + 1))
    assert reading.finished


@given(st.integers(0, 200), STEPS)
def test_any_generator_any_rounds_any_rescales(count: int, steps: list[tuple[int, int]]) -> None:
    reading = read_all(DataGeneratorSource(lambda index: index, count), steps)
    assert Counter(reading.values) == Counter(range(count))


@given(st.integers(1, 10_000), st.lists(st.integers(0, 500), max_size=8))
def test_shares_use_the_limit_and_no_more(limit: int, remaining: list[int]) -> None:
    taken = shares(limit, remaining)
    assert sum(taken) == min(limit, sum(remaining))
    assert all(0 <= units <= left for units, left in zip(taken, remaining, strict=True))


@given(st.integers(-1000, 1000), st.integers(0, 1000), st.integers(1, 20))
def test_split_range_covers_the_range_without_gaps(start: int, length: int, pieces: int) -> None:
    splits = split_range(start, start + length, pieces)
    assert [n for split in splits for n in range(split.position, split.end)] == list(range(start, start + length))
    assert len(splits) == min(pieces, length)
    assert max((s.remaining for s in splits), default=0) - min((s.remaining for s in splits), default=0) <= 1


def test_a_collection_is_read_in_order_by_one_subtask() -> None:
    reading = read_all(CollectionSource("hello world"), [(1, 3)])
    assert "".join(reading.values) == "hello world"


def test_an_empty_collection_ends_at_once() -> None:
    plan = CollectionSource([]).create_enumerator(3, None).plan(10, START_MS)
    assert plan.intervals == []
    assert plan.finished


def test_large_intervals_come_in_batches() -> None:
    source = NumberSequenceSource(1, 10_000)
    (interval,) = source.create_enumerator(1, None).plan(20_000, START_MS).intervals
    assert [len(batch) for batch in source.create_reader(0).read(interval)] == [8192, 1808]


def test_splits_are_contiguous_and_keep_their_subtask_by_number() -> None:
    plan = NumberSequenceSource(0, 9).create_enumerator(2, None).plan(4, START_MS)
    assert [(i.split, i.subtask, i.start, i.end, i.units) for i in plan.intervals] == [
        ("0", 0, 0, 2, 2),
        ("1", 1, 5, 7, 2),
    ]
    assert plan.backlog
    assert not plan.finished


def test_another_collection_cannot_continue() -> None:
    snapshot = CollectionSource([1, 2, 3]).create_enumerator(1, None).snapshot()
    with pytest.raises(RestoreError, match="2 values now, 3 in the checkpoint"):
        CollectionSource([1, 2]).create_enumerator(1, snapshot)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ProgramError, match="start 2 > end 1"):
        NumberSequenceSource(2, 1)
    with pytest.raises(ArgumentTypeError, match="NumberSequenceSource takes a whole number"):
        NumberSequenceSource("1", 2)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="rate of a generator is not above zero"):
        RateLimiterStrategy.per_second(0)
    with pytest.raises(ArgumentTypeError, match="DataGeneratorSource takes a RateLimiterStrategy"):
        DataGeneratorSource(str, 10, 1000)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="count of a generator is negative"):
        DataGeneratorSource(str, -1)
    with pytest.raises(ArgumentTypeError, match=r"takes a function of the index, or an object with map\(index\)"):
        DataGeneratorSource("no function", 3)


def test_a_generator_may_be_an_object_with_map() -> None:
    class Squares:
        def map(self, index: int) -> int:
            return index * index

    assert sorted(read_all(DataGeneratorSource(Squares(), 5), [(2, 10)]).values) == [0, 1, 4, 9, 16]


def test_a_failing_generator_function_names_index_and_line() -> None:
    def broken(index: int) -> float:
        return 1 / (index - 5)

    source = DataGeneratorSource(broken, 10)
    (interval,) = source.create_enumerator(1, None).plan(10, START_MS).intervals
    with pytest.raises(UserCodeError, match=r"ZeroDivisionError.*index 5") as caught:
        read_interval(source, interval)
    assert f"{__file__}:" in str(caught.value)


class TestRate:
    def plan_sizes(self, rate: float, times: list[int], limit: int = 1000) -> list[tuple[int, int | None]]:
        enumerator = DataGeneratorSource(lambda i: i, None, records_per_second=rate).create_enumerator(2, None)
        plans = [enumerator.plan(limit, START_MS + ms) for ms in times]
        return [(sum(i.units for i in p.intervals), p.wake_up_ms and p.wake_up_ms - START_MS) for p in plans]

    def test_plan_gives_due_records_and_the_time_of_the_next(self) -> None:
        assert self.plan_sizes(10, [0, 50, 100, 1000]) == [(1, 100), (0, 100), (1, 200), (9, 1100)]

    def test_a_plan_at_the_limit_reports_a_backlog(self) -> None:
        enumerator = DataGeneratorSource(lambda i: i, None, records_per_second=100).create_enumerator(1, None)
        enumerator.plan(10, START_MS)
        plan = enumerator.plan(10, START_MS + 1000)
        assert (plan.intervals[0].start, plan.intervals[0].end) == (1, 11)
        assert plan.backlog
        assert plan.wake_up_ms is None

    def test_a_restored_generator_does_not_catch_up(self) -> None:
        source = DataGeneratorSource(lambda i: i, None, records_per_second=10)
        first = source.create_enumerator(1, None)
        first.plan(1000, START_MS)
        second = source.create_enumerator(1, first.snapshot())
        hour = 3_600_000
        assert [(i.start, i.end) for i in second.plan(1000, START_MS + hour).intervals] == [(1, 2)]

    def test_single_records_take_turns_over_the_splits(self) -> None:
        enumerator = DataGeneratorSource(lambda i: i, None, records_per_second=1).create_enumerator(3, None)
        splits = [i.split for n in range(6) for i in enumerator.plan(1000, START_MS + 1000 * n).intervals]
        assert splits == ["0", "1", "2", "0", "1", "2"]

    def test_without_count_it_never_ends(self) -> None:
        source = DataGeneratorSource(lambda i: i)
        assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
        plan = source.create_enumerator(2, None).plan(10, START_MS)
        assert plan.backlog
        assert not plan.finished
        assert sum(i.units for i in plan.intervals) == 10
