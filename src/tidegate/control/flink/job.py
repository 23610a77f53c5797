"""A job at a moment, as the shapes of Flink's API need it: its ids, its vertices, and what is known of their subtasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tidegate.base.clock import MAX_WATERMARK, MIN_WATERMARK
from tidegate.base.hashing import flink_job_id, stable_hash, vertex_id
from tidegate.common.job_status import JobStatus
from tidegate.common.options import REGISTRY, Option
from tidegate.control.flink.requests import ApiError
from tidegate.control.jobs import JobDetails
from tidegate.control.registry import DriverLife
from tidegate.control.shown import ShownJob
from tidegate.runtime.view import OperatorView, SubtaskView

NEVER = -1
"""In place of a time that has not come."""
_EXECUTION = {
    JobStatus.CREATED: "CREATED",
    JobStatus.RUNNING: "RUNNING",
    JobStatus.FAILING: "CANCELING",
    JobStatus.FAILED: "FAILED",
    JobStatus.CANCELLING: "CANCELING",
    JobStatus.CANCELED: "CANCELED",
    JobStatus.FINISHED: "FINISHED",
    JobStatus.RESTARTING: "CREATED",
    JobStatus.SUSPENDED: "CANCELED",
    JobStatus.RECONCILING: "RECONCILING",
}


@dataclass(frozen=True)
class Vertex:
    """A chain. ``inputs``: the vertices before it, each with how records come."""

    id: str
    chain: int
    operators: tuple[OperatorView, ...]
    subtasks: tuple[SubtaskView, ...]
    inputs: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return " -> ".join(operator.label or operator.name for operator in self.operators)

    @property
    def parallelism(self) -> int:
        return self.operators[0].parallelism

    @property
    def max_parallelism(self) -> int:
        return self.operators[0].max_parallelism


@dataclass(frozen=True)
class JobNow:
    """``at_ms``: when the details were true, which for a dead driver is some time ago. ``now_ms``: now."""

    job: ShownJob
    details: JobDetails
    at_ms: int
    now_ms: int
    life: DriverLife = field(default=DriverLife.LIVE)

    @staticmethod
    def of(job: ShownJob, now_ms: int) -> JobNow:
        details, at_ms = job.details()
        return JobNow(job, details, at_ms, now_ms, job.life)

    @cached_property
    def id(self) -> str:
        return flink_job_id(self.details.job_id)

    @cached_property
    def status(self) -> JobStatus:
        """The state of the job. A job whose driver has died neither runs nor has ended: a new start continues it."""
        known = JobStatus[self.details.state]
        return JobStatus.SUSPENDED if self.life is DriverLife.DIED and not known.is_terminal_state() else known

    @property
    def execution(self) -> str:
        """The state of every subtask: all run in the rounds of the job."""
        return _EXECUTION[self.status]

    @property
    def has_ended(self) -> bool:
        return self.status.is_terminal_state()

    @cached_property
    def end_ms(self) -> int:
        if not self.has_ended:
            return NEVER
        return self.at_ms if self.details.ended_ms is None else self.details.ended_ms

    @property
    def duration_ms(self) -> int:
        return max(0, (self.now_ms if self.end_ms == NEVER else self.end_ms) - self.details.started_ms)

    # -- attempts --------------------------------------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        """The number of the latest attempt; the first one is 0, as in Flink."""
        return max(0, self.details.attempts[-1].number - 1) if self.details.attempts else 0

    @property
    def attempt_started_ms(self) -> int:
        return self.details.attempts[-1].started_ms if self.details.attempts else NEVER

    @property
    def attempt_ms(self) -> int:
        """How long the latest attempt has run."""
        if self.attempt_started_ms == NEVER:
            return NEVER
        latest = self.details.attempts[-1]
        end = latest.ended_ms if latest.ended_ms is not None else self.now_ms if self.end_ms == NEVER else self.end_ms
        return max(0, end - latest.started_ms)

    # -- vertices --------------------------------------------------------------------------------------------------------

    @cached_property
    def vertices(self) -> tuple[Vertex, ...]:
        chains: dict[int, list[OperatorView]] = {}
        for operator in self.details.operators:
            chains.setdefault(operator.chain, []).append(operator)
        ids = {chain: vertex_id(inside[0].uid or inside[0].name, chain) for chain, inside in chains.items()}
        of = {operator.id: operator.chain for operator in self.details.operators}
        known = {(subtask.chain, subtask.subtask): subtask for subtask in self.details.subtasks}
        return tuple(
            Vertex(
                ids[chain],
                chain,
                tuple(inside),
                tuple(known.get((chain, n)) or SubtaskView(chain, n) for n in range(inside[0].parallelism)),
                tuple(
                    (ids[of[id]], ship)
                    for operator in inside
                    for id, ship in zip(operator.inputs, operator.ships or ("",) * len(operator.inputs), strict=False)
                    if id in of and of[id] != chain
                ),
            )
            for chain, inside in sorted(chains.items())
        )

    def vertex(self, id: str) -> Vertex:
        found = next((vertex for vertex in self.vertices if vertex.id == id), None)
        if found is None:
            raise ApiError(404, f"The job {self.id} has no vertex {id}. /jobs/{self.id} lists its vertices.")
        return found

    def subtask(self, vertex: Vertex, index: int) -> SubtaskView:
        if not 0 <= index < len(vertex.subtasks):
            raise ApiError(
                404, f"The vertex {vertex.id} has no subtask {index}. It has {len(vertex.subtasks)} subtasks."
            )
        return vertex.subtasks[index]

    # -- configuration ---------------------------------------------------------------------------------------------------

    def option(self, option: Option) -> Any:
        """Return the value of a key as the job has it."""
        for key in (option.key, *option.aliases):
            if key in self.details.configuration:
                return option.parse(self.details.configuration[key])
        return option.default

    @property
    def is_batch(self) -> bool:
        return str(self.option(REGISTRY["execution.runtime-mode"])) == "BATCH"

    @property
    def is_local(self) -> bool:
        """Whether the subtasks run in processes of the driver's host that belong to the driver."""
        configured = self.details.environment.get("master") or self.details.configuration.get("spark.master")
        return (configured or "local").startswith("local")

    @property
    def parallelism(self) -> int:
        return max((vertex.parallelism for vertex in self.vertices), default=1)


def executor_id(host: str) -> str:
    """Return the id of an executor, in the form of Flink's resource ids."""
    return stable_hash(f"executor {host}")


def shown_watermark(value: int | None) -> int | None:
    """Return a watermark that is a time; None at the start and at the end of event time."""
    return None if value in (None, MIN_WATERMARK, MAX_WATERMARK) else value
