"""Random histories against plain dicts: rounds that fail, workers and disks that go, rescales, restores, compactions, time.

Every kind of state, with keys that Python thinks equal, in namespaces, with values that change in place, and timers. The caches
are small, large, or none.
"""

from __future__ import annotations

import copy
import math
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.state.state_subtask import MAX_PARALLELISM, Subtask
from tidegate.base import faults
from tidegate.base.errors import StorageError
from tidegate.base.hashing import new_token
from tidegate.common.typeinfo import Types
from tidegate.state import backend
from tidegate.state.backend import KeyedBackend
from tidegate.state.context import split
from tidegate.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from tidegate.state.key_groups import range_for
from tidegate.state.keyed import KeyedMapState
from tidegate.state.keys import encode_key, identify
from tidegate.state.local_dir import choose_root
from tidegate.state.materialize import plan
from tidegate.state.refs import StateFile
from tidegate.state.single import TrackedState
from tidegate.state.stores import STORES, StoreOptions, close_removed_stores, opener
from tidegate.state.timers import TimerQueue
from tidegate.state.ttl import StateTtlConfig

TTL = 50
KEYS = [
    *(0, 1, True, 1.0, "1", b"1", 0.0, -0.0, math.nan, None, Decimal("1.0"), Decimal("1.00")),
    *((1, 1), (1, True), ("t", ("u", None)), "long" * 200, "\ud800", 70_000, -(2**40), 2**70),
]
NAMESPACES = [b"", b"", b"w1", b"w2", b"\x00" * 16]
LATEST = 12
"""Of the times of timers."""
STEPS = 500


