"""The life of an attempt as types, the places of a job's files, and the rehearsal before a job is taken over.

**Life.** An attempt is claimed, then checked and restored, or it finished before. Each of these types can be ended.

**Files.** A job has a directory on storage or in memory, and a spool in which its state waits for checkpoints.

**Rehearsal.** The functions of a job open where they will run, before anything is touched, to see whether their states
fit. Most states are declared in ``open``, so they are unknown before user code runs. User code runs in the tasks, not
in the driver: it would run there a moment later anyway, and its databases can be reached from there. Functions that
have opened stay open for the first round. Nothing is read, written or recorded. A program that does not fit leaves the
job, its directory and the snapshot unchanged. A driver rehearses once: a restart has the same program, and state that
this program has written.

A rehearsal does not find a state that a function declares only when it processes a record. Such a misfit fails its
round.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from tidegate.base.clock import Clock, Timer
from tidegate.base.errors import ConfigurationError, FencedError, RoundError
from tidegate.base.files import Files
from tidegate.base.hashing import SigningKey
from tidegate.base.private_dirs import HeldDirectory, mark_kept, sweep
from tidegate.base.spooled_files import SpooledFiles
from tidegate.checkpoint.assign import CURE_OF_STATES, Misfit, named, refusal
from tidegate.checkpoint.lease import Lease
from tidegate.checkpoint.lease_records import AttemptStatus
from tidegate.checkpoint.recovery import Recovery
from tidegate.checkpoint.savepoint import Ending
from tidegate.common import options
from tidegate.graph.plan import JobGraph
from tidegate.operators.flow.rows import Ack, RoundContext
from tidegate.runtime.checkpoints import Checkpoints, NoCheckpoints
from tidegate.runtime.commits import SinkCommitters
from tidegate.runtime.engine import Engine, RoundPlan, Watchdog
from tidegate.runtime.planner import SourcePlanner
from tidegate.runtime.progress import Progress
from tidegate.runtime.settings import JobSettings
from tidegate.state.local_dir import SHARED_MEMORY, host_dir, host_dirs, local_name

log = logging.getLogger(__name__)

Act = Callable[[], None]
_LAST_BEAT_S = 5


class Heartbeat:
    """Renew a lease on the injected clock, in parallel to everything else, and report once if the lease is lost."""

    def __init__(
        self, lease: Lease, clock: Clock, aside: Callable[[Act], None], on_lost: Callable[[int, FencedError], None]
    ) -> None:
        self._lease, self._clock, self._aside, self._on_lost = lease, clock, aside, on_lost
        self._lock, self._beating = threading.Lock(), threading.Lock()
        self._stopped = False
        self._timer: Timer | None = None
        self._arm()

    def stop(self) -> None:
        """Stop the heartbeat. After the return no lost lease is reported, because the next attempt is our own. The call waits for a
        heartbeat that has begun, up to a limit, because the directory may be deleted next."""
        with self._lock:
            self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._beating.acquire(timeout=_LAST_BEAT_S):
            self._beating.release()

    def _arm(self) -> None:
        moment = self._clock.monotonic() + self._lease.renew_every_ms / 1000
        self._timer = self._clock.call_at(moment, lambda: self._aside(self._renew))

    def _renew(self) -> None:
        try:
            with self._beating:
                if self._stopped:
                    return
                self._lease.renew()
        except FencedError as error:
            with self._lock:
                if not self._stopped:
                    log.error("%s", error)
                    self._on_lost(self._lease.token, error)
            return
        except Exception as error:
            log.warning("heartbeat not written, retrying: %s", error)
        self._arm()


@dataclass(frozen=True)
class Claimed:
    """The attempt has claimed the directory. Nothing has been touched yet."""

    lease: Lease
    heartbeat: Heartbeat

    def fenced(self) -> FencedError | None:
        """Return the error that ends this attempt if a newer attempt has taken over. Return None
        otherwise, also if storage fails."""
        try:
            self.lease.check()
        except FencedError as error:
            return error
        except Exception as error:
            log.warning("the lease could not be checked: %s", error)
        return None

    def release(self) -> None:
        """Let the next attempt claim the directory."""
        self.heartbeat.stop()
        _unless_fenced(self.lease.release)


@dataclass(frozen=True)
class FinishedBefore:
    """The job finished in an earlier run, so only the directory has to be released. ``savepoint``: the job was stopped with this
    savepoint."""

    claimed: Claimed
    savepoint: str = ""

    def end(self, status: AttemptStatus) -> None:
        self.claimed.release()


@dataclass(frozen=True)
class Checked:
    """The restore is decided and its metadata is read. Nothing has been touched yet, so an attempt that ends here leaves no trace.

    ``progress``: the restored state. ``misfits``: parts of the snapshot that do not fit the program, found by reading. With misfits
    nothing can be taken over, but a rehearsal may find more misfits. ``rehearses``: whether there is a rehearsal."""

    claimed: Claimed
    recovery: Recovery
    graph: JobGraph
    planner: SourcePlanner
    progress: Progress
    rehearses: bool = False
    misfits: tuple[Misfit, ...] = ()

    def refuse_misfits(self, more: Iterable[Misfit] = ()) -> None:
        """Raise one report of all misfits, in the order of the program, if any exist."""
        misfits = [*self.misfits, *more]
        if misfits:
            raise refusal(self.checkpoint, misfits, [o.uid_hash for o in self.graph.operators])

    @property
    def round(self) -> int:
        """The latest round that counts."""
        return self.recovery.located.metadata.round if self.recovery.located is not None else 0

    @property
    def checkpoint(self) -> str | None:
        """The address of the restored snapshot."""
        return self.recovery.located.address if self.recovery.located is not None else None

    def end(self, status: AttemptStatus) -> None:
        try:
            self.claimed.release()
        finally:
            self.planner.close()


@dataclass(frozen=True)
class Restored:
    """The resources of a running attempt. ``ending``: the job was asked before to end with a savepoint. This savepoint is complete
    now, so no round runs."""

    claimed: Claimed
    graph: JobGraph
    planner: SourcePlanner
    progress: Progress
    committers: SinkCommitters
    checkpoints: Checkpoints | NoCheckpoints
    ending: Ending | None = None

    def end(self, status: AttemptStatus) -> None:
        """End the attempt and release its lease. ``status`` RUNNING: the next attempt of the same job follows."""
        self.claimed.heartbeat.stop()
        try:
            _unless_fenced(lambda: self._end(status))
        finally:
            self.planner.close()
            self.committers.close()

    def _end(self, status: AttemptStatus) -> None:
        if status is AttemptStatus.RUNNING:
            self.claimed.lease.release()
        else:
            self.checkpoints.on_shutdown(status, lambda: self.committers.abort_lingering({}, {}))


def _unless_fenced(act: Act) -> None:
    try:
        act()
    except FencedError as error:
        log.warning("%s", error)


class JobFiles(NamedTuple):
    """``files``: the job's directory. ``spool``: where state files wait; None: state files are stored with their round. ``memory``:
    the directory, if it is in the memory of this host and ends with the driver."""

    files: Files
    spool: str | None
    memory: HeldDirectory | None


def job_files(settings: JobSettings, run_id: str, local_root: str, *, one_host: bool) -> JobFiles:
    key_file = settings.signing_key_file
    key = SigningKey.load(key_file, where=options.SIGNING_KEY_FILE.key) if key_file else None
    _sweep_memory(settings)
    memory = _memory() if settings.in_memory and not settings.checkpoint_dir else None
    directory = _job_directory(settings, run_id) if memory is None else memory.path
    files, spool = Files(directory, strong=key is not None), None
    if _stores_behind(settings, directory, one_host):
        # The spool belongs to this driver alone. Only drivers of the same job and directory sweep the name above it.
        spools = os.path.join(host_dir(local_root), _SPOOLS, quote(local_name(run_id, files.root), safe=""))
        held = HeldDirectory(spools)
        files = SpooledFiles(directory, held.path, settings.transfer_threads, held, strong=key is not None)
        spool = held.path
    files.signing_key = key
    return JobFiles(files, spool, memory)


def _stores_behind(settings: JobSettings, directory: str, one_host: bool) -> bool:
    if settings.checkpoints is None or settings.upload == "with-round":
        return False
    if settings.upload == "auto":
        return one_host and "://" in directory and not directory.startswith(("file:", "memory:"))
    if not one_host:
        raise ConfigurationError(
            "State files cannot wait for a checkpoint: tasks and driver share no host",
            where=options.UPLOAD.key,
            found="behind, and tasks run on other hosts",
            cure="remove the key: on a cluster state files are stored with their round",
        )
    return True


def _job_directory(settings: JobSettings, run_id: str) -> str:
    base = settings.checkpoint_dir
    if base:
        return f"{base.rstrip('/')}/{run_id}"
    return tempfile.mkdtemp(prefix="tidegate-job-")


def _memory() -> HeldDirectory:
    """Return the directory for files in the memory of this host. Tasks of the host can read the files, which end with the
    driver."""
    if not os.access(_SHARED_MEMORY, os.W_OK):
        raise ConfigurationError(
            "Checkpoints cannot be stored in memory: the host has no writable file system in memory",
            where="execution.checkpointing.storage: jobmanager",
            found=f"{_SHARED_MEMORY} cannot be written",
            cure="set execution.checkpointing.dir, or execution.checkpointing.storage: filesystem",
        )
    return HeldDirectory(os.path.join(host_dir(_SHARED_MEMORY), _IN_MEMORY))


def _sweep_memory(settings: JobSettings) -> None:
    """Delete files in memory that killed drivers have left, unless this job starts from them."""
    restored = Files(settings.recovery_path).root if settings.recovery_path else ""
    for place in host_dirs(_SHARED_MEMORY):
        parent = os.path.join(place, _IN_MEMORY)
        mark_kept(restored, parent)  # other jobs that start meanwhile keep these files too
        sweep(parent)


_SHARED_MEMORY = SHARED_MEMORY
_SPOOLS, _IN_MEMORY = "spools", "memory"


def is_due(progress: Progress) -> bool:
    """Whether the program could declare a stored state differently."""
    return any(snapshot.declares_states for snapshot in progress.snapshots.values())


class Rehearsal:
    """Open the functions of a job in their tasks, and collect misfits. ``patience_ms``: the limit for user code that hangs; None:
    no limit."""

    def __init__(
        self, engine: Engine, clock: Clock, aside: Callable[[Callable[[], None]], None], patience_ms: float | None
    ) -> None:
        self._engine, self._clock, self._patience_ms = engine, clock, patience_ms
        self._watchdog = Watchdog(engine, clock, aside)

    def run(self, checked: Checked, token: str) -> None:
        """Raise one ``RestoreError`` with all misfits of all operators, also misfits that were found by reading. Without misfits,
        raise the error of user code, as a round would."""
        context = RoundContext(checked.round, f"{token}-rehearsal", None, self._clock.now_ms(), rehearsal=True)
        acks = self._acks(checked.progress.plan(context, {}))
        checked.refuse_misfits(_misfits(checked.graph, acks))
        for ack in acks:
            if ack.error is not None:
                raise ack.error

    def _acks(self, plan: RoundPlan) -> list[Ack]:
        if self._patience_ms is not None:
            self._watchdog.watch(self._patience_ms / 1000)
        try:
            return self._engine.run(plan)
        except RoundError as error:
            if self._watchdog.end():
                raise RoundError(
                    "The functions of the job take too long to open.",
                    found=f"some functions are still opening after {self._patience_ms:.0f} ms",
                    cure="find out what open() waits for, or raise execution.checkpointing.timeout",
                ) from error
            raise
        finally:
            self._watchdog.end()


def _misfits(graph: JobGraph, acks: Iterable[Ack]) -> list[Misfit]:
    """Return each misfit once: all subtasks of an operator report the same misfits."""
    said = {(operator_id, text) for ack in acks for operator_id, found in ack.misfits.items() for text in found}
    operators = {o.id: o for o in graph.operators}
    return [
        Misfit(o.uid_hash, f"{named(o.name, o.uid, o.uid_hash)}: {text}", CURE_OF_STATES)
        for operator_id, text in sorted(said)
        for o in (operators[operator_id],)
    ]
