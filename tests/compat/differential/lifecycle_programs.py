"""The life of functions and jobs: open and close, what the runtime context knows, clients and results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.compat.differential.catalog import Surroundings, program
from tests.compat.differential.engine_api import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
)


class Diary:
    """Writes down what happens to a function, one file per happening: functions of several processes share no memory."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.name = str(directory), name

    def write(self, happening: str) -> None:
        Path(self.directory, f"{self.name} {happening}").touch()

    @staticmethod
    def read(directory: Path) -> list[str]:
        return sorted(path.name for path in directory.iterdir())


class DiaryMap(MapFunction):
    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def open(self, runtime_context: Any) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.diary.write(f"open {self.subtask}")

    def close(self) -> None:
        self.diary.write(f"close {self.subtask}")

    def map(self, value: Any) -> Any:
        self.diary.write(f"value {value}")
        return value


class DiaryFlatMap(FlatMapFunction):
    open, close = DiaryMap.open, DiaryMap.close

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def flat_map(self, value: Any) -> Any:
        yield value


class DiaryFilter(FilterFunction):
    open, close = DiaryMap.open, DiaryMap.close

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def filter(self, value: Any) -> bool:
        return True


class DiaryProcess(ProcessFunction):
    open, close = DiaryMap.open, DiaryMap.close

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


class DiaryReduce(ReduceFunction):
    open, close = DiaryMap.open, DiaryMap.close

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1 + value2


class DiaryKeyed(KeyedProcessFunction):
    open, close = DiaryMap.open, DiaryMap.close

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


@program(runs_itself=True, parallelisms=(1,), modes=("STREAMING", "BATCH"))
def functions_are_opened_and_closed(env: Any, surroundings: Surroundings) -> Any:
    """By one subtask: PyFlink does not open functions of a subtask that gets no records."""

    def diary(name: str) -> Diary:
        return Diary(surroundings.directory / "diary", name)

    (surroundings.directory / "diary").mkdir()
    stream = env.from_collection([1, 2]).rebalance().map(DiaryMap(diary("map")))
    stream = stream.flat_map(DiaryFlatMap(diary("flat map"))).filter(DiaryFilter(diary("filter")))
    keyed = stream.process(DiaryProcess(diary("process"))).key_by(lambda v: 0)
    keyed.reduce(DiaryReduce(diary("reduce"))).key_by(lambda v: 0).process(DiaryKeyed(diary("keyed"))).print()
    env.execute()
    return Diary.read(surroundings.directory / "diary")


class Surveyor(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.found = (
            runtime_context.get_number_of_parallel_subtasks(),
            runtime_context.get_max_number_of_parallel_subtasks(),
            runtime_context.get_index_of_this_subtask(),
            runtime_context.get_attempt_number(),
            runtime_context.get_job_parameter("color", "none"),
            runtime_context.get_job_parameter("shape", "none"),
        )

    def map(self, value: Any) -> Any:
        return value, *self.found


@program()
def what_a_runtime_context_knows(env: Any) -> Any:
    env.get_config().set_global_job_parameters({"color": "green"})
    numbers = env.from_collection([1]).broadcast()
    first = numbers.map(Surveyor())
    second = numbers.map(Surveyor()).set_parallelism(1).set_max_parallelism(7)
    return first.union(second)


@program(runs_itself=True, parallelisms=(1,))
def a_client_and_a_result(env: Any, surroundings: Surroundings) -> Any:
    env.from_collection([1]).print("x")
    client = env.execute_async("a job")
    result = client.get_job_execution_result().result()
    return [
        str(client.get_job_id()) == str(result.get_job_id()),
        len(str(client.get_job_id())),
        result.get_net_runtime() >= 0,
        result.get_all_accumulator_results(),
        *surroundings.printed(),
    ]


@program(runs_itself=True, parallelisms=(1,))
def an_environment_executes_what_is_new(env: Any, surroundings: Surroundings) -> Any:
    """A second ``execute`` runs what was added since the first."""
    env.from_collection([1]).print("first")
    env.execute()
    once = sorted(surroundings.printed())
    env.from_collection([2]).print("second")
    env.execute("named")
    return [once, sorted(surroundings.printed())]
