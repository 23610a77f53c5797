"""Random histories against plain dicts: rounds that fail, workers and disks that go, rescales, compactions, time."""

from __future__ import annotations

import copy
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.state.state_subtask import MAX_PARALLELISM, Subtask
from tidegate.base.hashing import new_token
from tidegate.common.typeinfo import Types
from tidegate.state import backend
from tidegate.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from tidegate.state.key_groups import range_for
from tidegate.state.local_dir import choose_root
from tidegate.state.materialize import plan
from tidegate.state.refs import StateFile
from tidegate.state.stores import STORES, opener
from tidegate.state.ttl import StateTtlConfig

TTL = 50
KEYS = [0, 1, 70_000, -(2**40), "a", ("t", 1), "long" * 200, 2**70]
MAP_KEYS = ["x", ("y", 2), "m" * 600]
STEPS = 500


def descriptors() -> dict[str, StateDescriptor]:
    made: list[StateDescriptor] = [
        ValueStateDescriptor("fast", Types.LONG()),
        ValueStateDescriptor("any", None),
        ListStateDescriptor("list", Types.LONG()),
        MapStateDescriptor("map", None, Types.LONG()),
        ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()),
        ValueStateDescriptor("ttl", Types.LONG()),
        MapStateDescriptor("ttl-map", None, Types.LONG()),
    ]
    for descriptor in made:
        if descriptor.name.startswith("ttl"):
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(TTL).build())
    return {descriptor.name: descriptor for descriptor in made}


class Model:
    """The state of the whole operator: name -> key -> value, and the timers."""

    def __init__(self) -> None:
        self.states: dict[str, dict[Any, Any]] = {name: {} for name in descriptors()}
        self.timers: set[tuple[int, Any]] = set()


