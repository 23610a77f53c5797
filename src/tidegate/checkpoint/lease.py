"""The lease on a job's directory: one attempt at a time, and an older attempt that wakes up is fenced.

Why it is safe. An attempt may be paused (SIGSTOP, a long garbage collection, a lost network) between any two of its
steps, for any time, and a newer attempt may take over meanwhile. No lock can forbid the next file operation of the paused
attempt. So every step that others can see has the same shape: **record, then check for a newer token, then act**. The newer
attempt does the reverse: **claim its token, then read the records**. Of two attempts O (old) and N (new), one always sees
the other:

- *Ids.* O writes ``last_id`` and checks. If N claimed before the check, O is fenced and the id is not used. If N claimed
  after the check, N reads the id and starts after it. So no id is used twice, and no two attempts write the same
  ``chk-<n>``.
- *Publish (7), then commit (8).* O publishes ``_metadata`` of n, records the list that it retains from now on, and checks
  before it commits.
    O paused anywhere before that check, and N claimed: N may or may not find n. If N finds n, N restores n. If not, N
    restores n-1 and says so in its ``restored`` record. O's publish then leaves a file that nobody reads, because only the
    newest attempt with a ``restored`` record decides: its own checkpoints, else the checkpoint that it restored. In both
    cases the check fences O, and n is committed by N or by nobody. (The check before the publish is a courtesy: it avoids
    the stray file except within a short time.)
    O paused after the check, and N claimed: n was published before N's claim, so N finds n and restores it. O and N both
    commit n. Committers are idempotent, so the late commit does nothing: step 8 needs no check of its own.
- *Restore.* N writes its ``restored`` record and checks before it touches a sink or deletes a file. If M claimed before
  that check, N is fenced and has done nothing: whatever N's record says, M's record is newer. If M claimed after the check,
  M reads N's record and is on the same lineage. So after n was committed by any attempt, no attempt restores less than n.
- *Delete (9).* The list that O recorded in step 7 does not contain the subsumed checkpoints, and the check after it serves
  here too. If N claimed before that check, O is fenced and deletes nothing. If N claimed after the check, N has read the
  list, and the subsumed checkpoints no longer count for N. However late O deletes, it deletes only files that subsumed
  checkpoints referred to. N's state comes from a retained checkpoint, and N's new files have names that O cannot know. (If
  the list could not be written in step 7, step 9 writes the list and checks first.)
- *Crash* is a pause that never ends.

So a checkpoint costs these storage calls, in this order: the live record with its id, one check for a newer claim (1); one
check, the metadata, the live record with the list, one check (7); none of ours (8); the metadata and the directory of each
subsumed checkpoint, and every file (9). Last, when nobody waits, come one check and the history, which a newer attempt may
be writing by then. If storage was slow, the first two calls for the next checkpoints follow (``take_ahead``).
``tests/unit/runtime/test_protocol_calls.py`` counts the calls.

``tests/unit/checkpoint/test_interleavings.py`` pauses and kills attempts at every fault point in this room and in
``Files``.

Refusing a second live driver is an additional courtesy, and the only part that trusts clocks (heartbeats of other hosts).
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from tidegate.base import faults
from tidegate.base.clock import Clock
from tidegate.base.errors import FencedError, InternalError, LeaseError
from tidegate.base.files import Files
from tidegate.base.hashing import new_token
from tidegate.checkpoint.lease_records import (
    AttemptStatus,
    Claim,
    LiveRecord,
    RestoredRecord,
    RestorePoint,
    claim_path,
    encode,
    live_path,
    newest_token,
    read_undamaged,
    restored_path,
)
from tidegate.checkpoint.owner import Owner, is_alive, this_process
from tidegate.common import options

logger = logging.getLogger(__name__)

Liveness = Callable[[Owner], bool | None]
_SLOW_S = 0.02


class Lease:
    """A claimed token. Methods that write or check may be called from several threads: the job's thread takes ids, the checkpoint
    lane publishes, commits and deletes, and the heartbeat renews. One thread at a time writes the live record, always as a whole.
    A thread that takes an id which was taken ahead does not wait for that write."""

    def __init__(self, files: Files, clock: Clock, claim: Claim, live: LiveRecord) -> None:
        self.files, self.token, self.claim = files, claim.token, claim
        self._clock = clock
        self._live = live
        self._lock = threading.Lock()  # guards the live record, also during a storage call
        # Guards the three fields below, for moments: taking an id from memory waits for no storage
        self._ids = threading.Lock()
        self._last_id = live.last_id
        self._given = 0
        self._ahead: list[int] = []
        self._is_slow = False
        self.ids_behind = 0
        """The id of the restored checkpoint, if that checkpoint is in another directory."""

    @property
    def renew_every_ms(self) -> int:
        return self.claim.timeout_ms // 3

    @property
    def last_id(self) -> int:
        """The highest checkpoint id that this attempt or an earlier one has taken so far."""
        return self._last_id

    @property
    def live(self) -> LiveRecord:
        return self._live

    def check(self) -> None:
        """Raise ``FencedError`` if a newer attempt has claimed the directory. Asks storage for one name, never for a listing."""
        faults.point("C9.check", token=self.token)
        newer = claim_path(self.token + 1)
        if self.files.exists(newer):
            claim = read_undamaged(self.files, newer, Claim)
            raise self._fenced(f"token {self.token + 1}, {claim.owner if claim else 'unknown owner'}")
        faults.point("C9.checked", token=self.token)

    def renew(self) -> None:
        """Write the heartbeat, and find out early if the lease is lost. Call it every ``renew_every_ms``.

        Also checks that this attempt's own claim still exists. No step of the protocol needs this check, since claims are never
        deleted. But somebody may have deleted the whole directory, and another driver may have started in it.
        """
        self._write_live()
        self.check()
        if read_undamaged(self.files, claim_path(self.token), Claim) != self.claim:
            raise self._fenced("the attempt's own claim is missing or changed")

    def take_id(self, at_least: int = 1, *, spare: int = 0) -> int:
        """Return the next checkpoint id (step 1), greater than every id ever taken in this directory. No id is returned twice.
        ``spare``: how many more ids the same write takes, if a write is needed and storage was slow the last time."""
        with self._ids:
            # Skip ids below an id that was returned while they were being taken: ids grow with the cuts.
            self._ahead = [taken for taken in self._ahead if taken >= at_least and taken > self._given]
            if self._ahead:
                self._given = self._ahead.pop(0)
                return self._given
        given, *ahead = self._take_ids(at_least, 1 + (spare if self._is_slow else 0))
        with self._ids:
            self._given, self._ahead = given, [*ahead, *self._ahead]
        return given

    def take_ahead(self, number: int = 1) -> None:
        """Take the next ids early, where nobody waits for storage, if storage was slow the last time. A record and a check stay
        valid later: an attempt that claims meanwhile has read the record. ``number``: how many ids are available afterwards."""
        missing = number - len(self._ahead)
        if self._is_slow and missing > 0:
            taken = self._take_ids(1, missing)
            with self._ids:
                self._ahead += taken

    def _take_ids(self, at_least: int, number: int) -> list[int]:
        started = self._clock.monotonic()
        with self._ids:
            first = max(self._last_id + 1, at_least)
            self._last_id = last = first + number - 1  # even if the write fails: storage may have the record
        self._write_live(last_id=last)
        faults.point("C1.id-taken", token=self.token, checkpoint_id=first)
        self.check()
        self._is_slow = self._clock.monotonic() - started > _SLOW_S
        return list(range(first, last + 1))

    def record_restored(
        self,
        point: RestorePoint | None,
        retained: list[RestorePoint],
        protected: list[RestorePoint],
        *,
        finished: bool = False,
        origin: str = "",
        **carried: Any,
    ) -> None:
        """Record what this attempt restores. Call it once, after all checks, before a sink or a file is touched.

        ``finished``: the job had finished before, and this attempt only cleans up. The other arguments: see ``LiveRecord``.
        """
        # A checkpoint of another directory: ids continue after its id. Sinks use the ids in names, and remember the last id.
        if point is not None and point.directory:
            self.ids_behind = point.checkpoint_id
        with self._ids:
            self._last_id = max(self._last_id, self.ids_behind)
        status = AttemptStatus.FINISHED if finished else AttemptStatus.RUNNING
        changes = {name: value for name, value in carried.items() if value}
        self._write_live(
            retained=retained, protected=protected, status=status, discarded=finished, origin=origin, **changes
        )
        faults.point("C8.before-record", token=self.token)
        try:
            self.files.publish(restored_path(self.token), encode(RestoredRecord(point)))
        except FileExistsError as error:
            found = f"{restored_path(self.token)} exists"
            raise InternalError("An attempt records its restore decision a second time.", found=found) from error
        faults.point("C8.recorded", token=self.token)
        self.check()

    def record_retained(self, retained: list[RestorePoint]) -> None:
        """Record which completed checkpoints count. Call ``check`` before anything is deleted because of this record."""
        self._write_live(retained=list(retained), **self._committed(retained))

    def record_end(self, status: AttemptStatus, *, discarded: Collection[RestorePoint] | None = None) -> None:
        """Record how the job ended. ``discarded``: the checkpoints to delete, so that nothing will be restored; call ``check``
        before the deletion."""
        changes: dict[str, Any] = {}
        if discarded is not None:
            changes = {"retained": [], "discarded": True, **self._committed(discarded)}
        self._write_live(status=status, **changes)

    def savepoint_begins(self, address: str) -> None:
        """Record the address of a savepoint before anything is written there."""
        self._write_live(writing=[*(self._live.writing or ()), address])

    def savepoint_over(self, address: str) -> None:
        """Forget a savepoint that is complete or deleted. Not written at once: a complete savepoint is never deleted, and a deleted
        one needs no more clean-up."""
        with self._lock:
            rest = [other for other in self._live.writing or () if other != address]
            self._live = msgspec.structs.replace(self._live, writing=rest or msgspec.UNSET)

    def claimed_is_gone(self) -> None:
        """Forget the claimed snapshot. Written with the next change: deleting the snapshot again does no harm."""
        with self._lock:
            self._live = msgspec.structs.replace(self._live, claimed=msgspec.UNSET)

    def ends_with(self, savepoint: str) -> None:
        """Remember the job's last savepoint. Written with the record of the end."""
        with self._lock:
            self._live = msgspec.structs.replace(self._live, savepoint=savepoint)

    def _committed(self, points: Collection[RestorePoint]) -> dict[str, Any]:
        """Return the newest checkpoint as committed: in the same write as the list of step 7, before the commit; and again at the
        end, in case that write failed."""
        newest = max((point.checkpoint_id for point in points), default=0)
        return {"committed": max(newest, self._live.committed or 0)} if newest else {}

    def release(self) -> None:
        """Let the next attempt claim at once. This is the last call of an attempt."""
        self._write_live(released=True)

    def _write_live(self, **changes: Any) -> None:
        with self._lock:
            now = self._clock.now_ms()
            changes["last_id"] = max(changes.get("last_id", 0), self._live.last_id)  # two threads may take one at once
            live = msgspec.structs.replace(self._live, heartbeat_ms=now, **changes)
            self.files.replace(live_path(self.token), encode(live))
            self._live = live

    def _fenced(self, found: str) -> FencedError:
        return FencedError(
            "The attempt has lost its lease: it must not publish, commit or delete anything.",
            where=f"{self.files.root}, token {self.token} of job {self.claim.job_id}",
            found=found,
            cure="do nothing if the newer attempt was meant to take over; this attempt ends here",
        )


