"""Every answer to a GET of Flink's API has the fields and types of its description, whatever the job has been through."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from scripts.gen_flink_api import made_from
from tests.unit.control.flink.shown_jobs import LIVES, Shown, every_get, shown_jobs
from tidegate.control.endpoint import flink_api
from tidegate.control.flink.routes import PATHS

GIVEN = Path(__file__).parents[5] / "shared/flink_rest.json"
WITHOUT_MEANING = {
    "/datasets",
    "/datasets/delete/{triggerid}",
    "/jobs/{jobid}/jobmanager/log-url",
    "/jobs/{jobid}/taskmanagers/{taskmanagerid}/log-url",
    "/jobs/{jobid}/rescaling/{triggerid}",
    "/jobs/{jobid}/rescales/config",
    "/jobs/{jobid}/rescales/details/{rescaleuuid}",
    "/jobs/{jobid}/rescales/history",
    "/jobs/{jobid}/rescales/overview",
    "/jobs/{jobid}/rescales/summary",
    "/jobs/{jobid}/vertices/{vertexid}/flamegraph",
    "/jobs/{jobid}/vertices/{vertexid}/jm-operator-metrics",
    "/savepoint-disposal/{triggerid}",
}
"""Answer 404 with a sentence. The disposal is of no job: it has a test of its own."""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("flink")
        patch.setenv("TIDEGATE_HOME", f"{place}/home")
        with shown_jobs(place) as jobs:
            yield jobs


def schema_of(template: str) -> dict[str, Any]:
    """The schema of the answer. A field that the description does not know is an error, unless its name says it is ours."""
    described = flink_api()
    (answer,) = described["paths"][template]["get"]["responses"].values()
    text = json.dumps(
        {**answer["content"]["application/json"]["schema"], "components": {"schemas": described["schemas"]}}
    )
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("life", LIVES)
def test_answer_to_every_get_fits_its_schema(shown: Shown, life: str) -> None:
    job, wrong, asked = f"{life}-job", [], set()
    for template, path in every_get(shown, job):
        status, answer = shown.ask("GET", path)
        asked.add(template)
        if template.startswith("/jars"):
            assert status == 403, (path, answer)
        elif template in WITHOUT_MEANING or (status == 404 and "{triggerid}" in template and life != "running"):
            assert status == 404 and len(answer["errors"]) == 1, (path, status, answer)
        else:
            assert status == 200, (path, status, answer)
            errors = jsonschema_rs.validator_for(schema_of(template)).iter_errors(answer)
            wrong += [f"{path}: {error.instance_path}: {error.message}"[:300] for error in errors]
    assert not wrong, "\n".join(wrong)
    gets = {template for template, methods in flink_api()["paths"].items() if "get" in methods}
    # An ended job has no executor.
    assert gets - asked <= {t for t in gets if "{taskmanagerid}" in t or "{checkpointid}" in t}
    assert asked == gets or life in ("failed", "finished")


def test_every_path_of_the_description_has_a_route() -> None:
    described = {
        (method.upper(), path)
        for path, methods in flink_api()["paths"].items()
        for method in methods
        if method != "parameters"
    }
    assert (len(flink_api()["paths"]), len(described)) == (77, 80)
    assert described <= {(path.method, path.path) for path in PATHS}


@pytest.mark.skipif(not GIVEN.is_file(), reason="the description that api.json is made from is not here")
def test_the_shipped_description_is_made_from_the_given_one() -> None:
    assert made_from(json.loads(GIVEN.read_text())) == flink_api()
