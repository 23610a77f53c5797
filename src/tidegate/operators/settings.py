"""What every subtask of a job has to know of its surroundings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.state.backend import DEFAULT_CACHE_BYTES


def _system_now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Settings:
    """The same for all subtasks. ``root``: the job's directory on checkpoint storage."""

    job_id: str
    root: str
    local_root: str
    chunk_records: int = 4096
    state_backend: str = "hashmap"
    map_size: int | None = None
    cache_bytes: int = DEFAULT_CACHE_BYTES
    parameters: dict[str, str] = field(default_factory=dict)
    object_reuse: bool = False
    """Records are never copied: the program promises not to change what it has emitted or was handed."""
    inline: bool = True
    """Small functions are written into the loop instead of called."""
    batch_mode: bool = False
    """No watermark before the one at the end of input, where the timers of both kinds fire."""
    watermark_interval_ms: int = 200
    """How often generators of watermarks are asked while no record comes; 0: watermarks are emitted by ``on_event`` only."""
    now_ms: Callable[[], int] = _system_now_ms
