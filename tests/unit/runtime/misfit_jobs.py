"""A program with a state of every sort, and the same with all of them declared otherwise, on the simulated engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.sources import ScriptedSource
from tests.waiting import eventually
from tidegate.base.errors import JobCancelledError, RoundError
from tidegate.base.files import Files
from tidegate.checkpoint.locate import Lineage, read_lineage
from tidegate.common import Configuration, Time, Types, WatermarkStrategy
from tidegate.datastream import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    KeyedProcessFunction,
    MapFunction,
    StreamExecutionEnvironment,
    executor,
)
from tidegate.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.graph.transformation import Program as Submitted
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine

OPENED: Counter[str] = Counter()
"""How often functions were opened, by name."""
FAILED: Counter[str] = Counter()


@dataclass(frozen=True)
class Variant:
    """``other``: all states are declared otherwise. ``late``: with the first record. ``fails``: so many times ``open`` does.
    ``also``: there is an operator more. ``torn``: what reading the snapshot shows is wrong as well: a key type, a maximum
    parallelism, an operator under another uid, the values of a collection."""

    other: bool = False
    late: bool = False
    fails: int = 0
    also: bool = False
    torn: bool = False


def original(*, fails: int = 0) -> Variant:
    FAILED.clear()
    return Variant(fails=fails)


def changed(*, late: bool = False, also: bool = False, torn: bool = False, fails: int = 0) -> Variant:
    FAILED.clear()
    return Variant(other=True, late=late, also=also, torn=torn, fails=fails)


def torn() -> Variant:
    """All states are as they were."""
    return Variant(torn=True)


class Highest(MapFunction, CheckpointedFunction):
    def __init__(self, variant: Variant) -> None:
        self._other = variant.other and not variant.late

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.highest = store.get_list_state(
            ListStateDescriptor("highest", Types.STRING() if self._other else Types.LONG())
        )
        get_seen = store.get_list_state if self._other else store.get_union_list_state
        self.seen = get_seen(ListStateDescriptor("seen", Types.LONG()))
        self._greatest = max(self.seen.get(), default=0)

    def snapshot_state(self, context: Any) -> None:
        self.highest.update([self._greatest])
        self.seen.update([self._greatest])

    def map(self, value: int) -> int:
        self._greatest = max(self._greatest, value)
        return value


class States(KeyedProcessFunction):
    def __init__(self, variant: Variant) -> None:
        self._variant = variant

    def open(self, runtime_context: Any) -> None:
        OPENED["states"] += 1
        self._context = runtime_context
        if FAILED["open"] < self._variant.fails:
            FAILED["open"] += 1
            raise ConnectionError("no database")
        if not self._variant.late:
            self._declare(self._variant.other)
        elif not self._variant.other:
            self._declare(False)

    def _declare(self, other: bool) -> None:
        get, short = self._context, ValueStateDescriptor("short", Types.LONG())
        if other:
            short.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        self.count = get.get_state(ValueStateDescriptor("count", Types.STRING() if other else Types.LONG()))
        self.latest = (
            get.get_map_state(MapStateDescriptor("latest", Types.LONG(), Types.LONG()))
            if other
            else get.get_list_state(ListStateDescriptor("latest", Types.LONG()))
        )
        self.short = get.get_state(short)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        if self._variant.late:
            self._declare(self._variant.other)
        self.count.update((self.count.value() or 0) + 1)
        self.latest.update([value[1]])
        self.short.update(value[1])
        yield ctx.get_current_key(), value[1], self.count.value()


class New(MapFunction):
    def open(self, runtime_context: Any) -> None:
        OPENED["new"] += 1

    def map(self, value: Any) -> Any:
        return value


class Rules(BroadcastProcessFunction):
    def __init__(self, rules: MapStateDescriptor) -> None:
        self._rules = rules

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.get_broadcast_state(self._rules).put(str(value % 3), value)
        yield from ()


def _build(env: StreamExecutionEnvironment, variant: Variant, *, endless: bool) -> Any:
    other = variant.other and not variant.late
    pair = Types.TUPLE([Types.LONG(), Types.DOUBLE() if other else Types.LONG()])
    source = ScriptedSource(list(range(30 if endless else 60)), ends=not endless)
    source.initial_limit = source.maximum_limit = 10
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()).uid("numbers")
    highest = numbers.map(Highest(variant), Types.LONG()).uid("highest").name("HIGHEST")
    pairs = highest.map(lambda n: (n % 3, n), pair).uid("pairs")
    key_type = Types.STRING() if variant.torn else Types.LONG()
    totals = pairs.key_by(lambda p: p[0], key_type=key_type).reduce(lambda a, b: (a[0], a[1] + b[1]))
    keyed = totals.name("totals").uid("totals").key_by(lambda p: p[0], key_type=Types.LONG())
    counted = keyed.process(States(variant)).uid("states").name("KEYED PROCESS")
    if variant.torn:
        counted.set_max_parallelism(32)
    rules = MapStateDescriptor("rules", Types.STRING(), Types.STRING() if other else Types.LONG())
    counted = counted.connect(numbers.broadcast(rules)).process(Rules(rules)).name("rules")
    counted = counted.uid("other rules" if variant.torn else "rules")
    few = env.from_collection(list(range(2 if variant.torn else 3)), Types.LONG()).uid("few").name("few")
    counted = counted.union(few.map(lambda n: (n, n, n)).filter(lambda t: False))
    return counted.map(New()).uid("new") if variant.also else counted


class _Cancelled(SimulatedEngine):
    """The job is cancelled, and its rehearsal with it."""

    def run(self, plan: RoundPlan) -> list[Ack]:
        if plan.context.rehearsal:
            self.cancel_job()
            raise RoundError("A rehearsal was cancelled")
        return super().run(plan)

    def cancel_job(self) -> None: ...


class _Executor:
    workers = 2
    cancelled = False

    def execute_async(self, program: Submitted) -> StartedJob:
        engine = (_Cancelled if self.cancelled else SimulatedEngine)(1, workers=self.workers)
        master = JobMaster(program, engine, listeners=[])
        if isinstance(engine, _Cancelled):
            engine.cancel_job = master.cancel  # type: ignore[method-assign]
        return StartedJob(master, [])


def _environment(directory: Path, parallelism: int, **settings: Any) -> StreamExecutionEnvironment:
    keys = {
        "execution.target": "misfits",
        "execution.checkpointing.interval": "10 ms",
        "execution.checkpointing.dir": f"{directory}/checkpoints",
        "restart-strategy.type": "none",
        "tidegate.job-id": "misfits",
        "parallelism.default": parallelism,
        "pipeline.max-parallelism": 16,
        **settings,
    }
    executor.register_executor("misfits", _Executor)
    return StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(keys))


def stopped_with_savepoint(directory: Path) -> str:
    """The first thirty numbers are in it, and the three of the collection."""
    env = _environment(directory, 2)
    _build(env, original(), endless=True).print()
    job = env.execute_async("misfits")
    started = job._job
    assert isinstance(started, StartedJob)
    eventually(lambda: started.view().totals.records == 33)
    path: str = job.stop_with_savepoint(False, f"{directory}/savepoints").result()
    copied = started.view().checkpoints[-1].copied
    assert copied is not None and copied.files == copied.of_files > 1, "how far the copying was is seen"
    return path


def cancelled_in_rehearsal(savepoint: str, directory: Path) -> Lineage:
    """What the job's directory says of it then."""
    _Executor.cancelled = True
    try:
        with pytest.raises(JobCancelledError):
            resume(original(), savepoint, directory)
    finally:
        _Executor.cancelled = False
    return read_lineage(Files(f"{directory}/checkpoints/misfits"))


def resume(
    variant: Variant, savepoint: str, directory: Path, parallelism: int = 1, *, workers: int = 2, **keys: Any
) -> Any:
    _Executor.workers = workers
    env = _environment(directory, parallelism, **{"execution.state-recovery.path": savepoint, **keys})
    with _build(env, variant, endless=False).execute_and_collect("misfits") as rows:
        return sorted(rows)


def files_below(directory: Path | str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()}
