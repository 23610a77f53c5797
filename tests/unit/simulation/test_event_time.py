"""The user's watermark generators and asynchronous calls, through crashes, dying tasks and rescales."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.simulation.scenario import Place
from tests.simulation.simulation import simulate
from tests.sinks import LedgerSink
from tests.unit.simulation.simulated_programs import (
    DISORDER_MS,
    HASH,
    TIME,
    CountAndWindow,
    KeyedCount,
    file_sink,
    record,
    source_of,
)
from tidegate.common.watermark_strategy import WatermarkGenerator, WatermarkOutput, WatermarkStrategy
from tidegate.connectors.files.bucket_assigners import RollingPolicy
from tidegate.datastream import AsyncFunction
from tidegate.graph.transformation import Input, Transformation
from tidegate.operators.contracts.specs import AsyncSpec, ProcessSpec, SinkSpec, SourceSpec
from tidegate.testing.simulation.driver import Fault, Kind
from tidegate.testing.simulation.engine import Chances


class Remembers(WatermarkGenerator):
    """Knows how many records its split has given, and which one comes next: a state that went back, or was another split's,
    shows at once."""

    def __init__(self) -> None:
        self.seen = 0
        self.greatest = 0

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        uid, split, position = event[:3]
        assert position == self.seen, f"the generator has seen {self.seen} records, this is {position}"
        assert event == record(uid, split, position) and event[TIME] == event_timestamp
        self.seen += 1
        self.greatest = max(self.greatest, event_timestamp)
        if self.seen % 2:
            output.emit_watermark(self.greatest - DISORDER_MS - 1)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self.greatest - DISORDER_MS - 1)


class Passes(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        await asyncio.sleep(0)
        return [value]


class ByHand(KeyedCount):
    """As its base, with a generator of its own and an asynchronous function before the keyed one."""

    name = "by_hand"

    def __init__(self) -> None:
        super().__init__()
        self.source = source_of("s", splits=2, records=14, limit=4)

    def transformations(self, place: Place) -> list[Transformation]:
        policy = RollingPolicy.on_checkpoint_rolling_policy()
        strategy = WatermarkStrategy.for_generator(Remembers)
        return [
            Transformation(0, "source", SourceSpec(self.source, strategy), uid="s"),
            Transformation(1, "asks", AsyncSpec(Passes(), True, 60_000, 3), (Input(0),), uid="asks"),
            Transformation(2, "count", ProcessSpec(CountAndWindow()), (Input(1, HASH),), uid="count"),
            Transformation(3, "main", SinkSpec(LedgerSink(place.outside("main"))), (Input(2),), uid="main"),
            Transformation(
                4, "side", SinkSpec(file_sink(place.outside("side"), policy)), (Input(2, tag="side"),), uid="side"
            ),
        ]


@pytest.mark.parametrize("point", range(60, 600, 60))
def test_crashes_and_rescales_do_not_show(point: int, root: str) -> None:
    crashes = [Fault(0, "*", point, Kind.CRASH), Fault(1, "*", point, Kind.CRASH)]
    simulation = simulate(ByHand(), root, point, crashes, parallelism=(2, 3, 1))
    assert len(simulation.lives) > 1


@pytest.mark.parametrize("seed", range(6))
def test_tasks_that_die_do_not_show(seed: int, root: str) -> None:
    chances = Chances(die=0.1, zombie=0.1, late=0.1, rerun=0.05, lose_store=0.1)
    settings = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": 1000}
    simulate(ByHand(), root, seed, chances=chances, parallelism=(3,), settings=settings)
