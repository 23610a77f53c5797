"""Time to live: configuration, and every kind of state with it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.state.state_subtask import Subtask
from tidegate.base.errors import ArgumentTypeError, ProgramError
from tidegate.common.time import Duration, Time
from tidegate.common.typeinfo import Types
from tidegate.state.backend import KeyedBackend
from tidegate.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from tidegate.state.refs import StateSchema
from tidegate.state.ttl import StateTtlConfig

START = 1_700_000_000_000


def config(*settings: str) -> StateTtlConfig:
    builder = StateTtlConfig.new_builder(Time.milliseconds(100))
    for setting in settings:
        getattr(builder, setting)()
    return builder.build()


def state_of(subtask: Subtask, descriptor: StateDescriptor, *settings: str) -> Any:
    descriptor.enable_time_to_live(config(*settings))
    return subtask.backend.state(descriptor)


def at(subtask: Subtask, time: int, action: Callable[[], Any], key: Any = "a") -> Any:
    """A round at a time after the start."""

    def work(backend: KeyedBackend) -> Any:
        backend.context.key, backend.context.time = key, START + time
        return action()

    return subtask.round(work)


@pytest.mark.parametrize(
    "ttl", [Time.seconds(1), Duration.of_seconds(1), timedelta(seconds=1), 1000], ids=lambda ttl: type(ttl).__name__
)
def test_a_time_to_live_is_given_in_many_ways(ttl: Any) -> None:
    built = StateTtlConfig.new_builder(ttl).build()
    assert (built.ttl_ms, built.get_ttl()) == (1000, ttl)


def test_defaults_and_settings_of_the_configuration() -> None:
    built = StateTtlConfig.new_builder(Time.seconds(1)).build()
    assert built.get_update_type() is StateTtlConfig.UpdateType.OnCreateAndWrite
    assert built.get_state_visibility() is StateTtlConfig.StateVisibility.NeverReturnExpired
    assert built.get_ttl_time_characteristic() is StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
    assert built.is_enabled()
    cleanup = built.get_cleanup_strategies()
    assert (cleanup.is_cleanup_in_background(), cleanup.in_full_snapshot()) == (True, False)
    assert cleanup.get_incremental_cleanup_strategy().get_cleanup_size() == 5
    built = (
        StateTtlConfig.new_builder(Time.seconds(1))
        .set_ttl(Time.seconds(2))
        .set_update_type(StateTtlConfig.UpdateType.Disabled)
        .set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)
        .set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)
        .use_processing_time()
        .cleanup_full_snapshot()
        .cleanup_incrementally(10, True)
        .cleanup_in_rocksdb_compact_filter(7)
        .disable_cleanup_in_background()
        .build()
    )
    assert (built.is_enabled(), built.ttl_ms) == (False, 2000)
    cleanup = built.get_cleanup_strategies()
    assert (cleanup.is_cleanup_in_background(), cleanup.in_full_snapshot()) == (False, True)
    incremental = cleanup.get_incremental_cleanup_strategy()
    assert (incremental.get_cleanup_size(), incremental.run_cleanup_for_every_record()) == (10, True)
    compaction = cleanup.get_rocksdb_compact_filter_cleanup_strategy()
    assert compaction.get_query_time_after_num_entries() == 7
    assert compaction.get_periodic_compaction_time() == Duration.of_days(30)


def test_wrong_configurations_are_refused() -> None:
    with pytest.raises(ProgramError, match=r"The time to live is not positive\.\n  found: 0 ms"):
        StateTtlConfig.new_builder(0).build()
    with pytest.raises(ArgumentTypeError, match="StateTtlConfig takes a Duration"):
        StateTtlConfig.new_builder("1s").build()
    with pytest.raises(ArgumentTypeError, match="enable_time_to_live takes a StateTtlConfig"):
        ValueStateDescriptor("v", None).enable_time_to_live(1000)  # type: ignore[arg-type]


def test_a_disabled_configuration_changes_nothing(subtask: Subtask) -> None:
    descriptor = ValueStateDescriptor("v", Types.LONG())
    off = StateTtlConfig.new_builder(1000).set_update_type(StateTtlConfig.UpdateType.Disabled).build()
    descriptor.enable_time_to_live(off)
    subtask.backend.state(descriptor)
    assert subtask.backend.schemas() == [StateSchema("v", "value", "LONG")]


def test_a_value_expires(subtask: Subtask) -> None:
    state = state_of(subtask, ValueStateDescriptor("v", Types.LONG()))
    assert subtask.backend.schemas() == [StateSchema("v", "value", "LONG", "", 100)]
    at(subtask, 0, lambda: state.update(1))
    assert at(subtask, 99, state.value) == 1
    assert at(subtask, 100, state.value) is None
    at(subtask, 200, lambda: state.update(2))
    at(subtask, 250, lambda: state.update(3))
    assert at(subtask, 349, state.value) == 3
    at(subtask, 349, state.clear)
    assert at(subtask, 349, state.value) is None


def test_a_read_that_finds_an_expired_value_removes_it(subtask: Subtask) -> None:
    state = state_of(subtask, ValueStateDescriptor("v", Types.LONG()), "return_expired_if_not_cleaned_up")
    at(subtask, 0, lambda: state.update(1))
    assert at(subtask, 500, lambda: (state.value(), state.value())) == (1, None)
    assert at(subtask, 500, state.value) is None


def test_a_read_may_give_a_new_life(subtask: Subtask) -> None:
    state = state_of(subtask, ValueStateDescriptor("v", Types.LONG()), "update_ttl_on_read_and_write")
    at(subtask, 0, lambda: state.update(1))
    assert [at(subtask, time, state.value) for time in (90, 180, 270, 370)] == [1, 1, 1, None]


def test_reducing_and_aggregating_start_anew(subtask: Subtask) -> None:
    class Count:
        def create_accumulator(self) -> int:
            return 0

        def add(self, value: int, accumulator: int) -> int:
            return accumulator + 1

        def get_result(self, accumulator: int) -> int:
            return accumulator * 10

    total = state_of(subtask, ReducingStateDescriptor("r", lambda a, b: a + b, Types.LONG()))
    count = state_of(subtask, AggregatingStateDescriptor("g", Count(), Types.LONG()))

    def add(value: int) -> tuple[int, int]:
        total.add(value)
        count.add(value)
        return total.get(), count.get()

    assert [at(subtask, time, lambda: add(5)) for time in (0, 90, 180, 280)] == [(5, 10), (10, 20), (15, 30), (5, 10)]
    assert at(subtask, 380, lambda: (total.get(), count.get())) == (None, None)
    at(subtask, 400, lambda: add(5))
    at(subtask, 410, lambda: count.add(None))
    assert at(subtask, 420, count.get) is None


@pytest.mark.parametrize("info", [Types.STRING(), None])
def test_list_elements_expire_one_by_one(subtask: Subtask, info: Any) -> None:
    state = state_of(subtask, ListStateDescriptor("l", info))
    at(subtask, 0, lambda: state.add("zero"))
    at(subtask, 50, lambda: state.add_all(["one", "two"]))
    assert at(subtask, 99, state.get) == ["zero", "one", "two"]
    assert at(subtask, 100, state.get) == ["one", "two"]
    at(subtask, 120, lambda: state.update(["new"]))
    assert at(subtask, 219, state.get) == ["new"]
    assert at(subtask, 220, state.get) == []


def test_list_reads_by_configuration(subtask: Subtask) -> None:
    seen = state_of(subtask, ListStateDescriptor("seen", None), "return_expired_if_not_cleaned_up")
    kept = state_of(subtask, ListStateDescriptor("kept", None), "update_ttl_on_read_and_write")
    at(subtask, 0, lambda: (seen.add(1), kept.add(1)))
    assert at(subtask, 90, lambda: kept.get()) == [1]
    assert at(subtask, 150, lambda: (seen.get(), seen.get(), kept.get())) == ([1], [], [1])


def test_map_entries_expire_one_by_one(subtask: Subtask) -> None:
    state = state_of(subtask, MapStateDescriptor("m", Types.STRING(), Types.LONG()))
    at(subtask, 0, lambda: state.put("old", 1))
    at(subtask, 50, lambda: state.put_all({"new": 2, "other": 3}))
    at(subtask, 60, lambda: state.remove("other"))
    assert at(subtask, 99, lambda: dict(state.items())) == {"old": 1, "new": 2}
    assert at(subtask, 100, lambda: (state.get("old"), "old" in state, state.keys())) == (None, False, ["new"])
    assert at(subtask, 150, state.is_empty)
    assert at(subtask, 0, lambda: state.get("old")) is None  # removed by the read that found it expired


def test_map_reads_by_configuration(subtask: Subtask) -> None:
    seen = state_of(subtask, MapStateDescriptor("seen", None, None), "return_expired_if_not_cleaned_up")
    kept = state_of(subtask, MapStateDescriptor("kept", None, None), "update_ttl_on_read_and_write")
    at(subtask, 0, lambda: (seen.put("k", 1), kept.put("k", 1)))
    assert at(subtask, 90, lambda: kept.get("k")) == 1
    assert at(subtask, 150, lambda: (seen.items(), seen.items(), kept.values())) == ([("k", 1)], [], [1])


@pytest.mark.parametrize("whole", [True, False])
def test_a_base_drops_what_has_expired(subtask: Subtask, whole: bool) -> None:
    value = state_of(subtask, ValueStateDescriptor("v", Types.LONG()))
    table = state_of(subtask, MapStateDescriptor("m", None, None))
    plain = subtask.backend.state(ValueStateDescriptor("plain", Types.LONG()))

    def write() -> None:
        value.update(1)
        table.put("k", 1)
        plain.update(1)

    at(subtask, 0, write, key="early")
    at(subtask, 80, write, key="late")
    if not whole:
        at(subtask, 80, write, key="later")
    backend = subtask.begin()
    backend.context.time = START + 150
    base = backend.compact(subtask.accepted, (0, 2), "shared/base")
    backend.end()
    assert base.entries == 4  # of six: the two of the early key that expire are gone
    subtask.accepted[0:2] = [base]
    assert at(subtask, 150, lambda: (value.value(), table.get("k"), plain.value()), key="early") == (None, None, 1)
    assert at(subtask, 150, lambda: (value.value(), table.get("k"), plain.value()), key="late") == (1, 1, 1)
