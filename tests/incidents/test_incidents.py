"""Each incident is found on real Spark, and the finding names the guilty subtask, key or step. A healthy job has no finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.incidents.started import Incident
from tests.waiting import eventually
from tidegate.control.registry_jobs import RegistryJobs
from tidegate.control.shown import Finding, JobPage
from tidegate.control.web.cards import job_page

LIMIT = 200.0
GUILTY: dict[str, tuple[str, ...]] = {
    "hot-key": ("customer 4711", "subtask", "'charge'"),
    "slow-function": ("'look up'", "user code"),
    "slow-storage": ("step 7 (complete)",),
    "stuck-watermark": ("Subtask 2/2", "orders"),
    "lagging-partition": ("Subtask 2/2", "orders"),
    "growing-state": ("'remember'", "'seen'"),
    "restart-loop": ("'prices'", "the price service closed the connection"),
    "commit-retried": ("Step 8 (commit)", "orders-db", "The database refuses connections"),
}


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path_factory.mktemp("h") / "home"
    monkeypatch.setenv("TIDEGATE_HOME", str(place))
    return place


def page_of(name: str) -> JobPage | None:
    job = RegistryJobs().get(name)
    return None if job is None else job_page(job)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(GUILTY))
def test_incident_is_found_and_the_guilty_named(name: str, home: Path, tmp_path: Path) -> None:
    incident = Incident(name, tmp_path)

    def found() -> Finding | None:
        incident.check()
        page = page_of(name)
        return None if page is None else next((f for f in page.findings if f.kind == name), None)

    try:
        finding = eventually(found, f"the finding {name}", timeout=LIMIT)
        for text in GUILTY[name]:
            assert text in finding.sentence, finding.sentence
    finally:
        incident.end()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_healthy_job_has_no_finding_for_thirty_checkpoints(home: Path, tmp_path: Path) -> None:
    incident = Incident("healthy", tmp_path)
    seen: set[str] = set()

    def passed() -> bool:
        incident.check()
        page = page_of("healthy")
        seen.update(f"{finding.kind}: {finding.sentence}" for finding in (() if page is None else page.findings))
        return page is not None and (page.card.last_checkpoint_id or 0) >= 30

    try:
        eventually(passed, "thirty checkpoints", timeout=LIMIT)
        assert not seen
    finally:
        incident.end()
