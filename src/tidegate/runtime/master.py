"""The job master: owns a job from submission to its end. Restores, runs attempts, restarts, applies retention."""

from __future__ import annotations

import functools
import logging
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tidegate.checkpoint.assign import ProgramOperator, match_operators
from tidegate.checkpoint.completed import CompletedCheckpoints
from tidegate.checkpoint.coordinator import CheckpointCoordinator
from tidegate.checkpoint.history import CheckpointHistory
from tidegate.checkpoint.lease import Lease, Liveness, acquire
from tidegate.checkpoint.lease_records import AttemptStatus
from tidegate.checkpoint.lineage import read_lineage
from tidegate.checkpoint.locate import Located
from tidegate.checkpoint.owner import is_alive
from tidegate.checkpoint.policy import CheckpointPolicy
from tidegate.checkpoint.recovery import Recovery, decide
from tidegate.common.clock import Clock, SystemClock
from tidegate.common.errors import FencedError, JobCancelledError, LeaseError
from tidegate.common.files import Files
from tidegate.common.ids import new_job_id, new_token
from tidegate.common.job_status import JobStatus
from tidegate.common.options import CACHE_SIZE
from tidegate.graph.plan import JobGraph, Operator, build
from tidegate.graph.transformation import Program
from tidegate.operators.level import job_spec
from tidegate.operators.settings import Settings
from tidegate.runtime.attempt import Attempt, Listener, RoundStatistics
from tidegate.runtime.commits import SinkCommitters
from tidegate.runtime.engine import Engine
from tidegate.runtime.planner import SourcePlanner
from tidegate.runtime.progress import Progress
from tidegate.runtime.restart import from_configuration as restart_strategy
from tidegate.runtime.running import Running
from tidegate.state.key_types import key_identity
from tidegate.state.local_dir import choose_root, remove_job

log = logging.getLogger(__name__)

_POLL_MS = 100


