"""Where local stores live: a root with space, a directory of this user, host and boot, one path per subtask.

``<root>/tidegate-local-<uid>/<host>.<boot>.<pids>/stores/<job>/<operator>/<subtask>``. Drivers have their files next to ``stores``.
``base/private_dirs.py`` finds the directory of the user. ``job`` names a job and its directory on storage
(``local_name``): jobs with the same id and different directories are different jobs.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import tempfile
import time
from contextlib import ExitStack, suppress
from urllib.parse import quote

from tidegate.base.errors import ConfigurationError, StorageError
from tidegate.base.hashing import new_token, stable_hash
from tidegate.base.private_dirs import existing_homes, is_any_held, opened_directory, private_home, remove_below

SHARED_MEMORY = "/dev/shm"
ENOUGH_FREE = 2 << 30
MARK, _STORES = "tidegate-local-state", "stores"
_REMOVED = "!"
"""Begins the name of stores that are being removed. No name of a job begins so, because ``quote`` replaces this character."""
_SHORT = 12
FORGOTTEN_S = 7 * 24 * 3600
"""A store that nobody has written for so long is removed. A job that still runs would build it again."""


def choose_root(configured: str | None = None) -> str:
    """Return the configured directory; else shared memory if there is space; else the directory for temporary files."""
    if configured:
        root = os.path.abspath(os.path.expanduser(configured))
        _refuse_unusable(root)
        return root
    try:
        if os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free >= ENOUGH_FREE:
            return SHARED_MEMORY
    except OSError:
        pass  # there is no such file system
    return tempfile.gettempdir()


def _refuse_unusable(root: str) -> None:
    """Raise before the start if the directory is unusable here. A missing one may exist, or be made, where workers run."""
    nearest = root
    while not os.path.exists(nearest):
        nearest = os.path.dirname(nearest)
    if not os.path.isdir(nearest) or (nearest == root and not os.access(root, os.W_OK | os.X_OK)):
        raise ConfigurationError(
            "This user cannot write to the working directory of local state.",
            where=root,
            found="a directory without permission to write" if os.path.isdir(nearest) else f"{nearest} is a file",
            cure="set tidegate.state.local-dir, or state.backend.rocksdb.localdir for rocksdb, to another directory",
        )


def boot_id() -> str:
    """Return an id of the current boot. Stores are not synced, so none may be used after a crash of the operating system."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        # Elsewhere the time of the boot, to the minute. If the clock is set, stores are rebuilt, and nothing worse happens.
        return f"boot-{int(time.time() - time.monotonic()) // 60}"


@functools.cache
def host_id() -> str:
    """Return an id of this host among hosts that share a file system. Copies of a machine have one machine id, often two names."""
    try:
        with open("/etc/machine-id") as file:
            machine = file.read().strip()
    except OSError:
        machine = ""
    return stable_hash(f"{machine} {socket.gethostname()}")[:_SHORT]


def _pid_space() -> str:
    """Return the namespace of pids. Only processes that see each other share stores: LMDB checks whether a reader's pid is
    alive."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return "0"


def local_name(job_id: str, directory: str) -> str:
    """Return the name of a job on this host. The job id alone is unique only within its directory on storage."""
    return f"{job_id}-{stable_hash(directory)[:_SHORT]}"


def host_dir(root: str) -> str:
    """Return the private directory of this user, host and boot, and make it if it is missing. Remove those of former boots of this
    host."""
    home = private_home(root)
    path = os.path.join(home, _name())
    try:
        os.makedirs(os.path.join(path, MARK), exist_ok=True)
        _remove_other_boots(home)
    except OSError as error:
        raise _unusable(path, error) from error
    return path


def host_dirs(root: str) -> list[str]:
    """Return the directories that ``host_dir`` may have returned. Make none."""
    return [os.path.join(home, _name()) for home in existing_homes(root)]


def _name() -> str:
    return f"{host_id()}.{boot_id()}.{_pid_space()}"


def store_path(root: str, job: str, operator: str, subtask: int) -> str:
    """Return the directory of a subtask's store, made if missing. ``job``: see ``local_name``."""
    path = os.path.join(host_dir(root), _STORES, quote(job, safe=""), quote(operator, safe=""), str(subtask))
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise _unusable(path, error) from error
    return path


def _unusable(path: str, error: OSError) -> StorageError:
    return StorageError(
        "The directory of local state is not writable, or not this user's.",
        where=path,
        found=str(error),
        cure="set tidegate.state.local-dir to another directory",
    )


def remove_job(root: str, job: str) -> None:
    """Remove the stores of a finished job on this host."""
    for home in existing_homes(root):
        _remove_stores(home, quote(job, safe=""))


def remove_forgotten(root: str, now: float, job: str) -> None:
    """Remove the stores of jobs that have not been heard of for long. The end of a job is not announced to a host that has lost its
    executors, nor by a driver that was killed. ``now``: seconds since 1970, as files have it. ``job``: this process is about to run
    it, so its stores stay, whatever their age: other workers of the host may have opened them just now."""
    for home in existing_homes(root):
        for name in _jobs_below(home):
            if name != quote(job, safe="") and _is_forgotten(home, name, now):
                _remove_stores(home, name)


def _jobs_below(home: str) -> list[str]:
    try:
        return os.listdir(os.path.join(home, _name(), _STORES))
    except OSError:  # there are no stores
        return []


def _is_forgotten(home: str, job: str, now: float) -> bool:
    if job.startswith(_REMOVED):  # by a process that was killed
        return True
    try:
        return _last_written(os.path.join(home, _name(), _STORES, job)) < now - FORGOTTEN_S
    except OSError:  # its files change: somebody uses them
        return False


def _remove_stores(home: str, job: str) -> None:
    """Remove the stores of a job. First they get another name, all at once. Who opens a store meanwhile opens the old files or new
    ones. Without the other name a store could have an old lock and a new file with data: LMDB would take it for whole, and its next
    user would have another lock."""
    removed = f"{_REMOVED}{new_token()}"
    with suppress(OSError), ExitStack() as opened:  # OSError: another process is removing it, or it never existed
        at: int | None = None
        for name in (home, _name(), _STORES):
            at = opened.enter_context(opened_directory(name, at))
        os.rename(job, removed, src_dir_fd=at, dst_dir_fd=at)
    remove_below(home, _name(), _STORES, removed)


def _last_written(path: str) -> float:
    """Return the time of the latest change below a directory."""
    times = [os.lstat(path).st_mtime]
    for directory, _, files in os.walk(path):
        times += [os.lstat(os.path.join(directory, name)).st_mtime for name in [*files, "."]]
    return max(times)


def _remove_other_boots(home: str) -> None:
    """Remove the directories of former boots of this host. Other hosts that share the file system have other boots. A directory
    without the mark is not ours to delete, whatever its name."""
    for name in os.listdir(home):
        host, _, rest = name.partition(".")
        is_old = host == host_id() and not rest.startswith(f"{boot_id()}.") and _is_marked(home, name)
        if is_old and not is_any_held(os.path.join(home, name)):  # copies of a machine may have the same id
            remove_below(home, name)


def _is_marked(home: str, name: str) -> bool:
    try:
        with opened_directory(home) as at, opened_directory(name, at) as place, opened_directory(MARK, place):
            return True
    except OSError:
        return False
