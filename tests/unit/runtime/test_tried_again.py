"""A task died and was tried again, and its round is accepted: what the first try left outside is aborted, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.simulation.observer import ledger_pages, staged_pages
from tests.sinks import LedgerSink
from tests.sources import ScriptedSource
from tests.unit.runtime.small_jobs import SmallJob
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.operators.contracts.sink import Publication
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import Chances, SimulatedEngine


def run(job: SmallJob, chances: Chances, seed: int = 1, **settings: Any) -> tuple[list[int], SimulatedEngine]:
    """Also: how many pages there were, prepared or committed, when each round began."""
    pages: list[int] = []

    def look(name: str, where: dict[str, Any]) -> None:
        if name == "C2.cut":
            ledger = f"{job.directory}/ledger"
            pages.append(len(staged_pages(ledger)) + len(ledger_pages(ledger)))

    faults.install(look)
    engine = SimulatedEngine(seed, chances)
    JobMaster(job.program(**settings), engine, clock=ManualClock(), local_root=job.local).run()
    return pages, engine


@pytest.mark.parametrize(
    "chances", [Chances(zombie=1.0), Chances(rerun_whole=1.0), Chances(zombie=0.5, rerun_whole=0.5, die=0.2)], ids=str
)
@pytest.mark.parametrize("interval", [10, 1_000_000])
def test_the_first_try_is_gone_before_the_next_round_begins(tmp_path: Path, chances: Chances, interval: int) -> None:
    """Else readers of a topic would wait for the time-out of a transaction that nobody ends."""
    job = SmallJob(tmp_path)
    pages, engine = run(job, chances, **{"execution.checkpointing.interval": interval})
    assert sum(engine.fired.values()) >= 4
    assert pages[:4] == [0, 1, 2, 3]
    assert job.committed() == list(range(10))


def test_without_it_nothing_is_looked_for(tmp_path: Path) -> None:
    """The test of the test, and of the cost: tasks that were tried once leave the sink's listing alone."""
    listings: list[str] = []

    def look(name: str, where: dict[str, Any]) -> None:
        if name in ("K2.ledger.listed", "C2.cut"):
            listings.append(name)

    job = SmallJob(tmp_path)
    faults.install(look)
    JobMaster(job.program(), SimulatedEngine(1), clock=ManualClock(), local_root=job.local).run()
    inside = listings[listings.index("C2.cut") : -listings[::-1].index("C2.cut")]
    assert set(inside) == {"C2.cut"} and len(inside) >= 4


class EveryRound(LedgerSink):
    publication = Publication.ROUND


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("sink", [LedgerSink, EveryRound])
def test_nothing_of_an_accepted_round_is_aborted(tmp_path: Path, sink: type[LedgerSink], seed: int) -> None:
    """Sinks that publish with every round have nothing in the progress: they have published when the listing is made."""
    job = SmallJob(tmp_path, sink=sink(f"{tmp_path}/ledger"))
    job.source = ScriptedSource(list(range(10)), list(range(10, 25)))
    job.source.initial_limit = job.source.maximum_limit = 4
    _, engine = run(job, Chances(die=0.2, zombie=0.2, rerun_whole=0.3), seed, **{"parallelism.default": 2})
    assert engine.fired
    assert sorted(job.committed()) == list(range(25))
    assert staged_pages(f"{tmp_path}/ledger") == []
