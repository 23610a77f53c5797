"""The environment: configuration, sources, the program it builds, and what execute does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from tests.programs import program_of
from tests.waiting import eventually
from tidegate.base.errors import (
    ArgumentTypeError,
    ConfigurationError,
    JobCancelledError,
    JobFailedError,
    ProgramError,
)
from tidegate.common import (
    Configuration,
    Duration,
    JobStatus,
    RestartStrategies,
    Row,
    Types,
    WatermarkStrategy,
    global_configuration,
)
from tidegate.connectors.values.ranges import CollectionSource, NumberSequenceSource
from tidegate.connectors.values.sinks import CollectSink
from tidegate.datastream import (
    CheckpointingMode,
    ExternalizedCheckpointRetention,
    FileSystemCheckpointStorage,
    HashMapStateBackend,
    JobManagerCheckpointStorage,
    MemorySize,
    RuntimeExecutionMode,
    SlotSharingGroup,
    StreamExecutionEnvironment,
)
from tidegate.datastream.closeable_iterator import CloseableIterator
from tidegate.graph.transformation import Program
from tidegate.operators.contracts.source import Boundedness
from tidegate.operators.contracts.specs import LastReduction, ProcessSpec, ReduceSpec, SinkSpec, SourceSpec

# -- configuration


def test_code_wins_over_the_command_line_and_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").write_text("parallelism.default: 2\npipeline.name: file\npipeline.max-parallelism: 8\n")
    monkeypatch.setenv("TIDEGATE_CONF_DIR", str(tmp_path))
    global_configuration.set_dynamic_properties({"parallelism.default": "3", "pipeline.name": "cli"})
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({"parallelism.default": 4}))
    assert (env.get_parallelism(), env.get_max_parallelism()) == (4, 8)
    env.set_parallelism(5)
    env.from_collection([1]).print()
    program = program_of(env)
    assert (program.name, program.configuration["parallelism.default"]) == ("cli", 5)


def test_settings_of_the_environment(env: StreamExecutionEnvironment) -> None:
    assert env.set_parallelism(3).set_max_parallelism(64).get_parallelism() == 3
    assert env.get_max_parallelism() == 64
    assert env.get_buffer_timeout() == 100
    assert env.set_buffer_timeout(20).get_buffer_timeout() == 20
    assert env.set_buffer_timeout(-1).get_buffer_timeout() == -1
    assert env.is_chaining_enabled()
    assert not env.disable_operator_chaining().is_chaining_enabled()
    assert env.is_chaining_of_operators_with_different_max_parallelism_enabled()
    assert env.get_default_savepoint_directory() is None
    assert env.set_default_savepoint_directory("/s").get_default_savepoint_directory() == "/s"
    env.set_state_backend(HashMapStateBackend())
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 50))
    env.from_collection([1]).print()
    settings = program_of(env).configuration
    assert (settings["restart-strategy.type"], settings["restart-strategy.fixed-delay.attempts"]) == ("fixed-delay", 3)
    assert settings["execution.buffer-timeout.enabled"] is False


def test_the_default_parallelism_without_configuration() -> None:
    env = StreamExecutionEnvironment()
    assert env.get_parallelism() == env.get_default_local_parallelism() >= 1
    env.set_default_local_parallelism(7)
    assert env.get_parallelism() == 7


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda env: env.set_parallelism(0), "must lie between 1 and 32,768"),
        (lambda env: env.set_max_parallelism(40_000), "must lie between 1 and 32,768"),
        (lambda env: env.set_buffer_timeout(-2), "set_buffer_timeout takes at least -1"),
        (
            lambda env: env.configure(Configuration.from_dict({"parallelism.defalt": 1})),
            "did you mean 'parallelism.default'",
        ),
        (lambda env: env.configure({"parallelism.default": 1}), "configure takes a Configuration"),
        (lambda env: env.set_runtime_mode("BATCH"), "set_runtime_mode takes a RuntimeExecutionMode"),
        (lambda env: env.set_restart_strategy("none"), "set_restart_strategy takes a restart strategy"),
        (lambda env: env.set_state_backend("hashmap"), "set_state_backend takes a StateBackend"),
        (lambda env: env.from_collection(5), "from_collection takes a collection of records"),
        (lambda env: env.from_collection("abc"), "from_collection takes a collection of records"),
        (lambda env: env.from_collection([1], 5), "from_collection takes type information, a class or None"),
        (lambda env: env.from_source([1], WatermarkStrategy.no_watermarks(), "s"), "from_source takes a Source"),
        (lambda env: env.from_source(NumberSequenceSource(1, 2), None, "s"), "from_source takes a WatermarkStrategy"),
    ],
)
def test_wrong_settings(env: StreamExecutionEnvironment, call: Any, message: str) -> None:
    with pytest.raises((ConfigurationError, ProgramError, ArgumentTypeError), match=message):
        call(env)


# -- checkpoints


def test_enable_checkpointing(env: StreamExecutionEnvironment) -> None:
    assert env.get_checkpoint_interval() == -1
    env.enable_checkpointing(1000, CheckpointingMode.AT_LEAST_ONCE)
    assert env.get_checkpoint_interval() == 1000
    assert env.get_checkpointing_mode() is CheckpointingMode.AT_LEAST_ONCE
    assert env.get_checkpointing_consistency_mode() is CheckpointingMode.AT_LEAST_ONCE


def test_without_an_interval_it_is_half_a_second_and_deprecated(env: StreamExecutionEnvironment) -> None:
    with pytest.warns(DeprecationWarning, match="without an interval is deprecated; it means 500 ms"):
        env.enable_checkpointing()
    assert env.get_checkpoint_interval() == 500


@pytest.mark.parametrize(
    ("interval", "message"), [(9, "must be at least 10 ms"), (-1, "must be a duration"), (0, "10 ms")]
)
def test_a_bad_interval_is_refused_and_changes_nothing(
    env: StreamExecutionEnvironment, interval: int, message: str
) -> None:
    env.enable_checkpointing(700)
    with pytest.raises(ConfigurationError, match=message) as caught:
        env.enable_checkpointing(interval)
    assert "execution.checkpointing.interval" in str(caught.value)
    assert env.get_checkpoint_interval() == 700


def test_checkpoint_config(env: StreamExecutionEnvironment) -> None:
    config = env.get_checkpoint_config()
    assert not config.is_checkpointing_enabled()
    assert config.get_checkpoint_timeout() == config.DEFAULT_TIMEOUT
    config.set_checkpoint_interval(100).set_checkpoint_timeout(5000).set_min_pause_between_checkpoints(50)
    config.set_max_concurrent_checkpoints(2).set_tolerable_checkpoint_failure_number(3)
    config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    config.set_checkpoint_storage_dir("file:///tmp/c")
    again = env.get_checkpoint_config()
    assert again.is_checkpointing_enabled()
    assert (again.get_checkpoint_timeout(), again.get_min_pause_between_checkpoints()) == (5000, 50)
    assert (again.get_max_concurrent_checkpoints(), again.get_tolerable_checkpoint_failure_number()) == (2, 3)
    assert again.is_externalized_checkpoints_enabled()
    assert again.get_checkpoint_storage().get_checkpoint_path() == "file:///tmp/c"  # type: ignore[union-attr]
    assert not again.is_fail_on_checkpointing_errors()
    assert again.set_fail_on_checkpointing_errors(True).is_fail_on_checkpointing_errors()
    for setter, value in [
        (config.set_checkpoint_timeout, 1),
        (config.set_max_concurrent_checkpoints, 0),
        (config.set_tolerable_checkpoint_failure_number, -1),
        (config.set_min_pause_between_checkpoints, -1),
    ]:
        with pytest.raises(ConfigurationError):
            setter(value)
    with pytest.raises(ArgumentTypeError, match="set_checkpointing_mode takes a CheckpointingMode"):
        config.set_checkpointing_mode("EXACTLY_ONCE")  # type: ignore[arg-type]


def test_unaligned_settings_are_kept(env: StreamExecutionEnvironment) -> None:
    config = env.get_checkpoint_config().enable_unaligned_checkpoints().set_force_unaligned_checkpoints()
    config.set_alignment_timeout(Duration.of_seconds(3))
    assert env.is_unaligned_checkpoints_enabled()
    assert env.is_force_unaligned_checkpoints()
    assert config.get_aligned_checkpoint_timeout() == Duration.of_seconds(3)
    assert not config.disable_unaligned_checkpoints().is_unaligned_checkpoints_enabled()
    assert config.get_checkpoint_id_of_ignored_in_flight_data() == -1
    config.set_checkpoint_id_of_ignored_in_flight_data(7)
    assert config.get_checkpoint_id_of_ignored_in_flight_data() == 7


def test_storage_in_memory(env: StreamExecutionEnvironment) -> None:
    config = env.get_checkpoint_config()
    config.set_checkpoint_storage(JobManagerCheckpointStorage(max_state_size=100))
    stored = config.get_checkpoint_storage()
    assert isinstance(stored, JobManagerCheckpointStorage)
    assert (stored.get_checkpoint_path(), stored.get_max_state_size(), stored.get_savepoint_path()) == (None, 100, None)
    config.set_checkpoint_storage(JobManagerCheckpointStorage("file:///tmp/c/"))
    stored = config.get_checkpoint_storage()
    assert isinstance(stored, JobManagerCheckpointStorage)
    assert (stored.get_checkpoint_path(), stored.get_max_state_size()) == ("file:///tmp/c", 5 << 20)
    config.set_checkpoint_storage(FileSystemCheckpointStorage("/tmp/d"))
    assert isinstance(config.get_checkpoint_storage(), FileSystemCheckpointStorage)


def test_storage_and_slots() -> None:
    storage = FileSystemCheckpointStorage("s3://bucket/x")
    assert (storage.get_min_file_size_threshold(), storage.get_write_buffer_size()) == (20480, 4096)
    assert str(MemorySize.of_mebi_bytes(3)) == "3 mb"
    assert str(MemorySize(5)) == "5 bytes"
    group = SlotSharingGroup.builder("g").set_cpu_cores(1.0).set_task_heap_memory_mb(5).build()
    assert group.get_task_heap_memory() == MemorySize(5 << 20)
    assert FileSystemCheckpointStorage("file:///tmp/c/").get_checkpoint_path() == "file:///tmp/c"
    with pytest.raises(ProgramError, match="The cpu cores and task heap memory are required"):
        SlotSharingGroup.builder("g").set_task_heap_memory_mb(1).build()
    with pytest.raises(ProgramError, match="The cpu cores and task heap memory are required"):
        SlotSharingGroup.builder("g").set_task_off_heap_memory_mb(1).build()
    with pytest.raises(ProgramError, match="The task heap memory should be positive"):
        SlotSharingGroup.builder("g").set_task_heap_memory_mb(0)
    with pytest.raises(ProgramError, match="cores of a slot sharing group is not positive"):
        SlotSharingGroup.builder("g").set_cpu_cores(0)


# -- the program


def test_a_program_has_its_operators_and_its_configuration(env: StreamExecutionEnvironment, recorder: Any) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    numbers = env.from_source(NumberSequenceSource(1, 10), strategy, "numbers")
    numbers.map(lambda v: v + 1).print()
    env.enable_checkpointing(100)
    env.execute("my job")
    (program,) = recorder.programs
    assert program.name == "my job"
    source = program.transformations[0].spec
    assert isinstance(source, SourceSpec)
    assert source.watermarks is strategy
    assert program.configuration["execution.checkpointing.interval"] == 100
    assert program.configuration["parallelism.default"] == 2
    assert program.chaining_enabled


def test_a_program_without_operators_is_refused(env: StreamExecutionEnvironment, recorder: Any) -> None:
    with pytest.raises(ProgramError, match="The job has no operator"):
        env.execute()
    env.from_collection([1]).print()
    env.execute()
    with pytest.raises(ProgramError, match="none since the environment was made or last executed"):
        env.execute()
    assert len(recorder.programs) == 1


def test_streams_of_an_executed_program_can_be_read_by_the_next(env: StreamExecutionEnvironment, recorder: Any) -> None:
    numbers = env.from_collection([1]).map(lambda v: v)
    numbers.print("first")
    env.execute()
    numbers.print("second")
    env.execute()
    first, second = recorder.programs
    assert [t.id for t in first.transformations] == [1, 2, 3]
    assert [t.id for t in second.transformations] == [1, 2, 4]


def test_a_duplicate_uid_names_both_operators(env: StreamExecutionEnvironment) -> None:
    numbers = env.from_collection([1])
    numbers.map(str).uid("same").name("Left").print()
    numbers.map(str).uid("same").name("Right").print()
    with pytest.raises(ProgramError, match="operators 'Left' and 'Right'\n  found: both have uid 'same'") as refused:
        env.execute()
    lines = Path(__file__).read_text().splitlines()
    left, right = (n for n, line in enumerate(lines, 1) if line.strip().startswith('numbers.map(str).uid("same")'))
    assert f"set at {__file__}:{left} and at {__file__}:{right}" in str(refused.value)


def test_parallelism_above_the_maximum(env: StreamExecutionEnvironment) -> None:
    env.set_max_parallelism(4)
    env.from_collection([1]).map(str).name("Wide").set_parallelism(5).print()
    with pytest.raises(ProgramError, match="operator 'Wide'\n  found: parallelism 5, maximum 4"):
        env.execute()


def test_forward_needs_the_same_parallelism(env: StreamExecutionEnvironment) -> None:
    env.from_collection([1]).forward().map(str).name("Two").print()
    with pytest.raises(ProgramError, match="from 'Collection Source' to 'Two'\n  found: 1 and 2"):
        env.execute()


def test_a_function_that_cannot_be_pickled_names_its_operator(env: StreamExecutionEnvironment) -> None:
    lock = threading.Lock()
    env.from_collection([1]).map(lambda v: lock and v).name("Locked").print()
    with pytest.raises(ProgramError, match=r"operator 'Locked', its function\n  found: TypeError.*lock"):
        env.execute()


def test_a_selector_that_cannot_be_pickled_names_the_operator_behind(env: StreamExecutionEnvironment) -> None:
    lock = threading.Lock()
    env.from_collection([1]).key_by(lambda v: lock and v).map(str).name("After").print()
    with pytest.raises(ProgramError, match="operator 'After', a key selector or partitioner before it"):
        env.execute()


def test_uids_can_be_demanded(env: StreamExecutionEnvironment) -> None:
    env.get_config().disable_auto_generated_uids()
    env.from_collection([1]).uid("source").print().name("Out")
    with pytest.raises(ProgramError, match=r"operator 'Out'\n  found: 'pipeline.auto-generate-uids' is false"):
        env.execute()


def test_a_failed_check_leaves_the_program_to_be_corrected(env: StreamExecutionEnvironment, recorder: Any) -> None:
    wide = env.from_collection([1]).map(str).set_parallelism(500)
    wide.print()
    env.set_max_parallelism(4)
    with pytest.raises(ProgramError):
        env.execute()
    wide.set_parallelism(2)
    env.execute()
    assert len(recorder.programs) == 1


def test_the_execution_plan(env: StreamExecutionEnvironment) -> None:
    """As PyFlink's of the same program, but that it shows what it calls in one process as one node."""
    source = env.from_source(NumberSequenceSource(1, 3), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    keyed = source.map(str).name("text").key_by(lambda v: v)
    keyed.map(str).print().name("lines")
    keyed.filter(lambda v: True).rebalance().print()
    nodes = json.loads(env.get_execution_plan())["nodes"]
    (key,) = [node["id"] for node in nodes if node["type"] == "_stream_key_by_map_operator"]
    shown = [
        (n["type"], n["pact"], n["parallelism"], [tuple(p.values()) for p in n.get("predecessors", [])]) for n in nodes
    ]
    assert shown == [
        ("Source: numbers", "Data Source", 2, []),
        ("text", "Operator", 2, [(1, "FORWARD", "second")]),
        ("_stream_key_by_map_operator", "Operator", 2, [(2, "FORWARD", "second")]),
        ("Map", "Operator", 2, [(key, "HASH", "second")]),
        ("Sink: lines", "Data Sink", 2, [(3, "FORWARD", "second")]),
        ("Filter", "Operator", 2, [(key, "HASH", "second")]),
        ("Sink: Print to Std. Out", "Data Sink", 2, [(5, "REBALANCE", "second")]),
    ]
    assert len({node["id"] for node in nodes}) == len(nodes)
    assert all(node["contents"] == node["type"] for node in nodes)


def test_an_unknown_target_lists_the_known_ones(env: StreamExecutionEnvironment) -> None:
    env.configure(Configuration.from_dict({"execution.target": "yarn-application"}))
    env.from_collection([1]).print()
    known = r"([\w-]+, )*recording, ([\w-]+, )*spark"  # others, if other tests have registered theirs
    with pytest.raises(ConfigurationError, match=f"found: 'yarn-application'\n  cure: use one of {known}"):
        env.execute()


def test_the_type_of_a_source(env: StreamExecutionEnvironment) -> None:
    typed = env.from_source(NumberSequenceSource(1, 3), WatermarkStrategy.no_watermarks(), "n", Types.LONG())
    assert typed.get_type() == Types.LONG()
    rows = env.from_collection([(1, "a")], Types.ROW([Types.INT(), Types.STRING()]))
    assert rows.get_type() == Types.ROW([Types.INT(), Types.STRING()])


# -- batch


def reduce_program(env: StreamExecutionEnvironment, source: Any, recorder: Any) -> Program:
    env.from_source(source, WatermarkStrategy.no_watermarks(), "s").key_by(lambda v: 0).reduce(max).print()
    env.execute()
    program: Program = recorder.programs[-1]
    return program


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.BATCH, RuntimeExecutionMode.AUTOMATIC])
def test_batch_reduces_once(env: StreamExecutionEnvironment, recorder: Any, mode: RuntimeExecutionMode) -> None:
    env.set_runtime_mode(mode)
    program = reduce_program(env, NumberSequenceSource(1, 3), recorder)
    spec = program.transformations[1].spec
    assert isinstance(spec, ProcessSpec)
    assert isinstance(spec.function, LastReduction)
    assert program.configuration["execution.runtime-mode"] == "BATCH"


