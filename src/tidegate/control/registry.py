"""The registry of the user's jobs, and its directory: one file for each run of a job.

The driver writes the file, the command line reads it. A record holds what the driver wrote last. Whether the driver
lives is never read from the record: the process is looked up, and distinguished from a later process with the same pid.

The directory is ``TIDEGATE_HOME``, else ``~/.tidegate``. Without a writable home directory it is
``tidegate-home-<uid>/.tidegate`` in the directory for temporary files.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

import msgspec

from tidegate.base.errors import ConfigurationError
from tidegate.base.hashing import new_token
from tidegate.base.private_dirs import own_place
from tidegate.checkpoint.owner import Owner, is_alive
from tidegate.common.job_status import JobStatus
from tidegate.control.messages import Operation

VARIABLE = "TIDEGATE_HOME"
TOKEN_VARIABLE = "TIDEGATE_TOKEN_FILE"  # noqa: S105 (a name)
_GIVEN, _SHORTEST_TOKEN = "given-", 32
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
    given = given_token()
    if given is not None and given[0] == driver:
        return given[1]
    return (folder(TOKENS, create=False) / Path(driver).name).read_text()


def keep_token(token: str) -> str:
    """Store a token for commands of this user, and return its name."""
    name = token_name(token)
    write_private(folder(TOKENS) / name, token.encode())
    return name


def token_name(token: str) -> str:
    """Name a token that was given to its driver. The name tells nothing of the token."""
    return _GIVEN + hashlib.sha256(b"tidegate-token-1\n" + token.encode()).hexdigest()[:24]


def given_token() -> tuple[str, str] | None:
    """Return the token that the user has given to this process (``TIDEGATE_TOKEN_FILE``), and its name. A driver then makes no
    token of its own."""
    path = os.environ.get(TOKEN_VARIABLE)
    if not path:
        return None
    try:
        token, found = Path(path).read_text().strip(), "fewer than 32 characters"
    except OSError as error:
        token, found = "", f"{type(error).__name__}: {error}"
    if len(token) < _SHORTEST_TOKEN:
        raise ConfigurationError(
            f"{TOKEN_VARIABLE} names no file with a token",
            where=path,
            found=found,
            cure=f"write a token into the file: openssl rand -hex 32 > {path}",
        )
    return token_name(token), token


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


log = logging.getLogger(__name__)

VERSION = 1
MOST_ENDED, MOST_DAYS = 100, 30
"""This many ended runs stay listed, for this many days."""
_DAY_MS = 86_400_000
_JOBS = "jobs"


class DriverLife(Enum):
    """What is known of the process that wrote a record."""

    LIVE = "live"
    ENDED = "ended"
    """The record says how the job ended."""
    DIED = "died"
    """The process has ended, and the record does not say how the job ended."""
    UNKNOWN = "unknown"
    """The process is on another host or in another container, or is stopped: it cannot be looked up here."""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``run`` names the file and distinguishes runs of one job id. ``state`` is a name of JobStatus.

    ``endpoint`` is the TCP address for commands, None if the driver does not listen (yet). ``socket`` is the path of the unix
    socket, and ``driver`` names the file with the token. ``launch`` identifies a driver in the background for its launcher or
    supervisor. ``operations`` are those that ended last, for a client that asks after the driver has ended. ``application`` is
    Spark's id. ``place`` is the job's directory on checkpoint storage if the driver takes commands there, and ``printed`` says that
    it keeps there what it prints (``place.py``). ``seen`` is what the lease told of a driver on another host; it is not stored.
    """

    version: int = VERSION
    run: str
    job_id: str
    name: str
    program: str
    owner: Owner
    started_ms: int
    state: str = JobStatus.CREATED.name
    ended_ms: int | None = None
    error: str | None = None
    directory: str = ""
    is_temporary: bool = False
    checkpoint_interval_ms: int | None = None
    endpoint: str | None = None
    socket: str | None = None
    driver: str | None = None
    launch: str | None = None
    operations: list[Operation] = []
    application: str | None = None
    place: str | None = None
    printed: bool = False
    seen: str | None = None

    @property
    def has_ended(self) -> bool:
        return JobStatus[self.state].is_terminal_state()

    def life(self) -> DriverLife:
        if self.has_ended:
            return DriverLife.ENDED
        alive = is_alive(self.owner)
        if alive is None and self.seen is not None:
            return DriverLife(self.seen)
        return DriverLife.UNKNOWN if alive is None else DriverLife.LIVE if alive else DriverLife.DIED


