"""The registry of the user's jobs: one file for each run of a job, written by its driver, read by the command line.

A record says what the driver knew last. That it still lives is never taken from the record: the process is asked, and told apart
from a later one with the same pid.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

import msgspec

from tidegate.base.ids import new_token
from tidegate.checkpoint.owner import Owner, is_alive
from tidegate.common.job_status import JobStatus
from tidegate.control.home import LOGS, TOKENS, folder, home, remove_socket, write_private
from tidegate.control.messages import Operation

log = logging.getLogger(__name__)

VERSION = 1
KEPT, KEPT_DAYS = 100, 30
"""So many ended runs stay listed, for so long."""
_DAY_MS = 86_400_000
_JOBS = "jobs"


class Life(Enum):
    """What is known of the process behind a record."""

    LIVE = "live"
    ENDED = "ended"
    """It has told how it ended."""
    DIED = "died"
    """It is gone, and has told nothing."""
    UNKNOWN = "unknown"
    """It is on another host or in another container, or it is stopped: nobody here can say."""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``run``: names the file, and tells runs of one job id apart. ``state``: a name of JobStatus. ``endpoint``: where the driver
    takes commands over TCP, None if it does not (yet); ``socket``: the path of its unix socket; ``driver`` names the file of its
    token. ``launch``: by this who started it in the background, or supervises it, knows it. ``operations``: those answered last,
    for whoever asks when the driver has gone."""

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

    @property
    def has_ended(self) -> bool:
        return JobStatus[self.state].is_terminal_state()

    def life(self) -> Life:
        if self.has_ended:
            return Life.ENDED
        alive = is_alive(self.owner)
        return Life.UNKNOWN if alive is None else Life.LIVE if alive else Life.DIED


def new_run() -> str:
    """Names sort by time."""
    return f"{time.time_ns() // 1_000_000:014d}-{new_token()}"


def write(record: JobRecord) -> None:
    write_private(folder(_JOBS) / f"{record.run}.json", msgspec.json.encode(record))


def read(run: str) -> JobRecord | None:
    return _read(home() / _JOBS / f"{run}.json")


def records() -> list[JobRecord]:
    """All runs that are on record, oldest first. What cannot be read, or is of a newer version, is left out."""
    place = folder(_JOBS, create=False)
    if not place.is_dir():
        return []
    found = (_read(path) for path in sorted(place.glob("[0-9]*.json")))
    return [record for record in found if record is not None]


def _read(path: Path) -> JobRecord | None:
    record = _read_once(path)
    if record is not None and record.life() is Life.DIED:
        return _read_once(
            path
        )  # it may have written its end between the first look at the file and that at the process
    return record


def _read_once(path: Path) -> JobRecord | None:
    try:
        record = msgspec.json.decode(path.read_bytes(), type=JobRecord)
        known = record.version <= VERSION and record.state in JobStatus.__members__
        return record if known and record.run == path.stem else None
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.debug("%s is left out: %s", path, error)
        return None


def newest_runs(runs: Iterable[JobRecord]) -> list[JobRecord]:
    """Of each job its newest run, oldest first."""
    by_job: dict[str, JobRecord] = {}
    for record in runs:
        by_job.pop(record.job_id, None)
        by_job[record.job_id] = record
    return list(by_job.values())


def is_crowded() -> bool:
    """Whether it is time to ``prune``: not with every job, since that reads all records."""
    return sum(1 for _ in (home() / _JOBS).iterdir()) > KEPT * 5 // 4


def prune(now_ms: int, kept: int = KEPT, days: int = KEPT_DAYS) -> None:
    """Forget the oldest runs that are over. One that nobody here can ask about counts as over when it is old."""
    over = [record for record in records() if record.life() is not Life.LIVE]
    sure = [record for record in over if record.life() is not Life.UNKNOWN]
    too_many = sure[: max(0, len(sure) - kept)]
    too_old = [record for record in over if (record.ended_ms or record.started_ms) < now_ms - days * _DAY_MS]
    for record in {record.run: record for record in (*too_many, *too_old)}.values():
        (home() / _JOBS / f"{record.run}.json").unlink(missing_ok=True)
    for record in sure:
        if (
            record.driver is not None and is_alive(record.owner) is False
        ):  # a killed driver leaves its token and its socket
            (home() / TOKENS / record.driver).unlink(missing_ok=True)
            remove_socket(record.socket)
    _prune_logs(now_ms)


def _prune_logs(now_ms: int) -> None:
    """What drivers in the background have printed goes with their last run that is listed. One that has none, because it never
    came to a job or has just been started, stays for a day."""
    place = home() / LOGS
    listed = {record.launch for record in records()}
    for log_file in place.iterdir() if place.is_dir() else ():
        if log_file.stem not in listed and log_file.stat().st_mtime * 1000 < now_ms - _DAY_MS:
            log_file.unlink(missing_ok=True)
