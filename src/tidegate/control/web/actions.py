"""What an action will do to a job, said before it is done."""

from __future__ import annotations

import time

import msgspec

from tidegate.base.errors import TidegateError
from tidegate.base.plain_text import duration
from tidegate.checkpoint.metadata import CHECKPOINT
from tidegate.control.jobs import JobDetails, checked_target
from tidegate.control.registry import DriverLife
from tidegate.control.shown import ShownJob
from tidegate.runtime.view import Outcome

ACTIONS = ("checkpoint", "savepoint", "stop", "cancel", "rescale")
SAVEPOINTS = "execution.checkpointing.savepoint-dir"
RETENTION = "execution.checkpointing.externalized-checkpoint-retention"
_DELETED = ("DELETE_ON_CANCELLATION", "NO_EXTERNALIZED_CHECKPOINTS")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """An action with its parameters. ``target``: a directory for a savepoint, None: the configured one."""

    action: str
    target: str | None = None
    drain: bool = False
    savepoint: bool = False
    parallelism: int | None = None


class Will(msgspec.Struct, frozen=True, kw_only=True):
    """``problem``: why the action is refused now; None if it is allowed."""

    sentences: tuple[str, ...]
    allowed: bool
    problem: str | None = None


def will(job: ShownJob, asked: Asked, cannot_start: str | None) -> Will:
    """Say what the action will do, and whether the job would refuse it. ``cannot_start``: why the job's program cannot be started
    from here, None if it can be."""
    details, _ = job.details()
    problem = _problem(job, details, asked, cannot_start)
    return Will(sentences=tuple(_sentences(details, asked)), allowed=problem is None, problem=problem)


def _problem(job: ShownJob, details: JobDetails, asked: Asked, cannot_start: str | None) -> str | None:
    life = job.life
    if life is DriverLife.ENDED:
        return f"The job has ended, so it takes no commands: it is {details.state}."
    if life is DriverLife.DIED:
        return "The driver of the job has died, so the job takes no commands."
    if life is DriverLife.UNKNOWN:
        return "The driver runs on another host, and takes commands only there."
    if _takes_savepoint(asked):
        if asked.target is not None:
            try:
                checked_target(asked.target, None, None)
            except TidegateError as error:
                return str(error)
        elif details.configuration and not details.configuration.get(SAVEPOINTS):
            return f"No directory is given, and {SAVEPOINTS} is not set."
    if asked.action == "checkpoint" and details.checkpoint_interval_ms is None:
        return "The job takes no checkpoints: execution.checkpointing.interval is not set."
    if asked.action == "rescale":
        return cannot_start or _why_no_parallelism(details, asked.parallelism)
    return None


def _takes_savepoint(asked: Asked) -> bool:
    return asked.action in ("savepoint", "stop", "rescale") or (asked.action == "cancel" and asked.savepoint)


def _why_no_parallelism(details: JobDetails, parallelism: int | None) -> str | None:
    if parallelism is None or parallelism < 1:
        return "The new parallelism must be a number of at least 1."
    least = min((o.max_parallelism for o in details.operators), default=parallelism)
    if parallelism > least:
        names = ", ".join(o.label for o in details.operators if o.max_parallelism == least)
        return f"The new parallelism {parallelism} exceeds the maximum parallelism {least} of {names}."
    return None


def _sentences(details: JobDetails, asked: Asked) -> list[str]:
    place = asked.target or details.configuration.get(SAVEPOINTS) or "the configured directory"
    match asked.action:
        case "checkpoint":
            return ["The job takes a checkpoint now, and continues.", *_latest(details)]
        case "savepoint":
            return [
                f"The job takes a savepoint in {place}, and continues.",
                "Tidegate never deletes a savepoint by itself.",
            ]
        case "stop":
            return _stop(place, drain=asked.drain)
        case "cancel":
            return _cancel(details, place, savepoint=asked.savepoint)
        case _:
            now = max((o.parallelism for o in details.operators), default=0)
            return [
                *_stop(place, drain=False),
                f"Then its program starts again in the background with parallelism {asked.parallelism} (now {now}), and "
                "continues from the savepoint.",
                "Operators whose parallelism the program sets itself keep it.",
                "If the start fails, the job stays stopped and the savepoint remains.",
            ]


def _stop(place: str, *, drain: bool) -> list[str]:
    drained = [
        "Event time advances to its end: all windows and event-time timers fire.",
        "A later start from this savepoint cannot continue these windows.",
    ]
    return [
        "The sources stop, and all records that they have read are processed.",
        *(drained if drain else []),
        f"The job writes a savepoint to {place}.",
        "All output is committed, and the job is FINISHED.",
    ]


def _cancel(details: JobDetails, place: str, *, savepoint: bool) -> list[str]:
    if savepoint:
        return [f"The job takes a savepoint in {place}.", "Then the job is CANCELED for good."]
    deleted = details.configuration.get(RETENTION) in _DELETED
    kept = "Its checkpoints are deleted." if deleted else f"Its latest checkpoints stay in {details.directory}."
    lost = "Output that no checkpoint has committed is discarded."
    return ["The job ends at once, and is CANCELED for good.", lost, *_latest(details), kept]


def _latest(details: JobDetails) -> list[str]:
    done = [c for c in details.checkpoints if c.kind == CHECKPOINT and c.status is Outcome.COMPLETED]
    if not done:
        return ["The job has no complete checkpoint yet."]
    age = duration(max(0, time.time_ns() // 1_000_000 - done[-1].passed_ms.get(7, 0)), coarse=True)
    return [f"The latest complete checkpoint is {done[-1].checkpoint_id}, {age} old."]
