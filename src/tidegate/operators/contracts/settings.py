"""Hold what every subtask of a job has to know of its environment."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.base.files import Files
from tidegate.base.spooled_files import SpooledFiles
from tidegate.common import options
from tidegate.state.local_dir import local_name
from tidegate.state.stores import DEFAULTS, StoreOptions

NO_LEASE = 0
"""The token of subtasks outside of a job; tokens begin with 1."""


def _system_now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Settings:
    """Hold the settings that all subtasks share. ``root``: the job's directory on checkpoint storage."""

    job_id: str
    root: str
    local_root: str
    more_roots: tuple[str, ...] = ()
    """Further directories for stores of keyed state, over which the subtasks of an operator are spread."""
    spool: str | None = None
    """Where state files wait for their checkpoint, on the host that tasks and driver share; None: they are stored with
    their round."""
    chunk_records: int = options.CHUNK_RECORDS.default
    state_backend: str = options.STATE_BACKEND.default
    stores: StoreOptions = DEFAULTS
    cache_bytes: int = options.CACHE_SIZE.default
    compressed: bool = options.COMPRESSION.default
    """State files are compressed."""
    strong_hashes: bool = False
    """References to state files carry a cryptographic hash: the metadata that holds them is signed."""
    allow_pickle: bool = options.ALLOW_PICKLE.default
    """State may be pickled."""
    parameters: dict[str, str] = field(default_factory=dict)
    cached_files: dict[str, str] = field(default_factory=dict)
    """Name -> path where the program was started."""
    object_reuse: bool = options.OBJECT_REUSE.default
    """Records are never copied: the program promises not to change records that it has emitted or received."""
    inline: bool = options.INLINE_FUNCTIONS.default
    """Small functions are written into the loop instead of called."""
    batch_mode: bool = False
    """There is no watermark before the end of input, where the timers of both kinds fire."""
    watermark_interval_ms: int = options.AUTO_WATERMARK_INTERVAL.default
    """How often generators of watermarks are called while no record comes; 0: only ``on_event`` emits watermarks."""
    lease: int = NO_LEASE
    """The token of the job attempt: it grows from attempt to attempt."""
    publishes_rounds: bool = False
    """Prepared output of sinks is committed with its round, and not with a checkpoint (at-least-once)."""
    force_unaligned: bool = False
    """Records that a user's partitioner has spread may wait in a checkpoint too."""
    replays: bool = False
    """A round is run again for inspection (``runtime/replay.py``): no sink is touched."""
    now_ms: Callable[[], int] = _system_now_ms

    @property
    def local_name(self) -> str:
        """Return the name of the job on a host."""
        return local_name(self.job_id, self.root)

    @property
    def local_roots(self) -> tuple[str, ...]:
        return self.local_root, *self.more_roots

    def store_root(self, operator: str, subtask: int) -> str:
        """Return the directory for the store of a subtask, the same in every round. The subtasks of an operator are
        spread over the directories."""
        roots = self.local_roots
        return roots[(zlib.crc32(operator.encode()) + subtask) % len(roots)]

    def state_files(self) -> Files:
        """Return the storage where tasks write and read state files."""
        if self.spool:
            return SpooledFiles(self.root, self.spool, strong=self.strong_hashes)
        return Files(self.root, strong=self.strong_hashes)
