"""A sink that publishes with every round, beside one that waits for checkpoints: its output may repeat, and none is lost."""

from __future__ import annotations

import pytest
from cases import FIRST_CRASH
from simulated_programs import TIME, TwoSources

from tidegate.graph.transformation import Input, MapSpec, SinkSpec, Transformation
from tidegate.operators.sink import Publication
from tidegate.testing.lives import Fault, Kind
from tidegate.testing.observer import ledger_pages
from tidegate.testing.scenario import Place
from tidegate.testing.simulation import simulate
from tidegate.testing.sinks import LedgerSink, audit


class Published(LedgerSink):
    publication = Publication.ROUND


class BothWays(TwoSources):
    name = "both_ways"

    def transformations(self, place: Place) -> list[Transformation]:
        rounds = Transformation(6, "rounds", SinkSpec(Published(place.outside("rounds"))), (Input(5),), uid="rounds")
        short = Transformation(5, "short", MapSpec(lambda value: value[:TIME]), (Input(2),), uid="short")
        return [*super().transformations(place), short, rounds]


@pytest.mark.parametrize("concurrent", [1, 3])
@pytest.mark.parametrize("seed", range(1, 7))
def test_nothing_is_lost_whenever_the_driver_crashes(root: str, seed: int, concurrent: int) -> None:
    """Right before and behind each commit: what a round has published is in no checkpoint, so it has to be out before."""
    settings = {
        "execution.checkpointing.interval": 10,
        "execution.checkpointing.max-concurrent-checkpoints": concurrent,
    }
    for passing, point in enumerate(("C6.published", "K3.ledger.before-commit", "C6.sink-committed"), start=seed):
        where = f"{root}/{point}"
        faults = (FIRST_CRASH, Fault(1, point, passing, Kind.CRASH))
        simulate(BothWays(), where, seed, faults, settings=settings)
        pages = ledger_pages(Place(where).outside("rounds")).values()
        found = audit(BothWays().expected, [value for page in pages for value in page])
        assert (found.lost, found.unknown) == ({}, {})
