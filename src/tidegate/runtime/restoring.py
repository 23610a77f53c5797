"""Begin an attempt: claim the directory, decide what to restore, check the program against it, then take it over.

This includes the records in flight of the restored checkpoint. They may not be wanted, and the program may be unable to
take them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tidegate.base.clock import Clock
from tidegate.base.errors import CorruptFileError, FencedError, RestoreError
from tidegate.base.files import Files
from tidegate.base.hashing import is_strong
from tidegate.base.pickling import allow_stored
from tidegate.base.plain_text import count
from tidegate.checkpoint.assign import Misfit, ProgramOperator, match_operators, named
from tidegate.checkpoint.completed import TASK_OWNED, CompletedCheckpoints
from tidegate.checkpoint.history import CheckpointHistory
from tidegate.checkpoint.lease import Lease, Liveness, acquire, refuse_if_held
from tidegate.checkpoint.lease_records import AttemptStatus
from tidegate.checkpoint.locate import Lineage, Located, locate_own, read_lineage
from tidegate.checkpoint.metadata import CheckpointMetadata, OperatorState
from tidegate.checkpoint.recovery import Recovery, decide, offering_previous, origin_of
from tidegate.checkpoint.savepoint import Ending, NewSavepoint, SavepointPlace, discard_unfinished
from tidegate.common.options import ALLOW_PICKLE, SIGNING_KEY_FILE
from tidegate.graph.plan import JobGraph, Operator, build
from tidegate.graph.transformation import Program, Role
from tidegate.operators.contracts.source import SourceContext
from tidegate.operators.contracts.specs import sinks_of, sources_of
from tidegate.runtime import life_cycle
from tidegate.runtime.checkpoints import Checkpoints, NoCheckpoints
from tidegate.runtime.commands import Stop
from tidegate.runtime.commits import SinkCommitters
from tidegate.runtime.inbox import Lanes
from tidegate.runtime.life_cycle import Checked, Claimed, FinishedBefore, Heartbeat, Restored
from tidegate.runtime.planner import SourcePlanner
from tidegate.runtime.progress import Progress
from tidegate.runtime.savepoints import Around
from tidegate.runtime.settings import JobSettings
from tidegate.runtime.steps import CheckpointSteps, Steps
from tidegate.runtime.view import JobRecorder
from tidegate.state.keys import key_identity
from tidegate.state.local_dir import local_name, remove_job
from tidegate.state.snapshot import IN_FLIGHT, SPLITS, ListPart, OperatorSnapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Submission:
    """What a job was started with. ``run_id`` names its directory and its output; ``claims``: nonces of its own leases."""

    program: Program
    settings: JobSettings
    job_id: str
    run_id: str
    files: Files
    local_root: str
    clock: Clock
    liveness: Liveness
    more_roots: tuple[str, ...] = ()
    claims: set[str] = field(default_factory=set)

    @property
    def local_name(self) -> str:
        """The name of the job on a host."""
        return local_name(self.run_id, self.files.root)

    def graph(self, restored_max: Mapping[str, int], heads: Collection[str] = ()) -> JobGraph:
        settings = self.settings
        return build(self.program, settings.parallelism, settings.max_parallelism, restored_max, heads)


class Restoring:
    """Of one job. ``on_lost``: see ``Heartbeat``."""

    def __init__(
        self,
        job: Submission,
        lanes: Lanes,
        recorder: JobRecorder,
        stop: Stop,
        on_lost: Callable[[int, FencedError], None],
    ) -> None:
        self._job, self._lanes, self._recorder, self._stop, self._on_lost = job, lanes, recorder, stop, on_lost
        self._accepted: CheckpointMetadata | None = None
        """The unsigned snapshot that the user lets this run restore."""

    def start(self, *, first: bool) -> Checked | FinishedBefore:
        """The next attempt. Nothing outside is touched before all checks have passed and the decision is recorded (``take_over``).

        ``first``: none of this run has taken anything over yet; a path the user gave counts until then.
        """
        claimed = self._claim()
        with contextlib.ExitStack() as undo:
            undo.callback(claimed.release)
            recovery = self._decide(claimed.lease, first)
            self._check_trust(recovery, first)
            if first and recovery.begins_beside_output and not self._job.settings.start_anew:
                raise _begins_beside_output(self._job, recovery)
            if recovery.previous is AttemptStatus.FINISHED and recovery.located is None:
                try:
                    self._tidy_up(claimed.lease, recovery)
                except Exception as error:  # the job has finished all the same
                    log.warning("job %s: could not clean up after the finished job: %s", self._job.job_id, error)
                begun: Checked | FinishedBefore = FinishedBefore(claimed, recovery.lineage.savepoint)
            else:
                begun = self._check(claimed, recovery, first)
            undo.pop_all()
        return begun

    def _claim(self) -> Claimed:
        job = self._job
        lease = acquire(
            job.files,
            job.clock,
            job_id=job.run_id,
            timeout_ms=job.settings.lease_timeout_ms,
            liveness=job.liveness,
            own_claims=job.claims,
        )
        return Claimed(lease, Heartbeat(lease, job.clock, self._lanes.aside, self._on_lost))

    def _decide(self, lease: Lease, first: bool) -> Recovery:
        """A path from elsewhere counts only while the job has nothing of its own."""
        files, settings = self._job.files, self._job.settings
        path = settings.recovery_path
        if not path or not first:
            return decide(files, lease, previous=first and settings.restore_previous)
        if not Files(path).root.startswith(files.root + "/"):
            self._refuse_beside_own(read_lineage(files, below=lease.token), path)
        recovery = decide(files, lease, path, claim=settings.claims, previous=settings.restore_previous)
        if recovery.claimed and recovery.located is not None and recovery.located.directory:
            refuse_if_held(recovery.located.root, self._job.clock, self._job.liveness)
        return recovery

    def _check_trust(self, recovery: Recovery, first: bool) -> None:
        """Refuse a snapshot that may run the code of somebody else, before anything of it but the metadata is read."""
        located, settings = recovery.located, self._job.settings
        allow_stored(settings.allow_pickle)
        if located is None:
            return
        key = self._job.files.signing_key
        if first and settings.accept_unsigned and located.signature is None:
            self._accepted = located.metadata
        # The snapshot of the first attempt alone: what the job has signed since may not be replaced by an unsigned one.
        located.check_signature(key, accept_unsigned=located.metadata == self._accepted)
        if located.metadata.is_unaligned and not settings.allow_pickle:
            raise RestoreError(
                f"The checkpoint has pickled records in flight, and pickles are refused ({ALLOW_PICKLE.key}).",
                where=located.address,
                found=f"{located.metadata.in_flight_records} records in flight",
                cure="restore a savepoint or an aligned checkpoint",
            )
        if key is None and located.signature is not None:
            log.warning(
                "job %s: the signature of %s is not checked, and new checkpoints are not signed: set %s",
                self._job.job_id,
                located.address,
                SIGNING_KEY_FILE.key,
            )

    def _refuse_beside_own(self, lineage: Lineage, path: str) -> None:
        """Refuse a snapshot from elsewhere if the job has checkpoints of its own. Two paths are allowed: the path that the lineage
        began with, and the savepoint that the job was about to end with."""
        if lineage.latest is None or lineage.origin == origin_of(path):
            return
        latest = locate_own(self._job.files, lineage.latest)
        ending = Ending.of(latest.metadata)
        if ending is not None and ending.address == origin_of(path):
            return
        raise RestoreError(
            "The job has checkpoints of its own: started from another snapshot, it would write its output again",
            where=f"job {self._job.job_id}, {self._job.files.root}",
            found=f"its latest checkpoint is {latest.address}, and it was started from {path}",
            cure="remove the path to continue; set another tidegate.job-id to start from there; to go back on purpose, "
            "move the job's directory away",
        )

    # -- what is restored ------------------------------------------------------------------------------------------------

    def _check(self, claimed: Claimed, recovery: Recovery, first: bool) -> Checked:
        try:
            graph, progress, positions, misfits = read_restored(self._job, recovery.located)
        except CorruptFileError as damage:
            if recovery.begins:
                raise
            raise offering_previous(damage, self._job.files, recovery.lineage) from damage
        refused: list[Misfit] = []
        # The planner refuses what cannot be read, before Spark starts.
        planner = self._new_planner(claimed.lease, graph, positions, refused)
        rehearses = first and recovery.ending is None and life_cycle.is_due(progress)
        checked = Checked(claimed, recovery, graph, planner, progress, rehearses, (*misfits, *refused))
        if not rehearses:
            try:
                checked.refuse_misfits()
            except RestoreError:
                planner.close()
                raise
        return checked

    def _new_planner(
        self, lease: Lease, graph: JobGraph, positions: Mapping[int, object], refused: list[Misfit]
    ) -> SourcePlanner:
        """Make the planner. ``refused``: sources that cannot continue from their positions are added here."""
        settings = self._job.settings

        def place(operator: Operator) -> SourceContext:
            directory = self._job.files.location(f"{TASK_OWNED}/{operator.uid_hash}")
            return SourceContext(directory, lease.token, settings.retained)

        return SourcePlanner(
            sources_of(graph),
            settings.round_target_ms,
            positions,
            settings.round_max_records,
            whole=settings.batch_mode,
            place=place,
            on_refused=lambda operator, error: refused.append(_refused(operator, error)),
        )

    def take_over(self, checked: Checked) -> Restored:
        """Record the restore, and begin to act. If this fails, ``checked`` still holds its resources."""
        with contextlib.ExitStack() as undo:
            restored = self._restore(checked, undo)
            undo.pop_all()
        return restored

    def _restore(self, checked: Checked, undo: contextlib.ExitStack) -> Restored:
        settings, claimed, recovery = self._job.settings, checked.claimed, checked.recovery
        graph, progress = checked.graph, checked.progress
        recovery.record(claimed.lease)
        completed = CompletedCheckpoints(self._job.files, claimed.lease, settings.retained)
        completed.sweep(progress.paths())
        self._job.files.forget_others()
        committers = self._new_committers(graph, claimed.lease)
        undo.callback(committers.close)
        savepoint = self._last_savepoint(recovery)
        progress = self._settle(committers, progress)
        if savepoint is not None:
            savepoint.settle()
            claimed.lease.ends_with(savepoint.address)
            self._remove_stores()  # no engine runs that would
        self._clear_unfinished(claimed.lease, recovery)
        return Restored(
            claimed=claimed,
            graph=graph,
            planner=checked.planner,
            progress=progress,
            committers=committers,
            checkpoints=self._new_checkpoints(claimed.lease, completed, committers, graph),
            ending=recovery.ending,
        )

    def _last_savepoint(self, recovery: Recovery) -> NewSavepoint | None:
        """Make the job's last savepoint, if the restored checkpoint decided it and it is missing (``savepoints.py``). All
        its files are copied again."""
        if recovery.ending is None or recovery.located is None:
            return None
        savepoint = NewSavepoint.of(recovery.ending, self._job.files, recovery.located.metadata)
        if not savepoint.is_published:
            savepoint.discard()
            for _ in savepoint.copy(self._job.settings.savepoint_threads):
                pass
            savepoint.publish()
        return savepoint

    @staticmethod
    def _clear_unfinished(lease: Lease, recovery: Recovery) -> None:
        """Delete incomplete savepoints of the previous attempt: nobody got their addresses."""
        for address in recovery.lineage.writing:
            discard_unfinished(address)
            lease.savepoint_over(address)

    @staticmethod
    def _settle(committers: SinkCommitters, progress: Progress) -> Progress:
        """Finish step 8 of the restored checkpoint, and abort all later output. Call it after the decision is recorded."""
        committers.commit(progress.committables, recovering=True)
        committers.abort_lingering(progress.committables, progress.writer_states())
        return progress.without_pending(progress.committables)

    def _tidy_up(self, lease: Lease, recovery: Recovery) -> None:
        """Clean up after a job that finished in an earlier run, which was killed while it ended, or whose late tasks left files."""
        recovery.record_finished(lease)
        committers = self._new_committers(self._job.graph({}), lease)
        try:
            abort_output = functools.partial(committers.abort_lingering, {}, {})
            CompletedCheckpoints(self._job.files, lease, 1).discard_all(AttemptStatus.FINISHED, abort_output)
        finally:
            committers.close()
        self._job.files.forget_others()
        self._remove_stores()  # other hosts' stores go with their next boot

    def _remove_stores(self) -> None:
        for root in (self._job.local_root, *self._job.more_roots):
            remove_job(root, self._job.local_name)

    # -- what an attempt holds -------------------------------------------------------------------------------------------

    def _new_committers(self, graph: JobGraph, lease: Lease) -> SinkCommitters:
        job = self._job
        return SinkCommitters(
            sinks_of(graph),
            job.run_id,
            job.files.root,
            check_lease=lease.check,
            clock=job.clock,
            attempts=job.settings.commit_attempts,
            backoff_ms=job.settings.commit_backoff_ms,
            lease=lease.token,
            at_once=job.settings.checkpoints is not None and job.settings.checkpoints.at_least_once,
            on_retry=self._recorder.commit_retried,
        )

    def _new_checkpoints(
        self, lease: Lease, completed: CompletedCheckpoints, committers: SinkCommitters, graph: JobGraph
    ) -> Checkpoints | NoCheckpoints:
        job, settings, policy = self._job, self._job.settings, self._job.settings.checkpoints
        refusal = "a job in batch mode is one round, and takes no savepoints" if settings.batch_mode else None
        place = SavepointPlace(
            job.job_id, job.program.name, settings.savepoint_dir, refusal, group=settings.group_access
        )
        around = Around(place, graph, lease, self._recorder, job.clock, self._stop)
        needs = (self._lanes, committers, lease, job.clock, settings.savepoint_threads)
        if policy is None:
            return NoCheckpoints(Steps(*needs), around)
        history = CheckpointHistory(job.files)
        steps = CheckpointSteps(*needs, completed, history, policy.concurrency)
        return Checkpoints(steps, around, policy, history)


class Read(NamedTuple):
    """What is restored, as the program has it: ``progress`` to start from, ``positions`` of its sources by operator id."""

    graph: JobGraph
    progress: Progress
    positions: dict[int, object]
    misfits: tuple[Misfit, ...] = ()


def read_restored(job: Submission, located: Located | None) -> Read:
    """Read the state to restore. Writes nothing."""
    if located is None:
        graph = job.graph({})
        return Read(graph, Progress(graph), {})
    metadata = restored(located.metadata, located.address, job.settings)
    heads = {o.uid_hash for o in metadata.operators if o.in_flight()}
    graph = job.graph({o.uid_hash: o.max_parallelism for o in metadata.operators}, heads)
    located.check_files()
    matched = match_operators(
        metadata,
        [_declared(operator) for operator in graph.operators],
        where=located.address,
        allow_non_restored_state=job.settings.ignore_unclaimed_state,
    )
    check_channels(graph, matched.states, located.address)
    # A file without a cryptographic hash may not get into a signed checkpoint: it is written again, as one of another directory.
    weak = job.files.strong and any(not is_strong(file.hash) for file in metadata.state_files())
    root = "" if located.root.root == job.files.root and not weak else located.root.root
    progress = Progress.restored(graph, matched.states, root=root)
    positions = {o.id: matched.states[o.uid_hash].source for o in graph.operators if o.uid_hash in matched.states}
    log.info("job %s: restores checkpoint %d from %s", job.job_id, metadata.checkpoint_id, located.address)
    return Read(graph, progress, positions, matched.misfits)


def _refused(operator: Operator, error: RestoreError) -> Misfit:
    found = f"{named(operator.name, operator.uid, operator.uid_hash)}: {error.rule.rstrip('.')}: {error.found}"
    return Misfit(operator.uid_hash, found, error.cure or "")


def _begins_beside_output(job: Submission, recovery: Recovery) -> RestoreError:
    savepoint = recovery.lineage.savepoint
    go_on = f"to continue, start from its savepoint {savepoint}; or " if savepoint else ""
    return RestoreError(
        "The job would start with empty state, but has committed output: all of that output would be duplicated",
        where=f"job {job.job_id}, {job.files.root}",
        found=f"it was cancelled after checkpoint {recovery.committed} was committed, and its checkpoints were deleted",
        cure=f"{go_on}remove the output, or accept duplicates, and set tidegate.start-anew=true; or set another tidegate.job-id. "
        "Next time set execution.checkpointing.externalized-checkpoint-retention=RETAIN_ON_CANCELLATION to retain checkpoints",
    )


def _declared(operator: Operator) -> ProgramOperator:
    return ProgramOperator(
        operator.uid_hash,
        operator.name,
        operator.parallelism,
        operator.max_parallelism,
        operator.uid,
        key_type=key_identity(operator.keyed.key_type).describe if operator.keyed is not None else "",
        is_source=operator.spec.role is Role.SOURCE,
        is_sink=operator.spec.role is Role.SINK,
    )


def restored(metadata: CheckpointMetadata, where: str, settings: JobSettings) -> CheckpointMetadata:
    """Return the checkpoint as the job restores it: without its records in flight, if the user configured this."""
    if not metadata.is_unaligned:
        return metadata
    if metadata.checkpoint_id == settings.ignored_in_flight_of:
        log.warning("%s: %s in flight discarded, as configured", where, count(metadata.in_flight_records, "record"))
        return msgspec.structs.replace(metadata, operators=[_without(operator) for operator in metadata.operators])
    if settings.batch_mode:
        raise RestoreError(
            "A job in batch mode cannot restore records in flight.",
            where=where,
            found=f"{count(metadata.in_flight_records, 'record')} in flight",
            cure="restore it in streaming mode and take a savepoint, which contains no records in flight",
        )
    return metadata


def _without(operator: OperatorState) -> OperatorState:
    return msgspec.structs.replace(operator, subtasks=[_emptied(snapshot) for snapshot in operator.subtasks])


def _emptied(snapshot: OperatorSnapshot) -> OperatorSnapshot:
    """Discard the records in flight. Event time no longer waits for splits whose last records are discarded."""
    part = snapshot.in_flight
    if part is None:
        return snapshot
    ended = {log.split for log in part.logs if log.ends}
    held = snapshot.parts.get(SPLITS)
    rest = snapshot.without(IN_FLIGHT)
    if not ended or not isinstance(held, ListPart):
        return rest
    return rest.with_part(
        SPLITS, ListPart.of(held.redistribution, [row for row in held.values() if row[0] not in ended])
    )


def check_channels(graph: JobGraph, states: Mapping[str, OperatorState], where: str) -> None:
    """Raise if records in flight came from an input that the operator no longer has."""
    known = {chain.head.operator.uid_hash: {edge.name for edge in chain.inputs} for chain in graph.chains}
    names = {operator.uid_hash: operator.name for operator in graph.operators}
    for uid_hash, state in states.items():
        channels = {name for part in state.in_flight() for name in part.channels}
        if channels - known.get(uid_hash, set()):
            raise RestoreError(
                "Records in flight cannot be restored: the program has other inputs.",
                where=f"{where}, operator {names.get(uid_hash, state.name)!r}",
                found=f"{count(sum(part.records for part in state.in_flight()), 'record')} in flight, some from an input that "
                "does not exist now",
                cure="restore with the previous program and take a savepoint, which contains no records in flight; or set "
                "execution.checkpointing.recover-without-channel-state.checkpoint-id to this checkpoint's id to discard them",
            )
