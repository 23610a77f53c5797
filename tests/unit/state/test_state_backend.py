"""The backend over rounds: failed attempts, rebuilds, zombies, rescales, what is kept and what is read."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.state.state_subtask import Subtask
from tidegate.base import faults
from tidegate.base.errors import CorruptFileError, InternalError, StorageError
from tidegate.base.hashing import new_token
from tidegate.common.typeinfo import Types
from tidegate.state import materialize
from tidegate.state.backend import CATCH_UP, KeyedBackend
from tidegate.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from tidegate.state.key_groups import group_of
from tidegate.state.keyed import ImmutableValueState, KeyedMapState
from tidegate.state.lmdb_store import LmdbSnapshot, LmdbStore, open_lmdb
from tidegate.state.refs import KeyGroupRange, StateFile
from tidegate.state.single import ENTRY_BYTES, KeyedState, SingleState

Make = Callable[..., Subtask]
COUNT = ValueStateDescriptor("count", Types.LONG())


def count(backend: KeyedBackend, *keys: Any) -> list[int]:
    """Count the keys as a user function would; the counts."""
    state = backend.state(COUNT)
    counts = []
    for key in keys:
        backend.context.key = key
        counts.append((state.value() or 0) + 1)
        state.update(counts[-1])
    return counts


def read(backend: KeyedBackend, *keys: Any) -> list[int | None]:
    state = backend.state(COUNT)
    found = []
    for key in keys:
        backend.context.key = key
        found.append(state.value())
    return found


def tag(subtask: Subtask) -> str:
    snapshot = open_lmdb(subtask.local).snapshot()
    snapshot.close()
    return snapshot.tag


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What is applied to local stores: (tag, wiped)."""
    calls: list[tuple[str, bool]] = []
    original = LmdbStore.apply

    def counted(self: LmdbStore, expected: str, batches: Any, tag: str, *, wipe: bool = False) -> bool:
        calls.append((tag, wipe))
        return original(self, expected, batches, tag, wipe=wipe)

    monkeypatch.setattr(LmdbStore, "apply", counted)
    return calls


def test_a_round_without_changes_writes_nothing(subtask: Subtask) -> None:
    subtask.begin()
    read(subtask.backend, "a")
    assert subtask.finish() is None
    subtask.round(lambda b: count(b, "a"))
    subtask.begin()
    assert read(subtask.backend, "a", "b") == [1, None]
    assert subtask.finish() is None
    assert len(subtask.accepted) == 1


def test_the_store_never_holds_what_was_not_accepted(subtask: Subtask) -> None:
    subtask.round(lambda b: count(b, "a"))
    before = tag(subtask)
    subtask.begin()
    count(subtask.backend, "a", "b")
    subtask.backend.get(b"none")
    subtask.finish(accept=False)
    assert tag(subtask) != before  # brought to the first round by the second
    assert tag(subtask) == f"0-15:{subtask.accepted[0].upto}"
    subtask.begin()
    assert read(subtask.backend, "a", "b") == [1, None]
    subtask.backend.end()


def test_an_attempt_that_raises_leaves_nothing(subtask: Subtask) -> None:
    subtask.round(lambda b: count(b, "a"))
    subtask.begin()
    count(subtask.backend, "a", "a", "b")
    subtask.backend.event_timers.register(5)
    subtask.backend.end()
    backend = subtask.begin()
    assert read(backend, "a", "b") == [1, None]
    assert backend.event_timers.next_time() is None
    assert subtask.finish() is None


def test_only_missing_files_are_applied(subtask: Subtask, applied: list[tuple[str, bool]]) -> None:
    for _ in range(3):
        subtask.round(lambda b: count(b, "a"))
        subtask.backend = subtask.new_backend()
    # the first wipes the unknown store, each later one applies the one file before it
    assert [wiped for _, wiped in applied] == [True, False, False]
    subtask.begin()
    subtask.backend.end()
    applied.clear()
    subtask.begin()
    assert applied == []
    assert read(subtask.backend, "a") == [3]


def test_a_store_is_brought_up_when_it_is_read(subtask: Subtask, applied: list[tuple[str, bool]]) -> None:
    for _ in range(3):
        subtask.round(lambda b: count(b, "a", "b"))
    assert applied == []  # what is not cached does not exist
    subtask.round(lambda b: b.get(b"none"))
    assert [wiped for _, wiped in applied] == [True, False]
    assert applied[1:] == [(f"0-15:{subtask.accepted[2].upto}", False)]  # three files at once


def test_a_store_is_brought_up_before_a_merge(subtask: Subtask, applied: list[tuple[str, bool]]) -> None:
    """Else the merge would swallow its place, and the next one to read it would have to build it anew."""
    for number in range(4):
        subtask.round(lambda b, number=number: count(b, "a", number))  # type: ignore[misc]
    subtask.begin()
    subtask.compact((0, 4))
    subtask.finish()
    applied.clear()
    subtask.backend = subtask.new_backend()
    assert subtask.round(lambda b: read(b, "a", 0)) == [4, 1]
    assert applied == []