class Collected:
    """An aggregate function that changes its accumulator in place."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> tuple[int, ...]:
        return tuple(accumulator)

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return a + b


def extended(a: list[int], b: list[int]) -> list[int]:
    a.extend(b)
    return a


Choices = tuple[Any, ...]
NUMBERS, TEXTS = (0, 1, -3, 2**40), ("", "a", "b" * 50)
THINGS: Choices = ("x", 1, [1], {"a": [1]}, {1, 2}, [])
STATES: list[tuple[StateDescriptor, Choices, Choices]] = [
    (ValueStateDescriptor("number", Types.LONG()), (None, *NUMBERS), ()),
    (ValueStateDescriptor("text", Types.STRING()), (None, *TEXTS), ()),
    (ValueStateDescriptor("numbers", Types.LIST(Types.LONG())), (None, [], [1, 2]), ()),
    (ValueStateDescriptor("thing", None), (None, *THINGS), ()),
    (ListStateDescriptor("list of numbers", Types.LONG()), NUMBERS, ()),
    (ListStateDescriptor("list of things", None), THINGS, ()),
    (MapStateDescriptor("map of numbers", None, Types.LONG()), (None, *NUMBERS), tuple(KEYS)),
    (MapStateDescriptor("map of things", None, None), (None, *THINGS), tuple(KEYS)),
    (MapStateDescriptor("numbers to numbers", Types.LONG(), Types.LONG()), NUMBERS, (0, 1, -5, 2**62)),
    (MapStateDescriptor("texts to texts", Types.STRING(), Types.STRING()), TEXTS, ("", "a", "c" * 600)),
    (ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()), NUMBERS, ()),
    (ReducingStateDescriptor("extended", extended, None), ([1], [2, 3]), ()),
    (AggregatingStateDescriptor("collected", Collected(), None), NUMBERS, ()),
    (ValueStateDescriptor("short-lived number", Types.LONG()), (None, *NUMBERS), ()),
    (ListStateDescriptor("short-lived list", Types.LONG()), NUMBERS, ()),
    (MapStateDescriptor("short-lived map", None, Types.LONG()), NUMBERS, tuple(KEYS)),
]
for descriptor, *_ in STATES:
    if descriptor.name.startswith("short-lived"):
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(TTL).build())

Place = tuple[str, bytes, bytes]
"""A state, the bytes of a key, a namespace."""
Timer = tuple[int, int, bytes, bytes]
"""Domain, time, the bytes of a key, a namespace."""


class Model:
    """The state of the whole operator: for each place values with the time at which they expire, by map key or position; and
    the timers."""

    def __init__(self) -> None:
        self.places: dict[Place, dict[Any, tuple[Any, float]]] = {}
        self.timers: set[Timer] = set()


class History:
    """One random history. The model is compared with at every read, and as a whole now and then."""

    def __init__(self, directory: Path, seed: int, kind: str) -> None:
        self.random = random.Random(seed)
        self.open_store = opener(kind, StoreOptions(map_size=64 << 20))
        self.directory = directory
        self.states = self.random.sample(STATES, self.random.choice([1, 2, 4, len(STATES)]))
        self.keys = self.random.sample(KEYS, self.random.choice([2, 3, 6, len(KEYS)]))
        self.namespaces = self.random.choice([[b""], [b""], NAMESPACES])
        self.cache = self.random.choice([0, 700, 3000, 20_000, 1 << 20, 1 << 20])
        self.workers_per_subtask = self.random.choice([1, 2])
        self.opens = self.random.random() < 0.7
        """Whether functions ask for their states before the round, and not in it."""
        self.now = 1000
        self.accepted = self.model = Model()
        self.spoiled: set[Place] = set()
        """Places with a value that was changed in place and not given back: what it is until the round ends is not defined."""
        self.earlier: list[tuple[list[list[StateFile]], Model]] = []
        self._make(self.random.randint(1, 3), [])
        self._begin()

    def run(self) -> None:
        engine: list[Callable[[], None]] = [
            *[self.accept] * 7,
            *[self.compact] * 2,
            self.discard,
            self.crash,
            self.fail_to_write,
            self.another_worker,
            self.run_in_a_zombie,
            self.lose_local_stores,
            self.rescale,
            self.restore,
        ]
        user: list[Callable[[], None]] = [
            *[self.use_a_state] * 12,
            self.merge_namespaces,
            self.write_a_column,
            *[self.use_a_timer] * 3,
            self.fire_timers,
            self.time_passes,
            self.prefetch,
            self.trim,
        ]
        often = self.random.choice([0.05, 0.15, 0.3])
        for _ in range(STEPS):
            self.random.choice(engine if self.random.random() < often else user)()
            if self.random.random() < 0.03:
                self.look_at_everything()
        self.accept()
        self.look_at_everything()
        self.look_at_the_files()

    # -- the engine's part --

    def _make(self, parallelism: int, refs: list[StateFile]) -> None:
        self.subtasks = []
        for number in range(parallelism):
            groups = range_for(number, parallelism, MAX_PARALLELISM)
            clipped = [(ref, ref.groups.intersect(groups)) for ref in refs]
            own = [
                StateFile(ref.path, ref.size, ref.hash, ref.upto, part, ref.entries)
                for ref, part in clipped
                if part is not None
            ]
            self.subtasks.append(
                Subtask(
                    self.directory,
                    groups,
                    own,
                    cache_bytes=self.cache,
                    open_store=self.open_store,
                    compressed=self.random.random() < 0.5,
                )
            )
        self.workers = [
            [subtask.backend, *(subtask.new_backend() for _ in range(self.workers_per_subtask - 1))]
            for subtask in self.subtasks
        ]

    def _begin(self) -> None:
        """Whichever worker is idle runs the round."""
        self.version = new_token()
        self.model, self.spoiled = copy.deepcopy(self.accepted), set()
        for subtask, workers in zip(self.subtasks, self.workers, strict=True):
            subtask.backend = self.random.choice(workers)
            if self.opens:
                for descriptor, *_ in self.states:
                    subtask.backend.state(descriptor)
            subtask.begin().context.time = self.now

    def accept(self) -> None:
        for subtask in self.subtasks:
            subtask.finish(version=self.version)  # one for the files of all subtasks
        self.accepted = self.model
        self.earlier = [*self.earlier[-5:], ([list(s.accepted) for s in self.subtasks], copy.deepcopy(self.model))]
        self._begin()

    def discard(self) -> None:
        """Some subtasks have written their changes, others have not. The files of the next attempt have the same version."""
        version = self.version
        for subtask in self.subtasks:
            if self.random.random() < 0.7:
                subtask.finish(accept=False, version=version)
            else:
                subtask.backend.end(failed=True)
        self._begin()
        self.version = version

    def crash(self) -> None:
        for subtask in self.subtasks:
            subtask.backend.end()
        self._begin()

    def fail_to_write(self) -> None:
        """The checkpoint is declined."""

        def full(point: str, where: dict[str, Any]) -> None:
            if point == "storage.write":
                raise OSError("no space left")

        for subtask in self.subtasks:
            faults.install(full)
            try:
                subtask.finish(accept=False)
            except StorageError:
                subtask.backend.end(failed=True)
            finally:
                faults.install(None)
        self._begin()

    def another_worker(self) -> None:
        for subtask, workers in zip(self.subtasks, self.workers, strict=True):
            subtask.backend.end()
            workers[self.random.randrange(len(workers))] = subtask.new_backend()
        self._begin()

    def run_in_a_zombie(self) -> None:
        """Another attempt at this round, in another process, changes everything and is not accepted."""
        for subtask in self.subtasks:
            zombie = subtask.new_backend()
            zombie.begin(subtask.accepted, subtask.replaced)
            for key in filter(subtask.owns, self.keys):
                zombie.context.key = identify(key)
                zombie.event_timers.register(LATEST + 1)
                for descriptor, *_ in self.states:
                    zombie.state(descriptor).clear()
            zombie.get(b"none")
            zombie.write_segment(self.version, f"shared/{new_token()}")
            zombie.end()

    def lose_local_stores(self) -> None:
        for subtask in self.subtasks:
            subtask.backend.end()
            shutil.rmtree(subtask.local, ignore_errors=True)  # a store that nobody has read yet is not there
        self._begin()

    def rescale(self) -> None:
        for subtask in self.subtasks:
            subtask.backend.end()
        self._make(self.random.randint(1, 3), [ref for subtask in self.subtasks for ref in subtask.accepted])
        self.earlier = []
        self._begin()

    def restore(self) -> None:
        """An earlier checkpoint, in the same workers."""
        if self.earlier:
            lists, self.accepted = self.random.choice(self.earlier)
            for subtask, files in zip(self.subtasks, lists, strict=True):
                subtask.backend.end()
                subtask.accepted, subtask.replaced = list(files), []
            self.earlier = []
            self._begin()

    def compact(self) -> None:
        for subtask in self.subtasks:
            files = subtask.accepted
            if files:
                start = self.random.randrange(len(files))
                subtask.compact(plan(files) or (start, self.random.randint(start + 1, len(files))))

    def time_passes(self) -> None:
        self.now += self.random.randint(1, 40)
        for subtask in self.subtasks:
            subtask.backend.context.time = self.now

    def prefetch(self) -> None:
        chunk = self.random.choices(self.keys, k=4)
        for subtask in self.subtasks:
            own = [identify(key) for key in chunk if subtask.owns(key)]
            subtask.backend.prefetch(own)
            for state in subtask.backend.registered().values():
                state.prefetch(own)

    def trim(self) -> None:
        for subtask in self.subtasks:
            subtask.backend.trim_caches()
            for state in subtask.backend.registered().values():
                if isinstance(state, KeyedMapState):
                    assert state._size == sum(map(len, state._maps.values()))

    # -- the user's part --

    def _backend(self, key: Any) -> KeyedBackend:
        (found,) = (subtask.backend for subtask in self.subtasks if subtask.owns(key))
        return found

    def _enter(self, descriptor: StateDescriptor, key: Any, namespace: bytes) -> tuple[Any, Place]:
        found = self._backend(key)
        found.context.enter(identify(key), namespace)
        return found.state(descriptor), (descriptor.name, encode_key(key), namespace)

    def _live(self, place: Place) -> dict[Any, Any]:
        """What a user sees of a place, by map key or position."""
        return {at: value for at, (value, expiry) in self.model.places.get(place, {}).items() if expiry > self.now}

    def _hold(self, place: Place, descriptor: StateDescriptor, values: dict[Any, Any]) -> None:
        """Write these values now, and keep the others that live."""
        expiry = self.now + TTL if descriptor.ttl is not None else math.inf
        held = {at: pair for at, pair in self.model.places.get(place, {}).items() if pair[1] > self.now}
        self.model.places[place] = {**held, **{at: (copy.deepcopy(value), expiry) for at, value in values.items()}}

    def use_a_state(self) -> None:
        descriptor, values, map_keys = self.random.choice(self.states)
        state, place = self._enter(descriptor, self.random.choice(self.keys), self.random.choice(self.namespaces))
        if place in self.spoiled:
            return
        if self.random.random() < 0.1:
            state.clear()
            self.model.places.pop(place, None)
        value = copy.deepcopy(self.random.choice(values))
        if descriptor.kind == "map":
            self._use_map(state, place, descriptor, self.random.choice(map_keys), value)
        elif self.random.random() < 0.5:
            getattr(self, f"_write_{descriptor.kind}")(state, place, descriptor, value)
        if self.random.random() < 0.5:
            self._compare(descriptor, state, place)
        if isinstance(state, TrackedState) and self.random.random() < 0.2:
            self._change_in_secret(state, place)

    def _write_value(self, state: Any, place: Place, descriptor: StateDescriptor, value: Any) -> None:
        state.update(value)
        if isinstance(value, list) and self.random.random() < 0.5:
            value.append(7)  # before the round ends, so it counts
        self.model.places.pop(place, None)
        if value is not None:
            self._hold(place, descriptor, {0: value})

    def _write_list(self, state: Any, place: Place, descriptor: StateDescriptor, value: Any) -> None:
        values = [value] * self.random.randint(0, 2)
        if self.random.random() < 0.3:
            state.update(values)
            self.model.places.pop(place, None)
        else:
            state.add_all(values)
        after = max(self.model.places.get(place, {}), default=0)
        self._hold(place, descriptor, dict(enumerate(values, after + 1)))

    def _write_reducing(self, state: Any, place: Place, descriptor: StateDescriptor, value: Any) -> None:
        live = self._live(place)
        state.add(copy.deepcopy(value))
        self._hold(place, descriptor, {0: live[0] + value if live else value})

    def _write_aggregating(self, state: Any, place: Place, descriptor: StateDescriptor, value: Any) -> None:
        state.add(value)
        self._hold(place, descriptor, {0: (*self._live(place).get(0, ()), value)})

    def _use_map(self, state: Any, place: Place, descriptor: StateDescriptor, key: Any, value: Any) -> None:
        at, live = encode_key(key), self._live(place)
        what = self.random.randrange(6)
        if what == 0:
            state.put(key, value)
            self._hold(place, descriptor, {at: value})
        elif what == 1:
            state.put_all({key: value})
            self._hold(place, descriptor, {at: value})
        elif what == 2:
            state.remove(key)
            self.model.places.get(place, {}).pop(at, None)
        elif what == 3:
            assert state.get(key) == live.get(at)
        elif what == 4:
            assert (state.contains(key), state.is_empty()) == (at in live, not live)
        else:
            for found in state:
                if self.random.random() < 0.3:
                    state.remove(found)  # while it is iterated
                    self.model.places[place].pop(encode_key(found))

    def _compare(self, descriptor: StateDescriptor, state: Any, place: Place) -> None:
        live = self._live(place)
        if descriptor.kind == "map":
            assert {encode_key(key): value for key, value in state.items()} == live, place
        elif descriptor.kind == "list":
            assert list(state.get()) == list(live.values()), place
        else:
            found = state.value() if descriptor.kind == "value" else state.get()
            assert (found, type(found)) == (live.get(0), type(live.get(0))), place

    def _change_in_secret(self, state: TrackedState, place: Place) -> None:
        value = state._current()
        if isinstance(value, list) and state._context.slot not in state._changed:
            value.append("secret")
            self.spoiled.add(place)

    def merge_namespaces(self) -> None:
        able = [d for d, *_ in self.states if d.kind in ("list", "reducing", "aggregating") and d.ttl is None]
        target, *sources = self.random.sample([b"w1", b"w2", b"\x00" * 16], self.random.randint(1, 3))
        if not able or len(self.namespaces) == 1:
            return
        descriptor, key = self.random.choice(able), self.random.choice(self.keys)
        state, place = self._enter(descriptor, key, target)
        places = [(*place[:2], namespace) for namespace in (target, *sources)]
        if self.spoiled.isdisjoint(places):
            state.merge_namespaces(target, sources)
            every = [list(self._live(place).values()) for place in places]
            for each in places:
                self.model.places.pop(each, None)
            merged = [value for values in every for value in values]
            if descriptor.kind != "list" and merged:
                whole = merged[0]
                for value in merged[1:]:
                    whole = whole + value
                merged = [whole]
            self._hold(place, descriptor, dict(enumerate(merged)))

    def write_a_column(self) -> None:
        """As a generated loop does for a column of keys."""
        numbers = [key for key in self.keys if type(key) is int and abs(key) < 2**62]
        if not numbers or "number" not in [descriptor.name for descriptor, *_ in self.states]:
            return
        descriptor = STATES[0][0]
        for key in self.random.choices(numbers, k=3):
            state = self._backend(key).state(descriptor)
            place = (descriptor.name, encode_key(key), b"")
            state.note(np.array([key]))
            assert state.cells[key] == self._live(place).get(0)
            state.cells[key] = value = self.random.choice([None, 5])
            self.model.places.pop(place, None)
            if value is not None:
                self._hold(place, descriptor, {0: value})

    # -- timers --

    def _queues(self, domain: int) -> Iterator[tuple[Subtask, TimerQueue]]:
        for subtask in self.subtasks:
            yield subtask, (subtask.backend.event_timers, subtask.backend.processing_timers)[domain]

    def use_a_timer(self) -> None:
        domain, time = self.random.randrange(2), self.random.randint(0, LATEST)
        key, namespace = self.random.choice(self.keys), self.random.choice(self.namespaces)
        backend = self._backend(key)
        backend.context.enter(identify(key), namespace)
        self._change_timer((backend.event_timers, backend.processing_timers)[domain], domain, time, key, namespace)

    def _change_timer(self, queue: TimerQueue, domain: int, time: int, key: Any, namespace: bytes) -> None:
        own = sorted(t for t in self.model.timers if (t[0], *t[2:]) == (domain, encode_key(key), namespace))
        if self.random.random() < 0.6:
            queue.register(time)
            self.model.timers.add((domain, time, encode_key(key), namespace))
        else:
            time = self.random.choice(own)[1] if own else time
            queue.delete(time)
            self.model.timers.discard((domain, time, encode_key(key), namespace))

    def fire_timers(self) -> None:
        """A timer that fires may register and delete timers, also the same one again."""
        domain, up_to = self.random.randrange(2), self.random.randint(0, LATEST)
        for subtask, queue in self._queues(domain):
            owned = {encode_key(key) for key in self.keys if subtask.owns(key)}
            waiting = [t for t in self.model.timers if t[0] == domain and t[2] in owned]
            assert queue.next_time() == min((time for _, time, *_ in waiting), default=None)
            last = -1
            for time, form, namespace in queue.due(up_to):
                self.model.timers.remove((domain, time, encode_key(form), namespace))
                assert time >= last, "in the order of time"
                last = time
                subtask.backend.context.enter(form, namespace)
                if self.random.random() < 0.3:
                    again = self.random.randint(time, LATEST)
                    self._change_timer(queue, domain, again, form, namespace)
            assert not [t for t in self.model.timers if t[0] == domain and t[2] in owned and t[1] <= up_to]

    # -- comparisons --

    def look_at_everything(self) -> None:
        for descriptor, *_ in self.states:
            for key in self.keys:
                for namespace in dict.fromkeys(self.namespaces):
                    state, place = self._enter(descriptor, key, namespace)
                    if place not in self.spoiled:
                        self._compare(descriptor, state, place)
        for domain in range(2):
            pending = [
                (domain, time, encode_key(split(slot)[0]), split(slot)[1])
                for _, queue in self._queues(domain)
                for time, slot in queue.pending()
            ]
            assert sorted(pending) == sorted(timer for timer in self.model.timers if timer[0] == domain)

    def look_at_the_files(self) -> None:
        """As a worker that knows nothing, on another disk."""
        for subtask in self.subtasks:
            subtask.backend.end()
            subtask.backend = subtask.new_backend(f"{subtask.local}-elsewhere")
            subtask.begin().context.time = self.now
        self.spoiled = set()
        self.look_at_everything()


HISTORIES = [*(("hashmap", seed) for seed in range(24)), *(("rocksdb", seed) for seed in range(100, 103))]


def test_the_histories_have_every_backend() -> None:
    assert {kind for kind, _ in HISTORIES} == set(STORES)


@pytest.mark.parametrize(("kind", "seed"), HISTORIES)
def test_a_random_history_is_that_of_plain_dicts(monkeypatch: pytest.MonkeyPatch, seed: int, kind: str) -> None:
    monkeypatch.setattr(backend, "CATCH_UP", (4, 1000)[seed % 2])
    monkeypatch.setattr(backend, "LEARNT_ANEW", (8 << 20, -1, 8 << 20, 5000)[seed % 4])
    monkeypatch.setattr(backend, "MOST_TIMERS", (50_000, 3)[seed // 2 % 2])
    with tempfile.TemporaryDirectory(dir=choose_root()) as directory:  # in memory: RocksDB syncs whenever it is opened
        history = History(Path(directory), seed, kind)
        try:
            history.run()
        finally:
            for subtask in history.subtasks:
                subtask.backend.end()
    close_removed_stores()
