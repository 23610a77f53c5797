"""Several subtasks of a level in one Spark task: the same results, acks and files as with a task for each.

Spark's part is played here: partitions by the number of tasks, rows in any order, tasks tried again.
"""

from __future__ import annotations

import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.errors import JobFailedError
from tidegate.common import Configuration, Types
from tidegate.datastream import DataStream, KeyedProcessFunction, MapFunction, StreamExecutionEnvironment, executor
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.graph.transformation import Program
from tidegate.operators.flow.level import JobSpec, close_job
from tidegate.operators.flow.rows import BARRIER, Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.master import JobMaster
from tidegate.spark.task import LevelTask, WorkerSetup


class NoSetup(WorkerSetup):
    """This process is no worker of Spark's, and stays as it is."""

    def enter(self) -> None: ...


NO_SETUP = NoSetup("job", "job", None, "INFO")


class Broadcast:
    def __init__(self, value: bytes) -> None:
        self.value = value


class TaskEngine:
    """Levels of ``most`` tasks each, in this process. Every third task is run twice, and its first result thrown away."""

    one_host = True

    def __init__(self, most: int) -> None:
        self._most, self._random = most, random.Random(1)
        self.acks: list[Ack] = []
        self.most_barriers = 0
        """That a subtask has sent on an edge in a round."""

    def start(self, spec: JobSpec) -> None:
        self._spec, self._program = spec, Broadcast(pickle.dumps(spec, 5))

    def run(self, plan: RoundPlan) -> list[Ack]:
        context = pickle.dumps(plan.context, 5)
        rows: list[Any] = []
        counts = [min(width, self._most) for width in self._spec.widths]
        for level, plans in enumerate(plan.tasks):
            tasks = counts[level]
            pickled = [pickle.dumps(plans[number::tasks], 5) for number in range(tasks)]
            task = LevelTask(self._spec.attempt, self._program, level, context, pickled, counts, NO_SETUP)
            self._random.shuffle(rows)
            rows = self._run_level(level, task, self._arriving(level, rows, tasks))
            sent = Counter((row[3], row[4]) for _, row in rows if isinstance(row, tuple) and row[2] == BARRIER)
            self.most_barriers = max([self.most_barriers, *sent.values()])
        acks = [pickle.loads(payload) for _, payload in rows]
        self.acks += acks
        return acks

    def _arriving(self, level: int, rows: list[Any], tasks: int) -> list[list[Any]]:
        return [[pair for pair in rows if pair[0] % tasks == number] for number in range(tasks)]

    def _run_level(self, level: int, task: LevelTask, arriving: list[list[Any]]) -> list[Any]:
        return [row for number, rows in enumerate(arriving) for row in self._run(task, number, rows)]

    def _run(self, task: LevelTask, number: int, rows: list[Any]) -> list[Any]:
        if number % 3 == 0:
            list(task(number, iter(rows)))
        return list(task(number, iter(rows)))

    def cancel(self) -> None:
        pass

    def stop(self) -> None:
        close_job(self._spec.settings.local_name)


class RunAgain(TaskEngine):
    """The last task of level 0 runs again after the first task of level 1 has read its first run. All others read the second."""

    def __init__(self) -> None:
        super().__init__(most=2)
        self._second: list[Any] = []

    def _arriving(self, level: int, rows: list[Any], tasks: int) -> list[list[Any]]:
        first = super()._arriving(level, rows, tasks)
        return first if level != 1 else [first[0], *super()._arriving(level, self._second, tasks)[1:]]

    def _run_level(self, level: int, task: LevelTask, arriving: list[list[Any]]) -> list[Any]:
        if level:
            return super()._run_level(level, task, arriving)
        Changes.run = 0
        *others, last = [list(task(number, iter(rows))) for number, rows in enumerate(arriving)]
        Changes.run = 1
        again = list(task(len(others), iter(arriving[-1])))
        self._second = [row for rows in [*others, again] for row in rows]
        return [row for rows in [*others, last] for row in rows]


class Changes(MapFunction):
    """Gives a record to one branch in the first run of its task, and to the other branch in the second."""

    run = 0

    def map(self, value: int) -> tuple[int, int]:
        return value, (value + Changes.run) % 2