def acquire(
    files: Files,
    clock: Clock,
    *,
    job_id: str,
    timeout_ms: int = options.LEASE_TIMEOUT.default,
    owner: Owner | None = None,
    liveness: Liveness = is_alive,
    own_claims: set[str] | None = None,
) -> Lease:
    """Claim the next token of the job's directory. ``LeaseError`` if the newest attempt is alive or of another job.

    ``own_claims``: nonces of the caller's earlier claims; the new nonce is added. The caller has ended those attempts, so they
    do not block it, even if storage failed to release them or failed to report that a claim was made.
    """
    own = own_claims if own_claims is not None else set()
    while True:
        newest = newest_token(files)
        if newest:
            _refuse_if_held(files, clock, newest, job_id, liveness, own)
        claim = Claim(newest + 1, new_token(), job_id, owner or this_process(), clock.now_ms(), timeout_ms)
        own.add(claim.nonce)
        faults.point("C9.before-claim", token=claim.token)
        with contextlib.suppress(FileExistsError):  # another driver was faster: look again, now its claim is the newest
            files.publish(claim_path(claim.token), encode(claim))
            faults.point("C9.claimed", token=claim.token)
            return _started(files, clock, claim)


def _started(files: Files, clock: Clock, claim: Claim) -> Lease:
    # Read after the claim: an id that is taken later belongs to an attempt that is already fenced.
    last = highest_id(files, claim.token)
    live = LiveRecord(heartbeat_ms=clock.now_ms(), first_id=last + 1, last_id=last)
    lease = Lease(files, clock, claim, live)
    lease.renew()
    logger.info(
        "job %s: lease %d acquired on %s, checkpoint ids from %d", claim.job_id, claim.token, files.root, last + 1
    )
    return lease


