"""A job as servers show it: one of this process, of another driver, or one that has ended. And the messages of the page."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Protocol

import msgspec

from tidegate.control.jobs import JobDetails
from tidegate.control.messages import Operation
from tidegate.control.registry import DriverLife
from tidegate.runtime.view import CheckpointView, Note


class Severity(Enum):
    """How urgent a finding is."""

    FAILING = "failing"
    """The job fails, restarts again and again, or has died."""
    WARNING = "warning"
    """The job is slow, late or grows."""
    NOTE = "note"


class Page(Enum):
    """The pages of a job. A finding leads to one of them."""

    OVERVIEW = "overview"
    CHECKPOINTS = "checkpoints"
    ROUNDS = "rounds"
    GRAPH = "graph"
    EXCEPTIONS = "exceptions"
    STATE = "state"
    CONFIGURATION = "configuration"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why something is slow, late or failing, in one sentence that names the cause. The other fields lead to the cause."""

    kind: str
    """A stable name, for tests and alerts: ``hot-key``, ``slow-function``, ``slow-storage`` ..."""
    severity: Severity
    sentence: str
    page: Page
    operator: int | None = None
    subtask: int | None = None
    key: str | None = None
    checkpoint_id: int | None = None
    step: str | None = None
    """A part of a round (``ROUND_PARTS``) or a step of a checkpoint (``history.STEPS``)."""


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """What a person may do here. ``csrf``: what each change needs. ``server``: ``driver`` or ``installation``."""

    csrf: str
    can_submit: bool
    version: str
    server: str


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of the text for Prometheus. ``labels`` tell it from others of its name: subtask, state, part ..."""

    name: str
    operator: str | None
    kind: str
    value: float
    labels: dict[str, str]


class JobCard(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list of jobs. ``flink_id`` has 32 hexadecimal digits. ``attention``: the most urgent finding."""

    job_id: str
    flink_id: str
    run: str
    name: str
    state: str
    life: str
    """A value of ``DriverLife``."""
    started_ms: int
    ended_ms: int | None
    guarantee: str | None
    records_per_second: float
    lag: int | None
    restarts: int
    last_checkpoint_ms: int | None
    """When the latest complete checkpoint was complete."""
    last_checkpoint_id: int | None
    attention: Finding | None
    as_of_ms: int
    """When the driver gave these figures."""


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the pages of one job show, most urgent finding first."""

    card: JobCard
    details: JobDetails
    findings: tuple[Finding, ...]
    answers: bool
    """Whether the driver answers. If not, the figures are those of ``card.as_of_ms``."""


class CheckpointPage(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint, opened. ``why`` says in a sentence why it was slow or failed; None if it was neither."""

    view: CheckpointView
    why: str | None
    story: tuple[Note, ...]


class ShownJob(Protocol):
    """A job that a server shows. Methods may wait for storage or a driver: call them in a thread beside the event loop."""

    @property
    def job_id(self) -> str: ...

    @property
    def run(self) -> str: ...

    @property
    def life(self) -> DriverLife: ...

    def details(self) -> tuple[JobDetails, int]:
        """Return the latest known details, and when (wall clock, ms) they were true."""

    def checkpoint(self, checkpoint_id: int) -> CheckpointView | None:
        """Return one checkpoint with the figures of its subtasks, as far as known."""

    def story(self, kind: str, number: int) -> list[Note]:
        """Return the notes on one checkpoint, savepoint or round."""

    def begin(self, command: str, request: msgspec.Struct | None = None) -> Operation:
        """Begin ``checkpoints``, ``savepoints``, ``stop`` or ``cancel``. Raise TidegateError if the job refuses it."""

    def operation(self, id: str, wait_s: float = 0.0) -> Operation | None: ...

    def operations(self) -> list[Operation]: ...

    def log_file(self) -> Path | None:
        """Return the file that the driver prints to, if there is one on this host."""

    def metrics_text(self) -> str:
        """Return the figures as Prometheus reads them."""


class ShownJobs(Protocol):
    """The jobs of a server."""

    def all(self) -> list[ShownJob]:
        """Return every job (``ShownJob``), oldest first: the newest run of each id."""

    def get(self, job_id: str) -> ShownJob | None:
        """Find a job by its own id or by its 32 hexadecimal digits."""
