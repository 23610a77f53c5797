"""Bad input gets a clear error: the rule, where, what was found, the cure; and nothing is lost or changed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.integration.job_tools import check_message, file_sink
from tests.sources import ScriptedSource
from tidegate.base.errors import (
    ConfigurationError,
    JobFailedError,
    ProgramError,
    StateAccessError,
    UserCodeError,
)
from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import (
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from tidegate.datastream.state import ValueStateDescriptor

NONE = WatermarkStrategy.no_watermarks()
RETAIN = {
    "execution.checkpointing.interval": "30 ms",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
}


# -- configuration and program: before anything starts


@pytest.mark.parametrize("interval", [9, 0])
def test_an_interval_below_10_ms(make_env: Any, interval: int) -> None:
    env = make_env()
    with pytest.raises(ConfigurationError) as refused:
        env.enable_checkpointing(interval)
    rule = "'execution.checkpointing.interval' must be at least 10 ms"
    check_message(refused.value, rule=rule, found=str(interval), cure="At least 10 ms")
    assert env.get_checkpoint_interval() == -1


@pytest.mark.parametrize("interval", [-1, "-5 s"])
def test_a_negative_interval(make_env: Any, interval: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make_env({"execution.checkpointing.interval": interval})
    check_message(
        refused.value, rule="must be a duration", found=f"{interval!r} (it is negative)", cure="interval: 10 s"
    )


def test_an_interval_that_is_no_time(make_env: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make_env({"execution.checkpointing.interval": "soon"})
    check_message(
        refused.value, rule="must be a duration", found="'soon'", cure="for example execution.checkpointing.interval"
    )


def test_an_unknown_key(make_env: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make_env({"execution.checkpointing.intervall": "1 s"})
    check_message(
        refused.value, rule="", found="execution.checkpointing.intervall", cure="execution.checkpointing.interval"
    )


def test_parallelism_above_the_maximum(make_env: Any, tmp_path: Path) -> None:
    env = make_env(parallelism=4).set_max_parallelism(3)
    env.from_collection([1]).rebalance().map(lambda v: v).name("widen").sink_to(file_sink(tmp_path / "out"))
    with pytest.raises(ProgramError) as refused:
        env.execute()
    check_message(
        refused.value,
        rule="The parallelism of an operator is not between 1 and its maximum parallelism",
        where="operator 'widen'",
        found="parallelism 4, maximum 3",
        cure="set_max_parallelism",
    )
    assert not (tmp_path / "out").exists()


def test_a_duplicate_uid(make_env: Any) -> None:
    env = make_env()
    stream = env.from_collection([1]).map(lambda v: v).name("first").uid("same")
    stream.map(lambda v: v).name("second").uid("same").add_sink(lambda v: None)
    with pytest.raises(ProgramError) as refused:
        env.execute()
    check_message(
        refused.value,
        rule="Two operators have the same uid",
        where="operators 'first' and 'second'",
        found="both have uid 'same'",
        cure="give one of them another uid",
    )


class HoldsALock(MapFunction):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def map(self, value: Any) -> Any:
        return value


def test_a_function_that_cannot_be_pickled(make_env: Any, tmp_path: Path) -> None:
    env = make_env()
    env.from_collection([1]).map(HoldsALock()).name("locked").sink_to(file_sink(tmp_path / "out"))
    with pytest.raises(ProgramError) as refused:
        env.execute()
    check_message(
        refused.value, rule="An operator cannot be pickled", where="operator 'locked'", found="lock", cure="in open()"
    )
    assert not (tmp_path / "out").exists()


def test_batch_mode_with_an_unbounded_source(make_env: Any) -> None:
    env = make_env().set_runtime_mode(RuntimeExecutionMode.BATCH)
    env.from_source(ScriptedSource([1], ends=False), NONE, "endless").add_sink(lambda v: None)
    with pytest.raises(ProgramError) as refused:
        env.execute()
    check_message(
        refused.value,
        rule="BATCH mode needs bounded sources",
        where="source 'endless'",
        found="unbounded",
        cure="STREAMING",
    )


def test_a_sink_path_that_is_a_file(make_env: Any, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("precious")
    env = make_env(RETAIN)
    env.from_collection([1]).sink_to(file_sink(path))
    with pytest.raises(ConfigurationError) as refused:
        env.execute()
    check_message(
        refused.value,
        rule="The path of a file sink is a file, not a directory",
        where=str(path),
        found="a file of this name",
        cure="choose another path",
    )
    assert path.read_text() == "precious"
    assert not (tmp_path / "checkpoints").exists()


def test_a_checkpoint_directory_that_cannot_be_written(make_env: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    env = make_env({**RETAIN, "execution.checkpointing.dir": str(tmp_path / "file" / "below")})
    env.from_collection([1]).sink_to(file_sink(tmp_path / "out"))
    with pytest.raises(ConfigurationError) as refused:
        env.execute()
    check_message(
        refused.value,
        rule="The checkpoint directory is not writable.",
        where=str(tmp_path / "file" / "below"),
        found="ENOTDIR: Not a directory",
        cure="set execution.checkpointing.dir to another directory",
    )
    assert (tmp_path / "file").read_text() == "in the way"


# -- user code


class Divide(MapFunction):
    def map(self, value: Any) -> Any:
        return 1 // value[0]


def failure_of(env: StreamExecutionEnvironment) -> BaseException:
    with pytest.raises(JobFailedError) as failed:
        env.execute()
    assert failed.value.__cause__ is not None
    assert str(failed.value.__cause__) in str(failed.value)
    return failed.value.__cause__


def test_an_exception_in_user_code_names_operator_line_and_record(make_env: Any) -> None:
    env = make_env()
    env.from_collection([(1, "good"), (0, "x" * 5_000)]).map(Divide()).name("ratio").add_sink(lambda v: None)
    error = failure_of(env)
    assert isinstance(error, UserCodeError)
    line = next(n for n, text in enumerate(Path(__file__).read_text().split("\n"), 1) if "1 // value[0]" in text)
    check_message(
        error,
        rule="A user function raised an exception",
        where=f"operator 'ratio', {__file__}:{line} in map",
        found="ZeroDivisionError: integer division or modulo by zero; record (0, 'xxx",
    )
    assert len(str(error)) < 1_500  # the record's repr is cut


def test_an_exception_in_a_timer_names_time_and_key(make_env: Any) -> None:
    class Late(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
            ctx.timer_service().register_event_time_timer(77)

        def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
            raise KeyError("gone")

    env = make_env()
    env.from_collection(["k"]).key_by(lambda v: v).process(Late()).name("alarm").add_sink(lambda v: None)
    check_message(failure_of(env), rule="", where="on_timer(77) of operator 'alarm', key 'k'", found="KeyError: 'gone'")  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["key selector", "open", "sink", "timestamp assigner", "partitioner"])
def test_an_exception_elsewhere_in_user_code_names_its_place(make_env: Any, part: str) -> None:
    def fail(*arguments: Any) -> Any:
        raise RuntimeError("broken")

    class FailsToOpen(MapFunction):
        def open(self, runtime_context: Any) -> None:
            fail()

        def map(self, value: Any) -> Any:
            return value

    env = make_env()
    stream = env.from_collection([1]).map(lambda v: v).name("before")
    if part == "key selector":
        stream = stream.key_by(fail).map(lambda v: v)
    elif part == "open":
        stream = stream.map(FailsToOpen()).name("opener")
    elif part == "timestamp assigner":
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(fail)
        stream = stream.assign_timestamps_and_watermarks(strategy)
    elif part == "partitioner":
        stream = stream.partition_custom(fail, lambda v: v).map(lambda v: v)
    stream.add_sink(fail if part == "sink" else (lambda v: None))
    error = failure_of(env)
    assert "RuntimeError: broken" in str(error)
    where = {
        "key selector": "partitioning of the output of operator 'before'",
        "open": "open() of operator 'opener'",
        "sink": "operator 'Sink: Unnamed', sink function",
        "timestamp assigner": "timestamp assigner of operator 'Timestamps/Watermarks'",
        "partitioner": "partitioning of the output of operator 'before'",
    }
    assert where[part] in str(error)
    assert f"{__file__}:" in str(error)
    assert part == "open" or "; record 1" in str(error)


def test_records_that_cannot_travel(make_env: Any) -> None:
    env = make_env()
    env.from_collection([1]).map(lambda v: threading.Lock()).rebalance().map(lambda v: v).name("receiver").add_sink(
        print
    )
    check_message(
        failure_of(env),  # type: ignore[arg-type]
        rule="Records that travel to another subtask must be picklable",
        where="records sent to operator 'receiver'",
        found="lock",
        cure="emit plain data",
    )


class UsesState(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("total", Types.INT()))

    def map(self, value: Any) -> Any:
        return value


def test_state_on_a_stream_without_key(make_env: Any) -> None:
    env = make_env()
    env.from_collection([1]).map(UsesState()).name("keyless").add_sink(lambda v: None)
    error = failure_of(env)
    assert isinstance(error, StateAccessError)
    check_message(
        error,
        rule="Keyed state can only be used in a function on a keyed stream",
        where="operator 'keyless', state 'total'",
        found="the operator's input is not keyed",
        cure="call key_by(...) before this operator",
    )


class StateInOpen(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        runtime_context.get_state(ValueStateDescriptor("total", Types.INT())).value()

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None: ...


def test_state_accessed_outside_a_record(make_env: Any) -> None:
    env = make_env()
    env.from_collection([1]).key_by(lambda v: v).process(StateInOpen()).name("early").add_sink(lambda v: None)
    error = failure_of(env)
    assert isinstance(error, StateAccessError)
    check_message(error, rule="only available in a keyed context", found="no current key", cure="not in open or close")


class SetsTimer(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(5)


def test_a_timer_on_a_stream_without_key(make_env: Any) -> None:
    env = make_env()
    env.from_collection([1]).process(SetsTimer()).name("clock").add_sink(lambda v: None)
    error = failure_of(env)
    assert isinstance(error, StateAccessError)
    check_message(
        error,
        rule="Timers can only be set on a keyed stream",
        where="operator 'clock'",
        found="not keyed",
        cure="call key_by(...) before process(...)",
    )


# -- Spark's own keys


def test_speculation_is_refused_before_spark_is_asked(make_env: Any) -> None:
    env = make_env({"spark.speculation": "true"})
    env.from_collection([1]).add_sink(lambda v: None)
    with pytest.raises(ConfigurationError) as refused:
        env.execute()
    check_message(
        refused.value,
        rule="Speculative execution is on",
        found="spark.speculation=true",
        cure="spark.speculation=false",
    )
    again = make_env()  # a later job in this process is not harmed
    again.from_collection([1]).add_sink(lambda v: None)
    again.execute()


def test_speculation_is_refused_without_a_context_and_starts_none(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "from pyspark import SparkContext\n"
        "from tidegate.common import Configuration\n"
        "from tidegate.datastream import StreamExecutionEnvironment\n"
        "conf = Configuration.from_dict({'spark.speculation': 'true'})\n"
        "env = StreamExecutionEnvironment.get_execution_environment(conf)\n"
        "env.from_collection([1]).print()\n"
        "try:\n    env.execute()\nexcept ValueError as error:\n    print(type(error).__name__, SparkContext._gateway)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == "ConfigurationError None\n"


def test_keys_that_come_too_late_for_spark_are_named(make_env: Any, caplog: pytest.LogCaptureFixture) -> None:
    env = make_env({"spark.executor.memory": "3g", "spark.python.worker.reuse": "true"})
    env.from_collection([1]).add_sink(lambda v: None)
    with caplog.at_level("WARNING"):
        env.execute()
    (warned,) = [r.getMessage() for r in caplog.records if "cannot take effect" in r.getMessage()]
    assert "spark.executor.memory cannot" in warned and "3g" not in warned and "worker.reuse" not in warned
