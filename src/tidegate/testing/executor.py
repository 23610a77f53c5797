"""``execution.target: test``: whole programs in this process, without Spark, and environments whose jobs run so. For tests only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tidegate.base.errors import ConfigurationError
from tidegate.common import Configuration
from tidegate.common.options import TARGET
from tidegate.connectors.frames.sources import DataFrameSource, StreamReaderSource
from tidegate.datastream import DataStream, StreamExecutionEnvironment
from tidegate.datastream.closeable_iterator import CloseableIterator
from tidegate.graph.transformation import Program
from tidegate.runtime.engine import Engine
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.master import JobMaster
from tidegate.runtime.statistics import Listener
from tidegate.testing.engine import InProcessEngine

log = logging.getLogger(__name__)
T = TypeVar("T")


class InProcessExecutor:
    """Run programs in this process. ``engine`` makes the engine of a job.

    The job's graph, operators, state, checkpoints and savepoints are the same as on Spark. The entry point
    ``tidegate.executors`` names this class ``test``.
    """

    engine: Callable[[], Engine] = InProcessEngine

    def execute_async(self, program: Program) -> StartedJob:
        """Start a job in the background. Every error of the program or its configuration is raised here."""
        _refuse_frames(program)
        listeners: list[Listener] = []
        return StartedJob(JobMaster(program, self.engine(), listeners=listeners), listeners)


class TargetExecutor(InProcessExecutor):
    """The executor that ``execution.target: test`` names. It says once in a process that jobs do not run on Spark."""

    told: ClassVar[bool] = False

    def execute_async(self, program: Program) -> StartedJob:
        if not TargetExecutor.told:
            TargetExecutor.told = True
            log.warning("job '%s' runs in this process, for tests only: %s=test", program.name, TARGET.key)
        return super().execute_async(program)


def _refuse_frames(program: Program) -> None:
    for t in program.transformations:
        if isinstance(getattr(t.spec, "source", None), DataFrameSource | StreamReaderSource):
            raise ConfigurationError(
                "The source reads from Spark, and the program runs without Spark",
                where=f"source '{t.name}'" + (f", {t.place}" if t.place else ""),
                found=f"{TARGET.key}: test",
                cure=f"use env.from_collection(...) in the test, or set {TARGET.key}: spark",
            )


class MiniCluster:
    """Make environments whose files lie in one directory. Jobs run in this process, without Spark."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)

    @property
    def checkpoints(self) -> Path:
        """Where jobs keep their checkpoints."""
        return self.directory / "checkpoints"

    def environment(
        self, configuration: Mapping[str, Any] | None = None, /, *, parallelism: int = 2, **keys: Any
    ) -> StreamExecutionEnvironment:
        """Return a new environment. A job fails with its first error, unless the configuration names a restart strategy.

        ``configuration``: keys and values, for example ``{"state.backend.type": "rocksdb"}``. ``keys``: the same, as names.
        """
        settings = {
            "execution.target": "test",
            "execution.checkpointing.dir": str(self.checkpoints),
            "tidegate.state.local-dir": str(self.directory / "local"),
            "restart-strategy.type": "none",
            "parallelism.default": parallelism,
            **(configuration or {}),
            **keys,
        }
        return StreamExecutionEnvironment(Configuration.from_dict(settings))

    def collect(self, stream: DataStream[T], job_name: str | None = None) -> list[T]:
        """Run the program of the stream to its end, and return the records of the stream."""
        records = stream.execute_and_collect(job_name)
        assert isinstance(records, CloseableIterator)  # there is no limit
        with records:
            return list(records)
