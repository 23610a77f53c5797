"""The classes and methods that choose how state is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import configuration_of
from tests.simulation.executor import Simulated
from tidegate.base.errors import ArgumentTypeError, ConfigurationError
from tidegate.common import Configuration
from tidegate.common.configuration import meaning
from tidegate.common.options import ROCKSDB_DIR, TRANSFER_THREADS
from tidegate.datastream import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    PredefinedOptions,
    StreamExecutionEnvironment,
)
from tidegate.operators.kinds import function_operator
from tidegate.state.local_dir import store_path
from tidegate.state.rocksdb_options import RocksdbOptions


def settings(env: StreamExecutionEnvironment) -> dict[str, str]:
    return {k: v for k, v in configuration_of(env).to_dict().items() if "state" in k or "incremental" in k}


def test_a_backend_is_a_way_to_write_keys() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    backend = EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=False)
    backend.set_db_storage_paths("/mnt/ssd")
    env.set_state_backend(backend)
    assert settings(env) == {
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "false",
        "state.backend.rocksdb.localdir": "/mnt/ssd",
    }
    assert not backend.is_incremental_checkpoints_enabled()
    assert backend.get_db_storage_paths() == ["/mnt/ssd"]
    env.set_state_backend(HashMapStateBackend())
    assert settings(env)["state.backend.type"] == "hashmap"


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("/mnt/a", ["/mnt/a"]),
        ("/mnt/a,/mnt/b", ["/mnt/a", "/mnt/b"]),
        ("/mnt/a:/mnt/b", ["/mnt/a", "/mnt/b"]),
        ("file:///mnt/a/,file:/mnt/b:file:///c", ["/mnt/a", "/mnt/b", "/c"]),
    ],
)
def test_several_directories_are_taken_as_flink_takes_them(text: str, paths: list[str]) -> None:
    assert ROCKSDB_DIR.parse(text) == paths
    backend = EmbeddedRocksDBStateBackend()
    backend.set_db_storage_paths(*paths)
    assert backend.get_db_storage_paths() == paths
    env = StreamExecutionEnvironment(Configuration())
    env.set_state_backend(backend)
    assert Configuration.from_dict(configuration_of(env).to_dict()).read(ROCKSDB_DIR) == paths


def test_directory_that_is_not_on_this_host_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'s3://bucket/a' is not a directory of this host"):
        EmbeddedRocksDBStateBackend().set_db_storage_paths("s3://bucket/a")


def test_stores_of_subtasks_are_spread_over_the_directories_and_removed(
    tmp_path: Path, simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = simulated(seed=3, **{"parallelism.default": 4, "tidegate.state.local-dir": None})
    backend = EmbeddedRocksDBStateBackend()
    roots = [tmp_path / name for name in "abc"]
    backend.set_db_storage_paths(*map(str, roots))
    env.set_state_backend(backend)
    used: set[str] = set()
    monkeypatch.setattr(function_operator, "store_path", lambda *path: used.add(path[0]) or store_path(*path))
    keyed = env.from_collection(range(100)).key_by(lambda n: n % 16)
    assert len(list(keyed.reduce(lambda a, b: a + b).execute_and_collect())) == 100
    assert used == set(map(str, roots))
    assert [path for root in roots for path in root.rglob("*") if path.is_file()] == []


def test_predefined_options_count_where_no_key_of_its_own_is_set() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    backend = EmbeddedRocksDBStateBackend()
    assert backend.get_predefined_options() is PredefinedOptions.DEFAULT
    backend.set_predefined_options(PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM)
    assert backend.get_predefined_options() is PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM
    env.set_state_backend(backend)
    configuration_of(env).set_string("state.backend.rocksdb.block.blocksize", "16 kb")
    chosen = RocksdbOptions.of(configuration_of(env).read)
    assert (chosen.block_size, chosen.write_buffer_size, chosen.compaction_style) == (16 << 10, 64 << 20, "LEVEL")
    assert (chosen.dynamic_levels, chosen.buffers_to_merge, chosen.write_buffer_count) == (True, 3, 4)
    assert chosen.memory == RocksdbOptions().memory
    assert RocksdbOptions.of(Configuration().read) == RocksdbOptions()


def test_the_changelog_can_be_switched() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    assert env.is_changelog_state_backend_enabled() is None
    assert env.enable_changelog_state_backend(True) is env
    assert env.is_changelog_state_backend_enabled() is True
    assert settings(env) == {"state.changelog.enabled": "true"}


def test_wrong_arguments_are_reported() -> None:
    with pytest.raises(ArgumentTypeError, match="enable_changelog_state_backend"):
        StreamExecutionEnvironment.get_execution_environment().enable_changelog_state_backend("yes")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="set_predefined_options"):
        EmbeddedRocksDBStateBackend().set_predefined_options("FLASH_SSD_OPTIMIZED")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="set_db_storage_paths"):
        EmbeddedRocksDBStateBackend().set_db_storage_paths("/a", "")
    with pytest.raises(ArgumentTypeError, match="EmbeddedRocksDBStateBackend"):
        EmbeddedRocksDBStateBackend("yes")  # type: ignore[arg-type]


def test_transfer_threads() -> None:
    backend = EmbeddedRocksDBStateBackend()
    assert backend.get_number_of_transfer_threads() == 4
    backend.set_number_of_transfer_threads(7)
    assert backend.get_number_of_transfer_threads() == 7
    assert backend.settings()[TRANSFER_THREADS] == 7
    assert meaning("state.backend.rocksdb.checkpoint.transfer.thread.num") is TRANSFER_THREADS
    for wrong in (0, "4"):
        with pytest.raises(ArgumentTypeError, match="set_number_of_transfer_threads"):
            backend.set_number_of_transfer_threads(wrong)  # type: ignore[arg-type]
