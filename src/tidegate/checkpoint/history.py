"""The history of a job's checkpoints (C19): bounded, on storage, outlives the driver, never blocks a job."""

from __future__ import annotations

import logging
from enum import Enum

import msgspec

from tidegate.checkpoint.envelope import seal, unseal
from tidegate.common.errors import RestoreError, StorageError
from tidegate.common.files import Files

logger = logging.getLogger(__name__)

MAGIC, VERSION, PATH = "tidegate-history", 1, "history.json"
DEFAULT_LIMIT = 200
"""Written whole with every checkpoint: a thousand entries would cost 10 ms each time, these cost 2 or 3."""

NO_ID = 0
"""In place of a checkpoint's id: something failed that counts as one, and none had been triggered."""


class CheckpointStatus(Enum):
    COMPLETED = "completed"
    FAILED = "failed"


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One checkpoint: a completed one has a size, a failed one a reason. Times of the wall clock, in milliseconds."""

    checkpoint_id: int
    token: int
    kind: str
    status: CheckpointStatus
    trigger_ms: int
    end_ms: int
    duration_ms: float
    round: int = 0
    size: int = 0
    operators_ms: dict[str, float] = {}
    """Longest snapshot of each operator."""
    in_flight_records: int = 0
    """Received and not processed at the cut, in so many bytes: the checkpoint is unaligned."""
    in_flight_bytes: int = 0
    reason: str = ""
    message: str = ""


class CheckpointHistory:
    """Newest last. Written whole after every checkpoint; some hundred bytes for each of at most ``limit`` entries."""

    def __init__(self, files: Files, limit: int = DEFAULT_LIMIT) -> None:
        self._files, self._limit = files, limit
        self._entries = _read_or_begin(files)
        self.unstored = False
        """Whether there is anything to ``store``."""

    @property
    def entries(self) -> list[HistoryEntry]:
        return list(self._entries)

    @property
    def highest_id(self) -> int:
        return max((entry.checkpoint_id for entry in self._entries), default=0)

    def add(self, *entries: HistoryEntry) -> None:
        """Remember and store."""
        self.remember(*entries)
        self.store()

    def remember(self, *entries: HistoryEntry) -> None:
        """To be stored with the next ``store``: nobody waits for storage here."""
        if entries:
            self._entries = [*self._entries, *entries][-self._limit :]
            self.unstored = True

    def store(self) -> None:
        """May run in another thread than ``remember``. A storage failure is logged: a later one writes the whole anyway."""
        if not self.unstored:
            return
        self.unstored = False
        try:
            self._files.replace(PATH, seal(MAGIC, VERSION, self._entries))
        except StorageError as error:
            logger.warning("checkpoint history not written: %s", error)


def read_history(files: Files) -> list[HistoryEntry]:
    """For readers beside the job. Damage raises ``CorruptFileError``; no history is an empty one."""
    content = files.read_if_exists(PATH)
    if content is None:
        return []
    return unseal(files.location(PATH), content, MAGIC, {1: _read_version_1})


def _read_or_begin(files: Files) -> list[HistoryEntry]:
    try:
        return read_history(files)
    except (StorageError, RestoreError) as error:
        logger.warning("checkpoint history is not readable and begins anew: %s", error)
        return []


def _read_version_1(body: bytes) -> list[HistoryEntry]:
    return msgspec.json.decode(body, type=list[HistoryEntry])
