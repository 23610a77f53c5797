"""The user of this process, private directories in places where every user may create names, and deletion that follows no link.

Another user may take a name that can be guessed: with a directory, or with a link into files of this user. So nothing here trusts
a name. Everything is opened without following links, and owner and mode are checked on the opened file.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tidegate.base.errors import ConfigurationError, StorageError

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
