"""Subtasks whose input comes as columns: they do what they do with the same records one by one."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.operators.written_functions import exact, written
from tidegate.base.files import Files
from tidegate.common import Types
from tidegate.graph.plan import Chain, ChainNode, Edge, Operator
from tidegate.graph.transformation import OutputTag, Partitioning, Ship
from tidegate.operators.contracts.operator import Settings
from tidegate.operators.contracts.specs import FilterSpec, FlatMapSpec, MapSpec, ProcessSpec, ReduceSpec
from tidegate.operators.flow.outputs import Receiver
from tidegate.operators.flow.packing import PLAIN, pack_columns, pack_field
from tidegate.operators.flow.round import SubtaskRound
from tidegate.operators.flow.rows import ACK, BARRIER, DATA, Ack, Barrier, Payload, RoundContext, Row, TaskPlan
from tidegate.operators.flow.subtask import Subtask
from tidegate.operators.loop.rewrites import prepare
from tidegate.state import segments
from tidegate.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)

Record = Any
SIDE = OutputTag("side")
PAIRS = [(n * 31 % 11, n) for n in range(200)]
KEYED = Partitioning(Ship.HASH, selector=lambda record: record[0])


class Outcome:
    """What a round of a subtask leaves behind, in a form that can be compared."""

    def __init__(self, rows: list[Row], files: Files, known: int) -> None:
        [ack] = [pickle.loads(row[7]) for row in rows if row[2] == ACK]
        assert isinstance(ack, Ack) and ack.declined is None
        self.error = None if ack.error is None else str(ack.error)
        self.records: list[Any] = []
        for _, _, kind, edge, _, _, _, payload in rows:
            if kind == DATA:
                values, times = PLAIN.unpack_list(payload[0]), payload[2] and PLAIN.unpack_list(payload[2])
                self.records.extend(
                    (edge, exact(v), t) for v, t in zip(values, times or [None] * len(values), strict=True)
                )
        self.snapshots = ack.snapshots
        keyed = ack.snapshots[1].keyed if ack.snapshots else None
        self.files = [] if keyed is None else keyed.files
        written = self.files[known:]
        batches = [batch for file in written for batch in segments.read(files, file)]
        pairs = ((b.table, *pair) for b in batches for pair in zip(b.flat[::2], b.flat[1::2], strict=True))
        self.state = sorted(map(repr, pairs))  # inside a group entries are in no order

    def told(self) -> tuple[Any, ...]:
        return self.error, self.records, self.state


def chain_of(specs: list[Any], tags: list[str | None]) -> Chain:
    """Operators 1, 2, ... in a row, the first keyed; what the last emits leaves by an edge for each tag."""
    edges = tuple(Edge(10 + n, len(specs), tag, 99, Partitioning(Ship.FORWARD)) for n, tag in enumerate(tags))
    below: tuple[Any, ...] = ()
    for n in range(len(specs), 0, -1):
        operator = Operator(n, f"op{n}", None, str(n), specs[n - 1], 1, 128, KEYED if n == 1 else None)
        node = ChainNode(operator, below, edges if n == len(specs) else ())
        below = ((None, node),)
    return Chain(1, node, (Edge(0, 0, None, 1, KEYED),), 1, 0)


def subtask_of(directory: Path, specs: list[Any], tags: list[str | None], inline: bool) -> Subtask:
    settings = Settings("job", str(directory / "storage"), str(directory / "local"), inline=inline, now_ms=lambda: 1)
    targets = {10 + n: Receiver(2, 0, 1, 128, "below") for n in range(len(tags))}
    rewrites = prepare(spec.callables[0] for spec in specs)
    return Subtask(chain_of(specs, tags), 0, settings, {0: 1}, targets, rewrites, range(len(specs) + 1))


def columns(records: list[Record], key_field: int | None, times: list[int] | None) -> Payload:
    made = [np.array(column, dtype=np.int64) for column in zip(*records, strict=True)]
    keys = pack_columns(made[:1], 0) if key_field is None else pack_field(key_field)
    return pack_columns(made, len(made)), keys, None if times is None else pack_columns([np.array(times)], 0)


def one_by_one(records: list[Record], times: list[int] | None) -> Payload:
    keys = [record[0] for record in records]
    return PLAIN.pack(records), PLAIN.pack(keys), None if times is None else PLAIN.pack(times)


def rounds(subtask: Subtask, payloads: list[list[Payload]], watermarks: list[int], files: Files) -> list[Outcome]:
    """One round for each list of chunks; the last one ends the input."""
    outcomes: list[Outcome] = []
    accepted = TaskPlan()
    for n, chunks in enumerate(payloads):
        finished = n == len(payloads) - 1
        rows: list[Row] = [(1, 0, DATA, 0, 0, i, watermarks[i], payload) for i, payload in enumerate(chunks)]
        rows.append((1, 0, BARRIER, 0, 0, len(rows), watermarks[-1], Barrier("token", False, finished, False)))
        context = RoundContext(n, f"version-{n}", None, 1, completed=(n,) if n else ())
        known = len(outcomes[-1].files) if outcomes else 0
        outcomes.append(Outcome(list(SubtaskRound(subtask, context, accepted).run(iter(rows))), files, known))
        accepted = TaskPlan(snapshots=outcomes[-1].snapshots or accepted.snapshots)
    subtask.close()
    return outcomes


def check(
    directory: Path,
    specs: Any,
    *,
    records: list[Record] = PAIRS,
    key_field: int | None = 0,
    times: bool = False,
    tags: list[str | None] | None = None,
) -> list[Outcome]:
    """Three rounds: in columns, in columns and one by one in turn; against calls of the functions, one by one."""
    stamps = list(range(len(records))) if times else None
    as_columns, as_rows = columns(records, key_field, stamps), one_by_one(records, stamps)
    plain = [[as_rows, as_rows], [as_rows], [as_rows, as_rows]]
    expected: list[Outcome] = []
    for name, inline, payloads in (
        ("called", False, plain),
        ("inlined", True, plain),
        ("columns", True, [[as_columns, as_columns], [as_columns], [as_columns, as_columns]]),
        ("mixed", True, [[as_columns, as_rows], [as_columns], [as_rows, as_columns]]),
        ("columns called", False, [[as_columns, as_columns], [as_columns], [as_columns, as_columns]]),
    ):
        place = directory / name
        subtask = subtask_of(place, specs(), tags or [None], inline)
        found = rounds(subtask, payloads, [50, 150], Files(str(place / "storage")))
        expected = expected or found
        assert [outcome.told() for outcome in found] == [outcome.told() for outcome in expected], name
    return expected


class Base:
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.text = runtime_context.get_state(ValueStateDescriptor("text", Types.STRING()))
        self.whole = runtime_context.get_state(ValueStateDescriptor("whole", Types.PICKLED_BYTE_ARRAY()))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list", Types.LONG()))
        self.map_ = runtime_context.get_map_state(MapStateDescriptor("map", Types.LONG(), Types.LONG()))


class Counts(Base):
    """Nothing here looks at the current key but the state, which is a dict in the loop."""

    def map(self, value: Any) -> Any:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        return value[0], n, value[-1]


class Seen:
    """How another function of the chain, which has no key of its own, may come to the state of the current key."""

    state: Any = None


class Shares(Base):
    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        Seen.state = self.count

    def map(self, value: Any) -> Any:
        n = (self.count.value() or 0) + value[1]
        self.count.update(n)
        return value


class SharesFromArithmetic(Shares):
    def map(self, value: Any) -> Any:
        return value[0] + value[1]


class Number(int):
    """Its addition looks at the current key."""

    def __radd__(self, other: Any) -> Any:
        Seen.state.update((Seen.state.value() or 0) + 1)
        return other + Seen.state.value()


class Everything(Base):
    def process_element(self, value: Any, ctx: Any) -> Any:
        a, b = value
        n = (self.count.value() or 0) + value[-1]
        self.count.update(n)
        if n % 3 == 0:
            self.text.update(f"{self.text.value()}{b}")
        if n % 7 == 0:
            self.text.clear()
        if n % 11 == 0:
            self.count.update(None)
        self.whole.update([a, n])
        self.list.add(b)
        self.map_.put(b % 3, n)
        ctx.timer_service().register_event_time_timer(b)
        yield ctx.get_current_key(), ctx.timestamp(), n, self.text.value(), self.whole.value()
        yield SIDE, value

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield timestamp, ctx.get_current_key(), self.count.value(), len(list(self.list.get()))
        if timestamp % 5 == 0:
            self.count.clear()
            self.list.clear()


class Keeps(Base):
    def filter(self, value: Any) -> Any:
        seen = self.count.value()
        self.count.update(value[1])
        return seen is None or value[1] % 2


class Splits(Base):
    def flat_map(self, value: Any) -> Any:
        for n in range(value[0] % 3):
            yield value[1], n, "tg_v tg_v_0 tg_v_9"


class LastKeyAtTheEnd(Counts):
    """What a function sees that is called when its last record has been processed."""

    seen: list[Any] = []  # noqa: RUF012

    def close(self) -> None:
        LastKeyAtTheEnd.seen.append(self.count.value())


def reduced(a: Any, b: Any) -> Any:
    return a[0], a[1] + b[1]


@pytest.mark.parametrize(("key_field", "times"), [(0, False), (None, True)])
@pytest.mark.parametrize(
    "specs",
    [
        lambda: [MapSpec(Counts())],
        lambda: [MapSpec(Counts()), FilterSpec(lambda r: r[1] % 2), MapSpec(lambda r: r[2])],
        lambda: [MapSpec(lambda r: r)],
        lambda: [MapSpec(lambda r: r[1])],
        lambda: [MapSpec(lambda r: (r[-1], r[-2], r[1] + r[0]))],
        lambda: [MapSpec(lambda r: 1)],
        lambda: [MapSpec(lambda r: sum(r) + max(r[0], 3) + len(r))],
        lambda: [MapSpec(lambda r: [field for field in r])],  # noqa: C416
        lambda: [FilterSpec(lambda r: r[1] % 2 == 0 and r[0] > 3)],
        lambda: [FilterSpec(lambda r: r[1] % 2 == 0), MapSpec(lambda r: (r[1], str(r)))],
        lambda: [FilterSpec(Keeps()), MapSpec(lambda r: r[1])],
        lambda: [FlatMapSpec(Splits())],
        lambda: [FlatMapSpec(lambda r: r), MapSpec(lambda x: x + 1)],
        lambda: [ReduceSpec(reduced)],
        lambda: [ReduceSpec(lambda a, b: (b[0], a[-1] * 3 % 1000 + b[-1])), MapSpec(lambda r: r[1])],
        lambda: [ReduceSpec(max), FilterSpec(lambda r: r[1] % 2)],
        lambda: [MapSpec(written("def f(r):\n    r = r[1], r[0]\n    return r[0]"))],
        lambda: [MapSpec(written("def f(r):\n    if r[1] > 50:\n        return 'tg_v'\n    return 'tg_v_7', r[1]"))],
    ],
)
def test_heads_of_every_kind(specs: Any, key_field: int | None, times: bool, tmp_path: Path) -> None:
    outcomes = check(tmp_path, specs, key_field=key_field, times=times)
    assert all(outcome.error is None and outcome.records for outcome in outcomes)


@pytest.mark.parametrize("key_field", [0, None])
def test_states_timers_side_outputs_and_the_context(key_field: int | None, tmp_path: Path) -> None:
    tags: list[str | None] = [None, SIDE.tag_id]
    outcomes = check(tmp_path, lambda: [ProcessSpec(Everything())], key_field=key_field, times=True, tags=tags)
    assert all(outcome.error is None and outcome.records and outcome.state for outcome in outcomes)
    assert {edge for edge, _, _ in outcomes[0].records} == {10, 11}


@pytest.mark.parametrize("head", [Shares, SharesFromArithmetic])
def test_a_function_that_is_called_finds_the_current_key(head: Any, tmp_path: Path) -> None:
    class Looks:
        def map(self, value: Any) -> Any:
            n = Seen.state.value()
            Seen.state.update((n or 0) + 1)
            return value, n

    outcomes = check(tmp_path, lambda: [MapSpec(head()), MapSpec(Looks())])
    assert all(outcome.error is None and outcome.state for outcome in outcomes)


def test_a_number_of_the_users_own_class_finds_the_current_key(tmp_path: Path) -> None:
    number = Number(1)
    outcomes = check(tmp_path, lambda: [MapSpec(Shares()), MapSpec(lambda r: r[1] + number)])
    assert all(outcome.error is None and outcome.state for outcome in outcomes)


def greatest(*values: Any) -> Any:
    return values, Seen.state.value()


class SharesAndNames(Shares):
    """From the second round on its module has a ``max`` of its own."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope

    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        self.scope.pop("max", None)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.scope["max"] = greatest


