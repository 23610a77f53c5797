"""A StopIteration of user code, wherever it runs: the job fails and says so. It never ends a loop of ours in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.executor import Simulated
from tidegate.base.errors import JobFailedError
from tidegate.common import Encoder, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.connectors.files.bucket_assigners import BucketAssigner
from tidegate.connectors.values.data_generator import DataGeneratorSource
from tidegate.datastream import (
    DataStream,
    KeyedProcessFunction,
    ProcessFunction,
    StreamExecutionEnvironment,
    TwoPhaseCommitSinkFunction,
)
from tidegate.datastream.connectors.file_system import FileSink
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.operators.contracts.source import Batch, Source, SourcePlan, SplitEnumerator, SplitInterval, SplitReader

NONE = WatermarkStrategy.no_watermarks()


def stop(value: Any, *_: Any) -> Any:
    if value == 30:
        raise StopIteration
    return value


def stopping_generator(value: int) -> Iterator[int]:
    yield value
    yield stop(value)


def stopping_list(value: int) -> list[int]:
    return [stop(value)]


class Stops(ProcessFunction):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Any:
        return [stop(value)]


class StopsByKey(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("s", Types.LONG()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        self.state.update(value)
        ctx.timer_service().register_event_time_timer(value)
        yield value

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        return [stop(timestamp)]


class Assigns(TimestampAssigner):
    def extract_timestamp(self, value: int, record_timestamp: int) -> int:
        return int(stop(value))


class Encodes(Encoder):
    def encode(self, value: int) -> bytes:
        return b"%d" % stop(value)


class Buckets(BucketAssigner):
    def get_bucket_id(self, element: Any, context: Any) -> str:
        return str(stop(element))


class TwoPhases(TwoPhaseCommitSinkFunction):
    """``stops``: the method that does."""

    def __init__(self, stops: str) -> None:
        self.stops = stops

    def _do(self, name: str) -> None:
        if name == self.stops:
            raise StopIteration

    def begin_transaction(self) -> str:
        self._do("begin")
        return "t"

    def invoke(self, transaction: str, value: Any, context: Any) -> None:
        self._do("invoke")

    def pre_commit(self, transaction: str) -> None:
        self._do("pre_commit")

    def commit(self, transaction: str) -> None:
        self._do("commit")

    def abort(self, transaction: str) -> None:
        pass


class Numbers(Source, SplitEnumerator, SplitReader):
    """A source of the user; ``stops``: the part of it that does."""

    def __init__(self, stops: str, planned: int = 0) -> None:
        self.stops, self.planned = stops, planned

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        return Numbers(self.stops, restored or 0)

    def create_reader(self, subtask: int) -> SplitReader:
        if self.stops == "reader":
            raise StopIteration
        return self

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        if self.stops == "plan" and self.planned:
            raise StopIteration
        self.planned += 10
        interval = SplitInterval("0", 0, self.planned - 10, self.planned, 10, self.planned == 100)
        return SourcePlan([interval], backlog=self.planned < 100, finished=self.planned == 100)

    def snapshot(self) -> Any:
        if self.stops == "snapshot" and self.planned:
            raise StopIteration
        return self.planned

    def read(self, interval: SplitInterval) -> Any:
        if self.stops == "read":
            raise StopIteration
        return Batches(self.stops, interval)


class Batches(Iterator[Batch]):
    """An iterator that calls user code: there a StopIteration means the end, and only there."""

    def __init__(self, stops: str, interval: SplitInterval) -> None:
        self.batches = [Batch([value]) for value in range(interval.start, interval.end)]

    def __next__(self) -> Batch:
        if not self.batches:
            raise StopIteration
        return self.batches.pop(0)


def numbers(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_collection(list(range(100)), Types.LONG())


def sequence(env: StreamExecutionEnvironment, stops: str) -> DataStream:
    return env.from_source(Numbers(stops), NONE, "numbers")


def discard(stream: DataStream) -> Any:
    return stream.add_sink(lambda value: None)


def to_files(env: StreamExecutionEnvironment, path: str, encoder: Encoder, buckets: BucketAssigner | None) -> Any:
    builder = FileSink.for_row_format(path, encoder)
    return numbers(env).sink_to((builder.with_bucket_assigner(buckets) if buckets else builder).build())


PLACES: dict[str, Callable[[StreamExecutionEnvironment, str], Any]] = {
    "map": lambda env, _: discard(numbers(env).map(stop)),
    "map, inlined around": lambda env, _: discard(numbers(env).map(lambda v: stop(v) + 1)),
    "map, chained": lambda env, _: discard(numbers(env).map(lambda v: v).map(stop).map(lambda v: v)),
    "filter": lambda env, _: discard(numbers(env).filter(lambda v: stop(v) is not None)),
    "flat_map, generator": lambda env, _: discard(numbers(env).flat_map(stopping_generator)),
    "flat_map, list": lambda env, _: discard(numbers(env).flat_map(stopping_list)),
    "process": lambda env, _: discard(numbers(env).process(Stops())),
    "key selector": lambda env, _: discard(numbers(env).key_by(stop).process(StopsByKey())),
    "reduce": lambda env, _: discard(numbers(env).key_by(lambda v: 1).reduce(lambda a, b: stop(b))),
    "timer": lambda env, _: discard(numbers(env).key_by(lambda v: v % 3).process(StopsByKey())),
    "partitioner": lambda env, _: discard(numbers(env).partition_custom(lambda key, n: stop(key) % n, lambda v: v)),
    "key of a partitioner": lambda env, _: discard(numbers(env).partition_custom(lambda key, n: 0, stop)),
    "assigner": lambda env, _: discard(
        numbers(env).assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Assigns())
        )
    ),
    "sink function": lambda env, _: numbers(env).add_sink(stop),
    "encoder": lambda env, path: to_files(env, path, Encodes(), None),
    "bucket assigner": lambda env, path: to_files(env, path, Encoder.simple_string_encoder(), Buckets()),
    "two phases, begin": lambda env, _: numbers(env).add_sink(TwoPhases("begin")),
    "two phases, invoke": lambda env, _: numbers(env).add_sink(TwoPhases("invoke")),
    "two phases, pre_commit": lambda env, _: numbers(env).add_sink(TwoPhases("pre_commit")),
    "two phases, commit": lambda env, _: numbers(env).add_sink(TwoPhases("commit")),
    "generator source": lambda env, _: discard(env.from_source(DataGeneratorSource(stop, 100), NONE, "g")),
    "enumerator, plan": lambda env, _: discard(sequence(env, "plan")),
    "enumerator, snapshot": lambda env, _: discard(sequence(env, "snapshot")),
    "reader": lambda env, _: discard(sequence(env, "reader")),
    "reader, read": lambda env, _: discard(sequence(env, "read")),
}


@pytest.fixture
def env(simulated: Simulated) -> StreamExecutionEnvironment:
    return simulated(
        **{
            "execution.checkpointing.interval": "10 ms",
            "tidegate.round.max-records": 20,
            "parallelism.default": 2,
            "tidegate.commit.max-attempts": 1,
        }
    )


@pytest.mark.parametrize("place", PLACES)
def test_it_fails_the_job(env: StreamExecutionEnvironment, place: str, tmp_path: Path) -> None:
    PLACES[place](env, str(tmp_path / "out"))
    with pytest.raises(JobFailedError) as caught:
        env._start("stops").result(60)
    chain: list[str] = []
    error: BaseException | None = caught.value
    while error is not None:
        chain.append(repr(error))
        error = error.__cause__ or error.__context__
    assert "StopIteration" in "".join(chain)


def test_where_it_means_the_end_it_is_the_end(env: StreamExecutionEnvironment) -> None:
    assert sorted(sequence(env, "nothing").execute_and_collect()) == list(range(100))
