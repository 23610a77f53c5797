"""One rule decides which keys are one: over all kinds of keys, cuts into rounds, restarts and rescales, compared with a model.

Every record says which key it belongs to (its label), so the model needs no rule of its own: the counts of a label are 1 to n.
"""

from __future__ import annotations

import datetime
import decimal
import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.observer import ledger_pages
from tests.sinks import LedgerSink
from tidegate.base.errors import JobSuspendedError
from tidegate.common import Configuration, Row, Types
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment, executor
from tidegate.datastream.state import MapStateDescriptor, ValueStateDescriptor
from tidegate.graph.transformation import Program
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine

Decimal: Any = decimal.Decimal
UTC = datetime.UTC
ROME = datetime.timezone(datetime.timedelta(hours=1))
NOON, THE_SAME_INSTANT = datetime.datetime(2024, 5, 1, 12, tzinfo=UTC), datetime.datetime(2024, 5, 1, 13, tzinfo=ROME)
NOON_IN_ROME = datetime.datetime(2024, 5, 1, 12, tzinfo=ROME)
NAN: Any = float("nan")


class Level(enum.IntEnum):
    NONE = 0
    LOW = 1


class Name(str):
    pass


@dataclass(frozen=True)
class Tagged:
    number: int
    note: str = field(compare=False)


ONES: list[Any] = [
    1,
    1.0,
    True,
    Level.LOW,
    np.int8(1),
    np.int32(1),
    np.int64(1),
    np.uint16(1),
    Decimal("1.00"),
    np.float32(1),
]
ZEROS: list[Any] = [0, 0.0, -0.0, False, Level.NONE, np.int16(0), Decimal("-0")]

NAN_IN_A_TUPLE: list[Any] = [((1, NAN),), ((1, float("nan")),)]
NUMBERS: list[list[Any]] = [
    [Decimal("1.0")],
    [Decimal("1")],
    [NAN, float("nan"), np.nan],
    [float("inf")],
    [None],
    [1 << 70],
]
TEXTS_AND_TUPLES: list[list[Any]] = [
    *(["1"], [""], ["\ud800"], [Name("1")], [b"1"]),
    *([(1,)], [(1.0,)], [(True,)], NAN_IN_A_TUPLE, [[1]]),
]
OBJECTS: list[list[Any]] = [
    *([NOON], [THE_SAME_INSTANT], [Tagged(1, "a")], [Tagged(1, "b")], [Row(1)], [Row(1.0)], [Row(a=1)]),
]
NAN_PAIRS: list[Any] = [(1, NAN), (1.0, float("nan"))]

# Declared type -> keys that are one key, line by line.
KINDS: dict[str, tuple[Any, list[list[Any]]]] = {
    # the bytes of the object itself: its class counts, and every field of it
    "undeclared": (
        None,
        [
            *([one] for one in ONES),
            *([zero] for zero in ZEROS),
            *NUMBERS,
            *TEXTS_AND_TUPLES,
            *OBJECTS,
        ],
    ),
    "LONG": (Types.LONG(), [ONES, ZEROS, [-1, np.int64(-1)], [1 << 62]]),
    "INT": (Types.INT(), [ONES, ZEROS, [7, np.int8(7), 7.9]]),
    "BIG_INT": (Types.BIG_INT(), [ONES, ZEROS, [1 << 70], [-(1 << 70)]]),
    "DOUBLE": (
        Types.DOUBLE(),
        [
            ONES,
            [0, 0.0, False, np.int8(0)],
            [-0.0, np.float64(-0.0)],
            [NAN, -NAN, np.float32("nan"), Decimal("NaN")],
            [1.5],
        ],
    ),
    "FLOAT": (Types.FLOAT(), [ONES, [0.1, np.float32(0.1)], [-0.0], [0.0], [NAN, -NAN]]),
    "BOOLEAN": (Types.BOOLEAN(), [[*ONES, 2, -1], ZEROS]),
    "STRING": (Types.STRING(), [["1", Name("1")], [""], ["\ud800"], ["\u00e9"], ["e\u0301"]]),
    "BIG_DEC": (
        Types.BIG_DEC(),
        [[Decimal("1.0")], [Decimal("1.00")], [1, Decimal(1)], [Decimal("0"), Decimal("-0")]],
    ),
    "SQL_TIMESTAMP": (
        Types.SQL_TIMESTAMP(),
        [[NOON, NOON_IN_ROME, NOON.replace(tzinfo=None)], [THE_SAME_INSTANT, THE_SAME_INSTANT.replace(tzinfo=None)]],
    ),
    "TUPLE": (
        Types.TUPLE([Types.LONG(), Types.DOUBLE()]),
        [[(1, 1.0), (True, 1), (Level.LOW, np.int8(1))], NAN_PAIRS, [(1, 0.0)], [(1, -0.0)]],
    ),
    "ROW": (
        Types.ROW([Types.LONG(), Types.STRING()]),
        [[Row(1, "a"), Row(True, "a"), Row(1.0, Name("a"))], [Row(1, "b")]],
    ),
}


