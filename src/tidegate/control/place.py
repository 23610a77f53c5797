"""What drivers leave beside the checkpoints of a job, so that commands find a job without the registry of its user.

A job with a directory on checkpoint storage has ``control/`` there::

    control/<run>.json          the record of a run, as in the registry: host, application, state, how the job ended
    control/<run>/bell, in, out commands to this run as files, and their answers (``letters.py``)
    control/log-<launch>/<n>    what the drivers of a launch on a cluster have printed
    control/error-<launch>      why a driver on a cluster did not start the job
    control/attempt-<application>-<n>.json   the process of an attempt of the cluster

The token of a driver is never there. It stays with the user, in TIDEGATE_HOME.

**Whose record counts.** Every driver writes only under the name of its own run, so a driver that lost the job can never
change what the next driver says. The newest claim of the lease names the process that may act for the job; the record of
that process counts, else the newest record.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import msgspec

from tidegate.base.errors import RestoreError, StorageError, UnknownJobError
from tidegate.base.files import Files
from tidegate.checkpoint.lease_records import (
    DIRECTORY as LEASES,
)
from tidegate.checkpoint.lease_records import (
    AttemptStatus,
    Claim,
    LiveRecord,
    claim_path,
    live_path,
    newest_token,
    read_undamaged,
)
from tidegate.checkpoint.owner import is_alive
from tidegate.common.job_status import JobStatus
from tidegate.control.registry import DriverLife, JobRecord

DIRECTORY = "control"
_RECORD = re.compile(r"(\d{14}-[0-9a-f]+)\.json")
_LOG = re.compile(r"log-(\w+)")
_OF_LAUNCH = re.compile(r"error-(\w+)|attempt-(application_\d+_\d+)-\d+\.json")
_STATES = {
    AttemptStatus.FINISHED: JobStatus.FINISHED,
    AttemptStatus.CANCELLED: JobStatus.CANCELED,
    AttemptStatus.FAILED: JobStatus.FAILED,
    AttemptStatus.SUSPENDED: JobStatus.SUSPENDED,
}
_MOST_RUNS = 3
"""Records of earlier runs that a new run leaves."""


class JobPlace:
    """The directory of one job on checkpoint storage. Methods wait for storage, and raise StorageError."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.files = Files(self.address)
        self.job_id = self.files.root.rstrip("/").rpartition("/")[2]
        """The directory of a job has its id as its name."""

    # -- written by the driver -------------------------------------------------------------------------------------------------

    def write(self, record: JobRecord) -> None:
        self.files.replace(f"{DIRECTORY}/{record.run}.json", msgspec.json.encode(record))

    def forget_others(self, own: JobRecord) -> None:
        """Delete what earlier runs left: their commands, all but the latest records, and what launches without a record printed.
        Call it when the run holds the lease: a run that has lost it reads only commands to itself, so it loses nothing that
        anybody waits for."""
        runs = [other for other in self.runs() if other != own.run]
        for other in runs:
            for part in ("in", "out"):
                self.files.delete_tree(f"{DIRECTORY}/{other}/{part}")
            self.files.delete(f"{DIRECTORY}/{other}/bell")
        for other in runs[:-_MOST_RUNS]:
            self.files.delete_tree(f"{DIRECTORY}/{other}")
            self.files.delete(f"{DIRECTORY}/{other}.json")
        kept = [own, *(record for other in runs[-_MOST_RUNS:] if (record := self.read(other)) is not None)]
        named = {name for record in kept for name in (record.launch, record.application)}
        for name in self.files.list_names(DIRECTORY):
            if (of := _LOG.fullmatch(name)) is not None and of[1] not in named:
                self.files.delete_tree(f"{DIRECTORY}/{name}")
            elif (of := _OF_LAUNCH.fullmatch(name)) is not None and (of[1] or of[2]) not in named:
                self.files.delete(f"{DIRECTORY}/{name}")

    # -- read by commands ------------------------------------------------------------------------------------------------------

    def runs(self) -> list[str]:
        """Return the runs that have a record, oldest first."""
        return [match[1] for name in self.files.list_names(DIRECTORY) if (match := _RECORD.fullmatch(name))]

    def read(self, run: str) -> JobRecord | None:
        """Return the record of a run, without the addresses of its driver. Whoever may write to the storage could have written
        them, and would be sent the token: they are believed only from the registry. A record of another job counts as missing:
        a command to this directory must not reach that job."""
        content = self.files.read_if_exists(f"{DIRECTORY}/{run}.json")
        try:
            record = None if content is None else msgspec.json.decode(content, type=JobRecord)
        except msgspec.MsgspecError:
            return None
        if (
            record is None
            or (record.run, record.job_id) != (run, self.job_id)
            or record.state not in JobStatus.__members__
        ):
            return None
        place = None if record.place is None else self.address
        return msgspec.structs.replace(record, endpoint=None, socket=None, place=place)

    def newest(self) -> JobRecord | None:
        """Return the record that counts, with ``seen``: what is known of its driver. None: this is no directory of a job."""
        token = newest_token(self.files)
        claim = read_undamaged(self.files, claim_path(token), Claim) if token else None
        live = read_undamaged(self.files, live_path(token), LiveRecord) if token else None
        records = [record for run in reversed(self.runs()) if (record := self.read(run)) is not None]
        if claim is None:
            return None if not records else _seen(records[0], None, None)
        record = next((each for each in records if each.owner == claim.owner), None)
        if record is None and records and records[0].started_ms > claim.acquired_ms:
            record = records[0]  # a run that ended before it claimed, or a job without checkpoints
        return _seen(record or self._described(claim, live), claim, live)

    def _described(self, claim: Claim, live: LiveRecord | None) -> JobRecord:
        """Describe a run that has left no record, by its lease."""
        ended = _STATES.get(live.status) if live is not None else None
        return JobRecord(
            run=f"{claim.acquired_ms:014d}-{claim.token:012x}",
            job_id=self.job_id,
            name=self.job_id,
            program="",
            owner=claim.owner,
            started_ms=claim.acquired_ms,
            ended_ms=live.heartbeat_ms if ended is not None and live is not None else None,
            state=(ended or JobStatus.RUNNING).name,
            directory=self.address,
        )


