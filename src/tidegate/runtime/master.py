"""The job master: owns a job from submission to its end. Runs attempts, restarts, takes commands, applies retention."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from tidegate.base import secrets
from tidegate.base.clock import Clock, SystemClock
from tidegate.base.errors import (
    CheckpointError,
    ConfigurationError,
    FencedError,
    JobCancelledError,
    JobSuspendedError,
    LeaseError,
    RoundError,
    TidegateError,
    UserCodeError,
)
from tidegate.base.hashing import new_job_id, new_token
from tidegate.base.pickling import allow_stored
from tidegate.base.process import environment
from tidegate.checkpoint.lease import Liveness
from tidegate.checkpoint.lease_records import AttemptStatus
from tidegate.checkpoint.locate import read_lineage
from tidegate.checkpoint.owner import is_alive
from tidegate.checkpoint.savepoint import Ending
from tidegate.common import options
from tidegate.common.dependencies import Dependencies
from tidegate.common.job_status import JobStatus
from tidegate.graph.transformation import Program
from tidegate.operators.contracts.operator import Settings
from tidegate.operators.contracts.specs import SinkNode, sinks_of
from tidegate.operators.flow.level import JobSpec, job_spec
from tidegate.operators.loop.blame import SEE_CAUSE
from tidegate.runtime.attempt import Attempt
from tidegate.runtime.commands import (
    STOPPED,
    Cancel,
    Command,
    LastSavepoint,
    SavepointCommand,
    Stop,
    StopCommand,
    Suspend,
)
from tidegate.runtime.engine import Engine
from tidegate.runtime.failed_round import FailedRound, forget
from tidegate.runtime.guarantee import GeneratedIds, check_required, guarantee_of
from tidegate.runtime.inbox import Inbox, Lanes, LeaseLost, ThreadedLanes
from tidegate.runtime.life_cycle import Checked, FinishedBefore, Rehearsal, Restored, job_files
from tidegate.runtime.prometheus import open_metrics_port
from tidegate.runtime.restart import SameFailures, is_outage
from tidegate.runtime.restart import from_configuration as restart_strategy
from tidegate.runtime.restoring import Restoring, Submission
from tidegate.runtime.settings import JobSettings
from tidegate.runtime.statistics import Listener, RoundStatistics
from tidegate.runtime.stored_view import ViewKeeper
from tidegate.runtime.view import FailedAck, JobRecorder, JobView, Note
from tidegate.state.local_dir import choose_root
from tidegate.state.stores import opener

log = logging.getLogger(__name__)

C = TypeVar("C", bound=Command)  # type: ignore[type-arg]


class JobMaster:
    """``run`` blocks until the job has ended and raises why it failed. The thread that calls it is the job's thread; ``submit``,
    ``cancel`` and ``view`` may be called from any.

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
        lanes: Callable[[Inbox, str], Lanes] = ThreadedLanes,
    ) -> None:
        self.program, self._engine = program, engine
        self._clock = clock or SystemClock()
        self._listeners = listeners if listeners is not None else []
        self.settings = settings = JobSettings.of(program.configuration)
        self.job_id = settings.job_id or new_job_id()
        opener(settings.state_backend, settings.stores)  # what it needs must be installed
        self.status = JobStatus.CREATED
        self._status_lock = threading.Lock()
        self._restarts = restart_strategy(program.configuration, settings.checkpoints is not None)
        self._same_failures = SameFailures.of(program.configuration, self._restarts)
        # Without checkpoints a run leaves nothing and restores nothing of its own: a directory and names no other run has,
        # so that its end can delete them whatever else has been done under the same job id.
        run_id = self.job_id if settings.checkpoints is not None else f"{self.job_id}-{new_token()}"
        local_root = local_root or choose_root(settings.local_dir)
        files, self._spool, self._memory = job_files(settings, run_id, local_root, one_host=engine.one_host)
        allow_stored(settings.allow_pickle)
        self._job = Submission(
            program=program,
            settings=settings,
            job_id=self.job_id,
            run_id=run_id,
            files=files,
            local_root=local_root,
            more_roots=tuple(map(choose_root, settings.more_local_dirs)),
            clock=self._clock,
            liveness=liveness,
        )
        self.directory = files.root
        """On checkpoint storage."""
        self.graph = self._job.graph({})
        self._recorder = JobRecorder(
            self.job_id,
            self.graph,
            self._clock,
            directory=self.directory,
            is_temporary=self._is_temporary,
            policy=settings.checkpoints,
            configuration=secrets.masked_settings(program.configuration),
            environment=environment(program.configuration, master=getattr(engine, "master", None)),
            fast_json=settings.fast_json,
        )
        self._inbox = Inbox(self._clock)
        self._lanes = lanes(self._inbox, self.job_id)
        self._stop = Stop()
        self._restoring = Restoring(self._job, self._lanes, self._recorder, self._stop, self._on_lease_lost)
        self._stops: list[StopCommand] = []  # answered at the end
        self._attempt: Attempt | None = None
        self._spec: JobSpec | None = None
        self._current: Checked | Restored | FinishedBefore | None = None
        self._not_started: Exception | None = None
        self._first = True  # nothing was taken over yet by this run
        self._round = 0
        self._savepoint: str | None = None  # the job has ended with it
        self._key_salt = new_token()
        self._generated_ids = GeneratedIds(program, self.graph)

    # -- from outside ----------------------------------------------------------------------------------------------------

    @property
    def has_fixed_id(self) -> bool:
        """Whether a new start of the same program is the same job."""
        return self.settings.job_id is not None and not self._is_temporary

    @property
    def has_begun(self) -> bool:
        """Whether the job has touched anything."""
        return not self._first

    def statistics(self) -> list[RoundStatistics]:
        """The latest rounds of the current attempt."""
        return list(self._attempt.statistics) if self._attempt is not None else []

    def view(self) -> JobView:
        """The job as it is now."""
        return self._recorder.view(self.status)

    def story(self, kind: str, number: int) -> list[Note]:
        """Return the notes on a ``checkpoint``, ``savepoint`` or ``round`` of this run, oldest first, as far as remembered.
        May be called from any thread."""
        return self._recorder.story(kind, number)

    def kept_checkpoint(self) -> str | None:
        """Return the address of the latest completed checkpoint that still exists, to restore from."""
        if self.settings.checkpoints is None:
            return None
        latest = read_lineage(self._job.files).latest
        return None if latest is None else latest.directory or self._job.files.location(f"chk-{latest.checkpoint_id}")

    def submit(self, command: C) -> C:
        """Give the job a command, from any thread. The command's ``answer`` comes when the job has acted on the command, or no
        longer can."""
        # Before the command: after the job's thread has taken the command, it begins no round that nobody would cancel.
        stopping = isinstance(command, StopCommand) and self._ask_to_stop(command)
        if isinstance(command, SavepointCommand):
            self._generated_ids.warn()
        with self._status_lock:
            ended = self.status.is_terminal_state()
            if not ended:
                self._inbox.post(command)
                if isinstance(command, StopCommand):
                    self._stops.append(command)
        if ended:
            self._refuse(command)
        elif stopping:
            self._engine.cancel()
        return command

    def _ask_to_stop(self, command: StopCommand) -> bool:
        """Ask the job to stop, and return whether this is the first request."""
        if isinstance(command, Suspend) and self.settings.checkpoints is not None:
            return self._stop.suspend()
        cancelling = self._become(JobStatus.CANCELLING)
        if cancelling:
            self._stop.cancel()
        return cancelling

    def cancel(self) -> None:
        """Cancel the job, and return at once. A job that has ended keeps its status, and a job that is ending may still finish."""
        self.submit(Cancel())

    def suspend(self) -> None:
        """Do as ``cancel``, but the job continues when it is started again."""
        self.submit(Suspend())

    def _answer(self, command: Command[Any]) -> None:
        """Answer a command of a job that has just ended."""
        if isinstance(command, LastSavepoint) and self._savepoint is not None:
            return command.succeed(self._savepoint)
        self._refuse(command)

    def _refuse(self, command: Command[Any]) -> None:
        """Refuse a command, because the job has ended."""
        if isinstance(command, StopCommand):
            return command.succeed(self.status)
        if self.status is JobStatus.CANCELED:
            return command.fail(JobCancelledError("The job was cancelled", found="it takes no more commands"))
        command.fail(CheckpointError("The job has ended, so it takes no commands.", found=f"it is {self.status.name}"))

    def _become(self, status: JobStatus) -> bool:
        """Change the status. No other code changes it. An end is final, and a job that is being cancelled can only end."""
        with self._status_lock:
            final = self.status.is_terminal_state()
            if final or (self.status is JobStatus.CANCELLING and not status.is_terminal_state()):
                return False
            self.status = status
            return True

    def _on_lease_lost(self, lease: int, error: FencedError) -> None:
        """Cancel the running round: the heartbeat has found that the lease is lost, so the round is useless."""
        self._inbox.post(LeaseLost(lease, error))
        self._engine.cancel()

    # -- attempts --------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Check the environment: storage writable, sinks usable, functions picklable, lease free, checkpoint matching."""
        guarantee = guarantee_of(self.graph, self.settings.checkpoints)
        try:
            check_required(self.graph, guarantee, self.settings.required_guarantee)
            policy = self.settings.checkpoints
            for operator in sinks_of(self.graph):
                if policy is not None and policy.at_least_once:
                    _refuse_held_back(operator)
                operator.spec.sink.validate()
                operator.spec.sink.validate_parallelism(operator.parallelism)
                operator.spec.sink.validate_checkpoints(None if policy is None else policy.interval_ms)
            if self.has_fixed_id or self.settings.recovery_path or self.settings.savepoint_dir:
                self._generated_ids.warn()
            self._job.files.check_writable(group=self.settings.group_access)
            job_spec(self.graph, "check", self._subtask_settings())
            self._start()
            log.info("job %s: %s", self.job_id, guarantee)
            for line in guarantee.lines():
                log.info("job %s: path %s", self.job_id, line)
        except BaseException as error:
            # A retry needs the resources that this try holds.
            if not (isinstance(error, Exception) and self.waits_for(error)):
                self._give_up_start()
            raise

    def _give_up_start(self) -> None:
        if self._is_temporary:  # any other directory may be in use: by the driver whose lease refused this one
            self._quietly("delete the job's directory", self._clear_directory)
        self._quietly("delete state files that wait on this host", self._job.files.forget_spool)

    def waits_for(self, error: Exception) -> bool:
        """Whether ``run`` retries a start that failed with this error: an outage that the restart strategy covers."""
        helps = error.restart_helps if isinstance(error, TidegateError) else is_outage(error)
        self._not_started = error if helps and self.settings.restart_covers_start else None
        return self._not_started is not None

    def _prepare_at_last(self) -> None:
        """Prepare with retries, as the restart strategy says, if it covers the start."""
        failed, self._not_started = self._not_started, None
        try:
            while True:
                if failed is not None:
                    self._recorder.attempt_ended(failed)
                    delay, times = self._delay_after(failed)
                    if delay is None:
                        raise failed
                    self._restart(failed, delay, times)
                try:
                    return self.prepare()
                except Exception as error:
                    if not self.waits_for(error):
                        raise
                    failed = error
        except BaseException:
            self._give_up_start()
            raise

    def run(self) -> None:
        """Run all attempts of the job. Returns when the job has finished (now or in an earlier run); raises otherwise."""
        try:
            if self._current is None or self._not_started is not None:
                self._prepare_at_last()
            with self._shown_to_prometheus():
                self._run_attempts()
            self._end(JobStatus.FINISHED, AttemptStatus.FINISHED)
        except JobCancelledError:
            self._end(JobStatus.CANCELED, AttemptStatus.CANCELLED)
            raise
        except JobSuspendedError:
            self._end(JobStatus.SUSPENDED, AttemptStatus.SUSPENDED)
            raise
        except (Exception, SystemExit) as error:  # the second: user code has exited; its job ends, not the process
            self._end(JobStatus.FAILED, AttemptStatus.FAILED, fenced=isinstance(error, LeaseError))
            raise

    @contextlib.contextmanager
    def _shown_to_prometheus(self) -> Iterator[None]:
        settings = self.settings
        if settings.metrics_ports is None:
            yield
            return
        self._prometheus = open_metrics_port(settings.metrics_ports, self.view, settings.metrics_token_file)
        log.info("job %s: metrics at http://127.0.0.1:%d/metrics", self.job_id, self._prometheus.port)
        try:
            yield
        finally:
            self._prometheus.close()

    def _run_attempts(self) -> None:
        while True:
            try:
                current = self._current or self._start()
                if isinstance(current, FinishedBefore):
                    log.warning(
                        "job '%s' (%s) finished in an earlier run: there is nothing to do. %s",
                        self.graph.name,
                        self.job_id,
                        _how_to_continue(current.savepoint),
                    )
                    self._savepoint = current.savepoint or None
                    return None
                self._run_attempt(current)
                return self._recorder.attempt_ended(None)
            except (*STOPPED, FencedError, SystemExit) as error:
                self._recorder.attempt_ended(error)
                raise
            except Exception as error:
                self._recorder.attempt_ended(error, self._failed_ack(error))
                self._stop_if_fenced()
                self._quietly("keep the round that failed", self._keep_failed_round)
                self._store_view()
                delay, times = self._delay_after(error)
                if delay is None:
                    raise
                self._restart(error, delay, times)

    def _delay_after(self, error: Exception) -> tuple[int | None, int]:
        """Return how long to wait before the restart (None: no restart), and how often this failure has come, if it counts."""
        totals = self._recorder.view(self.status).totals
        times = self._same_failures.add(error, checkpoints=totals.checkpoints, rounds=totals.rounds)
        delay = self._restarts.next_delay_ms(error, self._clock.now_ms())
        if not getattr(error, "restart_helps", True):
            delay = None
        if delay is not None and self._same_failures.is_final(times):
            if isinstance(error, TidegateError):
                error.having(cure=self._cure_of_repeated(error, times))
            delay = None
        return delay, times

    def _cure_of_repeated(self, error: TidegateError, times: int) -> str:
        key = options.SAME_FAILURE_LIMIT.key
        if not isinstance(error, UserCodeError):
            cure = error.cure or "see the cause"
            return f"{cure}. No round has succeeded, and this error came {times} times: the job gives up ({key})"
        look = f"tidegate debug {self.job_id} shows record, key and state. " if self.settings.checkpoint_dir else ""
        cured = "" if error.cure in (None, SEE_CAUSE) else f"; {error.cure}"
        return (
            f"{look}Correct the function, then start the program again{cured}. The failure came {times} times with no completed "
            f"checkpoint in between, so another restart would not help ({key})"
        )

    def _start(self) -> Checked | Restored | FinishedBefore:
        current = self._current = self._restoring.start(first=self._first)
        if isinstance(current, FinishedBefore):
            self._recorder.finished_before()
            return current
        self.graph = current.graph
        self._recorder.graph(current.graph)
        self._recorder.attempt_started(current.round, current.checkpoint)
        self._round = max(self._round, current.round)
        return current if current.rehearses else self._take_over(current)

    def _take_over(self, checked: Checked) -> Restored:
        restored = self._current = self._restoring.take_over(checked)
        self._first = False  # not before: the user's path counts until the restore is recorded
        return restored

    def _run_attempt(self, current: Checked | Restored) -> None:
        if isinstance(current, Restored) and current.ending is not None:
            return self._end_with(current.ending)
        token = new_token()
        self._spec = job_spec(self.graph, token, self._subtask_settings())
        self._engine.start(self._spec)
        if isinstance(current, Checked):
            self._rehearse(current, token)
            current = self._take_over(current)
        self._run_rounds(current, token)

    def _rehearse(self, checked: Checked, token: str) -> None:
        policy = self.settings.checkpoints
        patience_ms = None if policy is None else policy.timeout_ms
        try:
            Rehearsal(self._engine, self._clock, self._lanes.aside, patience_ms).run(checked, token)
        except RoundError:  # maybe because somebody wants the job to stop
            self._stop.check()
            checked.refuse_misfits()
            raise

    def _run_rounds(self, restored: Restored, token: str) -> None:
        self._attempt = Attempt(
            token=token,
            restored=restored,
            engine=self._engine,
            inbox=self._inbox,
            lanes=self._lanes,
            clock=self._clock,
            stop=self._stop,
            first_round=self._round,
            poll_ms=self._poll_ms(),
            merges=self.settings.merges,
            recorder=self._recorder,
            listeners=self._listeners,
            keeper=self._keeper(),
        )
        self._become(JobStatus.RUNNING)
        try:
            self._attempt.run()
        finally:
            self._round = self._attempt.round
            if self._attempt.ended_with is not None:
                self._savepoint = self._attempt.ended_with.address

    def _end_with(self, ending: Ending) -> None:
        """End the job: an earlier attempt was asked to end with a savepoint, which is complete, with its output committed."""
        log.warning("job %s was asked to end with the savepoint %s before: it ends now", self.job_id, ending.address)
        self._savepoint = ending.address
        if ending.cancels:
            raise JobCancelledError("The job was cancelled", where=f"its savepoint: {ending.address}")

    def _failed_ack(self, error: Exception) -> FailedAck | None:
        plan, acks = (self._attempt.failed_round if self._attempt is not None else None) or (None, [])
        ack = next((ack for ack in acks if ack.error is error), None)
        return None if plan is None or ack is None else FailedAck(ack, plan.context.checkpoint_id)

    def _keep_failed_round(self) -> None:
        """Store the failed round for ``tidegate debug``, after everything that counts."""
        failed = self._attempt.failed_round if self._attempt is not None else None
        if failed is not None and self._spec is not None and self.settings.checkpoints is not None:
            kept = FailedRound.of(self.graph.name, self.job_id, self._spec, *failed)
            if kept is not None and kept.keep(self._job.files) and self.settings.checkpoint_dir:
                self._recorder.can_be_debugged(f"tidegate debug {self.job_id}")

    def _keeper(self) -> ViewKeeper | None:
        """Return what stores the view of the present attempt. None: nobody could read the view."""
        current = self._current
        if self._memory is not None or not isinstance(current, Restored):
            return None
        return ViewKeeper(self._job.files, current.claimed.lease, self._clock, self.view, self._recorder.notes)

    def _store_view(self, **changes: Any) -> None:
        """Store the view at a failure or at the end. The directory of a run without checkpoints is deleted at its end."""
        keeper = self._keeper() if self.settings.checkpoints is not None else None
        if keeper is not None:
            keeper.write(**changes)

    def _stop_if_fenced(self) -> None:
        """Raise if the attempt is fenced. A newer driver's clean-up may have caused the failure: then a restart would not help."""
        fenced = self._current.claimed.fenced() if self._current is not None else None
        if fenced is not None:
            raise fenced

    def _restart(self, error: Exception, delay_ms: int, times: int) -> None:
        self._become(JobStatus.RESTARTING)
        self._say_restart(error, delay_ms, times)
        self._clock.wait(self._stop.asked, delay_ms / 1000)
        if self._stop.asked.is_set():  # the attempt still holds its lease: the end applies retention and aborts output
            stopped = self._stop.error()
            if isinstance(stopped, JobCancelledError) and self._owes_output():
                raise error
            raise stopped from error
        current, self._current = self._current, None
        if current is not None:
            self._quietly("release the lease", lambda: current.end(AttemptStatus.RUNNING))

    def _say_restart(self, error: Exception, delay_ms: int, times: int) -> None:
        if self._same_failures.repeats(error):
            attempt = (
                f"attempt {times} of {self._same_failures.limit}" if times else "retried as the restart strategy says"
            )
            text = "job %s: same failure as before, %s; restart in %d ms: %s"
            log.warning(text, self.job_id, attempt, delay_ms, str(error).partition("\n")[0])
            return
        log.warning(
            "job %s: restart in %d ms from the latest checkpoint, after: %s",
            self.job_id,
            delay_ms,
            error,
            exc_info=error,  # with the traceback of the user's code, which came with the ack
        )

    def _owes_output(self) -> bool:
        """Whether a complete checkpoint is only partly committed, so that the job ends as failed: a cancelled job might delete the
        checkpoint, and nobody could commit the rest."""
        return isinstance(self._current, Restored) and self._current.committers.owes

    def _poll_ms(self) -> int:
        timeouts = [t.buffer_timeout_ms for t in self.program.transformations]
        return min([self.settings.poll_ms, *(max(1, t) for t in timeouts if t is not None and t >= 0)])

    def _subtask_settings(self) -> Settings:
        settings = self.settings
        return replace(
            settings.of_tasks(self._job.run_id, self._job.files.root, self._job.local_root),
            more_roots=self._job.more_roots,
            spool=self._spool,
            strong_hashes=settings.signing_key_file is not None,
            cached_files={file.name: file.path for file in Dependencies.of(self.program.configuration).cached_files},
            heavy_keys=settings.heavy_keys,
            key_salt=self._key_salt if settings.heavy_keys == "hide" else "",
            publishes_rounds=settings.checkpoints is not None and settings.checkpoints.at_least_once,
            lease=0 if self._current is None else self._current.claimed.lease.token,
            now_ms=self._clock.now_ms,
        )

    # -- the end ---------------------------------------------------------------------------------------------------------

    def _end(self, status: JobStatus, attempt_status: AttemptStatus, *, fenced: bool = False) -> None:
        """Clean up after the job, by how it ended. Never runs when the process dies: a restart finds everything unchanged.

        The executors' local stores have the job's name. They are deleted while the lease is still held, because the next driver
        may start as soon as the lease is released. If the lease is already lost, the stores belong to that driver, and stay.
        """
        if status is JobStatus.CANCELED and isinstance(self._current, Checked):
            # The job has ended for good: its earlier checkpoints are deleted or retained as if it were cancelled a moment later.
            checked = self._current
            self._quietly("take over what it was to restore", lambda: self._take_over(checked))
        if not self._is_temporary or status not in (JobStatus.FINISHED, JobStatus.CANCELED):
            self._store_view(status=status, ended_ms=self._clock.now_ms())
        current, self._current = self._current, None
        if not (fenced or (current is not None and current.claimed.fenced() is not None)):
            self._quietly("release what the executors hold", self._engine.stop)
            if status in (JobStatus.FINISHED, JobStatus.CANCELED):
                self._quietly("forget a round that failed", lambda: forget(self._job.files))
        if current is not None:
            self._quietly("end the lease", lambda: current.end(attempt_status))
        self._quietly("delete the job's directory", lambda: self._clear_directory(status))
        # The driver's own files, whoever holds the lease by now. All that can be restored is on storage, so nobody reads them.
        self._quietly("delete state files that wait on this host", self._job.files.forget_own)
        self._recorder.ended()
        self._become(status)
        self._lanes.close()
        for event in (*self._stops, *self._inbox.take_all()):
            if isinstance(event, Command):
                self._answer(event)

    def _clear_directory(self, status: JobStatus | None = None) -> None:
        """Delete a directory that no later run can use: of a run without checkpoints, or a temporary one without a retained
        checkpoint. A directory in memory ends with its driver, unless the job was interrupted to continue later."""
        if self._memory is not None and status is not JobStatus.SUSPENDED:
            self._memory.remove()
        elif self.settings.checkpoints is None or (self._is_temporary and self.kept_checkpoint() is None):
            self._job.files.delete_tree("")
        elif self._memory is not None:
            self._memory.keep()

    @property
    def _is_temporary(self) -> bool:
        """Whether the directory was made for this run alone."""
        return not self.settings.checkpoint_dir

    def _quietly(self, what: str, step: Callable[[], object]) -> None:
        """Clean up after the outcome. A failure here must not fail a finished job, nor hide why a job failed."""
        try:
            step()
        except Exception as error:
            log.warning("job %s: could not %s: %s", self.job_id, what, error)


def _refuse_held_back(operator: SinkNode) -> None:
    reason = operator.spec.sink.holds_back
    if reason is not None:
        raise ConfigurationError(
            "The sink holds output back, but at-least-once mode commits the output of every round with the round",
            where=f"sink {operator.label}",
            found=reason,
            cure="set execution.checkpointing.mode: EXACTLY_ONCE, or use another sink",
        )


def _how_to_continue(savepoint: str) -> str:
    if savepoint:
        key = "execution.state-recovery.path"
        return f"It was stopped with a savepoint: to continue, start it with {key}={savepoint} (tidegate run -s)"
    return "To run it again from the start, give it another tidegate.job-id"