class Count(KeyedProcessFunction):
    """Counts in a value and in a map by the key, fires a timer of every key: all that is kept by key agrees."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", Types.STRING(), Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.seen.put("all", (self.seen.get("all") or 0) + 1)
        ctx.timer_service().register_event_time_timer(1)
        yield value[0], count, self.seen.get("all")

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield "end", self.count.value(), self.seen.get("all")


class Interrupted(SimulatedEngine):
    """Suspends its job in the run that comes next in ``plan``, so that the next life continues."""

    def __init__(self, runs: int) -> None:
        super().__init__(seed=1)
        self._left = runs
        self.master: JobMaster | None = None

    def run(self, plan: RoundPlan) -> list[Ack]:
        self._left -= 1
        if self._left == 0 and self.master is not None:
            self.master.suspend()
        return super().run(plan)


class Executor:
    runs = 0

    def execute_async(self, program: Program) -> StartedJob:
        engine = Interrupted(Executor.runs)
        engine.master = JobMaster(program, engine)
        return StartedJob(engine.master, [])


def live(root: str, records: list[Any], key_type: Any, parallelism: int, runs: int, options: dict[str, Any]) -> bool:
    """One life of the job; whether it has finished."""
    Executor.runs = runs
    keys: dict[str, Any] = {
        "execution.target": "interrupted",
        "execution.checkpointing.dir": f"{root}/checkpoints",
        "execution.checkpointing.interval": "10 ms",
        "tidegate.job-id": "keys",
        "tidegate.state.local-dir": f"{root}/local",
        "pipeline.max-parallelism": 16,
        "parallelism.default": parallelism,
        **options,
    }
    env = StreamExecutionEnvironment(Configuration.from_dict(keys))
    stream = env.from_collection(records).uid("records").key_by(lambda record: record[1], key_type)
    stream.process(Count()).uid("counted").sink_to(LedgerSink(f"{root}/ledger")).uid("ledger")
    job = env._start("keys")
    try:
        job.result()
    except JobSuspendedError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_label_is_a_key(kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    executor.register_executor("interrupted", Executor)
    key_type, lines = KINDS[kind]
    labelled = [(f"{kind} {number}", key) for number, keys in enumerate(lines) for key in keys]
    records = data.draw(st.permutations(labelled * 3))
    root = str(tmp_path_factory.mktemp("keys"))
    options = {
        "tidegate.round.max-records": data.draw(st.sampled_from([3, 7, 1000])),
        "tidegate.chunk.records": data.draw(st.sampled_from([1, 4, 4096])),
        "tidegate.functions.inline": data.draw(st.booleans()),
        "tidegate.state.cache-size": data.draw(st.sampled_from(["1 mb", "64 mb"])),
    }
    for _ in range(3):
        runs = data.draw(st.integers(1, 6))
        if live(root, records, key_type, data.draw(st.integers(1, 4)), runs, options):
            break
    else:
        assert live(root, records, key_type, 2, 0, options)
    found = Counter(tuple(value) for page in ledger_pages(f"{root}/ledger").values() for value in page)
    sizes = Counter(label for label, _ in records)
    expected = Counter((label, n, n) for label, size in sizes.items() for n in range(1, size + 1))
    assert found == expected + Counter(("end", size, size) for size in sizes.values())