class History:
    """One random history. The model is compared with at every read, and as a whole now and then."""

    def __init__(self, directory: Path, seed: int, backend: str) -> None:
        self.open_store = opener(backend)
        self.random = random.Random(seed)
        self.directory = directory
        self.accepted, self.model = Model(), Model()
        self.now = 1000
        self.cache = self.random.choice([0, 700, 1 << 20, 1 << 20])
        self.version = new_token()
        self._make(self.random.randint(1, 3), [])
        self._begin()

    def run(self) -> None:
        engine: list[Callable[[], None]] = [
            *[self.accept] * 6,
            *[self.compact] * 2,
            self.discard,
            self.crash,
            self.another_worker,
            self.lose_local_stores,
            self.rescale,
        ]
        user: list[Callable[[], None]] = [
            *[self.set_value] * 3,
            self.clear,
            self.get_value,
            self.add_to_list,
            self.reduce,
            *[self.put] * 2,
            self.remove,
            self.get_entry,
            self.get_entries,
            self.set_for_a_while,
            self.get_while_it_lasts,
            *[self.register_timer] * 3,
            self.delete_timer,
            self.fire_timers,
            self.time_passes,
            self.prefetch,
        ]
        for _ in range(STEPS):
            self.random.choice(engine if self.random.random() < 0.15 else user)()
            if self.random.random() < 0.03:
                self.look_at_everything()
        self.look_at_everything()

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
        self.workers = [[subtask.backend, subtask.new_backend()] for subtask in self.subtasks]

    def _begin(self) -> None:
        """Whichever worker is idle runs the round."""
        self.model = copy.deepcopy(self.accepted)
        for subtask, workers in zip(self.subtasks, self.workers, strict=True):
            subtask.backend = self.random.choice(workers)
            subtask.begin().context.time = self.now
            for descriptor in descriptors().values():
                subtask.backend.state(descriptor)

    def _at(self, key: Any, name: str) -> Any:
        (subtask,) = (subtask for subtask in self.subtasks if subtask.owns(key))
        subtask.backend.context.key = key
        return subtask.backend.state(descriptors()[name])

    def _key(self) -> Any:
        return self.random.choice(KEYS)

    def _map_key(self) -> Any:
        return self.random.choice(MAP_KEYS)

    def _value(self) -> int:
        return self.random.randint(-3, 3)

    def accept(self) -> None:
        for subtask in self.subtasks:
            subtask.finish(version=self.version)  # one for the files of all subtasks
        self.version = new_token()
        self.accepted = self.model
        self._begin()

    def discard(self) -> None:
        """The files of the next attempt have the same version."""
        for subtask in self.subtasks:
            subtask.finish(accept=False, version=self.version)
        self._begin()

    def crash(self) -> None:
        for subtask in self.subtasks:
            subtask.backend.end()
        self._begin()

    def another_worker(self) -> None:
        for subtask, workers in zip(self.subtasks, self.workers, strict=True):
            subtask.backend.end()
            workers[self.random.randrange(2)] = subtask.new_backend()
        self._begin()

    def lose_local_stores(self) -> None:
        for subtask in self.subtasks:
            subtask.backend.end()
            shutil.rmtree(subtask.local, ignore_errors=True)  # a store that nobody has read yet is not there
        self._begin()

    def rescale(self) -> None:
        for subtask in self.subtasks:
            subtask.backend.end()
        self._make(self.random.randint(1, 3), [ref for subtask in self.subtasks for ref in subtask.accepted])
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
        chunk = self.random.choices(KEYS, k=3)
        for subtask in self.subtasks:
            own = [key for key in chunk if subtask.owns(key)]
            for name in ("fast", "any", "list", "ttl"):
                subtask.backend.state(descriptors()[name]).prefetch(own)

    # -- the user's part --

    def set_value(self) -> None:
        name, key, value = self.random.choice(["fast", "any"]), self._key(), self.random.choice([None, 1, 2, 3])
        self._at(key, name).update(value)
        self.model.states[name][key] = value

    def clear(self) -> None:
        name, key = self.random.choice(list(self.model.states)), self._key()
        self._at(key, name).clear()
        self.model.states[name].pop(key, None)

    def get_value(self) -> None:
        name, key = self.random.choice(["fast", "any"]), self._key()
        assert self._at(key, name).value() == self.model.states[name].get(key)

    def add_to_list(self) -> None:
        key, values = self._key(), [self._value() for _ in range(self.random.randint(0, 3))]
        state = self._at(key, "list")
        state.add_all(values)
        self.model.states["list"].setdefault(key, []).extend(values)
        assert list(state.get()) == self.model.states["list"][key]

    def reduce(self) -> None:
        key, value = self._key(), self._value()
        state, sums = self._at(key, "sum"), self.model.states["sum"]
        state.add(value)
        sums[key] = sums[key] + value if key in sums else value
        assert state.get() == sums[key]

    def put(self) -> None:
        key, map_key, value = self._key(), self._map_key(), self._value()
        self._at(key, "map").put(map_key, value)
        self.model.states["map"].setdefault(key, {})[map_key] = value

    def remove(self) -> None:
        key, map_key = self._key(), self._map_key()
        self._at(key, "map").remove(map_key)
        self.model.states["map"].get(key, {}).pop(map_key, None)

    def get_entry(self) -> None:
        key, map_key = self._key(), self._map_key()
        state, expected = self._at(key, "map"), self.model.states["map"].get(key, {})
        assert state.get(map_key) == expected.get(map_key)
        assert state.contains(map_key) == (map_key in expected)

    def get_entries(self) -> None:
        key = self._key()
        assert dict(self._at(key, "map").items()) == self.model.states["map"].get(key, {})

    def set_for_a_while(self) -> None:
        key, map_key, value = self._key(), self._map_key(), self._value()
        self._at(key, "ttl").update(value)
        self.model.states["ttl"][key] = (value, self.now + TTL)
        self._at(key, "ttl-map").put(map_key, value)
        self.model.states["ttl-map"].setdefault(key, {})[map_key] = (value, self.now + TTL)

    def get_while_it_lasts(self) -> None:
        self._look_at_ttl(self._key())

    def _look_at_ttl(self, key: Any) -> None:
        value, expiry = self.model.states["ttl"].get(key, (None, 0))
        assert self._at(key, "ttl").value() == (value if expiry > self.now else None)
        live = {k: v for k, (v, expiry) in self.model.states["ttl-map"].get(key, {}).items() if expiry > self.now}
        assert dict(self._at(key, "ttl-map").items()) == live

    def register_timer(self) -> None:
        key, time = self._key(), self.random.randint(0, 20)
        self._at(key, "fast")._backend.event_timers.register(time)
        self.model.timers.add((time, key))

    def delete_timer(self) -> None:
        key, time = self.random.choice([*self.model.timers, (5, KEYS[0])])[::-1]
        self._at(key, "fast")._backend.event_timers.delete(time)
        self.model.timers.discard((time, key))

    def fire_timers(self) -> None:
        self._fire(self.random.randint(0, 20))

    def _fire(self, up_to: int) -> None:
        fired: list[tuple[int, Any]] = []
        for subtask in self.subtasks:
            own = [(time, key) for time, key, _ in subtask.backend.event_timers.due(up_to)]
            assert [time for time, _ in own] == sorted(time for time, _ in own)
            fired += own
        assert sorted(fired, key=repr) == sorted((t for t in self.model.timers if t[0] <= up_to), key=repr)
        self.model.timers -= set(fired)

    def look_at_everything(self) -> None:
        for key in KEYS:
            for name in ("fast", "any"):
                assert self._at(key, name).value() == self.model.states[name].get(key)
            assert dict(self._at(key, "map").items()) == self.model.states["map"].get(key, {})
            assert list(self._at(key, "list").get()) == self.model.states["list"].get(key, [])
            assert self._at(key, "sum").get() == self.model.states["sum"].get(key)
            self._look_at_ttl(key)
        self._fire(100)


HISTORIES = [*(("hashmap", seed) for seed in range(20)), *(("rocksdb", seed) for seed in range(100, 103))]


def test_the_histories_have_every_backend() -> None:
    assert {kind for kind, _ in HISTORIES} == set(STORES)


@pytest.mark.parametrize(("kind", "seed"), HISTORIES)
def test_a_random_history_is_that_of_plain_dicts(monkeypatch: pytest.MonkeyPatch, seed: int, kind: str) -> None:
    monkeypatch.setattr(backend, "CATCH_UP", (4, 1000)[seed % 2])
    monkeypatch.setattr(backend, "LEARNT_ANEW", (8 << 20, -1, 2000)[seed % 3])
    monkeypatch.setattr(backend, "MOST_TIMERS", (50_000, 3)[seed // 2 % 2])
    with tempfile.TemporaryDirectory(dir=choose_root()) as directory:  # in memory: RocksDB syncs whenever it is opened
        history = History(Path(directory), seed, kind)
        try:
            history.run()
        finally:
            for subtask in history.subtasks:
                subtask.backend.end()
