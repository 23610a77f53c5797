"""The places of a job's files: its directory on storage or in memory, and the spool in which its state waits for checkpoints."""

from __future__ import annotations

import os
import tempfile
from typing import NamedTuple
from urllib.parse import quote

from tidegate.base.errors import ConfigurationError
from tidegate.base.files import Files
from tidegate.base.hashing import SigningKey
from tidegate.base.held_dir import HeldDirectory, mark_kept, sweep
from tidegate.base.spooled_files import SpooledFiles
from tidegate.common import options
from tidegate.runtime.settings import JobSettings
from tidegate.state.local_dir import SHARED_MEMORY, host_dir, host_dirs, local_name


class JobFiles(NamedTuple):
    """``files``: the job's directory. ``spool``: where state files wait; None: they are stored with their round. ``memory``: the
    directory, if it is in the memory of this host and ends with the driver."""

    files: Files
    spool: str | None
    memory: HeldDirectory | None


def job_files(settings: JobSettings, run_id: str, local_root: str, *, one_host: bool) -> JobFiles:
    key_file = settings.signing_key_file
    key = SigningKey.load(key_file, where=options.SIGNING_KEY_FILE.key) if key_file else None
    _sweep_memory(settings)
    memory = _memory() if settings.in_memory and not settings.checkpoint_dir else None
    directory = _job_directory(settings, run_id) if memory is None else memory.path
    files, spool = Files(directory, strong=key is not None), None
    if _stores_behind(settings, directory, one_host):
        # Of this driver alone, below a name that only drivers of the same job and directory sweep.
        spools = os.path.join(host_dir(local_root), _SPOOLS, quote(local_name(run_id, files.root), safe=""))
        held = HeldDirectory(spools)
        files = SpooledFiles(directory, held.path, settings.transfer_threads, held, strong=key is not None)
        spool = held.path
    files.signing_key = key
    return JobFiles(files, spool, memory)


def _stores_behind(settings: JobSettings, directory: str, one_host: bool) -> bool:
    if settings.checkpoints is None or settings.upload == "with-round":
        return False
    if settings.upload == "auto":
        return one_host and "://" in directory and not directory.startswith(("file:", "memory:"))
    if not one_host:
        raise ConfigurationError(
            "State files cannot wait for a checkpoint: tasks and driver share no host",
            where=options.UPLOAD.key,
            found="behind, and tasks run on other hosts",
            cure="remove the key: on a cluster state files are stored with their round",
        )
    return True


def _job_directory(settings: JobSettings, run_id: str) -> str:
    base = settings.checkpoint_dir
    if base:
        return f"{base.rstrip('/')}/{run_id}"
    return tempfile.mkdtemp(prefix="tidegate-job-")


def _memory() -> HeldDirectory:
    """Return the directory for files in the memory of this host: its tasks can read them, and they end with the driver."""
    if not os.access(_SHARED_MEMORY, os.W_OK):
        raise ConfigurationError(
            "Checkpoints cannot be stored in memory: the host has no writable file system in memory",
            where="execution.checkpointing.storage: jobmanager",
            found=f"{_SHARED_MEMORY} cannot be written",
            cure="set execution.checkpointing.dir, or execution.checkpointing.storage: filesystem",
        )
    return HeldDirectory(os.path.join(host_dir(_SHARED_MEMORY), _IN_MEMORY))


def _sweep_memory(settings: JobSettings) -> None:
    """Delete files in memory that killed drivers have left, unless this job starts from them."""
    restored = Files(settings.recovery_path).root if settings.recovery_path else ""
    for place in host_dirs(_SHARED_MEMORY):
        parent = os.path.join(place, _IN_MEMORY)
        mark_kept(restored, parent)  # other jobs that start meanwhile leave it alone too
        sweep(parent)


_SHARED_MEMORY = SHARED_MEMORY
_SPOOLS, _IN_MEMORY = "spools", "memory"
