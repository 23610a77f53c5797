"""State backends: where running state lives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any

from tidegate.base.arguments import expect_int, wrong
from tidegate.common.options import (
    INCREMENTAL,
    ROCKSDB_DIR,
    ROCKSDB_PREDEFINED,
    STATE_BACKEND,
    TRANSFER_THREADS,
    Option,
)

__all__ = ["EmbeddedRocksDBStateBackend", "HashMapStateBackend", "PredefinedOptions", "StateBackend"]


class PredefinedOptions(Enum):
    """Settings of RocksDB for kinds of disks (``state.backend.rocksdb.predefined-options``)."""

    DEFAULT = 0
    SPINNING_DISK_OPTIMIZED = 1
    SPINNING_DISK_OPTIMIZED_HIGH_MEM = 2
    FLASH_SSD_OPTIMIZED = 3


class StateBackend(ABC):
    """The argument of ``StreamExecutionEnvironment.set_state_backend``, equivalent to the key ``state.backend.type``."""

    @property
    @abstractmethod
    def type_name(self) -> str:
        """The corresponding value of ``state.backend.type``."""

    def settings(self) -> dict[Option, Any]:
        """Return the options that it sets."""
        return {STATE_BACKEND: self.type_name}


class HashMapStateBackend(StateBackend):
    """Memory-mapped local stores, cached in dicts while a round runs."""

    @property
    def type_name(self) -> str:
        return "hashmap"


class EmbeddedRocksDBStateBackend(StateBackend):
    """State in RocksDB on local disks, which may exceed the memory. Its options are the keys ``state.backend.rocksdb.*``."""

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:
        if not isinstance(enable_incremental_checkpointing, bool | None):
            given = enable_incremental_checkpointing
            raise wrong("EmbeddedRocksDBStateBackend", "True, False or nothing", given, "True")
        self._incremental = enable_incremental_checkpointing
        self._paths: list[str] = []
        self._predefined: PredefinedOptions | None = None
        self._transfers: int | None = None

    @property
    def type_name(self) -> str:
        return "rocksdb"

    def is_incremental_checkpoints_enabled(self) -> bool:
        """Return whether checkpoints share files; the configuration decides if the constructor got no value."""
        return INCREMENTAL.default if self._incremental is None else self._incremental

    def set_db_storage_paths(self, *paths: str) -> None:
        """Set the directories of the local stores, over which subtasks are distributed; without arguments the default."""
        if not all(isinstance(path, str) and path for path in paths):
            raise wrong("set_db_storage_paths", "paths, or nothing", paths, "set_db_storage_paths('/mnt/ssd')")
        self._paths = list(ROCKSDB_DIR.parse(list(paths)))

    def get_db_storage_paths(self) -> list[str]:
        """Return the value of ``set_db_storage_paths``."""
        return list(self._paths)

    def set_predefined_options(self, options: PredefinedOptions) -> None:
        """Use the settings for a kind of disk. Keys ``state.backend.rocksdb.*`` that are set take precedence."""
        if not isinstance(options, PredefinedOptions):
            raise wrong("set_predefined_options", "a member of PredefinedOptions", options, "FLASH_SSD_OPTIMIZED")
        self._predefined = options

    def get_predefined_options(self) -> PredefinedOptions:
        """Return the value of ``set_predefined_options``."""
        return self._predefined or PredefinedOptions.DEFAULT

    def set_number_of_transfer_threads(self, number_of_transfering_threads: int) -> None:
        """How many state files a checkpoint stores at once (``state.backend.rocksdb.checkpoint.transfer.thread.num``)."""
        given = expect_int("set_number_of_transfer_threads", number_of_transfering_threads, "4")
        if given < 1:
            raise wrong("set_number_of_transfer_threads", "a number greater than 0", given, "4")
        self._transfers = given

    def get_number_of_transfer_threads(self) -> int:
        """Return the value of ``set_number_of_transfer_threads``."""
        return TRANSFER_THREADS.default if self._transfers is None else self._transfers

    def settings(self) -> dict[Option, Any]:
        chosen = super().settings()
        if self._transfers is not None:
            chosen[TRANSFER_THREADS] = self._transfers
        if self._predefined is not None:
            chosen[ROCKSDB_PREDEFINED] = self._predefined.name
        if self._incremental is not None:
            chosen[INCREMENTAL] = self._incremental
        if self._paths:
            chosen[ROCKSDB_DIR] = self._paths
        return chosen
