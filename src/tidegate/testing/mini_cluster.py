"""Whole programs in a test: environments whose jobs run in this process (``execution.target: test``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.common import Configuration
from tidegate.datastream import DataStream, StreamExecutionEnvironment
from tidegate.datastream.closeable_iterator import CloseableIterator


class MiniCluster:
    """Make environments whose files lie in one directory. Jobs run in this process, without Spark."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)

    @property
    def checkpoints(self) -> Path:
        """Where jobs keep their checkpoints."""
        return self.directory / "checkpoints"

    def environment(self, *, parallelism: int = 2, **keys: Any) -> StreamExecutionEnvironment:
        """Return a new environment. A job fails with its first error, unless the keys name a restart strategy.

        ``keys``: configuration keys, given as ``mini_cluster.environment(**{"state.backend.type": "rocksdb"})``.
        """
        settings = {
            "execution.target": "test",
            "execution.checkpointing.dir": str(self.checkpoints),
            "tidegate.state.local-dir": str(self.directory / "local"),
            "restart-strategy.type": "none",
            "parallelism.default": parallelism,
            **keys,
        }
        return StreamExecutionEnvironment(Configuration.from_dict(settings))

    def collect(self, stream: DataStream, job_name: str | None = None) -> list[Any]:
        """Run the program of the stream to its end, and return the records of the stream."""
        records = stream.execute_and_collect(job_name)
        assert isinstance(records, CloseableIterator)  # there is no limit
        with records:
            return list(records)