def test_streaming_reduces_with_every_record(env: StreamExecutionEnvironment, recorder: Any) -> None:
    program = reduce_program(env, NumberSequenceSource(1, 3), recorder)
    assert isinstance(program.transformations[1].spec, ReduceSpec)
    env.set_runtime_mode(RuntimeExecutionMode.AUTOMATIC)
    unbounded = NumberSequenceSource(1, 3)
    unbounded.boundedness = Boundedness.CONTINUOUS_UNBOUNDED
    program = reduce_program(env, unbounded, recorder)
    assert program.configuration["execution.runtime-mode"] == "STREAMING"
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    with pytest.raises(ProgramError, match="BATCH mode needs bounded sources\n  where: source 's'"):
        reduce_program(env, unbounded, recorder)


# -- execute


def test_execute_waits_and_returns_the_result(env: StreamExecutionEnvironment) -> None:
    env.from_collection([1]).print()
    assert env.execute().get_net_runtime() == 1


def test_execute_async_returns_a_client(env: StreamExecutionEnvironment, recorder: Any) -> None:
    recorder.running = True
    env.from_collection([1]).print()
    client = env.execute_async("later")
    assert client.get_job_status().result() is JobStatus.RUNNING
    client.cancel()
    assert recorder.jobs[0].cancelled == 1