@pytest.mark.parametrize("timers", [True, False])
@pytest.mark.usefixtures("nothing_is_whole")
def test_a_store_with_timers_is_brought_up_at_once(subtask: Subtask, timers: bool) -> None:
    """Also if it was another worker who set the first one."""

    def work(backend: KeyedBackend) -> None:
        count(backend, "a")
        if timers:
            backend.event_timers.register(len(subtask.accepted))

    subtask.round(lambda b: count(b, "a"))
    ours, subtask.backend = subtask.backend, subtask.new_backend()
    subtask.round(work)
    subtask.backend = ours
    subtask.round(work)
    assert (tag(subtask) == f"0-15:{subtask.accepted[1].upto}") == timers
    subtask.round(lambda b: None)
    assert (tag(subtask) == f"0-15:{subtask.accepted[2].upto}") == timers
    fired = subtask.round(lambda b: [timer[:2] for timer in b.event_timers.due(100)])
    assert fired == ([(1, "a"), (2, "a")] if timers else [])
    assert subtask.round(lambda b: b.event_timers.next_time()) is None


def test_another_worker_continues(subtask: Subtask, applied: list[tuple[str, bool]]) -> None:
    subtask.round(lambda b: count(b, "a"))
    subtask.backend = subtask.new_backend()
    assert subtask.round(lambda b: count(b, "a")) == [2]
    assert [wiped for _, wiped in applied] == [True, False]


def test_a_lost_store_is_rebuilt(subtask: Subtask, applied: list[tuple[str, bool]]) -> None:
    for _ in range(3):
        subtask.round(lambda b: count(b, "a", "b"))
    shutil.rmtree(subtask.local)
    applied.clear()
    subtask.backend = subtask.new_backend()
    subtask.begin()
    assert read(subtask.backend, "a", "b") == [3, 3]
    assert [wiped for _, wiped in applied] == [True, False]