class JobMaster:
    """``run`` blocks until the job has ended and raises why it failed. ``cancel`` may be called from any thread.

    Everything wrong with the program, its configuration or the checkpoint it restores is found in ``__init__`` and
    ``prepare``, before a sink or a file of an earlier run is touched.
    """

    def __init__(
        self,
        program: Program,
        engine: Engine,
        *,
        clock: Clock | None = None,
        liveness: Liveness = is_alive,
        local_root: str | None = None,
        listeners: list[Listener] | None = None,
    ) -> None:
        self._program, self._engine = program, engine
        self._conf: Mapping[str, Any] = program.configuration
        self._clock = clock or SystemClock()
        self._liveness = liveness
        self._listeners = listeners if listeners is not None else []
        self.job_id = str(self._conf.get("tidegate.job-id") or new_job_id())
        self.status = JobStatus.CREATED
        self._status_lock = threading.Lock()
        self.graph = self._build({})
        self._policy = CheckpointPolicy.from_configuration(self._conf)
        self._restarts = restart_strategy(self._conf, self._policy is not None)
        self._local_root = local_root or choose_root(_local_directory(self._conf))
        # Without checkpoints a run leaves nothing and restores nothing of its own: a directory and names no other run has,
        # so that its end can delete them whatever else has been done under the same job id.
        self._run_id = self.job_id if self._policy is not None else f"{self.job_id}-{new_token()}"
        self._files = Files(self._job_directory())
        self._stop = threading.Event()
        self._attempt: Attempt | None = None
        self._current: Running | None = None
        self._round = 0
        self._claims: set[str] = set()

    def _build(self, restored_max: Mapping[str, int]) -> JobGraph:
        parallelism = int(self._conf.get("parallelism.default") or 1)
        maximum = self._conf.get("pipeline.max-parallelism")
        return build(self._program, parallelism, int(maximum) if maximum and int(maximum) > 0 else None, restored_max)

    def _job_directory(self) -> str:
        base = self._conf.get("execution.checkpointing.dir")
        if base:
            return f"{str(base).rstrip('/')}/{self._run_id}"
        return tempfile.mkdtemp(prefix="tidegate-job-")

    # -- from outside ----------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The job's directory on checkpoint storage."""
        return self._files.root

    def statistics(self) -> list[RoundStatistics]:
        """The latest rounds of the current attempt."""
        return list(self._attempt.statistics) if self._attempt is not None else []

    def kept_checkpoint(self) -> str | None:
        """Address of the latest completed checkpoint that is still there, to restore from."""
        if self._policy is None:
            return None
        latest = read_lineage(self._files).latest
        return None if latest is None else latest.directory or self._files.location(f"chk-{latest.checkpoint_id}")

    def cancel(self) -> None:
        """Returns at once. A job that has ended stays what it is, and one that is just ending may still end as it would."""
        if self._become(JobStatus.CANCELLING):
            self._stop.set()
            self._engine.cancel()

    def _become(self, status: JobStatus) -> bool:
        """The one way the status changes. An end is final, and a job that is being cancelled only ends."""
        with self._status_lock:
            final = self.status.is_globally_terminal_state()
            if final or (self.status is JobStatus.CANCELLING and not status.is_globally_terminal_state()):
                return False
            self.status = status
            return True

    def prepare(self) -> None:
        """Checks that need the outside: storage writable, sinks usable, functions picklable, lease free, checkpoint matching."""
        try:
            for operator in self.graph.sinks:
                operator.spec.sink.validate()
            self._files.check_writable()
            job_spec(self.graph, "check", self._settings())
            self._current = self._start(first=True)
        except BaseException:
            if self._is_temporary:  # any other directory may be in use: by the driver whose lease refused this one
                self._quietly("delete the job's directory", self._clear_directory)
            raise

    def run(self) -> None:
        """All attempts of the job. Returns when it is finished (or was, in an earlier run); raises otherwise."""
        try:
            if self._current is None:
                self.prepare()
            self._run_attempts()
            self._end(JobStatus.FINISHED, AttemptStatus.FINISHED)
        except JobCancelledError:
            self._end(JobStatus.CANCELED, AttemptStatus.CANCELLED)
            raise
        except Exception as error:
            self._end(JobStatus.FAILED, AttemptStatus.FAILED, fenced=isinstance(error, LeaseError))
            raise

    # -- attempts --------------------------------------------------------------------------------------------------------

    def _run_attempts(self) -> None:
        while True:
            try:
                running = self._current or self._start(first=False)
                self._current = running
                if running.finished_before:
                    log.info("job %s has finished in an earlier run: nothing to do", self.job_id)
                    return
                return self._run_attempt(running)
            except (JobCancelledError, FencedError):
                raise
            except Exception as error:
                self._stop_if_fenced()
                delay = self._restarts.next_delay_ms(error, self._clock.now_ms())
                if delay is None or not getattr(error, "restart_helps", True):
                    raise
                self._restart(error, delay)

    def _stop_if_fenced(self) -> None:
        """What failed may be a newer driver's tidying up: then that is the reason, and a restart would not help."""
        fenced = self._current.fenced() if self._current is not None else None
        if fenced is not None:
            raise fenced

    def _restart(self, error: Exception, delay_ms: int) -> None:
        self._become(JobStatus.RESTARTING)
        log.warning("job %s: restart in %d ms from the latest checkpoint, after: %s", self.job_id, delay_ms, error)
        self._clock.wait(self._stop, delay_ms / 1000)
        if self._stop.is_set():  # the attempt still holds its lease: the end applies retention and aborts output
            if self._owes_output():
                raise error
            raise JobCancelledError("The job was cancelled") from error
        running, self._current = self._current, None
        if running is not None:
            self._quietly("release the lease", lambda: running.stop(AttemptStatus.RUNNING))

    def _owes_output(self) -> bool:
        """A complete checkpoint is committed in part, so the job ends as failed: cancelled, it might delete the checkpoint,
        and nobody could commit the rest."""
        return self._current is not None and self._current.committers is not None and self._current.committers.owes

    def _start(self, *, first: bool) -> Running:
        """Claim the directory, decide what to restore, check the program against it; nothing outside is touched before."""
        lease = acquire(
            self._files,
            self._clock,
            job_id=self._run_id,
            timeout_ms=int(self._conf.get("tidegate.checkpoint.lease-timeout") or 30_000),
            liveness=self._liveness,
            own_claims=self._claims,
        )
        running = Running(lease)
        try:
            running.keep_lease(self._clock, self._engine.cancel)
            recovery = self._decide(lease, first)
            if recovery.previous is AttemptStatus.FINISHED and recovery.located is None:
                running.finished_before = True
                self._quietly("tidy up behind the finished job", lambda: self._tidy_up(running, recovery))
                return running
            progress, sources = self._restored(recovery.located)
            running.planner = self._new_planner(sources)  # refuses what cannot be read, before Spark starts
            recovery.record(lease)
            self._enter(running, recovery, progress)
        except BaseException:
            running.stop(AttemptStatus.RUNNING)
            raise
        return running

    def _decide(self, lease: Lease, first: bool) -> Recovery:
        """A path the user gave counts for the first attempt, and from elsewhere only while the job has nothing of its own."""
        path = self._conf.get("execution.state-recovery.path")
        if not path or not first:
            return decide(self._files, lease)
        own = Files(str(path)).root.startswith(self._files.root + "/")
        if not own and read_lineage(self._files, below=lease.token).latest is not None:
            log.warning("job %s continues from its own checkpoints; %s is not used", self.job_id, path)
            return decide(self._files, lease)
        return decide(self._files, lease, str(path))

    def _restored(self, located: Located | None) -> tuple[Progress, dict[int, Any]]:
        """The progress to start from and the sources' positions; every mismatch is reported here, by reading only."""
        if located is None:
            return Progress(self.graph), {}
        metadata = located.metadata
        self.graph = self._build({o.uid_hash: o.max_parallelism for o in metadata.operators})
        located.check_files()
        allow = bool(self._conf.get("execution.state-recovery.ignore-unclaimed-state"))
        declared = [_declared(operator) for operator in self.graph.operators]
        matched = match_operators(metadata, declared, where=located.address, allow_non_restored_state=allow)
        root = "" if located.root.root == self._files.root else located.root.root
        progress = Progress.restored(self.graph, matched, root=root)
        sources = {o.id: matched[o.uid_hash].source for o in self.graph.operators if o.uid_hash in matched}
        log.info("job %s: restores checkpoint %d from %s", self.job_id, metadata.checkpoint_id, located.address)
        return progress, sources

    def _new_planner(self, positions: dict[int, Any]) -> SourcePlanner:
        return SourcePlanner(
            self.graph.sources, self._target_ms(), positions, self._conf.get("tidegate.round.max-records")
        )

    def _enter(self, running: Running, recovery: Recovery, progress: Progress) -> None:
        """Behind the recorded decision: finish step 8 of the restored checkpoint, abort what lies beyond it, sweep files."""
        lease = running.lease
        completed = CompletedCheckpoints(self._files, lease, self._policy.retained if self._policy else 1)
        completed.sweep(progress.paths())
        running.committers = self._new_committers(lease)
        running.committers.commit(progress.committables, recovering=True)
        running.committers.abort_lingering(progress.committables, progress.writer_states())
        progress = progress.without_pending(progress.committables)
        if self._policy is not None:
            history = CheckpointHistory(self._files)
            running.coordinator = CheckpointCoordinator(
                job_name=self._program.name,
                policy=self._policy,
                lease=lease,
                completed=completed,
                history=history,
                clock=self._clock,
            )
        if recovery.located is not None:
            self._round = max(self._round, recovery.located.metadata.round)
        running.progress = progress

    def _tidy_up(self, running: Running, recovery: Recovery) -> None:
        """The job finished in an earlier run, which was killed on its way out, or whose late tasks have left something."""
        recovery.record_finished(running.lease)
        running.committers = self._new_committers(running.lease)
        abort_output = functools.partial(running.committers.abort_lingering, {}, {})
        CompletedCheckpoints(self._files, running.lease, 1).discard_all(AttemptStatus.FINISHED, abort_output)
        remove_job(self._local_root, self.job_id)  # other hosts' stores go with their next boot

    def _new_committers(self, lease: Lease) -> SinkCommitters:
        return SinkCommitters(
            self.graph.sinks,
            self._run_id,
            self._files.root,
            check_lease=lease.check,
            clock=self._clock,
            attempts=int(self._conf.get("tidegate.commit.max-attempts") or 10),
            backoff_ms=int(self._conf.get("tidegate.commit.backoff") or 200),
        )

    def _run_attempt(self, running: Running) -> None:
        assert running.progress is not None and running.committers is not None and running.planner is not None
        token = new_token()
        self._engine.start(job_spec(self.graph, token, self._settings()))
        self._attempt = Attempt(
            token=token,
            progress=running.progress,
            planner=running.planner,
            engine=self._engine,
            committers=running.committers,
            coordinator=running.coordinator,
            clock=self._clock,
            stop=self._stop,
            first_round=self._round,
            poll_ms=self._poll_ms(),
            listeners=self._listeners,
        )
        self._become(JobStatus.RUNNING)
        try:
            self._attempt.run()
        finally:
            self._round = self._attempt.round

    def _target_ms(self) -> int:
        """A checkpoint rides on a round, so rounds are not longer than the interval between two."""
        target = int(self._conf.get("tidegate.round.target-time") or 1000)
        return max(100, min(target, self._policy.interval_ms)) if self._policy else target

    def _poll_ms(self) -> int:
        """How often a source that cannot say when it has more is asked: a record waits no longer for its round."""
        timeouts = [t.buffer_timeout_ms for t in self._program.transformations]
        if self._conf.get("execution.buffer-timeout.enabled", True):
            timeouts.append(self._conf.get("execution.buffer-timeout.interval"))
        return min([_POLL_MS, *(max(1, t) for t in timeouts if t is not None and t >= 0)])

    def _settings(self) -> Settings:
        return Settings(
            job_id=self._run_id,
            root=self._files.root,
            local_root=self._local_root,
            chunk_records=int(self._conf.get("tidegate.chunk.records") or 4096),
            state_backend=self._conf.get("state.backend.type") or "hashmap",
            map_size=self._conf.get("tidegate.state.map-size"),
            cache_bytes=self._conf.get(CACHE_SIZE.key, CACHE_SIZE.default),
            parameters={key: str(v) for key, v in (self._conf.get("pipeline.global-job-parameters") or {}).items()},
            object_reuse=bool(self._conf.get("pipeline.object-reuse", False)),
            inline=bool(self._conf.get("tidegate.functions.inline", True)),
            batch_mode=self._conf.get("execution.runtime-mode") == "BATCH",
            now_ms=self._clock.now_ms,
        )

    def _end(self, status: JobStatus, attempt_status: AttemptStatus, *, fenced: bool = False) -> None:
        """What the job leaves behind, by how it ended. Never runs when the process dies: a restart finds all as it was.

        The executors' local stores have the job's name: they go while the lease is still held, because the next driver
        may start the moment it is given up; and if it is lost already they are that driver's, and stay.
        """
        running, self._current = self._current, None
        if not (fenced or (running is not None and running.fenced() is not None)):
            self._quietly("release what the executors hold", self._engine.stop)
        if running is not None:
            self._quietly("end the lease", lambda: running.stop(attempt_status))
        self._quietly("delete the job's directory", self._clear_directory)
        self._become(status)

    def _clear_directory(self) -> None:
        """A directory nobody can ask for again: of a run without checkpoints, or a temporary one without any that is kept."""
        if self._policy is None or (self._is_temporary and self.kept_checkpoint() is None):
            self._files.delete_tree("")

    @property
    def _is_temporary(self) -> bool:
        """Whether the directory was made for this run alone."""
        return not self._conf.get("execution.checkpointing.dir")

    def _quietly(self, what: str, step: Callable[[], None]) -> None:
        """Clean-up behind the outcome: it must not turn a finished job into a failed one, nor hide why one failed."""
        try:
            step()
        except Exception as error:
            log.warning("job %s: could not %s: %s", self.job_id, what, error)


def _local_directory(conf: Mapping[str, Any]) -> str | None:
    own, shared = conf.get("tidegate.state.local-dir"), conf.get("io.tmp.dirs")
    return own or (shared[0] if shared else None)


def _declared(operator: Operator) -> ProgramOperator:
    return ProgramOperator(
        operator.uid_hash,
        operator.name,
        operator.parallelism,
        operator.max_parallelism,
        operator.uid,
        key_type=key_identity(operator.keyed.key_type).describe if operator.keyed is not None else "",
        is_source=operator.spec.is_source,
        is_sink=operator.spec.is_sink,
    )
