"""Directories that belong to one process. Later processes can tell whether that process is still alive."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import weakref

from tidegate.base.errors import StorageError
from tidegate.base.ids import new_token

_LOCK, _CONTENT, _KEPT = "lock", "0", "kept"


class HeldDirectory:
    """A new directory below ``parent`` with a unique name. A lock says that it is in use.

    The lock ends with the process, however the process ends, so ``sweep`` of another process finds abandoned directories. A forked
    child has the lock too: the directory then stays until the child ends.
    """

    def __init__(self, parent: str) -> None:
        held = None
        try:
            while held is None:
                self._place = os.path.join(parent, new_token())
                os.makedirs(os.path.join(self._place, _CONTENT))
                held = _hold(self._place)  # None if a sweep was faster: then try the next name
        except OSError as error:
            raise StorageError(
                "The directory for files of running jobs is not writable, or has no file locks.",
                where=parent,
                found=f"{type(error).__name__}: {error}",
                cure="set tidegate.state.local-dir to another directory",
            ) from error
        self.path = os.path.join(self._place, _CONTENT)
        self.let_go = weakref.finalize(self, os.close, held)
        """Release the lock, as the end of the process does."""

    def remove(self) -> None:
        """Remove the directory with its content. May be called again."""
        shutil.rmtree(self._place, ignore_errors=True)
        self.let_go()

    def keep(self) -> None:
        """Let the directory outlive this process: no sweep removes it."""
        with contextlib.suppress(OSError), open(os.path.join(self._place, _KEPT), "x"):
            pass
        self.let_go()


def sweep(parent: str) -> None:
    """Remove the directories below ``parent`` that no live process holds and that are not marked as kept."""
    try:
        names = os.listdir(parent)
    except OSError:
        return
    for place in (os.path.join(parent, name) for name in names):
        if os.path.exists(os.path.join(place, _KEPT)):
            continue
        try:
            held = _hold(place)
        except OSError:
            continue  # not a held directory
        if held is not None:
            shutil.rmtree(place, ignore_errors=True)
            os.close(held)


def is_any_held(tree: str) -> bool:
    """Return whether a live process holds a directory anywhere below. True where the lock cannot be checked."""
    for place, _, names in os.walk(tree):
        if _LOCK in names:
            try:
                held = _hold(place)
            except OSError:
                return True
            if held is None:
                return True
            os.close(held)
    return False


def mark_kept(path: str, parent: str) -> None:
    """Mark the directory below ``parent`` that contains the path, so that no sweep removes it: a job will read it."""
    place = path.removeprefix(f"{parent}/").partition("/")[0]
    if path.startswith(f"{parent}/") and place:
        with contextlib.suppress(OSError), open(os.path.join(parent, place, _KEPT), "x"):
            pass


def _hold(place: str) -> int | None:
    """Take the lock of a directory and return it; None if another process has it, or the directory is gone.

    Owner and sweeper both make the lock file if it is missing, take the lock, and then check that the path still names this file.
    So of a new owner and a sweeper that finds its directory exactly one continues: either the owner has the lock and the sweeper
    leaves, or the sweeper had the lock and the file is gone.
    """
    path = os.path.join(place, _LOCK)
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(lock)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(lock)
        raise
    os.close(lock)
    return None
