"""Programs written with the API as scenarios of the simulation: crashes, rescales, tiny rounds, and a model of the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.programs import program_of
from tests.simulation.observer import Output, ledger_pages, staged_pages
from tests.simulation.scenario import BASE_SETTINGS, Place, Scenario
from tests.simulation.simulation import Simulation, simulate
from tests.sinks import LedgerSink
from tests.sources import At, ScriptedSource
from tidegate.common.configuration import Configuration
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.datastream import DataStream, StreamExecutionEnvironment
from tidegate.graph.transformation import Program, Transformation
from tidegate.testing.simulation.driver import Fault, Kind
from tidegate.testing.simulation.engine import Chances

Build = Callable[[StreamExecutionEnvironment], DataStream]
ROUGH = Chances(die=0.03, zombie=0.03, late=0.02, rerun=0.02, lose_store=0.05)


class ApiScenario(Scenario):
    """``build`` makes the program; ``expected``: all records of the stream it returns, in any order."""

    name = "api"

    def __init__(self, build: Build, expected: Sequence[Any]) -> None:
        self._build, self._expected = build, list(expected)

    def transformations(self, place: Place) -> list[Transformation]:
        raise NotImplementedError

    def outputs(self, place: Place) -> list[Output]:
        at = place.outside("out")
        return [Output("out", self._expected, lambda: ledger_pages(at), lambda: staged_pages(at), lambda value: None)]

    def program(self, place: Place, parallelism: int, settings: dict[str, Any]) -> Program:
        configuration = {**BASE_SETTINGS, **settings, "parallelism.default": parallelism}
        configuration |= {"execution.checkpointing.dir": place.checkpoints, "tidegate.job-id": place.job_id}
        env = StreamExecutionEnvironment(Configuration.from_dict(configuration))
        self._build(env).sink_to(LedgerSink(place.outside("out")))
        return program_of(env, "api")


def source(
    env: StreamExecutionEnvironment, records: Sequence[Any], limit: int = 4, splits: int = 1, name: str = "records"
) -> DataStream:
    """Records as they are, or with a timestamp (``At``); so many a round."""
    scripted = ScriptedSource(*([*records[n::splits]] for n in range(splits)))
    scripted.initial_limit = scripted.maximum_limit = limit
    timed = any(isinstance(record, At) for record in records)
    strategy = WatermarkStrategy.for_monotonous_timestamps() if timed else WatermarkStrategy.no_watermarks()
    return env.from_source(scripted, strategy, name)


def run(
    build: Build,
    expected: Sequence[Any],
    root: str,
    seed: int = 1,
    *,
    parallelism: Sequence[int] = (2,),
    rough: bool = True,
    settings: dict[str, Any] | None = None,
) -> Simulation:
    """A life for each parallelism: each but the last crashes after its first or second checkpoint."""
    crashes = [Fault(life, "C7.subsumed", 1 + life % 2, Kind.CRASH) for life in range(len(parallelism) - 1)]
    chances = ROUGH if rough else Chances()
    scenario = ApiScenario(build, expected)
    return simulate(scenario, root, seed, crashes, chances=chances, parallelism=parallelism, settings=settings)
