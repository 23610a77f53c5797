"""State and timers anywhere in a chain, and operators with several inputs: seams that kinds of operators are built on."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.simulation.observer import ledger_pages
from tests.sinks import LedgerSink
from tests.sources import ScriptedSource
from tidegate.base.clock import ManualClock
from tidegate.common import Types
from tidegate.graph.plan import build
from tidegate.graph.transformation import Input, Partitioning, Program, Ship, Transformation
from tidegate.operators.contracts.specs import FlatMapSpec, FunctionSpec, MapSpec, ProcessSpec, SinkSpec, SourceSpec
from tidegate.operators.flow.rows import MAX_WATERMARK
from tidegate.operators.kinds import registry
from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.loop.codegen import LoopSource
from tidegate.runtime.master import JobMaster
from tidegate.state.backend import KeyedBackend
from tidegate.state.descriptors import ListStateDescriptor, ValueStateDescriptor
from tidegate.testing.simulation.engine import Chances, SimulatedEngine

RECORDS = [(f"key-{n * 7 % 11}", n) for n in range(60)]
SETTINGS: dict[str, Any] = {
    "execution.checkpointing.interval": 10,
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 50,
    "restart-strategy.fixed-delay.delay": 0,
    "tidegate.state.map-size": 1 << 20,
    "tidegate.chunk.records": 4,
    "tidegate.job-id": "chains",
    "parallelism.default": 2,
}


def first(record: Any) -> Any:
    return record[0]


def rich(record: Any) -> Any:
    """A key whose bytes decide what it is equal to."""
    return record[0], 0.5


def keyed(ship: Ship, selector: Any = first) -> Partitioning:
    return Partitioning(ship, selector=selector, key_type=Types.STRING() if selector is first else None)


class Base:
    def open(self, runtime_context: Any) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("same name in every operator", Types.LONG()))


class Counts(Base):
    def process_element(self, value: Any, ctx: Any) -> Any:
        n = (self.state.value() or 0) + 1
        self.state.update(n)
        assert ctx.get_current_key() in (first(value), rich(value))
        yield (*value, n)


class Sums(Base):
    """Emits the sum so far of every record, and all of it again at the end of time."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        total = (self.state.value() or 0) + value[1]
        self.state.update(total)
        ctx.timer_service().register_event_time_timer(MAX_WATERMARK)
        yield (*value, total)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        key = ctx.get_current_key()
        yield key if isinstance(key, str) else key[0], "sum", self.state.value()


class Remembers(Base):
    """A map after timers: what they emit has a key here too."""

    def map(self, value: Any) -> Any:
        seen = (self.state.value() or 0) + 1
        self.state.update(seen)
        return [*value, seen]


class FailsOnce(Remembers):
    failed: ClassVar[bool] = False

    def map(self, value: Any) -> Any:
        if value[1] == 50 and not FailsOnce.failed:
            FailsOnce.failed = True
            raise RuntimeError("once")
        return super().map(value)


def run(place: Path, transformations: list[Transformation], chances: Chances, **settings: Any) -> list[Any]:
    sink = Transformation(99, "ledger", SinkSpec(LedgerSink(f"{place}/ledger")), (Input(transformations[-1].id),))
    chaining = settings.pop("chaining", True)
    where = {"execution.checkpointing.dir": f"{place}/checkpoints"}
    program = Program("chains", (*transformations, sink), {**SETTINGS, **where, **settings}, chaining)
    engine = SimulatedEngine(7, chances)
    JobMaster(program, engine, clock=ManualClock(), local_root=f"{place}/local").run()
    return [value for page in ledger_pages(f"{place}/ledger").values() for value in page]


def source(n: int, records: list[Any]) -> Transformation:
    scripted = ScriptedSource(list(records))
    scripted.initial_limit = scripted.maximum_limit = 7
    return Transformation(n, f"records {n}", SourceSpec(scripted))


def in_a_row(last: Any, selector: Any = first, between: int = 0) -> list[Transformation]:
    """Three keyed operators; the second and third take over the partitioning of the first. ``between``: so many flat maps lie
    before the last one; each is a block in the loop."""
    row = [
        source(1, RECORDS),
        Transformation(2, "counts", ProcessSpec(Counts()), (Input(1, keyed(Ship.HASH, selector)),)),
        Transformation(3, "sums", ProcessSpec(Sums()), (Input(2, keyed(Ship.FORWARD, selector)),)),
    ]
    for n in range(3, 3 + between):
        row.append(Transformation(n + 1, f"same {n}", FlatMapSpec(lambda value: [value]), (Input(n),)))
    last_input = Input(row[-1].id, keyed(Ship.FORWARD, selector))
    return [*row, Transformation(90, "remembers", MapSpec(last), (last_input,))]


def expected() -> list[Any]:
    counts: dict[str, int] = defaultdict(int)
    sums: dict[str, int] = defaultdict(int)
    found: list[Any] = []
    for key, n in RECORDS:
        counts[key] += 1
        sums[key] += n
        found.append([key, n, counts[key], sums[key], counts[key]])
    return sorted([*found, *([key, "sum", total, counts[key] + 1] for key, total in sums.items())], key=repr)


CHANCES = [Chances(), Chances(die=0.1, zombie=0.1, late=0.1, rerun=0.02, lose_store=0.2)]


