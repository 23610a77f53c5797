"""An executor that keeps the programs handed to it, and jobs that end as a test says."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.common import Configuration, JobExecutionResult, JobID, JobStatus
from tidegate.connectors.values.sinks import CollectSink, collected
from tidegate.datastream import StreamExecutionEnvironment, executor
from tidegate.graph.transformation import Program
from tidegate.operators.kinds.sliced_window import SlicedWindowOperator


class ScriptedJob:
    """Finishes with ``error`` or well."""

    job_id = "f" * 32

    def __init__(self, error: BaseException | None, running: bool) -> None:
        self.error, self.running = error, running
        self.cancelled = self.suspended = 0

    def status(self) -> JobStatus:
        return JobStatus.RUNNING if self.running else JobStatus.FINISHED

    def cancel(self) -> None:
        self.cancelled += 1
        self.running = False

    def suspend(self) -> None:
        self.suspended += 1
        self.running = False

    def result(self, timeout: float | None = None) -> JobExecutionResult:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return JobExecutionResult(JobID(self.job_id), 1)


class RecordingExecutor:
    """``collected``: what the collect sink of a job gets, at once."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.jobs: list[ScriptedJob] = []
        self.collected: list[Any] = []
        self.error: BaseException | None = None
        self.running = False

    def execute_async(self, program: Program) -> ScriptedJob:
        self.programs.append(program)
        for sink in (getattr(t.spec, "sink", None) for t in program.transformations):
            if isinstance(sink, CollectSink):
                channel = collected(sink.channel_id)
                channel.put("all", self.collected)
                channel.close()
        self.jobs.append(ScriptedJob(self.error, self.running))
        return self.jobs[-1]


@pytest.fixture
def recorder() -> RecordingExecutor:
    recording = RecordingExecutor()
    factory: Any = lambda: recording  # noqa: E731
    executor.register_executor("recording", factory)
    return recording


@pytest.fixture
def env(recorder: RecordingExecutor) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment(
        Configuration.from_dict({"execution.target": "recording", "parallelism.default": 2})
    )


@pytest.fixture
def folds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the lengths of the batches that a window added as a whole."""
    found: list[int] = []
    fold = SlicedWindowOperator.fold_batch

    def noted(self: SlicedWindowOperator, batch: Any) -> bool:
        done = fold(self, batch)
        found.extend([len(batch)] * done)
        return done

    monkeypatch.setattr(SlicedWindowOperator, "fold_batch", noted)
    return found
