"""Small batches on purpose: late records from a list, explicit watermarks, pauses, rules before records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tidegate.base.errors import ArgumentTypeError, ProgramError
from tidegate.common import Time, Types, WatermarkStrategy
from tidegate.datastream import KeyedBroadcastProcessFunction, OutputTag
from tidegate.datastream.state import MapStateDescriptor
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.testing import At, MiniCluster, Pause, TestSource, Watermark

LATE = OutputTag("late")
TEN = TumblingEventTimeWindows.of(Time.milliseconds(10))


def collected_with_late(cluster: MiniCluster, stream: Any) -> list[Any]:
    windows = (
        stream.key_by(lambda v: v[0]).window(TEN).side_output_late_data(LATE).reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    late = windows.get_side_output(LATE).map(lambda v: ("late", *v))
    return cluster.collect(windows.union(late))


@pytest.mark.parametrize(("batch_size", "late"), [(1, [("late", "a", 5)]), (2, []), (None, [])])
def test_late_record_of_a_list(mini_cluster: MiniCluster, batch_size: int | None, late: list[Any]) -> None:
    env = mini_cluster.environment(parallelism=1)
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v[1])
    listed = env.from_collection([("a", 1), ("b", 30), ("a", 5), ("b", 31)], batch_size=batch_size)
    found = collected_with_late(mini_cluster, listed.assign_timestamps_and_watermarks(times))
    if batch_size == 2:
        late = [("late", "a", 5)]  # the first two records are one batch, and the next comes after it
    assert sorted(v for v in found if v[0] == "late") == late
    assert sorted(v for v in found if v[0] != "late") == [("a", 1 if late else 6), ("b", 61)]


def test_watermark_of_a_list_reaches_all_subtasks(mini_cluster: MiniCluster) -> None:
    env = mini_cluster.environment(parallelism=3)
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v[1])
    records = [*((key, 1) for key in "abcdef"), ("x", 30), *((key, 5) for key in "abcdef")]
    listed = env.from_collection(records, batch_size=1)
    found = collected_with_late(mini_cluster, listed.assign_timestamps_and_watermarks(times).set_parallelism(1))
    assert sorted(v for v in found if v[0] == "late") == [("late", key, 5) for key in "abcdef"]


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batch_size_below_one_is_refused(mini_cluster: MiniCluster, batch_size: int) -> None:
    with pytest.raises(ProgramError, match="less than 1"):
        mini_cluster.environment().from_collection([1], batch_size=batch_size)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("most", [1, 100])
def test_watermarks_and_pauses_of_a_test_source(mini_cluster: MiniCluster, parallelism: int, most: int) -> None:
    steps = [
        At(1, ("a", 1)),
        At(8, ("a", 2)),
        Watermark(20),
        At(5, ("a", 3)),
        Pause(30),
        At(25, ("a", 4)),
        At(2, ("b", 9)),
    ]
    env = mini_cluster.environment(parallelism=parallelism, **{"tidegate.round.max-records": most})
    found = collected_with_late(mini_cluster, TestSource(steps).stream(env))
    assert sorted(found) == [("a", 3), ("a", 4), ("late", "a", 3), ("late", "b", 9)]


def test_steps_without_time(mini_cluster: MiniCluster) -> None:
    env = mini_cluster.environment(parallelism=1)
    assert mini_cluster.collect(TestSource([1, Pause(1), 2]).stream(env)) == [1, 2]
    with pytest.raises(ArgumentTypeError, match="a list of steps"):
        TestSource("ab")


RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


class Limit(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value[0], ctx.get_broadcast_state(RULES).get("limit")

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put("limit", value)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_records_that_pause_come_after_the_rules(mini_cluster: MiniCluster, parallelism: int) -> None:
    """The records come in a later round than the rules: docs/connected-streams.md."""
    env = mini_cluster.environment(parallelism=parallelism)
    rules = env.from_collection([10]).broadcast(RULES)
    orders = TestSource([Pause(100), *((key, 1) for key in "abcdef")]).stream(env)
    found = mini_cluster.collect(orders.key_by(lambda v: v[0]).connect(rules).process(Limit()))
    assert sorted(found) == [(key, 10) for key in "abcdef"]
