"""A healthy job has no finding on real Spark. That each incident is found: ``tests/web/test_jobs_on_spark.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.incidents.started import Incident
from tests.waiting import eventually
from tidegate.control.registry_jobs import RegistryJobs
from tidegate.control.web.cards import job_page

LIMIT = 200.0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_healthy_job_has_no_finding_for_thirty_checkpoints(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path_factory.mktemp("h") / "home"))
    incident = Incident("healthy", tmp_path)
    seen: set[str] = set()

    def passed() -> bool:
        incident.check()
        job = RegistryJobs().get("healthy")
        page = None if job is None else job_page(job)
        seen.update(f"{finding.kind}: {finding.sentence}" for finding in (() if page is None else page.findings))
        return page is not None and (page.card.last_checkpoint_id or 0) >= 30

    try:
        eventually(passed, "thirty checkpoints", timeout=LIMIT)
        assert not seen
    finally:
        incident.end()
