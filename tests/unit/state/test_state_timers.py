"""Timers over rounds: order, duplicates, deletions, and how little is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.state.state_subtask import MAX_PARALLELISM, Subtask
from tidegate.base.errors import ArgumentTypeError, StateAccessError
from tidegate.state import backend as backend_module
from tidegate.state import timers as timers_module
from tidegate.state.backend import KeyedBackend
from tidegate.state.key_groups import range_for
from tidegate.state.lmdb_store import LmdbSnapshot, LmdbStore

KEYS = ["a", "b", ("c", 1), "long" * 300]


def register(backend: KeyedBackend, *timers: tuple[int, Any]) -> None:
    for time, key in timers:
        backend.context.key = key
        backend.event_timers.register(time)


def fire(backend: KeyedBackend, up_to: int) -> list[tuple[int, Any]]:
    return [(time, key) for time, key, _ in backend.event_timers.due(up_to)]


def test_timers_fire_in_the_order_of_time_once(subtask: Subtask) -> None:
    def first(backend: KeyedBackend) -> None:
        register(backend, (30, "a"), (-10, "b"), (20, "a"), (20, "a"), (20, "b"))
        assert backend.event_timers.next_time() == -10
        assert fire(backend, -10) == [(-10, "b")]

    def second(backend: KeyedBackend) -> None:
        register(backend, (20, "a"), (25, "c"))
        assert backend.event_timers.next_time() == 20
        assert fire(backend, 19) == []
        found = fire(backend, 25)
        assert sorted(found) == [(20, "a"), (20, "b"), (25, "c")]
        assert found[-1] == (25, "c")
        assert backend.event_timers.next_time() == 30

    subtask.round(first)
    subtask.round(second)
    assert subtask.round(lambda b: fire(b, 2**62)) == [(30, "a")]
    assert subtask.round(lambda b: (b.event_timers.next_time(), fire(b, 2**62))) == (None, [])


def test_timers_registered_while_others_fire_take_their_turn(subtask: Subtask) -> None:
    subtask.round(lambda b: register(b, (10, "a"), (50, "z")))
    fired = []
    backend = subtask.begin()
    for time, key, _ in backend.event_timers.due(40):
        fired.append((time, key))
        if time == 10 and len(fired) == 1:
            register(backend, (40, "late"), (41, "too late"), (5, "early"), (10, "a"))
    assert fired == [(10, "a"), (5, "early"), (10, "a"), (40, "late")]
    subtask.finish()
    assert subtask.round(lambda b: fire(b, 100)) == [(41, "too late"), (50, "z")]


def test_timers_deleted_while_others_fire_do_not(subtask: Subtask) -> None:
    subtask.round(lambda b: register(b, (10, "a"), (10, "b"), (10, "c"), (20, "a")))
    backend = subtask.begin()
    register(backend, (30, "x"), (30, "y"))
    fired = []
    for time, key, _ in backend.event_timers.due(100):
        fired.append((time, key))
        for other_time, other in ((10, "a"), (10, "b"), (10, "c"), (20, "a"), (30, "x")):
            backend.context.key = other
            backend.event_timers.delete(other_time)
    assert fired == [(10, fired[0][1]), (30, "y")]
    subtask.finish()
    assert subtask.round(lambda b: fire(b, 100)) == []


def test_a_timer_deleted_and_registered_again_fires(subtask: Subtask) -> None:
    subtask.round(lambda b: register(b, (10, "a"), (20, "a")))
    backend = subtask.begin()
    backend.context.key = "a"
    for time in (10, 20):
        backend.event_timers.delete(time)
        backend.event_timers.register(time)
    assert fire(backend, 10) == [(10, "a")]
    subtask.finish()
    assert subtask.round(lambda b: fire(b, 100)) == [(20, "a")]


def test_the_two_domains_are_apart(subtask: Subtask) -> None:
    def work(backend: KeyedBackend) -> None:
        register(backend, (10, "a"))
        backend.processing_timers.register(5)
        assert (backend.event_timers.next_time(), backend.processing_timers.next_time()) == (10, 5)

    subtask.round(work)
    backend = subtask.begin()
    assert (backend.event_timers.next_time(), backend.processing_timers.next_time()) == (10, 5)
    assert list(backend.processing_timers.due(100)) == [(5, "a", b"")]
    subtask.finish()
    assert subtask.round(lambda b: (fire(b, 100), b.processing_timers.next_time())) == ([(10, "a")], None)


def test_at_the_end_of_time_new_timers_are_ignored_and_deleted_ones_do_not_fire(subtask: Subtask) -> None:
    def work(backend: KeyedBackend) -> list[tuple[int, Any]]:
        for time in (1, 2, 3):
            register(backend, (time, "a"))
        fired = []
        for time, key, _ in backend.event_timers.remaining():
            fired.append((time, key))
            backend.context.key = key
            backend.event_timers.register(time + 10)
            if time == 1:
                backend.event_timers.delete(2)
        return fired

    assert subtask.round(work) == [(1, "a"), (3, "a")]
    assert subtask.round(lambda b: fire(b, 100)) == []


def test_timers_of_a_failed_round_are_forgotten(subtask: Subtask) -> None:
    subtask.round(lambda b: register(b, (10, "a")))
    backend = subtask.begin()
    register(backend, (5, "b"))
    assert fire(backend, 100) == [(5, "b"), (10, "a")]
    subtask.finish(accept=False)
    assert subtask.round(lambda b: fire(b, 100)) == [(10, "a")]


@pytest.mark.usefixtures("nothing_is_whole")
def test_a_round_with_no_due_timer_reads_one(subtask: Subtask, monkeypatch: pytest.MonkeyPatch) -> None:
    subtask.round(lambda b: register(b, *((time, time) for time in range(1000, 3000))))
    subtask.round(lambda b: None)
    limits: list[int] = []
    original = LmdbSnapshot.timers

    def counted(self: LmdbSnapshot, after: bytes, limit: int) -> Any:
        limits.append(limit)
        return original(self, after, limit)

    monkeypatch.setattr(LmdbSnapshot, "timers", counted)
    backend = subtask.begin()
    assert limits == [1]  # whether there are any
    limits.clear()
    for watermark in range(0, 1000, 100):
        assert fire(backend, watermark) == []
    assert limits == [1]
    assert len(fire(backend, 1020)) == 21
    assert limits == [1, 32]
    backend.end()


def test_a_timer_registered_and_gone_in_one_round_leaves_no_trace(subtask: Subtask) -> None:
    backend = subtask.begin()
    register(backend, (10, "a"), (20, "b"))
    assert fire(backend, 10) == [(10, "a")]
    backend.context.key = "b"
    backend.event_timers.delete(20)
    assert subtask.finish() is None


def test_timers_need_a_key_and_whole_numbers(subtask: Subtask) -> None:
    backend = subtask.begin()
    for call in (backend.event_timers.register, backend.event_timers.delete):
        with pytest.raises(StateAccessError, match="where: event-time timers of operator 'totals'"):
            call(5)
    with pytest.raises(StateAccessError, match="where: processing-time timers of operator 'totals'"):
        backend.processing_timers.register(5)
    backend.context.key = "a"
    wrong: list[Any] = [1.5, True, None, "5", np.float64(5)]
    for call in (backend.event_timers.register, backend.event_timers.delete):
        for time in wrong:
            with pytest.raises(ArgumentTypeError, match="takes a whole number"):
                call(time)
    assert subtask.finish() is None


def test_times_may_be_ints_of_numpy(subtask: Subtask) -> None:
    backend = subtask.begin()
    ten: Any = np.int64(10)
    register(backend, (ten, "a"), (20, "a"))
    subtask.finish()
    backend = subtask.begin()
    backend.context.key = "a"
    backend.event_timers.delete(ten)
    subtask.finish()
    assert fire(subtask.begin(), 30) == [(20, "a")]
    subtask.finish()


actions = st.lists(
    st.tuples(
        st.sampled_from(["register", "delete", "fire", "next", "accept", "discard"]),
        st.integers(-3, 12),
        st.sampled_from(KEYS),
    ),
    max_size=60,
)


@settings(max_examples=120, deadline=None)
@given(actions)
def test_timers_are_those_of_a_plain_set(tmp_path_factory: Any, actions: list[tuple[str, int, Any]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timers_module, "MAX_SLICE", 3)
        subtask = Subtask(tmp_path_factory.mktemp("subtask"), range_for(0, 1, MAX_PARALLELISM))
        accepted: set[tuple[int, Any]] = set()
        model: set[tuple[int, Any]] = set()
        queue = subtask.backend.event_timers
        subtask.begin()
        for action, time, key in actions:
            subtask.backend.context.key = key
            if action == "register":
                queue.register(time)
                model.add((time, key))
            elif action == "delete":
                queue.delete(time)
                model.discard((time, key))
            elif action == "fire":
                fired = [(moment, key) for moment, key, _ in queue.due(time)]
                assert [t for t, _ in fired] == sorted(t for t, _ in model if t <= time)
                assert len(fired) == len(set(fired))
                assert set(fired) == {timer for timer in model if timer[0] <= time}
                model -= set(fired)
            elif action == "next":
                assert queue.next_time() == min((t for t, _ in model), default=None)
            else:
                subtask.finish(accept=action == "accept")
                accepted = set(model) if action == "accept" else accepted
                model = set(accepted)
                subtask.begin()
        assert {(moment, key) for moment, key, _ in queue.due(100)} == model
        subtask.backend.end()


def test_few_timers_stay_in_memory_and_follow_other_workers(subtask: Subtask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is not opened for them, until they are too many."""
    opened: list[str] = []
    original = LmdbStore.snapshot
    monkeypatch.setattr(LmdbStore, "snapshot", lambda self: (opened.append(self.path), original(self))[1])
    workers = [subtask.backend, subtask.new_backend()]
    for number in range(6):
        subtask.backend = workers[number % 2]

        def work(backend: KeyedBackend, number: int = number) -> list[tuple[int, Any]]:
            register(backend, *((100 * number + n, "a") for n in range(20)))
            backend.context.key = "a"
            backend.event_timers.delete(100 * number - 85)
            return fire(backend, 100 * number + 9)

        expected = [*range(100 * number - 90, 100 * number - 80)] if number else []
        expected = [time for time in expected if time != 100 * number - 85] + [100 * number + n for n in range(10)]
        assert subtask.round(work) == [(time, "a") for time in expected]
    assert opened == []
    monkeypatch.setattr(backend_module, "MOST_TIMERS", 5)
    assert subtask.round(lambda b: fire(b, 10_000)) == [(510 + n, "a") for n in range(10)]
    assert opened
