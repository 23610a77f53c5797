"""The user of this process, private directories, directories held by one process, and deletion that follows no link.

Private directories lie in places where every user may create names. Another user may take a name that can be guessed:
with a directory, or with a link into files of this user. So nothing here trusts a name. Everything is opened without
following links, and owner and mode are checked on the opened file.

A held directory belongs to one process. Later processes can tell whether that process is still alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import pwd
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

from tidegate.base.errors import ConfigurationError, StorageError
from tidegate.base.hashing import new_token

logger = logging.getLogger(__name__)

LOCAL = "tidegate-local"
"""The default name. Earlier versions delete what they do not know in ``tidegate-<uid>``, so that name is not used."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def private_home(root: str, name: str = LOCAL) -> str:
    """Return a directory below ``root`` that only this user can enter. Make it if it is missing.

    All processes of the user on a host get the same directory: ``<name>-<uid>``. If another user has taken that name, or others
    could write there, it is ``<name>-<uid>-<random>``. Later processes find that one by its owner and mode, which no other user can
    set. Two processes that make the first one at the same moment may use two for a while.

    Raises StorageError if no directory can be made there, and ConfigurationError if ``root`` itself cannot be trusted.
    """
    own = _name(name)
    preferred = os.path.join(root, own)
    try:
        os.makedirs(root, exist_ok=True)
        _refuse_planted(root)
        with contextlib.suppress(FileExistsError):
            os.mkdir(preferred, 0o700)
        problem = _problem(preferred)
        if problem is None:
            return preferred
        found = _random_homes(root, own)
        if found:
            return found[0]
        made = tempfile.mkdtemp(prefix=f"{own}-", dir=root)
        problem_of_new = _problem(made)
        if problem_of_new is not None:  # not even a new directory is private: the file system has no owners or modes
            os.rmdir(made)
            raise _not_private(made, problem_of_new)
    except OSError as error:
        raise StorageError(
            "This user cannot make a private directory.",
            where=preferred,
            found=f"{type(error).__name__}: {error}",
            cure=f"instead of {root}, set tidegate.state.local-dir for local state, or TMPDIR for all else, to a directory that "
            "this user may write to",
        ) from error
    _warn_once(
        f"{preferred} is not used: {problem}. {made} is used instead. Remove {preferred} if it should not be there"
    )
    return _random_homes(root, own)[0]


def existing_homes(root: str, name: str = LOCAL) -> list[str]:
    """Return the directories that ``private_home`` may have returned to processes of this user. Make none."""
    own = _name(name)
    preferred = os.path.join(root, own)
    try:
        return [*([preferred] if _problem(preferred) is None else []), *_random_homes(root, own)]
    except OSError:  # the root does not exist
        return []


def remove_below(home: str, *names: str) -> None:
    """Delete the tree ``home/names[0]/names[1]/...`` if it exists. No link is followed, neither in the path nor in the tree."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        at = opened.enter_context(opened_directory(home))
        for name in names[:-1]:
            at = opened.enter_context(opened_directory(name, at))
        shutil.rmtree(names[-1], ignore_errors=True, dir_fd=at)


@contextlib.contextmanager
def opened_directory(path: str, at: int | None = None) -> Iterator[int]:
    """Open a directory, relative to the descriptor ``at``. Raise OSError if it is a link or not a directory."""
    descriptor = os.open(path, _DIRECTORY, dir_fd=at)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _name(name: str) -> str:
    return f"{name}-{os.geteuid()}"  # the number, because a user may have no name


def _problem(path: str) -> str | None:
    """Return why a directory is not private, or None if it is. Take away read permissions of others."""
    try:
        with opened_directory(path) as descriptor:
            found = os.fstat(descriptor)
            mode = stat.S_IMODE(found.st_mode)
            if found.st_uid != os.geteuid():
                return f"it belongs to user {found.st_uid}"
            if mode & _OTHERS_WRITE:
                return f"others may write there (mode {mode:o})"
            if mode & 0o055:
                os.fchmod(descriptor, 0o700)
            return None
    except OSError as error:
        return "it is a link" if os.path.islink(path) else f"it cannot be opened as a directory ({error.strerror})"


def _random_homes(root: str, own: str) -> list[str]:
    names = sorted(name for name in os.listdir(root) if name.startswith(f"{own}-"))
    return [path for path in (os.path.join(root, name) for name in names) if _problem(path) is None]


def _refuse_planted(root: str) -> None:
    """Raise if another user owns a part of the path in a directory where everybody may create names.

    The owner of a directory, or of a link to a directory, can replace what is below. So these parts must belong to this user or to
    the system.
    """
    # YARN names its own directories for a container: the user that runs the container owns the process anyway.
    given = {os.path.abspath(path) for path in os.environ.get("LOCAL_DIRS", "").split(",") if path}
    for path in {os.path.abspath(root), os.path.realpath(root)}:
        while path not in given and (above := os.path.dirname(path)) != path:
            owner = os.lstat(path).st_uid
            if owner not in (0, os.geteuid()) and os.stat(above).st_mode & stat.S_IWOTH:
                raise _not_private(path, f"it belongs to user {owner}, and every user may create names in {above}")
            path = above


def _not_private(path: str, problem: str | None) -> ConfigurationError:
    return ConfigurationError(
        "Another user could replace the working directory.",
        where=path,
        found=problem,
        cure="set tidegate.state.local-dir for local state, or TMPDIR for all else, to a directory of your own",
    )


@functools.cache
def _warn_once(text: str) -> None:
    logger.warning("%s", text)


# -- the user this process runs as --------------------------------------------------------------------------------------------


def has_account() -> bool:
    """Return whether the user has an account on this host: a container may run with any uid."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return True


def user_name() -> str:
    """Return a name for messages and for Hadoop: the uid where the system knows no name."""
    return pwd.getpwuid(os.geteuid()).pw_name if has_account() else os.environ.get("USER") or str(os.geteuid())


def writable_home() -> Path | None:
    """Return ``$HOME``, else the home directory of the account; None if it is missing or not writable."""
    place = Path(os.path.expanduser("~"))
    return place if place.is_absolute() and place.is_dir() and os.access(place, os.W_OK | os.X_OK) else None


def own_place() -> Path:
    """Return the writable home directory, else a private directory among the temporary files. Raise ConfigurationError if another
    user has taken its name."""
    home = writable_home()
    if home is not None:
        return home
    place = Path(tempfile.gettempdir(), f"tidegate-home-{os.geteuid()}")
    place.mkdir(mode=0o700, exist_ok=True)
    status = place.lstat()  # a link that another user has put there is not followed
    if not place.is_dir() or place.is_symlink() or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigurationError(
            "The user has no writable home directory, and the directory used instead is not the user's alone",
            where=str(place),
            found=f"owner {status.st_uid}, mode {status.st_mode:o}",
            cure="set HOME or TIDEGATE_HOME to a directory that only you can write to",
        )
    return place


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
