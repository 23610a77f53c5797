"""Run the rounds after a checkpoint in this process, to see where user code fails: nothing of the job is changed."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from enum import Enum

from tidegate.base.clock import SystemClock
from tidegate.base.errors import SnapshotError
from tidegate.base.files import Files
from tidegate.checkpoint.locate import locate
from tidegate.checkpoint.misfits import refusal
from tidegate.checkpoint.owner import is_alive
from tidegate.graph.plan import JobGraph
from tidegate.graph.transformation import Program
from tidegate.operators.contracts.settings import Settings
from tidegate.operators.contracts.specs import sources_of
from tidegate.operators.flow.level import job_spec
from tidegate.operators.flow.rows import Ack, RoundContext
from tidegate.runtime.planner import SourcePlanner
from tidegate.runtime.replay import LocalRounds, Stopped
from tidegate.runtime.restoring import Submission, read_restored
from tidegate.runtime.settings import JobSettings
from tidegate.runtime.statistics import busy_seconds


class End(Enum):
    """Why no further round was run."""

    FAILED = "user code failed"
    FINISHED = "all sources have ended"
    IDLE = "the sources have no more records now"
    ENOUGH = "the requested number of rounds has run"
    DECLINED = "a snapshot could not be taken"


@dataclass(frozen=True)
class Behind:
    rounds: int
    records: int
    end: End


def replay_behind(program: Program, path: str, directory: str, stopped: Stopped, most: int) -> Behind:
    """Run at most ``most`` rounds. They differ from the job's rounds: what a round reads depends on what is available."""
    settings, clock = JobSettings.of(program.configuration), SystemClock()
    job = Submission(
        program=program,
        settings=settings,
        job_id="replay",
        run_id="replay",
        files=Files(directory),
        local_root=f"{directory}/local",
        clock=clock,
        liveness=is_alive,
    )
    located = locate(path)
    graph, progress, positions, misfits = read_restored(job, located)
    if misfits:
        raise refusal(located.address, misfits, [o.uid_hash for o in graph.operators])
    _refuse_once_only(graph)
    rounds = LocalRounds(job_spec(graph, "replay", _settings(job)), directory, stopped)
    planner = SourcePlanner(
        sources_of(graph), settings.round_target_ms, positions, settings.round_max_records, whole=settings.batch_mode
    )
    number, records = located.metadata.round, 0
    try:
        for done in range(most):
            number, now = number + 1, clock.now_ms()
            sources = planner.plan(now, progress.snapshots)
            news = any(plan.intervals or plan.finished for plan in sources.values())
            if not news and not progress.in_flight_records:
                return Behind(done, records, End.IDLE)
            context = RoundContext(number, f"replay-{number}", None, now, statuses=progress.statuses())
            acks: list[Ack] = [pickle.loads(ack) for ack in rounds.run(progress.plan(context, sources))]
            if rounds.failed:
                return Behind(done, records, End.FAILED)
            progress.check(acks)
            if any(ack.declined is not None for ack in acks):
                return Behind(done, records, End.DECLINED)
            progress = progress.accept(acks).progress
            planner.accept(busy_seconds(acks, graph))
            records += sum(ack.records_in for ack in acks)
            if planner.finished:
                return Behind(done + 1, records, End.FINISHED)
        return Behind(most, records, End.ENOUGH)
    finally:
        planner.close()
        rounds.close()


def _refuse_once_only(graph: JobGraph) -> None:
    for operator in sources_of(graph):
        if not operator.spec.source.can_replay:
            raise SnapshotError(
                "The rounds after the checkpoint cannot be run again: a source cannot be read again.",
                where=f"source '{operator.name}'",
                found="it does not give its records a second time",
            )


def _settings(job: Submission) -> Settings:
    own = job.settings
    return Settings(
        job_id=job.run_id,
        root=job.files.root,
        local_root=job.local_root,
        chunk_records=own.chunk_records,
        stores=own.stores,
        cache_bytes=own.cache_bytes,
        compressed=own.compressed,
        allow_pickle=own.allow_pickle,
        parameters=dict(own.parameters),
        object_reuse=own.object_reuse,
        batch_mode=own.batch_mode,
        watermark_interval_ms=own.watermark_interval_ms,
    )
