"""The user this process runs as, who may have no account on the host (a container with any uid) and no home directory."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

from tidegate.base.errors import ConfigurationError


def has_account() -> bool:
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return True


def name() -> str:
    """A name for messages and for Hadoop; the uid where the system knows none."""
    return pwd.getpwuid(os.geteuid()).pw_name if has_account() else os.environ.get("USER") or str(os.geteuid())


def writable_home() -> Path | None:
    """``$HOME``, else the directory of the account; None if there is none, or nothing can be made in it."""
    place = Path(os.path.expanduser("~"))
    return place if place.is_absolute() and place.is_dir() and os.access(place, os.W_OK | os.X_OK) else None


def own_place() -> Path:
    """The writable home directory, else a directory for temporary files that belongs to the user alone. Raises ConfigurationError
    if another user has taken its name there."""
    home = writable_home()
    if home is not None:
        return home
    place = Path(tempfile.gettempdir(), f"tidegate-home-{os.geteuid()}")
    place.mkdir(mode=0o700, exist_ok=True)
    status = place.lstat()  # a link that somebody else has put there is not followed
    if not place.is_dir() or place.is_symlink() or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigurationError(
            "A user without a writable home directory needs a directory of their own",
            where=str(place),
            found=f"owner {status.st_uid}, mode {status.st_mode:o}",
            cure="set HOME or TIDEGATE_HOME to a directory that only you can write to",
        )
    return place