def highest_id(files: Files, below: int) -> int:
    """Return the highest checkpoint id that attempts before the token ``below`` can have used."""
    directories = (re.fullmatch(r"chk-(\d+)", name) for name in files.list_names())
    seen = max((int(match[1]) for match in directories if match), default=0)
    for token in range(below - 1, 0, -1):
        live = read_undamaged(files, live_path(token), LiveRecord)
        if live is not None:  # its ids began after all earlier ids
            return max(seen, live.last_id)
    return seen


def refuse_if_held(files: Files, clock: Clock, liveness: Liveness = is_alive) -> None:
    """Raise ``LeaseError`` if a live attempt of any job holds the directory. Reads only."""
    newest = newest_token(files)
    claim = read_undamaged(files, claim_path(newest), Claim) if newest else None
    if claim is not None:
        _refuse_if_held(files, clock, newest, claim.job_id, liveness, ())


def _refuse_if_held(
    files: Files, clock: Clock, token: int, job_id: str, liveness: Liveness, own: Collection[str]
) -> None:
    claim = read_undamaged(files, claim_path(token), Claim)
    if claim is None:  # the claim is damaged: fencing needs only its name
        logger.warning("job %s: %s is damaged and is taken over", job_id, files.location(claim_path(token)))
        return
    if claim.job_id != job_id:
        raise LeaseError(
            "The checkpoint directory belongs to another job.",
            where=files.root,
            found=f"it belongs to job {claim.job_id}, this is job {job_id}",
            cure="set another execution.checkpointing.dir; to start from its state, set execution.state-recovery.path",
        )
    live = read_undamaged(files, live_path(token), LiveRecord)
    if claim.nonce in own or (live is not None and live.released):
        return
    heartbeat_ms = max(claim.acquired_ms, live.heartbeat_ms if live else 0)
    silent_ms = clock.now_ms() - heartbeat_ms
    alive = liveness(claim.owner)
    if alive or (alive is None and silent_ms < claim.timeout_ms):
        raise _held(files, claim, clock, None if alive else silent_ms)


def _held(files: Files, claim: Claim, clock: Clock, silent_ms: int | None) -> LeaseError:
    since = (clock.now_ms() - claim.acquired_ms) / 1000
    if silent_ms is None:
        found = f"{claim.owner} has held it for {since:.0f} s and is alive (token {claim.token})"
        cure = f"stop that driver (kill {claim.owner.pid}) or wait until it ends"
    else:
        found = f"{claim.owner} has held it for {since:.0f} s, its last heartbeat was {silent_ms / 1000:.0f} s ago"
        timeout = f"{claim.timeout_ms / 1000:.0f} s"
        cure = f"stop that driver; if it is dead already, retry {timeout} after its last heartbeat"
    return LeaseError("A job's directory is used by one driver at a time.", where=files.root, found=found, cure=cure)
