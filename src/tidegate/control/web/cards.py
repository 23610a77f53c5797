"""A job as its line in the list and as its pages: what the figures are, what needs attention, how old they are."""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec

from tidegate.base.hashing import flink_job_id
from tidegate.checkpoint.metadata import CHECKPOINT
from tidegate.control.jobs import JobDetails
from tidegate.control.registry import DriverLife
from tidegate.control.shown import JobCard, JobPage, Severity, ShownJob
from tidegate.control.web.findings import findings

URGENT = (Severity.FAILING, Severity.WARNING, Severity.NOTE)
FRESH_MS = 5_000
"""The driver is asked every second. Figures older than this come from a driver that does not answer."""


def job_page(job: ShownJob) -> JobPage:
    """Make what the pages of a job show. May wait for storage or a driver."""
    details, as_of_ms = job.details()
    now_ms, life = time.time_ns() // 1_000_000, job.life
    answers = life is DriverLife.ENDED or (life is DriverLife.LIVE and now_ms - as_of_ms < FRESH_MS)
    found = findings(details, now_ms, life=life, answers=answers, as_of_ms=as_of_ms)
    done = [c for c in details.checkpoints if 7 in c.passed_ms and c.kind == CHECKPOINT]
    lags = [subtask.lag for subtask in details.subtasks if subtask.lag is not None and subtask.lag_unit == "records"]
    card = JobCard(
        job_id=job.job_id,
        flink_id=flink_job_id(job.job_id),
        run=job.run,
        name=details.name,
        state="DIED" if life is DriverLife.DIED else details.state,
        life=life.value,
        started_ms=details.started_ms,
        ended_ms=details.ended_ms,
        guarantee=details.guarantee,
        records_per_second=details.records_per_second if life is DriverLife.LIVE else 0.0,
        lag=sum(lags) if lags else None,
        restarts=max(0, details.attempts[-1].number - 1) if details.attempts else 0,
        last_checkpoint_ms=done[-1].passed_ms[7] if done else None,
        last_checkpoint_id=done[-1].checkpoint_id if done else None,
        attention=found[0] if found else None,
        as_of_ms=as_of_ms,
    )
    return JobPage(card=card, details=_slim(details), findings=found, answers=answers)


def _slim(details: JobDetails) -> JobDetails:
    """Leave out what only an opened checkpoint shows: a job with many subtasks would send megabytes to every page, every second."""
    slim = tuple(
        replace(c, subtasks=(), entry=None if c.entry is None else msgspec.structs.replace(c.entry, operators={}))
        for c in details.checkpoints
    )
    return msgspec.structs.replace(details, checkpoints=slim)


def in_order(cards: list[JobCard]) -> list[JobCard]:
    """Put first what needs attention, then what runs, then the newest."""
    return sorted(cards, key=_rank)


def _rank(card: JobCard) -> tuple[int, bool, int]:
    urgency = len(URGENT) if card.attention is None else URGENT.index(card.attention.severity)
    return urgency, card.life != DriverLife.LIVE.value, -card.started_ms


def without_time(page: JobPage) -> JobPage:
    """Return what is compared to see whether a page has changed."""
    return msgspec.structs.replace(page, card=card_without_time(page.card))


def card_without_time(card: JobCard) -> JobCard:
    return msgspec.structs.replace(card, as_of_ms=0)
