"""A sink that publishes with every round, beside one that waits for checkpoints: its output may repeat, and none is lost."""

from __future__ import annotations

import pytest

from tests.simulation.observer import ledger_pages
from tests.simulation.scenario import Place
from tests.simulation.simulation import simulate
from tests.sinks import LedgerSink, audit
from tests.unit.simulation.cases import FIRST_CRASH
from tests.unit.simulation.simulated_programs import TIME, TwoSources
from tidegate.graph.transformation import Input, Transformation
from tidegate.operators.contracts.sink import Publication
from tidegate.operators.contracts.specs import MapSpec, SinkSpec
from tidegate.testing.simulation.driver import Fault, Kind


class Published(LedgerSink):
    publication = Publication.ROUND


class BothWays(TwoSources):
    name = "both_ways"

    def transformations(self, place: Place) -> list[Transformation]:
        rounds = Transformation(6, "rounds", SinkSpec(Published(place.outside("rounds"))), (Input(5),), uid="rounds")
        short = Transformation(5, "short", MapSpec(lambda value: value[:TIME]), (Input(2),), uid="short")
        return [*super().transformations(place), short, rounds]


def lost_or_unknown(root: str, seed: int, fault: Fault, concurrent: int = 1, **settings: object) -> str:
    """What of the round's output is missing in the end, or was never to be there."""
    timing = {"interval": 10, "max-concurrent-checkpoints": concurrent}
    prefixed = {f"execution.checkpointing.{key}": value for key, value in timing.items()}
    simulation = simulate(BothWays(), root, seed, (FIRST_CRASH, fault), settings={**prefixed, **settings})
    assert simulation.lives[1].fired, f"I13: {fault} did not fire"
    pages = ledger_pages(Place(root).outside("rounds")).values()
    found = audit(BothWays().expected, [value for page in pages for value in page])
    return f"I1: lost {dict(found.lost)}, unknown {dict(found.unknown)}" if found.lost or found.unknown else ""


@pytest.mark.parametrize("concurrent", [1, 3])
@pytest.mark.parametrize("seed", range(1, 7))
def test_nothing_is_lost_whenever_the_driver_crashes(root: str, seed: int, concurrent: int) -> None:
    """Right before and after each commit: what a round has published is in no checkpoint, so it has to be out before."""
    for passing, point in enumerate(
        ("C6.published", "K3.ledger.before-commit", "C6.sink-committed"), start=1 + seed % 3
    ):
        fault = Fault(1, point, passing, Kind.CRASH)
        assert not lost_or_unknown(f"{root}/{point}", seed, fault, concurrent)


ONCE = {"tidegate.commit.max-attempts": 1}
"""A publication that fails is not tried again: the attempt fails."""


@pytest.mark.parametrize("seed", [1, 9, 12, 15])
def test_what_could_not_be_published_is_in_no_checkpoint(root: str, seed: int) -> None:
    """Checkpoints wait in the same lane, after it, and in some cases begin before the attempt has heard: none is stored."""
    for passing in (3, 9, 13, 17):
        fault = Fault(1, "K3.ledger.before-commit", passing, Kind.ERROR)
        assert not lost_or_unknown(f"{root}/{passing}", seed, fault, **ONCE)
