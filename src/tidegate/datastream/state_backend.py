"""State backends: where running state lives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tidegate.common.arguments import wrong
from tidegate.common.options import INCREMENTAL, ROCKSDB_DIR, STATE_BACKEND, Option

__all__ = ["EmbeddedRocksDBStateBackend", "HashMapStateBackend", "StateBackend"]


class StateBackend(ABC):
    """What ``StreamExecutionEnvironment.set_state_backend`` takes; the same as the key ``state.backend.type``."""

    @property
    @abstractmethod
    def type_name(self) -> str:
        """The value of ``state.backend.type`` that stands for it."""

    def settings(self) -> dict[Option, Any]:
        """What it writes into the configuration."""
        return {STATE_BACKEND: self.type_name}


class HashMapStateBackend(StateBackend):
    """Memory-mapped local stores, cached in dicts while a round runs."""

    @property
    def type_name(self) -> str:
        return "hashmap"


class EmbeddedRocksDBStateBackend(StateBackend):
    """State in RocksDB on local disks: it need not fit in memory. Its options are the keys ``state.backend.rocksdb.*``."""

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:
        if not isinstance(enable_incremental_checkpointing, bool | None):
            given = enable_incremental_checkpointing
            raise wrong("EmbeddedRocksDBStateBackend", "True, False or nothing", given, "True")
        self._incremental = enable_incremental_checkpointing
        self._paths: list[str] = []

    @property
    def type_name(self) -> str:
        return "rocksdb"

    def is_incremental_checkpoints_enabled(self) -> bool:
        """Whether checkpoints share files; what the configuration says if the constructor was not told."""
        return INCREMENTAL.default if self._incremental is None else self._incremental

    def set_db_storage_paths(self, *paths: str) -> None:
        """The directory of the local stores; nothing: back to the default. Only one is used."""
        if len(paths) > 1 or not all(isinstance(path, str) and path for path in paths):
            raise wrong("set_db_storage_paths", "one path, or none", paths, "set_db_storage_paths('/mnt/ssd')")
        self._paths = list(paths)

    def get_db_storage_paths(self) -> list[str]:
        """What ``set_db_storage_paths`` was told."""
        return list(self._paths)

    def settings(self) -> dict[Option, Any]:
        chosen = super().settings()
        if self._incremental is not None:
            chosen[INCREMENTAL] = self._incremental
        if self._paths:
            chosen[ROCKSDB_DIR] = self._paths[0]
        return chosen