def test_a_store_of_another_history_is_wiped(subtask: Subtask) -> None:
    subtask.round(lambda b: count(b, "a", "gone"))
    subtask.round(lambda b: count(b, "a"))
    subtask.begin()  # the store is now at the second file
    subtask.backend.end()
    subtask.accepted = subtask.accepted[:1]  # the job was restored from the first checkpoint ...
    backend = subtask.backend
    backend.begin([])
    assert read(backend, "a", "gone") == [None, None]  # ... or from none
    backend.end()
    assert subtask.round(lambda b: read(b, "a", "gone")) == [1, 1]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys that are read from local stores."""
    keys: list[bytes] = []
    original = LmdbStore.snapshot

    def counted(self: LmdbStore) -> LmdbSnapshot:
        snapshot = original(self)
        get = snapshot.get
        snapshot.get = lambda key: (keys.append(key), get(key))[1]
        return snapshot

    monkeypatch.setattr(LmdbStore, "snapshot", counted)
    return keys


def test_a_cache_that_is_behind_catches_up(subtask: Subtask, reads: list[bytes]) -> None:
    subtask.round(lambda b: count(b, "a", 1))
    reads.clear()
    assert subtask.round(lambda b: count(b, "a")) == [2]
    assert reads == []
    ours, subtask.backend = subtask.backend, subtask.new_backend()
    assert subtask.round(lambda b: count(b, "a", ("t", 2))) == [3, 1]
    assert len(reads) == 2  # a new worker knows nothing
    reads.clear()
    subtask.backend = ours
    assert subtask.round(lambda b: count(b, "a", 1, ("t", 2))) == [4, 2, 2]
    assert reads == []


def delete(backend: KeyedBackend, key: Any) -> None:
    backend.context.key = key
    backend.state(COUNT).clear()


@pytest.mark.parametrize("run", [(1, 4), (2, 4), (2, 5), (3, 6)])
def test_a_cache_whose_place_was_swallowed_by_a_merge_catches_up(
    subtask: Subtask, reads: list[bytes], run: tuple[int, int]
) -> None:
    for _ in range(3):
        subtask.round(lambda b: count(b, *range(10)))
    ours, subtask.backend = subtask.backend, subtask.new_backend()
    subtask.round(lambda b: count(b, 1))
    subtask.round(lambda b: delete(b, 2))
    subtask.round(lambda b: count(b, 3))
    subtask.begin()
    subtask.compact(run)
    subtask.finish()
    reads.clear()
    subtask.backend = ours
    assert subtask.round(lambda b: read(b, 0, 1, 2, 3)) == [3, 4, None, 4]
    assert reads == []


def test_a_cache_whose_place_was_swallowed_by_a_merge_from_the_start_is_made_anew(subtask: Subtask) -> None:
    for _ in range(3):
        subtask.round(lambda b: count(b, *range(10)))
    ours, subtask.backend = subtask.backend, subtask.new_backend()
    subtask.round(lambda b: delete(b, 2))
    subtask.round(lambda b: count(b, 3))
    subtask.begin()
    subtask.compact((0, 5))  # it has no deletion of key 2
    subtask.finish()
    subtask.backend = ours
    assert subtask.round(lambda b: read(b, 1, 2, 3)) == [3, None, 4]


def test_a_cache_with_a_file_the_list_never_had_is_dropped(subtask: Subtask) -> None:
    subtask.round(lambda b: count(b, "a", "b"))
    ours, subtask.backend = subtask.backend, subtask.new_backend()
    taken, subtask.backend = subtask.backend, ours
    subtask.begin()
    count(subtask.backend, "a")
    subtask.finish(accept=False, version="again")
    subtask.backend = taken
    subtask.begin()
    count(subtask.backend, "b")
    subtask.finish(version="again")  # the other attempt of the round was accepted, under the same version
    subtask.backend = ours
    assert subtask.round(lambda b: read(b, "a", "b")) == [1, 2]


def test_a_cache_is_not_brought_up_with_much_more_than_it_has(subtask: Subtask, reads: list[bytes]) -> None:
    subtask.round(lambda b: count(b, 1, 2))
    ours, subtask.backend = subtask.backend, subtask.new_backend()
    subtask.round(lambda b: count(b, *range(CATCH_UP * 2 + 1)))
    reads.clear()
    subtask.backend = ours
    subtask.backend.registered()["count"].whole = False  # as if it had become too large once
    assert subtask.round(lambda b: read(b, 0, 1, 2)) == [1, 2, 2]
    assert len(reads) == 3


@pytest.mark.parametrize("info", [Types.LONG(), Types.LIST(Types.LONG()), None])
def test_whole_caches_follow_other_workers_and_read_nothing(
    subtask: Subtask, applied: list[tuple[str, bool]], info: Any
) -> None:
    """Whichever worker runs a round, and whether values can change in place or not."""
    descriptors = [
        ValueStateDescriptor("value", info),
        ListStateDescriptor("list", info),
        MapStateDescriptor("map", Types.LONG(), Types.LONG()),
    ]
    made = (lambda n: n) if info is not None and info == Types.LONG() else (lambda n: [n])

    def work(number: int) -> Callable[[KeyedBackend], None]:
        def write(backend: KeyedBackend) -> None:
            value, several, table = map(backend.state, descriptors)
            for key in range(number, number + 10):
                backend.context.key = key
                assert value.value() == (made(key) if number and key < number + 7 else None)
                value.update(made(key))
                several.add(made(number))
                table.put(number, key)
                assert len(table.items()) == len(several.get())

        return write

    workers = [subtask.backend, subtask.new_backend()]
    for worker in workers:
        list(map(worker.state, descriptors))
    for number in range(0, 30, 3):
        subtask.backend = workers[number % 2]
        subtask.round(work(number))
    assert applied == []
    subtask.backend = workers[0]
    backend = subtask.begin()
    assert all(state.whole for state in backend.registered().values())
    backend.context.key = 20
    assert [backend.state(d).get() for d in descriptors[1:2]] == [[made(n) for n in (12, 15, 18)]]
    assert backend.state(descriptors[2]).items() == [(12, 20), (15, 20), (18, 20)]
    backend.end()


def test_a_map_that_is_cleared_leaves_nothing_in_the_files(make_subtask: Make) -> None:
    table = MapStateDescriptor("map", Types.LONG(), Types.LONG())
    subtask = make_subtask()

    def put(*keys: int) -> Callable[[KeyedBackend], None]:
        def write(backend: KeyedBackend) -> None:
            backend.context.key = "a"
            for key in keys:
                backend.state(table).put(key, key)

        return write

    def replace(backend: KeyedBackend) -> None:
        put(4)(backend)
        backend.state(table).clear()
        put(2, 9)(backend)

    subtask.round(put(1, 2, 3))
    subtask.round(replace)
    for backend in (subtask.backend, subtask.new_backend(), make_subtask(cache_bytes=0).new_backend()):
        backend.begin(subtask.accepted)
        backend.context.key = "a"
        assert backend.state(table).items() == [(2, 2), (9, 9)]
        backend.end()


def test_a_cache_that_becomes_too_large_is_not_whole(make_subtask: Make) -> None:
    subtask = make_subtask(cache_bytes=20 * ENTRY_BYTES)
    descriptors = [COUNT, ValueStateDescriptor("list", None), MapStateDescriptor("map", Types.LONG(), Types.LONG())]

    def add(backend: KeyedBackend) -> list[int]:
        found = []
        for key in range(200):
            backend.prefetch([key])
            backend.context.key = key
            value, several, table = map(backend.state, descriptors)
            value.update((value.value() or 0) + 1)
            several.update([*(several.value() or []), key])
            table.put(1, (table.get(1) or 0) + 1)
            found.append(value.value() + len(several.value()) + table.get(1))
        return found

    for number in range(1, 4):
        assert subtask.round(add) == [3 * number] * 200
        assert not any(state.whole for state in subtask.backend.registered().values())


def texts_of(state: Any) -> list[Any]:
    """What the caches of a state hold, whatever its kind."""
    if isinstance(state, KeyedMapState):
        return [text for entries in (*state._maps.values(), *state._old.values()) for text in entries.values()]
    return [value for value in (*state._cache.values(), *state._old.values(), *state._packed.values()) if value]


LARGE = [
    ValueStateDescriptor("text", Types.STRING()),
    ValueStateDescriptor("anything", None),
    MapStateDescriptor("map", Types.LONG(), Types.STRING()),
]


def lengthen(backend: KeyedBackend, descriptor: Any, keys: Iterable[int], by: int) -> None:
    state = backend.state(descriptor)
    for key in keys:
        backend.context.key = key
        if isinstance(state, KeyedMapState):
            state.put(1, (state.get(1) or "") + "x" * by)
        else:
            state.update((state.value() or "") + "x" * by)


@pytest.mark.parametrize("descriptor", LARGE, ids=lambda d: d.name)
@pytest.mark.parametrize("compressed", [False, True])
def test_a_new_worker_does_not_take_over_few_large_values_beyond_its_cache(
    make_subtask: Make, monkeypatch: pytest.MonkeyPatch, descriptor: Any, compressed: bool
) -> None:
    learnt = list[KeyedState]()
    for kind in (SingleState, KeyedMapState):
        original: Any = kind.learn
        monkeypatch.setattr(kind, "learn", lambda self, e, do=original: (learnt.append(self), do(self, e))[1])
    subtask = make_subtask(cache_bytes=1 << 20, compressed=compressed)
    for part in range(4):
        subtask.round(lambda b, part=part: lengthen(b, descriptor, range(25 * part, 25 * part + 25), 100_000))  # type: ignore[misc]
        subtask.backend = subtask.new_backend()
    before = subtask.backend.state(descriptor)
    backend = subtask.begin()
    assert not before.whole
    assert bool(learnt) == compressed, "the size of the files tells, unless they are compressed"
    assert sum(map(len, texts_of(before))) < 4 << 20, "of 10 MB"
    lengthen(backend, descriptor, [7, 200], 1)
    subtask.finish()
    assert max(map(len, texts_of(before))) // 100 == 1000


@pytest.mark.parametrize("descriptor", LARGE, ids=lambda d: d.name)
def test_values_that_grow_from_round_to_round_stay_within_the_cache(make_subtask: Make, descriptor: Any) -> None:
    subtask, most = make_subtask(cache_bytes=1 << 20), 0
    state = subtask.backend.state(descriptor)
    subtask.round(lambda b: lengthen(b, descriptor, range(100), 1))
    for number in range(60):
        backend = subtask.begin()
        most = max(most, sum(map(len, texts_of(state))))
        lengthen(backend, descriptor, range(number % 10 * 10, number % 10 * 10 + 10), 50_000)
        subtask.finish()
    assert not state.whole
    assert most < 8 << 20, "of 30 MB"


def test_a_state_whose_entries_come_and_go_stays_whole(make_subtask: Make) -> None:
    subtask = make_subtask(cache_bytes=500 * ENTRY_BYTES)
    descriptors = [MapStateDescriptor(name, Types.LONG(), Types.LONG()) for name in ("removed", "cleared")]
    states = [subtask.backend.state(descriptor) for descriptor in (COUNT, *descriptors)]

    def come_and_go(number: int) -> Callable[[KeyedBackend], None]:
        def work(backend: KeyedBackend) -> None:
            value, removed, cleared = states
            for key in range(10 * number, 10 * number + 10):
                backend.context.key = key
                value.update(1)
                backend.context.key = key - 10
                value.clear()
                backend.context.key = key % 10
                removed.put(number, 1)
                removed.remove(number - 1)
                cleared.clear()
                cleared.put(number, 1)

        return work

    for number in range(200):
        subtask.round(come_and_go(number))
    assert [state.whole for state in states] == [True] * 3
    assert len(states[0].cells) == 20
    assert [sum(map(len, state._maps.values())) for state in states[1:]] == [20, 10]
    assert [state._size for state in states[1:]] == [20, 10]


def test_a_slot_that_a_column_writes_after_it_was_cleared_has_its_value_in_the_next_round(subtask: Subtask) -> None:
    def clear_and_write(backend: KeyedBackend) -> None:
        delete(backend, 1)
        state = backend.state(COUNT)
        state.note(np.array([1]))
        state.cells[1] = 5  # as a generated loop does

    subtask.round(lambda b: count(b, 1))
    subtask.round(clear_and_write)
    assert subtask.backend.registered()["count"].whole
    assert subtask.round(lambda b: read(b, 1)) == [5]


def test_states_learn_what_another_worker_has_written(subtask: Subtask, monkeypatch: pytest.MonkeyPatch) -> None:
    total = ReducingStateDescriptor("total", lambda a, b: a + b, Types.LONG())
    anything = ValueStateDescriptor("anything", None)

    def add(backend: KeyedBackend) -> list[Any]:
        found = []
        for key in (1, 2, "x" * 200):
            backend.context.key = key
            backend.state(total).add(5)
            backend.state(anything).update([key])
            found += [backend.state(total).get(), *count(backend, key)]
        return found

    subtask.round(add)
    ours, subtask.backend = subtask.backend, subtask.new_backend()
    subtask.round(add)
    learned: list[str] = []
    original = SingleState.learn
    monkeypatch.setattr(SingleState, "learn", lambda self, e: (learned.append(self.name), original(self, e))[1])
    subtask.backend = ours
    assert subtask.round(add) == [15, 3] * 3
    assert sorted(learned) == ["anything", "count", "total"]


def test_a_cache_of_a_discarded_segment_is_dropped(subtask: Subtask) -> None:
    subtask.round(lambda b: count(b, "a"))
    subtask.begin()
    count(subtask.backend, "a", "a")
    subtask.finish(accept=False)
    assert subtask.round(lambda b: count(b, "a")) == [2]


def test_a_segment_that_cannot_be_written_leaves_nothing_in_the_cache(subtask: Subtask) -> None:
    subtask.round(lambda b: count(b, "a"))
    subtask.begin()
    count(subtask.backend, "a", "b")

    def full(point: str, where: dict[str, Any]) -> None:
        if point == "storage.write":
            raise OSError(errno.ENOSPC, "disk full")

    faults.install(full)
    try:
        with pytest.raises(StorageError, match="ENOSPC"):
            subtask.finish()
    finally:
        faults.install(None)
    subtask.backend.end()
    assert subtask.round(lambda b: count(b, "a", "b")) == [2, 1]


def test_what_is_used_stays_cached_while_others_come_and_go(make_subtask: Make) -> None:
    subtask = make_subtask(cache_bytes=10 * ENTRY_BYTES)
    state = subtask.backend.state(COUNT)
    cached = []
    for keys in ([0, 1], [0, 2], [0, 3, 4, 5, 6], [0, 7], [0, 8, 9, 10, 11], [0]):
        count(subtask.begin(), *keys)
        cached.append(sorted({*state.cells, *state._old}))
        subtask.finish()
    assert cached == [[0, 1], [0, 1, 2], [*range(7)], [*range(8)], [*range(12)], [0, *range(7, 12)]]
    assert subtask.round(lambda b: read(b, *range(12))) == [6, *[1] * 11]


@pytest.mark.parametrize("info", [Types.LONG(), None])
def test_changes_of_a_round_outlive_the_cache(make_subtask: Make, info: Any) -> None:
    subtask = make_subtask(cache_bytes=10 * ENTRY_BYTES)
    state = subtask.backend.state(ValueStateDescriptor("value", info))
    table = subtask.backend.state(MapStateDescriptor("table", None, info))

    def write(backend: KeyedBackend) -> None:
        for key in range(100):
            backend.prefetch([key])
            backend.context.key = key
            state.update(key)
            table.put("entry", key)
            assert len(state._cache) + len(state._old) < 20

    def values(backend: KeyedBackend) -> list[Any]:
        found = []
        for key in range(100):
            backend.prefetch([key])
            backend.context.key = key
            found.append((state.value(), table.get("entry")))
        return found

    def write_and_read(backend: KeyedBackend) -> list[Any]:
        write(backend)
        return values(backend)

    assert subtask.round(write_and_read) == subtask.round(values) == [(key, key) for key in range(100)]


def test_what_is_cached_is_not_looked_for_in_the_store(subtask: Subtask, applied: list[tuple[str, bool]]) -> None:
    subtask.round(lambda b: count(b, *range(50)))

    def prefetched(backend: KeyedBackend) -> list[int]:
        backend.registered()["count"].prefetch(range(50))
        return count(backend, *range(50))

    before = list(applied)
    assert subtask.round(prefetched) == [2] * 50
    assert applied == before, "the store was brought up, and nothing was read from it"


def test_noted_columns_outlive_the_cache(make_subtask: Make) -> None:
    subtask = make_subtask(cache_bytes=10 * ENTRY_BYTES)
    state = subtask.backend.state(COUNT)
    backend = subtask.begin()
    for start in (0, 20, 10, 40):
        column = np.arange(start, start + 20)
        backend.prefetch(column.tolist())
        state.note(column)
        for key in column.tolist():  # as a generated loop does
            state.cells[key] = (state.cells[key] or 0) + 1
    subtask.finish()
    expected = [1] * 10 + [2] * 20 + [1] * 10 + [1] * 20
    assert subtask.round(lambda b: read(b, *range(60))) == expected


def test_a_hot_set_stays_cached_while_millions_of_cold_keys_pass(make_subtask: Make) -> None:
    hot, chunk, chunks = list(range(500)), 20_000, 100
    subtask = make_subtask(cache_bytes=16 << 20)
    subtask.round(lambda b: count(b, *hot))
    subtask.backend = subtask.new_backend()
    state = subtask.backend.state(COUNT)
    backend = subtask.begin()
    read(backend, *hot)
    reads, real = [0], backend.get
    hot_paths = set(map(state._path, hot))

    def counted(path: bytes) -> bytes | None:
        reads[0] += path in hot_paths
        return real(path)

    backend.get = counted
    most = 0
    for number in range(chunks):
        cold = list(range(1000 + number * chunk, 1000 + (number + 1) * chunk))
        backend.prefetch(cold)
        state.prefetch(cold)
        assert read(backend, *hot) == [1] * len(hot)
        most = max(most, len(state.cells) + len(state._old))
    assert reads == [0], "a hot key was read from the store again"
    assert most * (ENTRY_BYTES + 28 + 16) < (16 << 20) + chunk * 200, "the cache is larger than configured"
    assert subtask.finish() is None


def test_values_that_can_change_in_place_are_not_kept(subtask: Subtask) -> None:
    state = subtask.backend.state(ValueStateDescriptor("list", None))

    def write(backend: KeyedBackend) -> None:
        backend.context.key = "a"
        state.update([1])

    def change_in_secret(backend: KeyedBackend) -> None:
        backend.context.key = "a"
        state.value().append(2)

    subtask.round(write)
    subtask.round(change_in_secret)
    backend = subtask.begin()
    backend.context.key = "a"
    assert state.value() == [1]
    backend.end()


@pytest.mark.parametrize("retain", [0, 1000])
def test_prefetch_reads_what_the_records_will_miss(make_subtask: Make, retain: int) -> None:
    subtask = make_subtask(cache_bytes=retain)
    keys = list(range(40))
    subtask.round(lambda b: count(b, *keys[:30]))

    def chunked(backend: KeyedBackend) -> list[int]:
        state = backend.state(COUNT)
        counts = []
        for start in range(0, 40, 10):
            chunk = keys[start : start + 10]
            backend.prefetch(chunk)
            if start and not retain:  # else there were no misses so far
                assert all(key in state.cells for key in chunk)
            counts += count(backend, *chunk)
        return counts

    assert subtask.round(chunked) == [2] * 30 + [1] * 10
    assert subtask.round(lambda b: read(b, *keys)) == [2] * 30 + [1] * 10
    assert len(subtask.accepted) == 2


def test_prefetch_leaves_hot_keys_alone_and_probes_now_and_then(
    subtask: Subtask, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    original = ImmutableValueState.prefetch

    def counted(self: ImmutableValueState, keys: Any) -> None:
        calls.append(len(set(keys)))
        original(self, keys)

    monkeypatch.setattr(ImmutableValueState, "prefetch", counted)

    def work(backend: KeyedBackend) -> None:
        backend.state(COUNT).whole = False  # as if it had become too large once
        for _ in range(10):
            backend.prefetch([1] * 10)
            count(backend, *([1] * 10))
        assert calls == []
        for number in range(40):
            chunk = list(range(10 * number, 10 * number + 10))
            backend.prefetch(chunk)
            count(backend, *chunk)
        assert calls.count(10) > 30
        assert len(calls) == 39  # the first chunk tells that it is worth it
        assert 9 in calls  # one key was left out, and missed
        calls.clear()
        for number in range(40, 80):
            backend.prefetch(list(range(10 * number, 10 * number + 10)))
        assert 0 < len(calls) <= 16  # nobody read them

    subtask.round(work)


def test_an_error_of_the_store_in_a_prefetch_is_no_error_of_the_stored_value(make_subtask: Make) -> None:
    subtask = make_subtask(cache_bytes=0)
    subtask.round(lambda b: count(b, *range(20)))

    def full(point: str, where: dict[str, Any]) -> None:
        if point == "T2.apply":
            raise OSError(errno.ENOSPC, "injected")

    backend = subtask.begin()
    backend.state(COUNT).misses = 20  # as after a round of misses
    faults.install(full)
    try:
        with pytest.raises(OSError, match="injected"):
            backend.prefetch(list(range(20)))
    finally:
        faults.install(None)
        backend.end()


def test_a_zombie_cannot_damage_a_store(subtask: Subtask) -> None:
    subtask.round(lambda b: count(b, "a"))
    subtask.round(lambda b: count(b, "a", "b"))
    zombie = subtask.new_backend()
    old = subtask.accepted[:1]
    subtask.begin()
    zombie.begin(old)  # puts the store back; the running round does not notice
    assert read(zombie, "a", "b") == [1, None]
    assert count(subtask.backend, "a", "b") == [3, 2]
    zombie.end()
    subtask.finish()
    assert subtask.round(lambda b: read(b, "a", "b")) == [3, 2]


@pytest.mark.usefixtures("nothing_is_whole")
def test_a_store_moved_by_another_process_is_looked_at_again(subtask: Subtask) -> None:
    for _ in range(3):
        subtask.round(lambda b: count(b, "a"))
    shutil.rmtree(subtask.local)
    other, subtask.backend = subtask.new_backend(), subtask.new_backend()
    moved: list[Any] = []

    def race(point: str, where: dict[str, Any]) -> None:
        if point == "T2.apply" and not moved:
            moved.append(where)
            other.begin(subtask.accepted[:2])
            other.end()

    faults.install(race)
    try:
        subtask.begin()
    finally:
        faults.install(None)
    assert moved
    assert read(subtask.backend, "a") == [3]
    subtask.backend.end()


@pytest.mark.usefixtures("nothing_is_whole")
def test_a_store_moved_all_the_time_is_an_error(subtask: Subtask) -> None:
    subtask.round(lambda b: count(b, "a"))
    subtask.backend = subtask.new_backend()
    store = open_lmdb(subtask.local)

    def always(point: str, where: dict[str, Any]) -> None:
        if point == "T2.apply":
            snapshot = store.snapshot()
            snapshot.close()
            assert store.apply(snapshot.tag, [], "of another", wipe=True)

    faults.install(always)
    try:
        with pytest.raises(StorageError) as caught:
            subtask.begin()
    finally:
        faults.install(None)
    assert str(caught.value).startswith("Another job attempt keeps rewriting the local store.")
    assert "10 times" in str(caught.value)


@pytest.mark.usefixtures("nothing_is_whole")
def test_a_rebuild_that_is_killed_begins_again(subtask: Subtask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materialize, "BLOCKS_PER_TRANSACTION", 1)
    monkeypatch.setattr(materialize, "ENTRIES_PER_BLOCK", 200)
    subtask.round(lambda b: count(b, "x"))
    subtask.round(lambda b: count(b, *range(20_000)))
    subtask.round(lambda b: count(b, "x"))
    shutil.rmtree(subtask.local)
    subtask.backend = subtask.new_backend()

    class Killed(Exception):
        pass

    def kill(point: str, where: dict[str, Any]) -> None:
        if point == "T5.partly-rebuilt":
            raise Killed

    faults.install(kill)
    try:
        with pytest.raises(Killed):
            subtask.begin()
    finally:
        faults.install(None)
    assert tag(subtask).startswith("|partial|")
    subtask.begin()
    assert read(subtask.backend, "x", 0, 19_999, "y") == [2, 1, 1, None]
    subtask.backend.end()


def test_a_missing_or_corrupt_file_is_an_error_and_no_state_is_used(subtask: Subtask) -> None:
    subtask.round(lambda b: count(b, "a"))
    subtask.round(lambda b: count(b, "a"))
    subtask.backend = subtask.new_backend()
    path = subtask.directory / "storage" / subtask.accepted[1].path
    good = path.read_bytes()
    path.write_bytes(good[:-5])
    with pytest.raises(CorruptFileError, match=r"A file on checkpoint storage is not what was written\."):
        subtask.begin()
    with pytest.raises(InternalError, match="State is read outside of a round"):
        read(subtask.new_backend(), "a")
    path.write_bytes(good)
    assert subtask.round(lambda b: count(b, "a")) == [3]


@pytest.mark.parametrize("run", [(0, 4), (0, 2), (1, 3), (2, 4)])
def test_compaction_changes_nothing_but_the_list(subtask: Subtask, run: tuple[int, int]) -> None:
    table = MapStateDescriptor("m", None, None)

    def work(backend: KeyedBackend, number: int) -> None:
        count(backend, "all", number)
        state = backend.state(table)
        for key in ("m", number):
            backend.context.key = key
            state.put(number, number)
            state.remove(number - 1)
        backend.event_timers.register(number)
        backend.context.key = number - 1
        backend.event_timers.delete(number - 1)
        if number:
            backend.state(COUNT).clear()

    for number in range(4):
        subtask.round(lambda b, number=number: work(b, number))  # type: ignore[misc]

    def observe(backend: KeyedBackend) -> Any:
        found = read(backend, "all", *range(4))
        maps = []
        for key in ("m", *range(4)):
            backend.context.key = key
            maps.append(sorted(backend.state(table).items()))
        return found, maps, list(backend.event_timers.due(100))

    def observed(files: list[StateFile], local: str) -> Any:
        backend = subtask.new_backend(str(subtask.directory / local))
        backend.begin(files)
        result = observe(backend)
        backend.end()
        return result

    before = observed(subtask.accepted, "fresh")
    assert before[0] == [4, None, None, None, 1]
    backend = subtask.begin()
    merged = backend.compact(subtask.accepted, run, "shared/merged")
    backend.end()
    assert merged.upto == subtask.accepted[run[1] - 1].upto
    files = [*subtask.accepted[: run[0]], merged, *subtask.accepted[run[1] :]]
    assert observed(files, "again") == before
    subtask.accepted = files
    store_before = tag(subtask)
    subtask.begin()
    assert tag(subtask) == store_before  # known under the new list too: no rebuild
    assert observe(subtask.backend) == before
    subtask.backend.end()


def test_a_base_has_no_deletions(subtask: Subtask) -> None:
    subtask.round(lambda b: count(b, "a", "b"))

    def clear(backend: KeyedBackend) -> None:
        backend.context.key = "a"
        backend.state(COUNT).clear()

    subtask.round(clear)
    backend = subtask.begin()
    assert backend.compact(subtask.accepted, (0, 2), "shared/base").entries == 1
    assert backend.compact(subtask.accepted, (1, 2), "shared/part").entries == 1
    backend.end()


def rescale(make: Make, subtasks: list[Subtask], parallelism: int) -> list[Subtask]:
    """What the driver does: each new subtask gets all files that touch its range, clipped."""
    made = []
    for number in range(parallelism):
        new = make(number, parallelism)
        for old in subtasks:
            for ref in old.accepted:
                groups = ref.groups.intersect(new.groups)
                if groups is not None:
                    new.accepted.append(
                        StateFile(ref.path, ref.size, ref.hash, ref.upto, groups, ref.entries, ref.root)
                    )
        made.append(new)
    return made


def test_rescales_split_and_merge_by_key_group(make_subtask: Make) -> None:
    keys = [*range(50), "text", ("a", 1)]
    subtasks = [make_subtask(0, 1)]
    expected = 0
    for parallelism in (1, 3, 2, 1, 4):
        subtasks = rescale(make_subtask, subtasks, parallelism)
        for _ in range(2):
            expected += 1
            for subtask in subtasks:
                own = [key for key in keys if subtask.owns(key)]
                assert subtask.round(lambda b, own=own: count(b, *own)) == [expected] * len(own)  # type: ignore[misc]
        for subtask in subtasks:  # a base of the new range
            backend = subtask.begin()
            run = (0, len(subtask.accepted))
            merged = backend.compact(subtask.accepted, run, f"shared/{new_token()}")
            backend.end()
            if subtask.groups.first:
                subtask.accepted = [merged]
    assert sum(len(subtask.accepted) for subtask in subtasks) < 40


def test_files_of_two_former_subtasks_with_one_version_are_told_apart(make_subtask: Make, tmp_path: Path) -> None:
    halves = [make_subtask(number, 2) for number in range(2)]
    keys = range(40)
    for half in halves:
        half.begin()
        count(half.backend, *(key for key in keys if half.owns(key)))
        written = half.backend.write_segment("same-version", f"shared/{half.groups.first}")
        half.backend.end()
        assert written is not None
        half.accepted.append(written)
    whole = make_subtask(0, 1)
    whole.accepted = [*halves[0].accepted, *halves[1].accepted]
    other = whole.new_backend()
    other.begin(whole.accepted[:1])  # half of the list is in the store
    other.end()
    whole.begin()
    assert read(whole.backend, *keys) == [1] * 40
    whole.backend.end()


def test_groups_of_keys_are_where_the_segment_says(make_subtask: Make) -> None:
    half = make_subtask(1, 2)
    own = [key for key in range(100) if half.owns(key)]
    half.round(lambda b: count(b, *own))
    (ref,) = half.accepted
    assert (ref.groups, ref.entries) == (half.groups, len(own))
    assert {group_of(key, 16) in ref.groups for key in own} == {True}


def ref(upto: str, first: int, last: int) -> StateFile:
    return StateFile("path", 0, "", upto, KeyGroupRange(first, last))


def test_a_tag_tells_the_version_of_every_group() -> None:
    files = [ref("v1", 0, 9), ref("v2", 0, 4), ref("v2", 5, 9), ref("v3", 3, 3), ref("v4", 8, 20), ref("v5", 0, 9)]
    assert materialize.tags_of(files, KeyGroupRange(0, 9)) == [
        "0-9:",
        "0-9:v1",
        "0-4:v2|5-9:v1",
        "0-9:v2",
        "0-2:v2|3-3:v3|4-9:v2",
        "0-2:v2|3-3:v3|4-7:v2|8-9:v4",
        "0-9:v5",
    ]
    assert materialize.tags_of(files[:1], KeyGroupRange(20, 30)) == ["20-30:", "20-30:"]


def test_merged_files_of_mixed_versions_get_a_new_one(make_subtask: Make) -> None:
    halves = [make_subtask(number, 2) for number in range(2)]
    for half in halves:
        half.round(lambda b, half=half: count(b, *(key for key in range(20) if half.owns(key))))  # type: ignore[misc]
    whole = make_subtask(0, 1, [*halves[0].accepted, *halves[1].accepted])
    backend = whole.begin()
    merged = backend.compact(whole.accepted, (0, 2), "shared/mixed")
    backend.end()
    assert merged.upto.startswith(f"{halves[1].accepted[0].upto}~")
    assert merged.groups == whole.groups
    whole.accepted = [merged]
    assert whole.round(lambda b: read(b, *range(20))) == [1] * 20
