"""The figures of subtasks and rounds: values that follow from the program."""

from __future__ import annotations

import pickle
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.timed_jobs import TimedJob, takes
from tidegate.base import faults
from tidegate.common import Types, WatermarkStrategy
from tidegate.connectors.files.file_format import StreamFormat
from tidegate.connectors.files.source import FileSource
from tidegate.connectors.frames.sources import _FrameEnumerator
from tidegate.connectors.values.data_generator import DataGeneratorSource
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.operators.flow.heavy_keys import KeySampler
from tidegate.operators.flow.rows import Ack, TaskRun, Work
from tidegate.runtime import figures
from tidegate.runtime.figures import SubtaskView, slowest_tasks
from tidegate.runtime.statistics import ROUND_PARTS
from tidegate.runtime.view import JobView, OperatorView
from tidegate.testing.simulation.engine import Chances

NO_TIME = WatermarkStrategy.no_watermarks()


def numbers(env: StreamExecutionEnvironment, count: int, parallelism: int = 1) -> Any:
    source = NumberSequenceSource(0, count - 1)
    return env.from_source(source, NO_TIME, "numbers", Types.LONG()).set_parallelism(parallelism)


def slow(value: int) -> int:
    takes(100)
    return value


def subtasks(view: JobView, chain: int) -> list[SubtaskView]:
    return [subtask for subtask in view.subtasks if subtask.chain == chain]


# -- parts of a round ----------------------------------------------------------------------------------------------------


def test_slow_function_is_the_user_part_of_its_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = TimedJob(tmp_path, monkeypatch, lambda env: numbers(env, 10).map(slow).print())
    (round,) = job.run().rounds
    assert tuple(round.parts) == ROUND_PARTS
    assert round.parts["user"] == pytest.approx(1.0)
    assert round.seconds == pytest.approx(1.0)
    assert sum(round.parts.values()) == pytest.approx(1.0), "nothing else takes time here"


def test_slow_source_is_the_read_part_of_its_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = NO_TIME.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: slow(value))
    source = NumberSequenceSource(0, 9)
    job = TimedJob(tmp_path, monkeypatch, lambda env: env.from_source(source, timed, "slow").print())
    (round,) = job.run().rounds
    assert round.parts["read"] == pytest.approx(1.0)
    assert round.parts["user"] == pytest.approx(0.0)


class SlowToPickle:
    def __init__(self, value: int) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        takes(100)
        return SlowToPickle, (self.value,)


def test_slow_records_on_an_edge_are_the_pack_part_of_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        numbers(env, 10).map(SlowToPickle).rebalance().map(lambda record: record.value).set_parallelism(2).print()

    (round,) = TimedJob(tmp_path, monkeypatch, build).run().rounds
    assert round.parts["pack"] == pytest.approx(1.0)


def test_time_that_no_task_explains_is_the_schedule_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = TimedJob(tmp_path, monkeypatch, lambda env: numbers(env, 10).print())
    engine: Any = job.master._engine
    engine.between_tasks = lambda: takes(250)
    (round,) = job.run().rounds
    assert round.parts["schedule"] == pytest.approx(0.25)


def test_store_and_commit_are_parts_of_the_round_after_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def point(name: str, where: Any) -> None:
        if name == "C6.published":
            takes(300)
        elif name == "C6.completed":
            takes(40)

    keys: dict[str, Any] = {"execution.checkpointing.interval": "10 ms", "tidegate.round.max-records": 5}
    job = TimedJob(tmp_path, monkeypatch, lambda env: numbers(env, 20).map(slow).print(), **keys)
    faults.install(point)
    try:
        rounds = job.run().rounds
    finally:
        faults.install(None)
    assert max(round.parts["store"] for round in rounds) >= 0.34


def test_subtasks_that_share_a_task_of_the_engine_count_together() -> None:
    def ack(subtask: int, user: float, task: int) -> Ack:
        return Ack(0, subtask, "t", TaskRun(task=task), work=Work(user=user))

    acks = [ack(0, 1.0, 0), ack(1, 2.0, 1), ack(2, 1.5, 0)]
    assert slowest_tasks(acks, {0: 0}) == [(0.0, 2.5, 0.0, 0.0)]
    assert slowest_tasks([ack(0, 1.0, -1), ack(1, 2.0, -1)], {0: 0}) == [(0.0, 2.0, 0.0, 0.0)]


# -- subtasks ------------------------------------------------------------------------------------------------------------


def test_before_the_first_round_every_subtask_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = TimedJob(tmp_path, monkeypatch, lambda env: numbers(env, 10, 3).rebalance().print().set_parallelism(2))
    shown = job.master.view().subtasks
    assert [(subtask.chain, subtask.subtask) for subtask in shown] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert all(subtask.idle == 1.0 and subtask.host is None for subtask in shown)


