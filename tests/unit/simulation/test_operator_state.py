"""State that belongs to no key through crashes, rescales and workers that change: lists, unions, broadcast maps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.simulation.api_scenario import run, source
from tidegate.common import Types
from tidegate.datastream import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    MapFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tidegate.state import operator_state

RESCALES = [(2, 2), (1, 3, 8, 2), (4, 1, 2)]
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


class Buffers(FlatMapFunction, CheckpointedFunction):
    """Holds records back in a field and lets them go three at a time; a marker lets all go. Each record comes out once."""

    def __init__(self) -> None:
        self.waiting: list[int] = []

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.state = store.get_list_state(ListStateDescriptor("waiting", Types.LONG()))
        assert self.waiting == [], "every copy is initialized once"
        if context.is_restored():
            self.waiting.extend(self.state.get())
        else:
            assert self.state.get() == []

    def snapshot_state(self, context: Any) -> None:
        self.state.clear()
        for value in self.waiting:
            self.state.add(value)

    def flat_map(self, value: int) -> Iterator[int]:
        if value < 0:
            yield from self.waiting
            self.waiting = []
            return
        self.waiting.append(value)
        if len(self.waiting) == 7:
            yield from self.waiting[:3]
            self.waiting = self.waiting[3:]


@pytest.mark.parametrize("inline", [1, operator_state.MOST_INLINE])
@pytest.mark.parametrize("parallelism", RESCALES)
def test_list_state_is_dealt_out_and_nothing_is_lost_or_doubled(
    root: str, parallelism: tuple[int, ...], inline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_state, "MOST_INLINE", inline)

    def build(env: StreamExecutionEnvironment) -> Any:
        values = [*range(60), *[-1] * 64]  # markers for all subtasks, after everything else
        return source(env, values, limit=5).rebalance().flat_map(Buffers())

    run(build, list(range(60)), root, 3, parallelism=parallelism)


class Ids(MapFunction, CheckpointedFunction):
    """Numbers records; all subtasks together never give a number twice, though a restored one may be another than before."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.state = store.get_union_list_state(ListStateDescriptor("highest", Types.LONG()))
        self.highest = max(self.state.get(), default=0)

    def open(self, runtime_context: Any) -> None:
        self.step = runtime_context.get_number_of_parallel_subtasks()
        self.index = runtime_context.get_index_of_this_subtask()

    def snapshot_state(self, context: Any) -> None:
        self.state.update([self.highest])

    def map(self, value: Any) -> Any:
        first = self.highest - self.highest % 8 + self.index
        self.highest = first if first > self.highest else first + 8
        return value, self.highest


@pytest.mark.parametrize("parallelism", RESCALES)
def test_a_restored_subtask_gets_the_union_of_all(root: str, parallelism: tuple[int, ...]) -> None:
    def build(env: StreamExecutionEnvironment) -> Any:
        return source(env, list(range(60)), limit=5).rebalance().map(Ids()).key_by(lambda pair: pair[1]).map(Once())

    class Once(MapFunction):
        def open(self, runtime_context: Any) -> None:
            self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.LONG()))

        def map(self, pair: Any) -> Any:
            assert self.seen.value() is None, f"number {pair[1]} was given twice"
            self.seen.update(1)
            return pair[0]

    run(build, list(range(60)), root, 5, parallelism=parallelism)


# -- broadcast ---------------------------------------------------------------------------------------------------------------


class Judges(KeyedBroadcastProcessFunction):
    """At the end of time every key tells the sum of its records and all rules: the same for all, whichever subtask has the key."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.total.update((self.total.value() or 0) + value[1])
        ctx.timer_service().register_event_time_timer((1 << 63) - 1)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        apply_rule(value, ctx.get_broadcast_state(RULES))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        rules = ctx.get_broadcast_state(RULES)
        assert len(rules.items()) == len(rules.keys()) == len(rules.values())
        yield [ctx.get_current_key(), self.total.value(), sorted(rules.items())]


def apply_rule(rule: tuple[str, str, int], rules: Any) -> None:
    what, name, number = rule
    if what == "put":
        rules.put(name, number)
    elif what == "remove":
        rules.remove(name)
    elif what == "clear":
        rules.clear()
    else:
        rules.put_all({f"{name}{n}": n for n in range(number)})


def rules_of(seed: int) -> list[tuple[str, str, int]]:
    dice = random.Random(seed)
    kinds = dice.choices(["put", "remove", "all", "clear"], [6, 3, 1, 0.4], k=40)
    return [(kind, dice.choice("abcdefg"), dice.randrange(6)) for kind in kinds]


class Model(dict[str, int]):
    put, put_all = dict.__setitem__, dict.update

    def remove(self, name: str) -> None:
        self.pop(name, None)


@pytest.mark.parametrize("inline", [1, 60, operator_state.MOST_INLINE])
@pytest.mark.parametrize("parallelism", [*RESCALES, (3,)])
@pytest.mark.parametrize("seed", range(3))
def test_all_subtasks_hold_the_same_broadcast_state(
    root: str, parallelism: tuple[int, ...], inline: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_state, "MOST_INLINE", inline)
    monkeypatch.setattr(operator_state, "MOST_FILES", 3)
    rules, records = rules_of(seed), [(f"key-{n % 9}", n) for n in range(40)]

    def build(env: StreamExecutionEnvironment) -> Any:
        broadcast = source(env, rules, limit=3, name="rules").broadcast(RULES)
        return source(env, records, limit=3).key_by(lambda record: record[0]).connect(broadcast).process(Judges())

    model = Model()
    for rule in rules:
        apply_rule(rule, model)
    told = sorted(map(list, model.items()))
    totals = {key: sum(n for other, n in records if other == key) for key, _ in records}
    run(build, [[key, total, told] for key, total in totals.items()], root, seed, parallelism=parallelism)


class Large(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put_all({f"rule-{value}-{n}": n for n in range(1000)})


def test_a_large_broadcast_state_is_written_once_and_named_by_later_rounds(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = operator_state.OperatorStates._write

    def counted(states: Any, path: str, version: str, entries: Any) -> Any:
        file = write(states, path, version, entries)
        written.append(file.size)
        return file

    monkeypatch.setattr(operator_state.OperatorStates, "_write", counted)

    def build(env: StreamExecutionEnvironment) -> Any:
        broadcast = source(env, [1, 2], limit=1, name="rules").broadcast(RULES)
        return source(env, list(range(40)), limit=1).connect(broadcast).process(Large())

    simulation = run(build, list(range(40)), root, parallelism=(2,), rough=False)
    assert simulation.lives[0].rounds > 20
    assert len(written) == 4, "two changes in two subtasks"
    assert min(written) > 10_000