def test_a_failed_job_raises(env: StreamExecutionEnvironment, recorder: Any) -> None:
    recorder.error = JobFailedError("The job failed")
    env.from_collection([1]).print()
    with pytest.raises(JobFailedError, match="The job failed"):
        env.execute()


def test_ctrl_c_suspends_the_job(env: StreamExecutionEnvironment, recorder: Any) -> None:
    recorder.error, recorder.running = KeyboardInterrupt(), True
    env.from_collection([1]).print()
    with pytest.raises(KeyboardInterrupt):
        env.execute()
    assert (recorder.jobs[0].cancelled, recorder.jobs[0].suspended) == (0, 1)


def test_collected_records_come_through_an_iterator(env: StreamExecutionEnvironment, recorder: Any) -> None:
    recorder.collected = [Row(1), Row(2)]
    result = env.from_collection([1, 2]).execute_and_collect("collected")
    assert isinstance(result, CloseableIterator)
    with result as records:
        assert records.next() == Row(1)
        assert list(records) == [Row(2)]
        with pytest.raises(StopIteration):
            records.next()
    (program,) = recorder.programs
    sink = program.transformations[-1]
    assert program.name == "collected"
    assert isinstance(sink.spec, SinkSpec)
    assert isinstance(sink.spec.sink, CollectSink)
    assert sink.parallelism == 1
    assert recorder.jobs[0].cancelled == 0


