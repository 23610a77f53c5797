"""A job as the endpoint shows it, made from the ``JobView``."""

from __future__ import annotations

import msgspec

from tidegate.checkpoint.listing import CheckpointList
from tidegate.runtime.statistics import RoundStatistics
from tidegate.runtime.view import AttemptView, CheckpointView, ExceptionView, JobView, OperatorView, Totals

_ROUNDS = 20


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    name: str
    state: str
    started_ms: int


class JobDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Every list is oldest first and holds only the latest entries. Times are wall clock times in milliseconds."""

    job_id: str
    name: str
    state: str
    started_ms: int
    ended_ms: int | None
    directory: str
    is_temporary: bool
    checkpoint_interval_ms: int | None
    guarantee: str | None
    paths: tuple[dict[str, str | None], ...]
    """From each source to each sink that it reaches: the guarantee, its reason, and what would raise it."""
    finished_before: bool
    totals: Totals
    records_per_second: float
    operators: tuple[OperatorView, ...]
    attempts: tuple[AttemptView, ...]
    rounds: tuple[RoundStatistics, ...]
    checkpoints: tuple[CheckpointView, ...]
    exceptions: tuple[ExceptionView, ...]

    @staticmethod
    def of(view: JobView, now_ms: int) -> JobDetails:
        return JobDetails(
            job_id=view.job_id,
            name=view.name,
            state=view.status.name,
            started_ms=view.created_ms,
            ended_ms=view.ended_ms,
            directory=view.directory,
            is_temporary=view.is_temporary,
            checkpoint_interval_ms=view.checkpoint_interval_ms,
            guarantee=None if view.guarantee is None else str(view.guarantee),
            paths=() if view.guarantee is None else tuple(path.facts() for path in view.guarantee.paths),
            finished_before=view.finished_before,
            totals=view.totals,
            records_per_second=view.records_per_second(now_ms),
            operators=view.operators,
            attempts=view.attempts,
            rounds=view.rounds[-_ROUNDS:],
            checkpoints=view.checkpoints,
            exceptions=view.exceptions,
        )


class Checkpoints(CheckpointList, frozen=True, kw_only=True):
    """The list of ``tidegate checkpoints --json``. ``latest`` holds the checkpoints of this run that the driver knows, complete or
    not, with the times at which they passed each step."""

    latest: tuple[CheckpointView, ...]
