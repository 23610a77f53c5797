"""Methods and classes of former PyFlink versions do what they did, in terms of today's."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.programs import configuration_of
from tests.simulation.executor import Simulated
from tidegate.base.errors import ArgumentTypeError
from tidegate.common import Configuration, Time, Types
from tidegate.common.options import AUTO_WATERMARK_INTERVAL, CHECKPOINT_RETENTION
from tidegate.datastream import (
    CheckpointConfig,
    DataStream,
    ExternalizedCheckpointRetention,
    StreamExecutionEnvironment,
)
from tidegate.datastream.former import FsStateBackend, MemoryStateBackend, RocksDBStateBackend, TimeCharacteristic
from tidegate.util.java_utils import get_j_env_configuration


@pytest.fixture
def env(simulated: Simulated) -> StreamExecutionEnvironment:
    return simulated()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "tidegate.configuration")
    return caplog


@pytest.mark.parametrize(
    ("characteristic", "interval"),
    [
        (TimeCharacteristic.ProcessingTime, 0),
        (TimeCharacteristic.IngestionTime, 200),
        (TimeCharacteristic.EventTime, 200),
    ],
)
def test_a_time_characteristic_sets_how_often_generators_are_asked(
    env: StreamExecutionEnvironment, told: pytest.LogCaptureFixture, characteristic: TimeCharacteristic, interval: int
) -> None:
    assert env.get_stream_time_characteristic() is TimeCharacteristic.EventTime
    env.get_config().set_auto_watermark_interval(7)
    env.set_stream_time_characteristic(characteristic)
    env.set_stream_time_characteristic(characteristic)
    assert env.get_stream_time_characteristic() is characteristic
    assert configuration_of(env).read(AUTO_WATERMARK_INTERVAL) == interval
    assert told.messages == [
        "'StreamExecutionEnvironment.set_stream_time_characteristic' is deprecated, PyFlink 2 does not have it: leave it out; give "
        "sources a WatermarkStrategy, and windows say whether they are of event time"
    ]


def test_a_time_characteristic_of_another_type_is_refused(env: StreamExecutionEnvironment) -> None:
    with pytest.raises(ArgumentTypeError, match="set_stream_time_characteristic takes a TimeCharacteristic"):
        env.set_stream_time_characteristic("EventTime")  # type: ignore[arg-type]


def test_read_text_file_gives_the_lines_of_a_file_as_a_bounded_stream(
    env: StreamExecutionEnvironment, told: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "lines.txt").write_text("eins\nzwei\r\ngrün", encoding="ISO-8859-1")
    lines = env.read_text_file(str(tmp_path / "lines.txt"), "ISO-8859-1")
    assert lines.get_type() == Types.STRING()
    assert list(lines.map(str.upper).execute_and_collect()) == ["EINS", "ZWEI", "GRÜN"]
    assert [text.partition(":")[0] for text in told.messages] == [
        "'StreamExecutionEnvironment.read_text_file' is deprecated, PyFlink 2 does not have it"
    ]


def test_read_text_file_of_an_empty_path_is_refused(env: StreamExecutionEnvironment) -> None:
    with pytest.raises(ArgumentTypeError, match="read_text_file takes a non-empty text"):
        env.read_text_file("")


@pytest.mark.parametrize("method", ["enable_externalized_checkpoints", "set_externalized_checkpoint_cleanup"])
@pytest.mark.parametrize("mode", ExternalizedCheckpointRetention)
def test_externalized_checkpoint_cleanup_is_the_retention(
    env: StreamExecutionEnvironment,
    told: pytest.LogCaptureFixture,
    method: str,
    mode: ExternalizedCheckpointRetention,
) -> None:
    config = env.get_checkpoint_config()
    assert isinstance(getattr(config, method)(mode), CheckpointConfig)
    assert configuration_of(env).read(CHECKPOINT_RETENTION) == mode.name
    assert config.get_externalized_checkpoint_cleanup() is config.get_externalized_checkpoint_retention() is mode
    assert len(told.messages) == 2 and all("externalized_checkpoint_retention" in text for text in told.messages)


@pytest.mark.parametrize(
    ("backend", "settings"),
    [
        (
            FsStateBackend("file:///chk", "file:///save"),
            {
                "state.backend.type": "hashmap",
                "execution.checkpointing.storage": "filesystem",
                "execution.checkpointing.dir": "file:///chk",
                "execution.checkpointing.savepoint-dir": "file:///save",
            },
        ),
        (MemoryStateBackend(), {"state.backend.type": "hashmap", "execution.checkpointing.storage": "jobmanager"}),
        (
            MemoryStateBackend("file:///chk", max_state_size=1000),
            {
                "state.backend.type": "hashmap",
                "execution.checkpointing.storage": "jobmanager",
                "execution.checkpointing.dir": "file:///chk",
                "tidegate.checkpoint.max-state-size": "1000",
            },
        ),
        (
            RocksDBStateBackend("file:///chk", True),
            {
                "state.backend.type": "rocksdb",
                "execution.checkpointing.incremental": "true",
                "execution.checkpointing.storage": "filesystem",
                "execution.checkpointing.dir": "file:///chk",
            },
        ),
        (
            RocksDBStateBackend(checkpoint_stream_backend=FsStateBackend("file:///other")),
            {
                "state.backend.type": "rocksdb",
                "execution.checkpointing.storage": "filesystem",
                "execution.checkpointing.dir": "file:///other",
            },
        ),
        (RocksDBStateBackend(), {"state.backend.type": "rocksdb"}),
    ],
)
def test_a_former_state_backend_also_sets_the_storage_of_checkpoints(
    env: StreamExecutionEnvironment, backend: FsStateBackend, settings: dict[str, str]
) -> None:
    before = configuration_of(env).to_dict()
    env.set_state_backend(backend)
    after = configuration_of(env).to_dict()
    assert {key: value for key, value in after.items() if before.get(key) != value} == settings


def test_what_is_set_in_the_java_configuration_counts_for_the_environment(env: StreamExecutionEnvironment) -> None:
    config = Configuration(j_configuration=get_j_env_configuration(env._j_stream_execution_environment))
    config.set_integer("parallelism.default", 3)
    assert env.get_parallelism() == 3
    env.set_parallelism(2)
    assert config.get_integer("parallelism.default", None) == 2
    env._j_stream_execution_environment.getConfiguration().setString("pipeline.name", "named")
    assert config.get_string("pipeline.name", "") == "named"


def test_other_methods_of_java_are_refused_by_name(env: StreamExecutionEnvironment) -> None:
    with pytest.raises(
        AttributeError, match=r"_j_stream_execution_environment.addSource is Java's, and there are no Java"
    ):
        env._j_stream_execution_environment.addSource("x")
    with pytest.raises(AttributeError, match=r"Configuration.getOptional is Java's, and there are no Java objects"):
        env._j_stream_execution_environment.getConfiguration().getOptional("x")


def test_a_data_stream_around_javas_socket_stream_is_the_socket_stream(env: StreamExecutionEnvironment) -> None:
    lines = DataStream(env._j_stream_execution_environment.socketTextStream("localhost", 9999))
    assert lines.get_type() == Types.STRING() and "Socket Stream" in lines.map(len).name("n")._env.get_execution_plan()


def test_time_is_found_where_programs_look_for_it() -> None:
    from tidegate.common.time import Time as first
    from tidegate.datastream.window import Time as second

    assert first is second is Time