def test_a_function_named_as_a_builtin_finds_the_current_key(tmp_path: Path) -> None:
    function: Any = written("lambda r: max(r[0], r[1])", {"max": greatest})
    outcomes = check(tmp_path, lambda: [MapSpec(Shares()), MapSpec(function)])
    assert all(outcome.error is None and outcome.state for outcome in outcomes)


def test_a_function_that_comes_to_be_named_as_a_builtin_finds_the_current_key(tmp_path: Path) -> None:
    function: Any = written("lambda r: max(r[0], r[1])")
    outcomes = check(tmp_path, lambda: [MapSpec(SharesAndNames(function.__globals__)), MapSpec(function)])
    assert all(outcome.error is None and outcome.state for outcome in outcomes)
    kinds = [{value[0] for _, value, _ in outcome.records} for outcome in outcomes]
    assert kinds == [{int}, {tuple}, {tuple}]


def test_after_the_last_record_its_key_is_the_current_one(tmp_path: Path) -> None:
    LastKeyAtTheEnd.seen.clear()
    check(tmp_path, lambda: [MapSpec(LastKeyAtTheEnd())])
    assert len(LastKeyAtTheEnd.seen) == 5 and len(set(LastKeyAtTheEnd.seen)) == 1


@pytest.mark.parametrize("at", [0, 77, 199])
@pytest.mark.parametrize(
    "specs",
    [
        lambda at: [MapSpec(lambda r: 1 // (r[1] - at))],
        lambda at: [MapSpec(lambda r: r[1 if r[1] != at else 5])],
        lambda at: [FilterSpec(lambda r: 1 // (r[1] - at)), MapSpec(lambda r: r)],
        lambda at: [MapSpec(Counts()), MapSpec(lambda r: 10 % (r[2] - at))],
        lambda at: [FlatMapSpec(lambda r: [r[0], 1 // (r[1] - at)])],
        lambda at: [ReduceSpec(lambda a, b: (b[0], 0 if b[1] - at else 1 // 0)), MapSpec(lambda r: r)],
        lambda at: [FilterSpec(lambda r: r[0] >= 0), FilterSpec(lambda r: r[7] if r[1] == at else 1)],
        lambda at: [MapSpec(lambda r: missing if r[1] == at else r)],  # type: ignore[name-defined]  # noqa: F821
    ],
)
def test_an_error_names_operator_line_and_record(specs: Any, at: int, tmp_path: Path) -> None:
    outcomes = check(tmp_path, lambda: specs(at))
    assert outcomes[0].error is not None and __file__ in outcomes[0].error and "record (" in outcomes[0].error


@pytest.mark.parametrize("width", [1, 2, 254])
def test_any_width(width: int, tmp_path: Path) -> None:
    records = [(n % 5, *range(n, n + width - 1)) for n in range(70)]
    check(tmp_path, lambda: [MapSpec(lambda r: (r[-1], r[0], r[len(r) - 1]))], records=records)
    check(tmp_path / "whole", lambda: [MapSpec(lambda r: r)], records=records, key_field=None)


def test_numbers_at_the_bounds_come_out_as_they_went_in(tmp_path: Path) -> None:
    records = [(0, -(1 << 63)), (0, (1 << 63) - 1), (-(1 << 63), 0), ((1 << 63) - 1, -1)] * 20
    outcomes = check(tmp_path, lambda: [MapSpec(lambda r: (r[0] * 2, r[1] - 1, r))], records=records)
    assert outcomes[0].records[0][1] == exact((0, -(1 << 63) - 1, (0, -(1 << 63))))