def new_run() -> str:
    """Make a name for a run. Names sort by time."""
    return f"{time.time_ns() // 1_000_000:014d}-{new_token()}"


def write(record: JobRecord) -> None:
    content = msgspec.json.encode(msgspec.structs.replace(record, seen=None))
    write_private(folder(_JOBS) / f"{record.run}.json", content)


def read(run: str) -> JobRecord | None:
    return _read(home() / _JOBS / f"{run}.json")


def records() -> list[JobRecord]:
    """Return all recorded runs, oldest first. Skip records that cannot be read, or have a newer version."""
    place = folder(_JOBS, create=False)
    if not place.is_dir():
        return []
    found = (_read(path) for path in sorted(place.glob("[0-9]*.json")))
    return [record for record in found if record is not None]


def _read(path: Path) -> JobRecord | None:
    record = _read_once(path)
    if record is not None and record.life() is DriverLife.DIED:
        # The driver may have written its end after the file was read and before the process was looked up.
        return _read_once(path)
    return record


def _read_once(path: Path) -> JobRecord | None:
    try:
        record = msgspec.json.decode(path.read_bytes(), type=JobRecord)
        known = record.version <= VERSION and record.state in JobStatus.__members__
        return record if known and record.run == path.stem else None
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.debug("%s is skipped: %s", path, error)
        return None


def newest_runs(runs: Iterable[JobRecord]) -> list[JobRecord]:
    """Return the newest run of each job, oldest first."""
    by_job: dict[str, JobRecord] = {}
    for record in runs:
        by_job.pop(record.job_id, None)
        by_job[record.job_id] = record
    return list(by_job.values())


def directories_in_use() -> list[str]:
    """Return the directories on checkpoint storage of jobs that run, or may be started again."""
    over = (JobStatus.FINISHED.name, JobStatus.CANCELED.name)
    jobs = newest_runs(records())
    return [job.directory for job in jobs if job.checkpoint_interval_ms is not None and job.state not in over]


def is_crowded() -> bool:
    """Return whether to ``prune``. This is not done with every job, because it reads all records."""
    return sum(1 for _ in (home() / _JOBS).iterdir()) > MOST_ENDED * 5 // 4


def prune(now_ms: int, most: int = MOST_ENDED, days: int = MOST_DAYS) -> None:
    """Delete the oldest runs that have ended. A run whose process cannot be looked up counts as ended when it is old.

    But a job on a cluster may run for years, and commands find it here. Of such runs the oldest are deleted when there are too
    many.
    """
    over = [record for record in records() if record.life() is not DriverLife.LIVE]
    sure = [record for record in over if record.life() is not DriverLife.UNKNOWN]
    far = [record for record in over if record.life() is DriverLife.UNKNOWN and record.place is not None]
    too_many = sure[: max(0, len(sure) - most)] + far[: max(0, len(far) - most)]
    old = now_ms - days * _DAY_MS
    too_old = [record for record in over if (record.ended_ms or record.started_ms) < old and record not in far]
    for record in {record.run: record for record in (*too_many, *too_old)}.values():
        (home() / _JOBS / f"{record.run}.json").unlink(missing_ok=True)
    for record in sure:
        # A killed driver leaves its token and its socket.
        is_shared = (record.driver or "").startswith(_GIVEN) and not record.has_ended  # by the next driver of the job
        if record.driver is not None and is_alive(record.owner) is False and not is_shared:
            (home() / TOKENS / record.driver).unlink(missing_ok=True)
            remove_socket(record.socket)
    _prune_logs(now_ms)


def _prune_logs(now_ms: int) -> None:
    """Delete the logs of drivers in the background that have no listed run any more. A log without a run stays for a day: the
    driver has just been started, or never started a job."""
    place = home() / LOGS
    listed = {record.launch for record in records()}
    for log_file in place.iterdir() if place.is_dir() else ():
        if log_file.stem not in listed and log_file.stat().st_mtime * 1000 < now_ms - _DAY_MS:
            log_file.unlink(missing_ok=True)
