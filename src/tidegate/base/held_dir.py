"""Directories that belong to one process: whoever comes later can tell whether that process still lives."""

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
    """A new directory below ``parent``, under a name that nobody had. A lock says that it is in use.

    The lock ends with the process, however that ends, so ``sweep`` of another process finds what is left. A child that was forked
    has the lock too: what it keeps from being swept stays a little longer, no more.
    """

    def __init__(self, parent: str) -> None:
        held = None
        try:
            while held is None:
                self._place = os.path.join(parent, new_token())
                os.makedirs(os.path.join(self._place, _CONTENT))
                held = _hold(self._place)  # a sweep may have been quicker: then the next name
        except OSError as error:
            raise StorageError(
                "A directory for the files of a running job must be writable and support file locks.",
                where=parent,
                found=f"{type(error).__name__}: {error}",
                cure="choose another directory with tidegate.state.local-dir",
            ) from error
        self.path = os.path.join(self._place, _CONTENT)
        self.let_go = weakref.finalize(self, os.close, held)
        """What the end of the process does too."""

    def remove(self) -> None:
        """With everything in it. It may be called again."""
        shutil.rmtree(self._place, ignore_errors=True)
        self.let_go()

    def keep(self) -> None:
        """It outlives this process: no sweep takes it."""
        with contextlib.suppress(OSError), open(os.path.join(self._place, _KEPT), "x"):
            pass
        self.let_go()


def sweep(parent: str) -> None:
    """Remove those below ``parent`` that no living process holds and none was told to keep."""
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
            continue  # whatever it is, it is none of ours
        if held is not None:
            shutil.rmtree(place, ignore_errors=True)
            os.close(held)


def is_any_held(tree: str) -> bool:
    """Whether a living process holds a directory anywhere below. Where locks cannot be asked the answer is yes."""
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
    """No sweep takes the one below ``parent`` that the path lies in: somebody wants to read it."""
    place = path.removeprefix(f"{parent}/").partition("/")[0]
    if path.startswith(f"{parent}/") and place:
        with contextlib.suppress(OSError), open(os.path.join(parent, place, _KEPT), "x"):
            pass


def _hold(place: str) -> int | None:
    """The lock of a directory; None if another one has it, or the directory is gone.

    Owner and sweeper both make the lock file if it is missing, take the lock, and then look whether the file is still the one by
    that name. So of an owner that is not ready and a sweeper that finds its directory exactly one goes on: either the owner has the
    lock and the sweeper leaves, or the sweeper had it and the file is gone.
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
