"""Why a job is slow, late or failing: sentences that name the operator, subtask, key or step, from the figures of its view."""

from __future__ import annotations

from tidegate.control.jobs import JobDetails
from tidegate.control.registry import DriverLife
from tidegate.control.shown import Finding
from tidegate.runtime.view import CheckpointView


def findings(
    details: JobDetails,
    now_ms: int,
    *,
    life: DriverLife = DriverLife.LIVE,
    answers: bool = True,
    as_of_ms: int | None = None,
) -> tuple[Finding, ...]:
    return ()


def why(view: CheckpointView, others: tuple[CheckpointView, ...], details: JobDetails) -> str | None:
    return None
