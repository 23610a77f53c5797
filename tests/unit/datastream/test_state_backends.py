"""The classes and methods that choose how state is kept."""

from __future__ import annotations

import pytest

from tidegate.common import Configuration
from tidegate.common.configuration import meaning
from tidegate.common.errors import ArgumentTypeError
from tidegate.common.options import TRANSFER_THREADS
from tidegate.datastream import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    PredefinedOptions,
    StreamExecutionEnvironment,
)
from tidegate.state.rocksdb_options import RocksdbOptions


def settings(env: StreamExecutionEnvironment) -> dict[str, str]:
    return {k: v for k, v in env._configuration.to_dict().items() if "state" in k or "incremental" in k}


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


def test_predefined_options_count_where_no_key_of_its_own_is_set() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    backend = EmbeddedRocksDBStateBackend()
    assert backend.get_predefined_options() is PredefinedOptions.DEFAULT
    backend.set_predefined_options(PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM)
    assert backend.get_predefined_options() is PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM
    env.set_state_backend(backend)
    env._configuration.set_string("state.backend.rocksdb.block.blocksize", "16 kb")
    chosen = RocksdbOptions.of(env._configuration.read)
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


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(ArgumentTypeError, match="enable_changelog_state_backend"):
        StreamExecutionEnvironment.get_execution_environment().enable_changelog_state_backend("yes")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="set_predefined_options"):
        EmbeddedRocksDBStateBackend().set_predefined_options("FLASH_SSD_OPTIMIZED")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="set_db_storage_paths"):
        EmbeddedRocksDBStateBackend().set_db_storage_paths("/a", "/b")
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