def test_fast_source_before_a_slow_operator_is_back_pressured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        numbers(env, 10).rebalance().map(slow).set_parallelism(1).print()

    view = TimedJob(tmp_path, monkeypatch, build).run()
    (source,), (mapped,) = subtasks(view, 0), subtasks(view, 1)
    assert [source.busy, source.back_pressured] == pytest.approx([0.0, 1.0])
    assert [mapped.busy, mapped.seconds] == pytest.approx([1.0, 1.0])
    assert view.rounds[0].levels == pytest.approx((0.0, 1.0))
    assert [operator.level for operator in view.operators] == [0, 1, 1]
    assert all(s.busy + s.back_pressured + s.idle == pytest.approx(1.0) for s in view.subtasks)


def test_operator_after_a_slow_source_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = TimedJob(tmp_path, monkeypatch, lambda env: numbers(env, 10).map(slow).rebalance().print()).run()
    assert subtasks(view, 0)[0].busy == pytest.approx(1.0)
    assert subtasks(view, 1)[0].idle == pytest.approx(1.0)


def slow_if_hot(pair: tuple[str, int]) -> tuple[str, int]:
    if pair[0] == "hot":
        takes(100)
    return pair


def test_subtask_with_the_hot_key_is_busy_and_the_others_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        pairs = numbers(env, 100).map(lambda n: ("hot" if n % 5 else f"key {n}", n))
        pairs.key_by(lambda pair: pair[0]).map(slow_if_hot).set_parallelism(4).print()

    keyed = subtasks(TimedJob(tmp_path, monkeypatch, build).run(), 1)
    (hot,) = [subtask for subtask in keyed if subtask.busy > 0.9]
    assert hot.records_in >= 80
    others = [subtask for subtask in keyed if subtask is not hot]
    assert all(subtask.back_pressured == pytest.approx(1.0) for subtask in others)
    assert sum(subtask.records_in for subtask in keyed) == 100


def test_bytes_that_leave_one_chain_come_into_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        numbers(env, 1000, 2).map(lambda n: f"{n:0>100}").set_parallelism(2).rebalance().print().set_parallelism(3)

    view = TimedJob(tmp_path, monkeypatch, build).run()
    sent, received = subtasks(view, 0), subtasks(view, 1)
    assert sum(s.records_out for s in sent) == sum(s.records_in for s in received) == 1000
    assert sum(s.bytes_out for s in sent) == sum(s.bytes_in for s in received) > 100_000
    assert all(s.bytes_in == 0 for s in sent)
    assert all(s.bytes_out == 0 for s in received)


def test_totals_cover_all_rounds_and_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Any] = {"tidegate.round.max-records": 10}
    job = TimedJob(tmp_path, monkeypatch, lambda env: numbers(env, 35).map(slow).print(), **keys)
    (source,) = job.run().subtasks
    assert len(job.views) == 4
    assert (source.records_in, source.lag) == (35, 0)
    assert source.records_in_per_second == pytest.approx(10.0), "a record takes 100 ms"
    assert source.busy_seconds == pytest.approx(3.5)


