"""The files of ``lease/``: the claim on the job's directory, what the attempt restored, what it retains.

``<token>.json`` and ``<token>.restored.json`` are published once and never change. ``<token>.live.json`` is replaced,
by the holder of the token only. Claims are never deleted: their names are the token counter.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TypeVar

import msgspec

from tidegate.base.errors import CorruptFileError
from tidegate.base.files import Files
from tidegate.checkpoint.envelope import seal, unseal
from tidegate.checkpoint.owner import Owner

DIRECTORY = "lease"
VERSION = 1
_CLAIM_NAME = re.compile(r"(\d{8,})\.json")

T = TypeVar("T")


class AttemptStatus(Enum):
    """How an attempt ended; RUNNING also for an attempt that was killed. SUSPENDED: the driver was asked to end, and the job
    continues with the next driver."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Claim(msgspec.Struct, frozen=True):
    """``nonce`` distinguishes two claims with the same token, in case somebody has deleted the directory."""

    token: int
    nonce: str
    job_id: str
    owner: Owner
    acquired_ms: int
    timeout_ms: int


class RestorePoint(msgspec.Struct, frozen=True):
    """A completed checkpoint. ``directory``: its full address if the checkpoint is not in this job's directory, else empty."""

    checkpoint_id: int
    token: int
    directory: str = ""


class RestoredRecord(msgspec.Struct, frozen=True):
    """The attempt's restore decision. ``point`` None: the attempt started with empty state."""

    point: RestorePoint | None


class LiveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the attempt has reached.

    - ``first_id`` to ``last_id``: the checkpoint ids that the attempt has taken.
    - ``retained``: the completed checkpoints on its lineage, oldest first, also those of earlier attempts.
    - ``protected``: checkpoints that the attempt must not delete.
    - ``discarded``: the job ended and its checkpoints were discarded.
    - ``released``: the next attempt may claim at once.
    - ``origin``: the user's path that the lineage began with. A driver that is restarted with the same path continues from the
      lineage, and does not go back to the path.
    - ``committed``: the newest checkpoint of the directory that was ever complete, so that its output may be visible. The value
      stays when the checkpoints themselves are deleted.
    - ``writing``: savepoints under way, so that an attempt after a crash can delete the incomplete ones.
    - ``savepoint``: the savepoint that the job has ended with.
    - ``begun``: the highest id when the lineage began with its origin: later commits belong to this lineage.
    - ``claimed``: a snapshot outside the directory that the job owns now, and deletes when it is subsumed.
    """

    heartbeat_ms: int
    first_id: int
    last_id: int
    retained: list[RestorePoint] = []
    protected: list[RestorePoint] = []
    status: AttemptStatus = AttemptStatus.RUNNING
    discarded: bool = False
    released: bool = False
    origin: str = ""
    committed: int | msgspec.UnsetType = msgspec.UNSET
    writing: list[str] | msgspec.UnsetType = msgspec.UNSET
    savepoint: str | msgspec.UnsetType = msgspec.UNSET
    begun: int | msgspec.UnsetType = msgspec.UNSET
    claimed: str | msgspec.UnsetType = msgspec.UNSET


def claim_path(token: int) -> str:
    return f"{DIRECTORY}/{token:08d}.json"


def restored_path(token: int) -> str:
    return f"{DIRECTORY}/{token:08d}.restored.json"


def live_path(token: int) -> str:
    return f"{DIRECTORY}/{token:08d}.live.json"


def encode(record: Claim | RestoredRecord | LiveRecord) -> bytes:
    return seal(_MAGIC[type(record)], VERSION, record)


def read_record(files: Files, path: str, kind: type[T]) -> T | None:
    """Read a record. None: there is no record. Damage raises."""
    content = files.read_if_exists(path)
    if content is None:
        return None
    readers = {1: lambda body: msgspec.json.decode(body, type=kind)}
    return unseal(files.location(path), content, _MAGIC[kind], readers, _CURE)


def read_undamaged(files: Files, path: str, kind: type[T]) -> T | None:
    """Do as ``read_record``, for questions that other records can answer too: a damaged record counts as missing."""
    try:
        return read_record(files, path, kind)
    except CorruptFileError:
        return None


def newest_token(files: Files) -> int:
    """Return the highest token ever claimed, 0 if there is none.

    A listing only says where to begin: claims have no gaps, so asking for the next claim finds claims that a stale
    listing misses.
    """
    matches = (_CLAIM_NAME.fullmatch(name) for name in files.list_names(DIRECTORY))
    token = max((int(match[1]) for match in matches if match), default=0)
    while files.exists(claim_path(token + 1)):
        token += 1
    return token


_CURE = (
    "bring the file back from a copy. Without a copy, and if no driver of this job runs: start the program with another"
    " tidegate.job-id, and set execution.state-recovery.path to the newest chk-<n> of this job"
)
_MAGIC: dict[type, str] = {
    Claim: "tidegate-lease",
    RestoredRecord: "tidegate-restored",
    LiveRecord: "tidegate-live",
}
