"""Where local stores live: a root with space, a directory of this user and this boot, one path per subtask."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from urllib.parse import quote

from tidegate.common.errors import ConfigurationError, StorageError

SHARED_MEMORY = "/dev/shm"
ENOUGH_FREE = 2 << 30


def choose_root(configured: str | None = None) -> str:
    """The configured directory; else shared memory if there is space; else the directory for temporary files."""
    if configured:
        root = os.path.abspath(os.path.expanduser(configured))
        _refuse_unusable(root)
        return root
    try:
        if os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free >= ENOUGH_FREE:
            return SHARED_MEMORY
    except OSError:
        pass  # no such file system here
    return tempfile.gettempdir()


def _refuse_unusable(root: str) -> None:
    """What is wrong here already is told before the start. One that is missing here may be there, or be made, where workers run."""
    nearest = root
    while not os.path.exists(nearest):
        nearest = os.path.dirname(nearest)
    if not os.path.isdir(nearest) or (nearest == root and not os.access(root, os.W_OK | os.X_OK)):
        raise ConfigurationError(
            "The working directory of local state must be a directory this user may write to.",
            where=root,
            found="a directory without permission to write" if os.path.isdir(nearest) else f"{nearest} is a file",
            cure="choose another with tidegate.state.local-dir, or state.backend.rocksdb.localdir for rocksdb",
        )


def boot_id() -> str:
    """Names the current run of the operating system. Stores are not synced, so none may be used after it has crashed."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        # elsewhere the moment of the boot, to the minute: if the clock is set meanwhile, stores are rebuilt, no more
        return f"boot-{int(time.time() - time.monotonic()) // 60}"


def store_path(root: str, job: str, operator: str, subtask: int) -> str:
    """The directory of a subtask's store, made if missing, readable by this user only. Other boots' stores are removed."""
    home = os.path.join(root, f"tidegate-{os.getuid()}")
    path = os.path.join(home, boot_id(), quote(job, safe=""), quote(operator, safe=""), str(subtask))
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        if os.stat(home).st_uid != os.getuid():
            raise PermissionError(f"{home} belongs to user {os.stat(home).st_uid}")
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise StorageError(
            "The directory of local state must be writable and belong to this user.",
            where=home,
            found=str(error),
            cure="choose another directory for local state",
        ) from error
    _remove_other_boots(home)
    return path


def remove_job(root: str, job: str) -> None:
    """The job is over: its stores on this host go."""
    shutil.rmtree(os.path.join(root, f"tidegate-{os.getuid()}", boot_id(), quote(job, safe="")), ignore_errors=True)


def _remove_other_boots(home: str) -> None:
    for name in os.listdir(home):
        if name != boot_id():
            shutil.rmtree(os.path.join(home, name), ignore_errors=True)