@pytest.mark.parametrize("chances", CHANCES, ids=["calm", "rough"])
@pytest.mark.parametrize("chaining", [True, False])
@pytest.mark.parametrize(("inline", "selector"), [(True, first), (False, first), (True, rich)])
def test_every_operator_of_a_chain_has_state_and_timers_of_its_own(
    tmp_path: Path, chances: Chances, chaining: bool, inline: bool, selector: Any
) -> None:
    settings = {"chaining": chaining, "tidegate.functions.inline": inline}
    assert sorted(run(tmp_path, in_a_row(Remembers(), selector), chances, **settings), key=repr) == expected()


@pytest.mark.parametrize("selector", [first, rich])
def test_also_where_it_is_too_deep_for_one_loop(tmp_path: Path, selector: Any) -> None:
    assert sorted(run(tmp_path, in_a_row(Remembers(), selector, between=14), CHANCES[0]), key=repr) == expected()


def test_a_restart_finds_the_state_of_all_of_them(tmp_path: Path) -> None:
    FailsOnce.failed = False
    assert sorted(run(tmp_path, in_a_row(FailsOnce()), CHANCES[0]), key=repr) == expected()
    assert FailsOnce.failed


def test_operators_that_take_over_the_partitioning_stay_in_the_chain() -> None:
    graph = build(Program("chains", tuple(in_a_row(Remembers())), {}), 2, None, {})
    assert [chain.name for chain in graph.chains] == ["records 1", "counts -> sums -> remembers"]
    assert [operator.keyed is not None for operator in graph.operators] == [False, True, True, True]


# -- two inputs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairSpec(FunctionSpec):
    """A kind of operator that only this test knows: a class here, a class below, and a line in the registry."""

    inputs = 2
    methods = ("left", "right")


class PairOperator(FunctionOperator):
    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        owner = source.owner(self.node, value)
        source.call_each(
            f"{self.id}_{input}", self.functions[input], [value], depth, owner, keyed, source.emitter(self)
        )


class Joins:
    """Each side is kept in state that the other one reads."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.kept = runtime_context.get_list_state(ListStateDescriptor("kept", Types.LONG()))

    def left(self, value: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        self.kept.add(value[1])
        yield value[0], "left", self.count.value(), len(list(self.kept.get()))

    def right(self, value: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        self.kept.add(value["n"])
        yield value["id"], "right", self.count.value(), len(list(self.kept.get()))


@pytest.mark.parametrize("chances", CHANCES, ids=["calm", "rough"])
@pytest.mark.parametrize("inline", [True, False])
def test_inputs_with_selectors_of_their_own_share_state_by_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chances: Chances, inline: bool
) -> None:
    monkeypatch.setitem(registry.KINDS, PairSpec, PairOperator)
    by_id = Partitioning(Ship.HASH, selector=lambda record: record["id"], key_type=Types.STRING())
    pair = Transformation(
        3, "pair", PairSpec(Joins()), (Input(1, keyed(Ship.HASH)), Input(2, by_id, index=1)), max_parallelism=16
    )
    sources = [source(1, RECORDS), source(2, [{"id": key, "n": n} for key, n in RECORDS])]
    found = run(tmp_path, [*sources, pair], chances, **{"tidegate.functions.inline": inline})
    assert len(found) == 2 * len(RECORDS)
    seen: dict[str, list[tuple[int, int]]] = defaultdict(list)
    sides: dict[str, int] = defaultdict(int)
    for key, side, count, kept in found:
        seen[key].append((count, kept))
        sides[f"{key} {side}"] += 1
    each = [key for key, _ in RECORDS]
    for key, pairs in seen.items():
        assert sorted(pairs) == [(n, n) for n in range(1, 2 * each.count(key) + 1)], "one state, whatever the side"
        assert sides[f"{key} left"] == sides[f"{key} right"] == each.count(key)


def test_an_input_without_a_key_sees_no_key_of_another_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Looks(Joins):
        def right(self, value: Any) -> Any:
            yield self.count.value()

    monkeypatch.setitem(registry.KINDS, PairSpec, PairOperator)
    inputs = (Input(1, keyed(Ship.HASH)), Input(2, Partitioning(Ship.BROADCAST), index=1))
    pair = Transformation(3, "pair", PairSpec(Looks()), inputs)
    with pytest.raises(Exception, match="only available in a keyed context"):
        run(
            tmp_path,
            [source(1, RECORDS), source(2, RECORDS), pair],
            CHANCES[0],
            **{"restart-strategy.type": "none"},
        )


def test_the_caches_of_every_keyed_operator_in_a_chain_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most: dict[str, int] = defaultdict(int)
    write = KeyedBackend.write_segment

    def looked_at(backend: KeyedBackend, version: str, path: str) -> Any:
        size = sum(state.young_bytes() for state in backend._states.values())
        most[backend.operator_name] = max(most[backend.operator_name], size)
        return write(backend, version, path)

    monkeypatch.setattr(KeyedBackend, "write_segment", looked_at)
    rounds = source(1, [(f"key-{n}", n) for n in range(2000)])
    rounds.spec.source.initial_limit = rounds.spec.source.maximum_limit = 2000  # type: ignore[attr-defined]
    row = [
        rounds,
        Transformation(2, "first", ProcessSpec(Counts()), (Input(1, keyed(Ship.HASH)),)),
        Transformation(3, "second", MapSpec(Remembers()), (Input(2, keyed(Ship.FORWARD)),)),
    ]
    settings = {"tidegate.state.cache-size": 10_000, "parallelism.default": 1, "tidegate.state.map-size": 1 << 24}
    assert len(run(tmp_path, row, Chances(), **settings)) == 2000
    assert most.keys() == {"first", "second"}
    assert max(most.values()) < 10_000