def _seen(record: JobRecord, claim: Claim | None, live: LiveRecord | None) -> JobRecord:
    """Note what the lease tells of the driver: it writes a heartbeat, from whatever host, and how the job ended."""
    if record.has_ended:
        return record
    alive = is_alive(record.owner)
    if not alive and claim is not None and live is not None and claim.owner == record.owner:
        ended = _STATES.get(live.status)
        if ended is not None:  # the driver has not written its record yet, or died before it could
            return msgspec.structs.replace(record, state=ended.name, ended_ms=live.heartbeat_ms)
        if alive is None:
            beat = max(claim.acquired_ms, live.heartbeat_ms)
            alive = not live.released and time.time_ns() // 1_000_000 - beat < claim.timeout_ms
    life = DriverLife.UNKNOWN if alive is None else DriverLife.LIVE if alive else DriverLife.DIED
    return msgspec.structs.replace(record, seen=life.value)


def is_remote(address: str) -> bool:
    """Return whether other hosts can reach the address."""
    return "://" in address and not address.startswith(("file:", "memory:"))


def is_address(text: str) -> bool:
    """Return whether a text names a job by its directory. An id has no slash."""
    return "/" in text


def job_at(address: str) -> JobRecord:
    """Return the record of the job with this directory. Raise UnknownJobError if there is none."""
    place = JobPlace(address)
    record = place.newest()
    if record is None:
        raise UnknownJobError(
            "There is no job in this directory",
            where=place.address,
            found=f"neither {LEASES} nor {DIRECTORY} in it",
            cure="give the directory of one job (execution.checkpointing.dir/<job id>); tidegate list --dir shows the jobs below "
            "a directory",
        )
    return record


def jobs_below(directory: str) -> Iterator[JobRecord]:
    """Yield the newest run of every job below a directory for checkpoints, running or not."""
    files = Files(directory)
    names = files.list_names()
    if not names and not files.is_directory():
        raise RestoreError(
            "The directory does not exist",
            where=files.root,
            found="nothing there",
            cure="give the value of execution.checkpointing.dir",
        )
    for name in names:
        record = None if name.startswith(".") else JobPlace(files.location(name)).newest()
        if record is not None:
            yield record


def last_sign_ms(record: JobRecord) -> int:
    """Return when the newest driver of the job wrote its last heartbeat."""
    files = JobPlace(record.place or record.directory).files
    token = newest_token(files)
    live = read_undamaged(files, live_path(token), LiveRecord) if token else None
    return record.started_ms if live is None else live.heartbeat_ms


def refreshed(record: JobRecord) -> JobRecord:
    """Return what the job's directory says now, if the driver of the record cannot be looked up here, or has died: another driver
    may run the job. The record stays as it is if storage does not answer."""
    if record.life() not in (DriverLife.UNKNOWN, DriverLife.DIED) or not record.place:
        return record
    try:
        return JobPlace(record.place).newest() or record
    except StorageError:
        return record
