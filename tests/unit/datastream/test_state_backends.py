"""The classes and methods that choose how state is kept."""

from __future__ import annotations

import pytest

from tidegate.common.errors import ArgumentTypeError
from tidegate.datastream import EmbeddedRocksDBStateBackend, HashMapStateBackend, StreamExecutionEnvironment


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


def test_the_changelog_can_be_switched() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    assert env.is_changelog_state_backend_enabled() is None
    assert env.enable_changelog_state_backend(True) is env
    assert env.is_changelog_state_backend_enabled() is True
    assert settings(env) == {"state.changelog.enabled": "true"}


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(ArgumentTypeError, match="enable_changelog_state_backend"):
        StreamExecutionEnvironment.get_execution_environment().enable_changelog_state_backend("yes")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="set_db_storage_paths"):
        EmbeddedRocksDBStateBackend().set_db_storage_paths("/a", "/b")
    with pytest.raises(ArgumentTypeError, match="EmbeddedRocksDBStateBackend"):
        EmbeddedRocksDBStateBackend("yes")  # type: ignore[arg-type]
