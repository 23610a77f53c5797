"""The endpoint under requests that are made up from its own description: it answers as it says, and no job is harmed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.unit.control.drivers import Driver
from tidegate.base.hashing import vertex_id
from tidegate.control.endpoint import description
from tidegate.control.registry import JobRecord, read_token

schema = schemathesis.openapi.from_dict(description())
CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobRecord]:
    """A driver of its own: some requests may cancel the job, which is what they say."""
    patch, place = pytest.MonkeyPatch(), tmp_path_factory.mktemp("fuzzed")
    patch.setenv("TIDEGATE_HOME", f"{place}/home")
    patch.chdir(place)
    driver = Driver(place, "fuzzed").running()
    yield driver.record()
    assert driver.process.poll() is None, (place / "fuzzed.log").read_text()
    driver.end()
    patch.undo()


@schema.exclude(path_regex="^/v1/").parametrize()
@hypothesis.settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
def test_it_answers_as_it_says(case: Any, fuzzed: JobRecord) -> None:
    assert fuzzed.driver is not None
    headers = {"Authorization": f"Bearer {read_token(fuzzed.driver)}"}
    if "job_id" in case.path_parameters and len(str(case.path_parameters["job_id"])) % 2:
        case.path_parameters["job_id"] = "fuzzed" if case.method == "GET" or "checkpoints" in case.path else "other"
    case.call_and_validate(base_url=f"http://{fuzzed.endpoint}", headers=headers, checks=CHECKS, timeout=60)


@schema.include(path_regex="^/v1/").parametrize()
@hypothesis.settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
def test_flinks_api_answers_as_it_says(case: Any, fuzzed: JobRecord) -> None:
    """Half of the requests name the job, its vertex and its first subtask; the others are made up from end to end."""
    assert fuzzed.driver is not None
    headers = {"Authorization": f"Bearer {read_token(fuzzed.driver)}"}
    if "jobid" in case.path_parameters and len(str(case.path_parameters["jobid"])) % 2:
        is_safe = case.method == "GET" or "checkpoints" in case.path
        case.path_parameters["jobid"] = "fuzzed" if is_safe else "other"
        for name, value in (
            ("vertexid", vertex_id("totals", 1)),
            ("subtaskindex", 0),
            ("attempt", 0),
            ("checkpointid", 1),
        ):
            if name in case.path_parameters:
                case.path_parameters[name] = value
    case.call_and_validate(base_url=f"http://{fuzzed.endpoint}", headers=headers, checks=CHECKS, timeout=60)