def test_a_limit_gives_a_list_and_ends_the_job(env: StreamExecutionEnvironment, recorder: Any) -> None:
    recorder.collected, recorder.running = list(range(10)), True
    recorder.error = JobCancelledError("cancelled")
    assert env.from_collection([0]).execute_and_collect(limit=3) == [0, 1, 2]
    assert recorder.jobs[0].cancelled == 1


def test_closing_cancels_a_running_job_once(env: StreamExecutionEnvironment, recorder: Any) -> None:
    recorder.collected, recorder.running = [1, 2], True
    records = env.from_collection([0]).execute_and_collect()
    assert isinstance(records, CloseableIterator)
    records.close()
    records.close()
    assert list(records) == []
    assert recorder.jobs[0].cancelled == 1


def test_collecting_that_is_left_by_an_exception_suspends_the_job(
    env: StreamExecutionEnvironment, recorder: Any
) -> None:
    recorder.collected, recorder.running = [1, 2], True
    records = env.from_collection([0]).execute_and_collect()
    assert isinstance(records, CloseableIterator)
    with pytest.raises(KeyboardInterrupt), records:
        raise KeyboardInterrupt
    assert (recorder.jobs[0].cancelled, recorder.jobs[0].suspended) == (0, 1)


def test_an_iterator_nobody_holds_any_more_suspends_its_job(env: StreamExecutionEnvironment, recorder: Any) -> None:
    recorder.collected, recorder.running = [1, 2], True
    records = env.from_collection([0]).execute_and_collect()
    assert isinstance(records, CloseableIterator)
    assert next(records) == 1
    del records
    eventually(lambda: recorder.jobs[0].suspended == 1)