def test_work_and_waiting_of_subtasks_add_up_over_all_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rounds are slow: what is shown of the latest rounds says nothing about them."""
    monkeypatch.setattr(figures, "_LATEST", 1)

    def first_ones_are_slow(value: int) -> int:
        takes(100 if value < 10 else 1)
        return value

    def build(env: StreamExecutionEnvironment) -> None:
        numbers(env, 20).rebalance().map(first_ones_are_slow).set_parallelism(1).print()

    keys: dict[str, Any] = {"tidegate.round.max-records": 5}
    job = TimedJob(tmp_path, monkeypatch, build, **keys)
    (source,), (mapped,) = (subtasks(job.run(), chain) for chain in (0, 1))
    assert len(job.views) == 4
    assert [mapped.busy_seconds, mapped.back_pressured_seconds] == pytest.approx([1.01, 0.0])
    assert [source.busy_seconds, source.back_pressured_seconds] == pytest.approx([0.0, 1.01])


def fails_in_the_fourth_round(value: int) -> int:
    takes(100)
    if value == 37 and not _FAILED:
        _FAILED.append(value)
        raise ValueError("thirty-seven")
    return value


_FAILED: list[int] = []


def test_work_is_that_of_the_latest_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _FAILED.clear()
    keys: dict[str, Any] = {
        "tidegate.round.max-records": 10,
        "execution.checkpointing.interval": "10 ms",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.delay": "1 ms",
    }
    job = TimedJob(tmp_path, monkeypatch, lambda env: numbers(env, 40).map(fails_in_the_fourth_round).print(), **keys)
    view = job.run()
    before, after = view.attempts
    assert before.restored == 0 < after.restored
    assert [shown.subtasks[0].busy_seconds for shown in job.views[:3]] == pytest.approx([1.0, 2.0, 3.0])
    assert view.subtasks[0].busy_seconds == pytest.approx(4.0 - after.restored), "of the rounds after the restored one"


def test_rate_out_of_a_subtask_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the records so far the subtasks have sent as many each. In the latest rounds only the second one sends."""
    monkeypatch.setattr(figures, "_LATEST", 1)

    def build(env: StreamExecutionEnvironment) -> None:
        spread = numbers(env, 20).partition_custom(lambda key, _: key // 10, lambda n: n)
        spread.map(slow).set_parallelism(2).rebalance().print().set_parallelism(1)

    keys: dict[str, Any] = {"tidegate.round.max-records": 10}
    mapped = subtasks(TimedJob(tmp_path, monkeypatch, build, **keys).run(), 1)
    assert [subtask.records_out for subtask in mapped] == [10, 10]
    assert [subtask.records_out_per_second for subtask in mapped] == pytest.approx([0.0, 10.0])


def test_lag_of_a_number_sequence_is_what_its_subtasks_have_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: dict[str, Any] = {"tidegate.round.max-records": 10}
    job = TimedJob(
        tmp_path, monkeypatch, lambda env: numbers(env, 30, 2).rebalance().print().set_parallelism(1), **keys
    )
    job.run()
    shown = [[(s.lag, s.lag_unit) for s in view.subtasks] for view in job.views]
    assert shown == [[(left, "records"), (left, "records"), (None, "records")] for left in (10, 5, 0)]


def test_lag_of_files_is_counted_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("x" * 99 + "\n")
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path / "in")).build()
    job = TimedJob(tmp_path, monkeypatch, lambda env: env.from_source(source, NO_TIME, "files").print())
    enumerator = source.create_enumerator(2, None)
    assert enumerator.lag is not None
    assert (dict(enumerator.lag.by_subtask), enumerator.lag.unit) == ({0: 100, 1: 0}, "bytes")
    (subtask,) = job.run().subtasks
    assert (subtask.lag, subtask.lag_unit) == (0, "bytes")


def test_host_and_retries_come_from_the_run_of_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Any] = {"tidegate.round.max-records": 10}
    job = TimedJob(tmp_path, monkeypatch, lambda env: numbers(env, 200).print(), chances=Chances(die=0.3), **keys)
    (subtask,) = job.run().subtasks
    assert subtask.host in ("worker 0", "worker 1", "worker 2")
    engine: Any = job.master._engine
    assert subtask.retries == engine.fired["die"] > 0


def test_state_bytes_are_those_of_the_files_of_the_subtask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        numbers(env, 100).key_by(lambda n: n % 10, Types.LONG()).reduce(lambda a, b: a + b).set_parallelism(2).print()

    job = TimedJob(tmp_path, monkeypatch, build)
    job.run()
    attempt: Any = job.master._attempt
    sizes = {
        s: sum(f.size for f in snapshot.files())
        for (_, s), snapshot in attempt.progress.snapshots.items()
        if snapshot.files()
    }
    assert [s.state_bytes for s in subtasks(job.views[-1], 1)] == [sizes[0], sizes[1]]
    assert min(sizes.values()) > 0


# -- the ack -------------------------------------------------------------------------------------------------------------


def test_ack_leaves_out_what_says_nothing_and_arrives_whole() -> None:
    ack = Ack(1, 2, "token", wake_up_ms=0, records_in=7, work=Work(user=0.5))
    assert pickle.loads(pickle.dumps(ack, 5)) == ack
    assert set(ack.__getstate__()) == {"chain", "subtask", "token", "run", "wake_up_ms", "records_in", "work"}


# -- operators -----------------------------------------------------------------------------------------------------------


def by_name(env: StreamExecutionEnvironment, count: int = 20_000) -> None:
    pairs = numbers(env, count).map(lambda n: ("hot" if n % 5 else f"key {n}", n))
    pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: b).name("sums").set_parallelism(4).filter(
        lambda _: False
    ).print()


def operator(view: JobView, name: str) -> OperatorView:
    return next(o for o in view.operators if o.name == name)


def test_hot_key_is_shown_with_its_share_and_its_subtask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = TimedJob(tmp_path, monkeypatch, by_name).run()
    (hot,) = operator(view, "sums").heavy_keys
    assert hot.key == "'hot'"
    assert hot.share == pytest.approx(0.8, abs=0.05)
    subtask = subtasks(view, 1)[hot.subtask]
    assert subtask.records_in == max(each.records_in for each in subtasks(view, 1)) >= 16_000
    assert operator(view, "numbers").heavy_keys == ()