class FailsAtFirst(MapFunction):
    def map(self, value: int) -> int:
        if Changes.run == 0:
            raise ConnectionError("only in the first run")
        return value


class Passes(KeyedProcessFunction):
    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        yield value


class Counts(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(1)
        return ()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield ctx.get_current_key(), self.count.value()


def environment(engine: TaskEngine, place: Path, **keys: Any) -> StreamExecutionEnvironment:
    class Executor:
        def execute_async(self, program: Program) -> StartedJob:
            return StartedJob(JobMaster(program, engine, local_root=str(place / "local")), [])

    executor.register_executor("tasks", Executor)
    settings = {
        "execution.target": "tasks",
        "execution.checkpointing.dir": str(place / "checkpoints"),
        "restart-strategy.type": "none",
        **keys,
    }
    return StreamExecutionEnvironment(Configuration.from_dict(settings))


@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_the_results_do_not_depend_on_how_many_share_a_task(tmp_path: Path, most: int) -> None:
    engine = TaskEngine(most)
    keys = {
        "execution.checkpointing.interval": "10 ms",
        "tidegate.round.max-records": 100,
        "tidegate.chunk.records": 7,
        "parallelism.default": 8,
        "pipeline.max-parallelism": 32,
    }
    env = environment(engine, tmp_path, **keys)
    numbers = env.from_collection(list(range(500))).rebalance().map(lambda v: v, Types.LONG())
    counted = numbers.key_by(lambda v: v % 20, Types.LONG()).process(Counts())
    united = counted.union(numbers.filter(lambda v: v < 5).map(lambda v: (v, "seen")))  # rows that pass a level
    assert Counter(united.execute_and_collect()) == Counter(
        [(k, 25) for k in range(20)] + [(v, "seen") for v in range(5)]
    )
    assert len({(ack.chain, ack.subtask) for ack in engine.acks}) >= 17
    assert engine.most_barriers == min(most, 8), "one for each task, not one for each subtask"


@pytest.mark.parametrize(("before", "between"), [(1, 1), (1, 3), (3, 3)])
def test_chunks_and_barrier_that_pass_a_level_come_from_one_run_of_the_sender(
    tmp_path: Path, before: int, between: int
) -> None:
    """Fault T4. The two branches are in the last subtasks of a task of level 2, and get their records through level 1: the first
    subtasks of level 1 relay for the one, other subtasks for the other. ``before``, ``between``: how many subtasks come before
    them in their level."""
    env = environment(RunAgain(), tmp_path, **{"parallelism.default": 1})
    passing = env.from_collection(list(range(6))).rebalance().map(lambda v: v).set_parallelism(3)
    sender = env.from_collection(list(range(100, 120))).map(Changes())

    def others(count: int) -> list[DataStream]:
        return [passing.map(lambda v: v).set_parallelism(1) for _ in range(count)]

    def branch(number: int) -> DataStream:
        taken = sender.filter(lambda pair: pair[1] == number).map(lambda pair: pair[0])
        return passing.union(taken).map(lambda v: v).set_parallelism(1)

    streams = [*others(before), branch(0), *others(between), branch(1)]
    found = streams[0].union(*streams[1:]).execute_and_collect()
    assert Counter(value for value in found if value >= 100) == Counter(range(100, 120))


@pytest.mark.parametrize("mode", ["BATCH", "STREAMING"])
def test_a_subtask_that_gave_up_after_a_failed_run_of_its_sender_is_not_accepted_with_a_good_run(
    tmp_path: Path, mode: str
) -> None:
    """Fault T4: the ack of the sender is that of its second run, and says nothing of a failure."""
    env = environment(RunAgain(), tmp_path, **{"parallelism.default": 2, "execution.runtime-mode": mode})
    others = env.from_collection(list(range(6)))
    sender = env.from_collection(list(range(100, 120))).map(FailsAtFirst()).set_parallelism(1)
    keyed = others.union(sender).key_by(lambda v: v, Types.LONG()).process(Passes())
    with pytest.raises(JobFailedError, match="different attempts"):
        list(keyed.execute_and_collect())
