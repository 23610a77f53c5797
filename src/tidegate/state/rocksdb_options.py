"""The options of the rocksdb state backend, from the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tidegate.base.errors import ConfigurationError
from tidegate.common import options
from tidegate.common.options import Option

MOST_RUNS = 12
"""With this many sorted runs, a round that opens the store merges its files."""


@dataclass(frozen=True)
class RocksdbOptions:
    """As Flink's keys ``state.backend.rocksdb.*`` say; sizes in bytes. The same for all stores of a job."""

    managed: bool = options.ROCKSDB_MANAGED.default
    """All stores of a process share ``memory``; else each has a block cache and write buffers of its own."""
    memory: int = options.ROCKSDB_MEMORY.default
    write_buffer_ratio: float = options.ROCKSDB_WRITE_BUFFER_RATIO.default
    partitioned_index: bool = options.ROCKSDB_PARTITIONED_INDEX.default
    cache_size: int = options.ROCKSDB_CACHE_SIZE.default
    block_size: int = options.ROCKSDB_BLOCK_SIZE.default
    write_buffer_size: int = options.ROCKSDB_WRITE_BUFFER_SIZE.default
    write_buffer_count: int = options.ROCKSDB_WRITE_BUFFER_COUNT.default
    buffers_to_merge: int = options.ROCKSDB_BUFFERS_TO_MERGE.default
    metadata_block_size: int = options.ROCKSDB_METADATA_BLOCK_SIZE.default
    bloom_filter: bool = options.ROCKSDB_BLOOM_FILTER.default
    bloom_bits: float = options.ROCKSDB_BLOOM_BITS.default
    compaction_style: str = options.ROCKSDB_COMPACTION_STYLE.default
    target_file_size: int = options.ROCKSDB_TARGET_FILE_SIZE.default
    level_base_size: int = options.ROCKSDB_LEVEL_BASE.default
    dynamic_levels: bool = options.ROCKSDB_DYNAMIC_LEVELS.default
    compression: str = options.ROCKSDB_COMPRESSION.default
    background_threads: int = options.ROCKSDB_THREADS.default
    open_files: int = options.ROCKSDB_OPEN_FILES.default

    @staticmethod
    def of(get: Callable[[Option], Any]) -> RocksdbOptions:
        """Read the options from the configuration. Options with their default value follow the predefined settings of the disk."""
        predefined = PREDEFINED[get(options.ROCKSDB_PREDEFINED)]
        chosen = {field.name: get(OPTIONS[field.name]) for field in fields(RocksdbOptions)}
        unset = {name for name, value in chosen.items() if value == OPTIONS[name].default}
        made = RocksdbOptions(**{**chosen, **{name: predefined[name] for name in unset & predefined.keys()}})
        if made.buffers_to_merge >= made.write_buffer_count:
            raise ConfigurationError(
                f"'{options.ROCKSDB_BUFFERS_TO_MERGE.key}' must be less than '{options.ROCKSDB_WRITE_BUFFER_COUNT.key}': one "
                "buffer has to stay free for writes during the merge",
                found=f"{made.buffers_to_merge} of {made.write_buffer_count}",
                cure=f"set '{options.ROCKSDB_WRITE_BUFFER_COUNT.key}' to {made.buffers_to_merge + 1} or more",
            )
        return made


OPTIONS: Mapping[str, Option] = {
    "managed": options.ROCKSDB_MANAGED,
    "memory": options.ROCKSDB_MEMORY,
    "write_buffer_ratio": options.ROCKSDB_WRITE_BUFFER_RATIO,
    "partitioned_index": options.ROCKSDB_PARTITIONED_INDEX,
    "cache_size": options.ROCKSDB_CACHE_SIZE,
    "block_size": options.ROCKSDB_BLOCK_SIZE,
    "write_buffer_size": options.ROCKSDB_WRITE_BUFFER_SIZE,
    "write_buffer_count": options.ROCKSDB_WRITE_BUFFER_COUNT,
    "buffers_to_merge": options.ROCKSDB_BUFFERS_TO_MERGE,
    "metadata_block_size": options.ROCKSDB_METADATA_BLOCK_SIZE,
    "bloom_filter": options.ROCKSDB_BLOOM_FILTER,
    "bloom_bits": options.ROCKSDB_BLOOM_BITS,
    "compaction_style": options.ROCKSDB_COMPACTION_STYLE,
    "target_file_size": options.ROCKSDB_TARGET_FILE_SIZE,
    "level_base_size": options.ROCKSDB_LEVEL_BASE,
    "dynamic_levels": options.ROCKSDB_DYNAMIC_LEVELS,
    "compression": options.ROCKSDB_COMPRESSION,
    "background_threads": options.ROCKSDB_THREADS,
    "open_files": options.ROCKSDB_OPEN_FILES,
}
"""Field -> its option."""

_SPINNING: dict[str, Any] = {
    "compaction_style": "LEVEL",
    "dynamic_levels": True,
    "background_threads": 4,
    "open_files": -1,
}
_MIB = 1 << 20
PREDEFINED: Mapping[str, Mapping[str, Any]] = {
    "DEFAULT": {},
    "SPINNING_DISK_OPTIMIZED": _SPINNING,
    "SPINNING_DISK_OPTIMIZED_HIGH_MEM": {
        **_SPINNING,
        "target_file_size": 256 * _MIB,
        "level_base_size": 1024 * _MIB,
        "write_buffer_size": 64 * _MIB,
        "write_buffer_count": 4,
        "buffers_to_merge": 3,
        "cache_size": 256 * _MIB,
        "block_size": 128 << 10,
        "bloom_filter": True,
    },
    "FLASH_SSD_OPTIMIZED": {"background_threads": 4, "open_files": -1},
}
"""Flink's settings for kinds of disks, as far as the options exist here. As in Flink, sizes of caches and buffers count only
without managed memory."""
