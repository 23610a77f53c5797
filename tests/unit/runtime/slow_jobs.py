"""Jobs with a slow function on the simulated engine: every record takes simulated time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.programs import program_of
from tests.simulation.observer import ledger_pages
from tests.sinks import LedgerSink
from tests.sources import ScriptedSource
from tidegate.base.clock import ManualClock
from tidegate.base.files import Files
from tidegate.checkpoint.history import HistoryEntry, read_history
from tidegate.common.configuration import Configuration
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.datastream import DataStream, MapFunction, StreamExecutionEnvironment
from tidegate.runtime.inbox import Inbox
from tidegate.runtime.master import JobMaster
from tidegate.runtime.statistics import RoundStatistics
from tidegate.testing.simulation.engine import SimulatedEngine
from tidegate.testing.simulation.lanes import SimulatedLanes

UNALIGNED: dict[str, Any] = {"execution.checkpointing.unaligned.enabled": True}


class Time:
    """Of the job that runs, and what its slow functions have seen."""

    clock = ManualClock()
    seen: ClassVar[list[Any]] = []


class Slow(MapFunction):
    """10 ms a record."""

    def map(self, value: Any) -> Any:
        Time.clock.advance(10)
        Time.seen.append(value)
        return value


class SlowJob:
    """``build`` makes the stream of an environment. Everything the sources have is planned for one round, but for ``limit``."""

    def __init__(
        self, directory: Path, build: Callable[[StreamExecutionEnvironment], DataStream], job_id: str = "slow"
    ) -> None:
        self.directory, self._build, self._job_id = directory, build, job_id
        self.rounds: list[RoundStatistics] = []

    def run(self, parallelism: Any = 1, **settings: Any) -> None:
        Time.clock, Time.seen = ManualClock(), []
        configuration = {
            "execution.checkpointing.interval": 1000,
            "execution.checkpointing.timeout": 600_000,
            "execution.checkpointing.dir": f"{self.directory}/checkpoints",
            "execution.checkpointing.num-retained": 100,
            "restart-strategy.type": "none",
            "tidegate.state.map-size": 1 << 20,
            "tidegate.job-id": self._job_id,
            "pipeline.max-parallelism": 16,
            "parallelism.default": parallelism,
            **settings,
        }
        given = {key: value for key, value in configuration.items() if value is not None}
        env = StreamExecutionEnvironment(Configuration.from_dict(given))
        self._build(env).sink_to(LedgerSink(f"{self.directory}/ledger")).uid("ledger")
        engine = SimulatedEngine(seed=3)

        def lanes(inbox: Inbox, name: str) -> SimulatedLanes:
            made = SimulatedLanes(inbox, 3)
            made._before = 1.0  # storage takes no time: what is stored is stored before the next round
            engine.between_tasks = made.between_tasks
            return made

        JobMaster(
            program_of(env, "slow"),
            engine,
            clock=Time.clock,
            liveness=lambda owner: False,
            local_root=f"{self.directory}/local",
            listeners=[self.rounds.append],
            lanes=lanes,
        ).run()

    @property
    def files(self) -> Files:
        return Files(f"{self.directory}/checkpoints/{self._job_id}")

    def history(self) -> list[HistoryEntry]:
        return read_history(self.files)

    def written(self) -> list[Any]:
        return sorted(value for page in ledger_pages(f"{self.directory}/ledger").values() for value in page)


def numbers(
    env: StreamExecutionEnvironment, records: Sequence[Any], limit: int = 100_000, splits: int = 1
) -> DataStream:
    source = ScriptedSource(*([*records[n::splits]] for n in range(splits)))
    source.initial_limit = source.maximum_limit = limit
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
