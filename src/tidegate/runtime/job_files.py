"""Where the files of a job are: its directory on storage or in memory, and the spool in which its state waits for checkpoints."""

from __future__ import annotations

import os
import tempfile

from tidegate.common import options
from tidegate.common.errors import ConfigurationError
from tidegate.common.files import Files
from tidegate.common.ids import new_token
from tidegate.common.signing import SigningKey
from tidegate.common.spooled_files import SPOOL, SpooledFiles
from tidegate.runtime.settings import JobSettings
from tidegate.state.local_dir import store_path


def job_files(settings: JobSettings, run_id: str, local_root: str, *, one_host: bool) -> tuple[Files, str | None]:
    """The job's directory, and the spool; None: state files are stored with their round."""
    key_file = settings.signing_key_file
    key = SigningKey.load(key_file, where=options.SIGNING_KEY_FILE.key) if key_file else None
    directory = _job_directory(settings, run_id)
    files, spool = Files(directory, strong=key is not None), None
    if _stores_behind(settings, directory, one_host):
        spool = store_path(local_root, run_id, f"{SPOOL}-{new_token()}", 0)  # of this driver alone
        files = SpooledFiles(directory, spool, settings.transfer_threads, strong=key is not None)
    files.signing_key = key
    return files, spool


def _stores_behind(settings: JobSettings, directory: str, one_host: bool) -> bool:
    if settings.checkpoints is None or settings.upload == "with-round":
        return False
    if settings.upload == "auto":
        return one_host and "://" in directory and not directory.startswith(("file:", "memory:"))
    if not one_host:
        raise ConfigurationError(
            "State files wait for a checkpoint on the host that tasks and driver share",
            where=options.UPLOAD.key,
            found="behind, and tasks run on other hosts",
            cure="leave it out: on a cluster state files are stored with their round",
        )
    return True


def _job_directory(settings: JobSettings, run_id: str) -> str:
    base = settings.checkpoint_dir
    if base:
        return f"{base.rstrip('/')}/{run_id}"
    return tempfile.mkdtemp(prefix="tidegate-job-", dir=_memory() if settings.in_memory else None)


def _memory() -> str:
    """Where files lie in the memory of this host: its tasks reach them, and they end with the host at the latest."""
    if not os.access(_SHARED_MEMORY, os.W_OK):
        raise ConfigurationError(
            "Checkpoints in memory need a file system in memory",
            where="execution.checkpointing.storage: jobmanager",
            found=f"{_SHARED_MEMORY} cannot be written",
            cure="set execution.checkpointing.dir, or execution.checkpointing.storage: filesystem",
        )
    return _SHARED_MEMORY


_SHARED_MEMORY = "/dev/shm"