def test_hidden_keys_show_that_there_is_a_hot_one_and_not_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: dict[str, Any] = {"tidegate.metrics.heavy-keys": "hide", "tidegate.round.max-records": 7_000}
    view = TimedJob(tmp_path, monkeypatch, by_name, **keys).run()
    (hot,) = operator(view, "sums").heavy_keys
    assert "hot" not in hot.key
    assert hot.key.startswith("hidden key ")
    assert hot.share == pytest.approx(0.8, abs=0.05), "the same name in every round"


def test_heavy_keys_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Any] = {"tidegate.metrics.heavy-keys": "off"}
    view = TimedJob(tmp_path, monkeypatch, by_name, **keys).run()
    assert operator(view, "sums").heavy_keys == ()


@pytest.mark.parametrize("period", [64, 61, 100, 4096])
def test_keys_that_come_in_turn_are_not_heavy(period: int) -> None:
    sampler = KeySampler()
    for start in range(0, 64 * 4096, 4096):
        sampler.look([number % period for number in range(start, start + 4096)])
    heaviest = sampler.heaviest()
    assert heaviest is not None
    assert all(count <= heaviest.records * 0.1 for _, count in heaviest.keys)


@pytest.mark.parametrize("chunk", [1, 7, 100, 4096])
def test_sampled_counts_are_near_the_real_ones_whatever_the_size_of_chunks(chunk: int) -> None:
    sampler, dice = KeySampler(), random.Random(7)
    keys = ["a" if dice.random() < 0.3 else f"other {number}" for number in range(40_000)]
    for start in range(0, len(keys), chunk):
        sampler.look(keys[start : start + chunk])
    heaviest = sampler.heaviest()
    assert heaviest is not None
    assert heaviest.records == 40_000
    ((text, count),) = heaviest.keys
    assert text == "'a'"
    assert count == pytest.approx(12_000, rel=0.1)


def test_long_keys_are_cut() -> None:
    sampler = KeySampler()
    sampler.look(["x" * 10_000] * 10)
    heaviest = sampler.heaviest()
    assert heaviest is not None
    assert len(heaviest.keys[0][0]) == 80


class TwoStates(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.small = runtime_context.get_state(ValueStateDescriptor("small", Types.LONG()))
        self.large = runtime_context.get_state(ValueStateDescriptor("large", Types.STRING()))

    def process_element(self, value: int, ctx: Any) -> Any:
        self.small.update(value)
        self.large.update("x" * 500)
        yield value


@pytest.mark.parametrize("rounds", [1, 12])
def test_bytes_of_an_operator_are_shown_by_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        keyed = numbers(env, 1200).key_by(lambda n: n, Types.LONG()).process(TwoStates(), Types.LONG())
        keyed.name("two").set_parallelism(2).filter(lambda _: False).print()

    keys: dict[str, Any] = {"tidegate.round.max-records": 1200 // rounds}
    job = TimedJob(tmp_path, monkeypatch, build, **keys)
    job.run()
    two = operator(job.views[-1], "two")
    assert two.state_bytes is not None
    assert two.state_bytes == sum(s.state_bytes for s in subtasks(job.views[-1], 1)) > 600_000
    assert list(two.states) == ["large", "small"]
    assert sum(two.states.values()) == pytest.approx(two.state_bytes, rel=0.05)
    assert two.states["large"] > 5 * two.states["small"] > 0
    assert operator(job.views[-1], "numbers").state_bytes is None


def test_operator_says_how_its_functions_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        numbers(env, 10).map(lambda n: n + 1).name("inlined").map(print).name("called").print()

    view = TimedJob(tmp_path, monkeypatch, build).master.view()
    (inlined,), (called,) = operator(view, "inlined").functions, operator(view, "called").functions
    assert re.search(r"^function .*<lambda> is (inlined|on columns)", inlined)
    assert called.startswith("function print is called")


# -- lag of sources ------------------------------------------------------------------------------------------------------


def test_lag_of_a_stored_frame_is_that_of_its_partitions() -> None:
    enumerator = _FrameEnumerator({"files": [["a", 5], ["b", 7], ["c", 1]], "next": 1}, 2)
    assert (dict(enumerator.lag.by_subtask), enumerator.lag.unit) == ({1: 7, 0: 1}, "records")
    assert sum(interval.units for interval in enumerator.plan(100, 0).intervals) == 8
    assert dict(enumerator.lag.by_subtask) == {}


def test_lag_of_a_generator_with_a_rate_is_what_is_due() -> None:
    enumerator = DataGeneratorSource(str, records_per_second=10).create_enumerator(2, None)
    assert enumerator.lag is None, "nothing is planned yet"
    enumerator.plan(100, 0)
    enumerator.plan(4, 2_000)
    assert enumerator.lag is not None
    assert sum(enumerator.lag.by_subtask.values()) == enumerator.behind == 16
    assert DataGeneratorSource(str).create_enumerator(2, None).lag is None
