"""Where local stores live: a root with space, a directory of this user, host and boot, one path per subtask.

``<root>/tidegate-local-<uid>/<host>.<boot>.<pids>/stores/<job>/<operator>/<subtask>``, and beside ``stores`` what drivers have on
their host (``base/held_dir.py``). ``base/private_dirs.py`` finds the directory of the user. ``job`` names a job and its
directory on storage (``local_name``): jobs of the same id with other directories are other jobs.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import tempfile
import time
from urllib.parse import quote

from tidegate.base.errors import ConfigurationError, StorageError
from tidegate.base.held_dir import is_any_held
from tidegate.base.ids import stable_hash
from tidegate.base.private_dirs import existing_homes, opened_directory, private_home, remove_below

SHARED_MEMORY = "/dev/shm"
ENOUGH_FREE = 2 << 30
MARK, _STORES = "tidegate-local-state", "stores"
_SHORT = 12


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


@functools.cache
def host_id() -> str:
    """Names this host among those that may share a file system. Copies of a machine have one machine id, and often two names."""
    try:
        with open("/etc/machine-id") as file:
            machine = file.read().strip()
    except OSError:
        machine = ""
    return stable_hash(f"{machine} {socket.gethostname()}")[:_SHORT]


def _pid_space() -> str:
    """Stores are shared by processes that see each other: LMDB asks whether a reader's pid still lives."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return "0"


def local_name(job_id: str, directory: str) -> str:
    """What names a job on this host: its id is unique in its directory on storage, not beyond."""
    return f"{job_id}-{stable_hash(directory)[:_SHORT]}"


def host_dir(root: str) -> str:
    """The directory of this user, host and boot, made if missing, readable by this user only. What this host has left at former
    boots is removed."""
    home = private_home(root)
    path = os.path.join(home, _name())
    try:
        os.makedirs(os.path.join(path, MARK), exist_ok=True)
        _remove_other_boots(home)
    except OSError as error:
        raise _unusable(path, error) from error
    return path


def host_dirs(root: str) -> list[str]:
    """Those that ``host_dir`` may have given. Nothing is made."""
    return [os.path.join(home, _name()) for home in existing_homes(root)]


def _name() -> str:
    return f"{host_id()}.{boot_id()}.{_pid_space()}"


def store_path(root: str, job: str, operator: str, subtask: int) -> str:
    """The directory of a subtask's store, made if missing. ``job``: see ``local_name``."""
    path = os.path.join(host_dir(root), _STORES, quote(job, safe=""), quote(operator, safe=""), str(subtask))
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise _unusable(path, error) from error
    return path


def _unusable(path: str, error: OSError) -> StorageError:
    return StorageError(
        "The directory of local state must be writable and belong to this user.",
        where=path,
        found=str(error),
        cure="choose another directory for local state with tidegate.state.local-dir",
    )


def remove_job(root: str, job: str) -> None:
    """The job is over: its stores on this host go."""
    for home in existing_homes(root):
        remove_below(home, _name(), _STORES, quote(job, safe=""))


def _remove_other_boots(home: str) -> None:
    """Only what this host has made: to others that share the file system its boots say nothing of theirs. What does not carry the
    mark is not ours to delete, whatever its name."""
    for name in os.listdir(home):
        host, _, rest = name.partition(".")
        is_old = host == host_id() and not rest.startswith(f"{boot_id()}.") and _is_marked(home, name)
        if is_old and not is_any_held(os.path.join(home, name)):  # hosts that are copies of each other may have one id
            remove_below(home, name)


def _is_marked(home: str, name: str) -> bool:
    try:
        with opened_directory(home) as at, opened_directory(name, at) as place, opened_directory(MARK, place):
            return True
    except OSError:
        return False
