"""Directories of this user alone in places where every user may create names, and deletion that follows no link.

A name that others can guess may be taken when we come: by a directory of another user, or by a link that leads into files of
ours. So nothing here trusts a name. Everything is opened without following links, and owner and mode are those of what was opened.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator

from tidegate.base.errors import ConfigurationError, StorageError

logger = logging.getLogger(__name__)

LOCAL = "tidegate-local"
"""Of stores and all else that is not named otherwise. Earlier versions empty ``tidegate-<uid>`` of what they do not know."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def private_home(root: str, name: str = LOCAL) -> str:
    """Return a directory below ``root`` that only this user can enter. Make it if it is missing.

    All processes of the user on a host get the same one: ``<name>-<uid>``. If that name is taken by somebody else, or others could
    write there, it is ``<name>-<uid>-<random>``, found again by its owner and mode, which nobody else can give to a directory. Two
    processes that make the first one at the same moment may use two for a while.

    Raises StorageError if nothing can be made there, and ConfigurationError if ``root`` itself cannot be trusted.
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
        if (
            _problem(made) is not None
        ):  # what we have just made is not ours alone: the file system knows no owners or modes
            problem = _problem(made)
            os.rmdir(made)
            raise _not_private(made, problem)
    except OSError as error:
        raise StorageError(
            "The directory of local state must be writable and belong to this user.",
            where=preferred,
            found=f"{type(error).__name__}: {error}",
            cure=f"choose a directory that this user may write to instead of {root}: tidegate.state.local-dir for local state, "
            "TMPDIR for all else",
        ) from error
    _tell_once(f"{preferred} is not used, {made} is: {problem}. Remove {preferred} if it should not be there")
    return _random_homes(root, own)[0]


def existing_homes(root: str, name: str = LOCAL) -> list[str]:
    """Return the directories that ``private_home`` may have given to processes of this user. Nothing is made."""
    own = _name(name)
    preferred = os.path.join(root, own)
    try:
        return [*([preferred] if _problem(preferred) is None else []), *_random_homes(root, own)]
    except OSError:  # no such root here
        return []


def remove_below(home: str, *names: str) -> None:
    """Delete the tree ``home/names[0]/names[1]/...`` if it is there. No link is followed, at any place of the path or the tree."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        at = opened.enter_context(opened_directory(home))
        for name in names[:-1]:
            at = opened.enter_context(opened_directory(name, at))
        shutil.rmtree(names[-1], ignore_errors=True, dir_fd=at)


@contextlib.contextmanager
def opened_directory(path: str, at: int | None = None) -> Iterator[int]:
    """A descriptor of a directory, below the one opened as ``at``. Raises OSError if it is a link, or none."""
    descriptor = os.open(path, _DIRECTORY, dir_fd=at)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _name(name: str) -> str:
    return f"{name}-{os.geteuid()}"  # a number: a user need not have a name


def _problem(path: str) -> str | None:
    """Why a directory is not this user's alone; None: it is. One that others could only read is closed to them."""
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
    """Whoever owns a directory, or a link to one, can put another in the place of ours. Where everybody may create names, anybody
    may have made the one that leads to us; so there it has to be ours, or the system's."""
    # YARN names the directories of its own that a container is to use: whoever runs the container owns the process anyway.
    given = {os.path.abspath(path) for path in os.environ.get("LOCAL_DIRS", "").split(",") if path}
    for path in {os.path.abspath(root), os.path.realpath(root)}:
        while path not in given and (above := os.path.dirname(path)) != path:
            owner = os.lstat(path).st_uid
            if owner not in (0, os.geteuid()) and os.stat(above).st_mode & stat.S_IWOTH:
                raise _not_private(path, f"it belongs to user {owner}, and every user may create names in {above}")
            path = above


def _not_private(path: str, problem: str | None) -> ConfigurationError:
    return ConfigurationError(
        "A working directory must be in a place where no other user can replace it.",
        where=path,
        found=problem,
        cure="choose a directory of your own: tidegate.state.local-dir for local state, TMPDIR for all else",
    )


@functools.cache
def _tell_once(text: str) -> None:
    logger.warning("%s", text)
