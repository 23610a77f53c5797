"""Round sizes adapt to the target time; a discarded round is planned again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sources import ScriptedSource
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.operators.contracts.source import SourcePlan, SplitEnumerator, SplitInterval
from tidegate.operators.contracts.specs import SourceNode, SourceSpec
from tidegate.runtime.planner import SourcePlanner


def planner(*, most: int | None = None, target_ms: int = 1000, end: int = 10**9, restored: Any = None) -> SourcePlanner:
    source = NumberSequenceSource(0, end)
    operator = SourceNode(1, "numbers", None, "hash", SourceSpec(source), 2, 128, None)
    return SourcePlanner([operator], target_ms, {1: restored} if restored is not None else {}, most)


def units(p: SourcePlanner) -> int:
    return sum(interval.units for interval in p.plan(0)[1].intervals)


def test_a_fast_round_is_followed_by_a_larger_one_at_most_eight_times_as_large() -> None:
    p = planner()
    first = units(p)
    p.accept(0.01)
    assert units(p) == pytest.approx(8 * first, rel=0.01)


def test_a_slow_round_is_followed_by_a_smaller_one() -> None:
    p = planner()
    first = units(p)
    p.accept(1.25)
    assert units(p) == pytest.approx(first / 1.25, rel=0.01)


def test_sizes_settle_where_rounds_take_the_target_time() -> None:
    p, speed = planner(target_ms=500), 1_000_000  # records a second
    for _ in range(40):
        size = units(p)
        p.accept(size / speed)
    assert size == pytest.approx(500_000, rel=0.05)


@pytest.mark.parametrize(("given", "afterwards"), [(100, 10_000), (9_000, 4_500)])
def test_a_slow_round_of_a_source_that_keeps_up_counts_if_it_was_large(given: int, afterwards: int) -> None:
    limits: list[int] = []

    class KeepsUp(SplitEnumerator):
        def plan(self, limit: int, now_ms: int) -> SourcePlan:
            limits.append(limit)
            return SourcePlan([SplitInterval("0", 0, 0, given, units=given)])

        def snapshot(self) -> Any:
            return 0

    class Source(ScriptedSource):
        initial_limit = 10_000

        def create_enumerator(self, parallelism: int, restored: Any) -> SplitEnumerator:
            return KeepsUp()

    p = SourcePlanner([SourceNode(1, "slow", None, "hash", SourceSpec(Source([])), 1, 128, None)], 1000, {})
    for _ in range(2):
        p.plan(0)
        p.accept(4.0)
    assert limits == [10_000, afterwards]


def test_the_most_records_of_a_round_are_kept() -> None:
    p = planner(most=1000)
    for _ in range(5):
        assert units(p) <= 1000
        p.accept(0.001)


def test_a_discarded_round_is_planned_again_from_the_same_place() -> None:
    p = planner()
    first = p.plan(0)[1]
    before_accept = p.snapshots()
    p.discard()
    again = p.plan(0)[1]
    assert again == first
    assert p.snapshots() == before_accept


def test_positions_continue_after_accepted_rounds_only() -> None:
    p = planner(end=199_999)
    seen: list[tuple[Any, Any]] = []
    turn = 0
    while not p.finished:
        plan = p.plan(0)[1]
        turn += 1
        if turn % 3 == 0:
            p.discard()
            continue
        seen += [(i.start, i.end) for i in plan.intervals]
        p.accept(0.5)
    numbers = sorted(n for start, end in seen for n in range(start, end))
    assert numbers == list(range(200_000))


def test_a_restored_planner_continues() -> None:
    p = planner(end=299_999)
    first = p.plan(0)[1]
    p.accept(0.5)
    resumed = planner(end=299_999, restored=p.snapshots()[1])
    taken = {(i.split, i.end) for i in first.intervals}
    assert all((i.split, i.start) in taken for i in resumed.plan(0)[1].intervals)


class CountingEnumerator(SplitEnumerator):
    """Has something to read at every fifth look."""

    def __init__(self) -> None:
        self.looks = self.snapshots = self.handed_out = 0

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        self.looks += 1
        if self.looks % 5:
            return SourcePlan([])
        self.handed_out += 1
        return SourcePlan([SplitInterval("0", 0, self.handed_out - 1, self.handed_out)])

    def snapshot(self) -> int:
        self.snapshots += 1
        return self.handed_out


def test_an_idle_source_is_not_asked_for_its_position_at_every_look() -> None:
    enumerator = CountingEnumerator()
    source = ScriptedSource(ends=False)
    source.create_enumerator = lambda parallelism, restored: enumerator  # type: ignore[method-assign]
    p = SourcePlanner([SourceNode(1, "rare", None, "hash", SourceSpec(source), 1, 128, None)], 1000, {})
    for _ in range(10):
        if p.plan(0)[1].intervals:
            p.accept(0.01)
    assert enumerator.handed_out == 2
    assert enumerator.snapshots == 2


class ThrottledEnumerator(SplitEnumerator):
    """Always has more, and gives ten records of it. ``known``: it tells how many."""

    def __init__(self, known: bool) -> None:
        self.known, self.limit, self.position = known, 0, 0

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        self.limit, start = limit, self.position
        self.position += 10
        return SourcePlan([SplitInterval("0", 0, start, self.position, units=10 if self.known else 0)], backlog=True)

    def snapshot(self) -> int:
        return self.position


@pytest.mark.parametrize(("known", "most"), [(True, 256), (False, 1 << 40)])
def test_a_throttled_source_does_not_drive_the_limit_up_for_ever(known: bool, most: int) -> None:
    enumerator = ThrottledEnumerator(known)
    source = ScriptedSource(ends=False)
    source.create_enumerator = lambda parallelism, restored: enumerator  # type: ignore[method-assign]
    p = SourcePlanner([SourceNode(1, "slow", None, "hash", SourceSpec(source), 1, 128, None)], 1000, {})
    for _ in range(1000):
        p.plan(0)
        p.accept(0.01)
    assert enumerator.limit == most


class ForgetfulEnumerator(SplitEnumerator):
    """Tells its end once; asked again, it would begin anew."""

    def __init__(self) -> None:
        self.asked = 0

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        self.asked += 1
        return SourcePlan([SplitInterval("0", 0, 0, 1, 1, True)], finished=self.asked == 1)

    def snapshot(self) -> int:
        return self.asked


def test_a_source_that_has_told_its_end_is_not_asked_again() -> None:
    source = ScriptedSource()
    source.create_enumerator = lambda parallelism, restored: ForgetfulEnumerator()  # type: ignore[method-assign]
    p = SourcePlanner([SourceNode(1, "numbers", None, "hash", SourceSpec(source), 1, 128, None)], 1000, {})
    assert len(p.plan(0)[1].intervals) == 1
    p.accept(0.01)
    assert p.plan(0)[1] == SourcePlan(finished=True)
    assert p.finished


# -- records in flight -------------------------------------------------------------------------------------------------------


def test_nothing_is_admitted_while_more_waits_than_a_round_works_off() -> None:
    p = planner(target_ms=1000)
    first = units(p)
    p.accept(1.0, behind=2.5)
    (plan,) = p.plan(0).values()
    assert (plan.intervals, plan.held, plan.backlog) == ([], True, True)
    p.accept(1.0, behind=0.5)
    assert 0 < units(p) < first, "half of a round waits already"
    p.accept(1.0)
    assert p.rounds_behind == 0
    assert units(p) > 0


def test_a_round_that_is_to_be_short_is_asked_for_less() -> None:
    p = planner(target_ms=1000)
    whole = units(p)
    p.accept(1.0)
    (half,) = p.plan(0, room_ms=500).values()
    assert sum(interval.units for interval in half.intervals) == whole // 2
    p.accept(0.5)
    (none,) = p.plan(0, room_ms=0).values()
    assert sum(interval.units for interval in none.intervals) == whole // 16, (
        "something, to know whether there is anything"
    )


def test_rounds_grow_also_where_each_is_bounded() -> None:
    """A checkpoint every second leaves a little less than a second to each round."""
    p = planner(target_ms=1000)
    sizes = []
    for _ in range(8):
        (plan,) = p.plan(0, room_ms=950).values()
        sizes.append(sum(interval.units for interval in plan.intervals))
        p.accept(sizes[-1] / 10_000_000)
    assert sizes[-1] > 100 * sizes[0]


def test_a_round_that_was_cut_short_makes_the_next_ones_much_smaller() -> None:
    p = planner(target_ms=1000)
    first = units(p)
    p.accept(1.0, behind=40.0)
    for behind in (20.0, 0.0):
        p.plan(0)
        p.accept(1.0, behind=behind)
    assert units(p) <= first / 20