class Frame:
    """What a DataFrame of another library looks like: it iterates over the names of its columns."""

    columns = ("a", "b")

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


@pytest.mark.parametrize(
    ("package", "cure"),
    [
        ("pandas.core.frame", "itertuples(index=False, name=None)"),
        ("pyspark.sql.classic.dataframe", "use env.from_dataframe(frame)"),
        ("polars.dataframe.frame", "use frame.rows()"),
    ],
)
def test_from_collection_refuses_a_dataframe_and_names_the_way(
    env: StreamExecutionEnvironment, package: str, cure: str
) -> None:
    frame = type("DataFrame", (Frame,), {"__module__": package})()
    with pytest.raises(ArgumentTypeError, match="a DataFrame is none") as refused:
        env.from_collection(frame)
    assert cure in str(refused.value)


@pytest.mark.parametrize(
    ("collection", "cure"),
    [
        ("text", "put it into a list"),
        (b"bytes", "put it into a list"),
        (bytearray(b"bytes"), "put it into a list"),
        ({"a": 1}, "use list(records.items())"),
        ({"a", "b"}, "use sorted(records)"),
        (frozenset({1}), "use sorted(records)"),
        (Row(1, 2), "put it into a list: [row]"),
        (pyarrow.table({"a": [1]}), "for row in table.to_pylist()"),
        (np.array(5), "for example a list"),
        (5, "for example a list"),
    ],
)
def test_from_collection_refuses_what_does_not_iterate_over_records(
    env: StreamExecutionEnvironment, collection: Any, cure: str
) -> None:
    with pytest.raises(ArgumentTypeError, match="from_collection takes a collection of records") as refused:
        env.from_collection(collection)
    assert cure in str(refused.value)


@pytest.mark.parametrize(
    ("collection", "values"),
    [
        (range(2), "[0, 1]"),
        ((n for n in (1, 2)), "[1, 2]"),
        ({"a": 1}.items(), "[('a', 1)]"),
        (np.arange(2), "[0, 1]"),
        (np.array([[1.5, 2], [3, 4]]), "[[1.5, 2.0], [3.0, 4.0]]"),
        (np.array([(1, "x")], dtype=[("n", "i4"), ("t", "U1")]), "[(1, 'x')]"),
    ],
)
def test_from_collection_takes_the_records_of_other_iterables(
    env: StreamExecutionEnvironment, collection: Any, values: str
) -> None:
    stream = env.from_collection(collection)
    spec = env._transformation(stream._inputs[0].upstream).spec
    assert isinstance(spec, SourceSpec) and isinstance(spec.source, CollectionSource)
    assert repr(spec.source.values) == values
