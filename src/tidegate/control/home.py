"""The user's directory for the registry of jobs: ``TIDEGATE_HOME``, else ``~/.tidegate``. Without a writable home directory it is
``tidegate-home-<uid>/.tidegate`` in the directory for temporary files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tidegate.base.errors import ConfigurationError
from tidegate.base.ids import new_token
from tidegate.base.private_dirs import own_place

VARIABLE = "TIDEGATE_HOME"
TOKENS = "tokens"
LOGS = "logs"
SOCKETS = "sockets"


def home() -> Path:
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).absolute()
    usual = Path(os.path.expanduser("~/.tidegate"))
    return usual if usual.is_absolute() and usual.is_dir() else own_place() / ".tidegate"


def folder(name: str, *, create: bool = True) -> Path:
    """Return a directory below home that only the user can read.

    Raise OSError if it cannot be made. Raise ConfigurationError if it is no directory, or another user's: its owner could put
    other tokens and addresses there.
    """
    for place in (home(), home() / name):
        if create:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_foreign(place)
    return home() / name


def _refuse_foreign(place: Path) -> None:
    try:
        status = place.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        found = f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"{VARIABLE} is not a directory", where=str(home()), found=found, cure=f"set {VARIABLE} to a directory"
        ) from None
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigurationError(
            f"Other users can write to {VARIABLE}, which says where your jobs take commands",
            where=str(place),
            found=f"owner {status.st_uid}, mode {status.st_mode & 0o777:o}",
            cure=f"chmod 700 {place}, or set {VARIABLE} to a directory of your own",
        )


def write_private(path: Path, content: bytes) -> None:
    """Write a file completely or not at all, readable by the user alone. It is not made durable: after a crash of the system, the
    content is of no use."""
    temporary = path.with_name(f".{path.name}.{new_token()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_token(driver: str) -> str:
    """Read the token of a driver, which the records of its jobs name. Raise OSError if there is none."""
    return (folder(TOKENS, create=False) / Path(driver).name).read_text()


def remove_socket(path: str | None) -> None:
    """Remove the socket that a dead driver has left."""
    if path is not None:
        with contextlib.suppress(OSError):
            if Path(path).is_socket():
                os.unlink(path)
        remove_place(Path(path).parent)


def remove_place(place: Path | None) -> None:
    """Remove a directory that was made for one socket."""
    if place is not None and place.name != SOCKETS:
        with contextlib.suppress(OSError):
            place.rmdir()
