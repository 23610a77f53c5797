"""The endpoint of a driver: who may talk to it, what it answers, and what it makes of requests nobody should send."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.routing import Route

from tests.waiting import eventually
from tidegate.common import Configuration, Types, WatermarkStrategy
from tidegate.control import registry
from tidegate.control.endpoint import Endpoint, description
from tidegate.control.face import ControlFace
from tidegate.control.jobs import ControlledJob, Jobs
from tidegate.control.process_jobs import ProcessJobs
from tidegate.control.registry import JobRecord, read_token
from tidegate.control.server import Server
from tidegate.control.web.routes import page_routes
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.datagen import DataGeneratorSource
from tidegate.runtime.handle import StartedJob

Ask = Callable[..., tuple[int, Any]]
JOB = "/tidegate/jobs/endless"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobRecord]:
    """An endless job of this process, which takes a checkpoint only when told."""
    home = tmp_path_factory.mktemp("endpoint")
    keys: dict[str, Any] = {
        "execution.target": "simulated",
        "tidegate.job-id": "endless",
        "tidegate.round.max-records": 5,
    }
    keys |= {"execution.checkpointing.dir": f"{home}/ck", "execution.checkpointing.interval": "1 h"}
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(keys)).set_parallelism(1)
    source = DataGeneratorSource(lambda index: index, records_per_second=100)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "n", Types.LONG()).add_sink(lambda value: None)
    client = env.execute_async("endless <job>")

    def found() -> JobRecord | None:
        return next((r for r in registry.records() if r.job_id == "endless" and r.endpoint), None)

    yield eventually(found, "the job is registered")
    client.cancel()
    with pytest.raises(Exception, match="cancelled"):
        client.get_job_execution_result().result()


def request(
    record: JobRecord, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    assert record.endpoint is not None and record.driver is not None
    connection = http.client.HTTPConnection(record.endpoint, timeout=60)
    given = {"Authorization": f"Bearer {read_token(record.driver)}"} | (headers or {})
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, path, content, {k: v for k, v in given.items() if v})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    is_json = answer.headers.get_content_type() == "application/json"
    return answer.status, json.loads(text) if is_json else text.decode()


@pytest.fixture
def ask(running: JobRecord) -> Ask:
    return lambda *arguments, **more: request(running, *arguments, **more)


def test_the_job_as_it_is(ask: Ask) -> None:
    status, [job] = ask("GET", "/tidegate/jobs")
    assert status == 200 and job["job_id"] == "endless" and job["name"] == "endless <job>"
    status, details = ask("GET", JOB)
    assert details["state"] == "RUNNING"
    assert details["operators"][0]["name"] == "n"
    assert {"rounds", "checkpoints", "exceptions", "attempts", "totals", "records_per_second"} <= details.keys()


def test_a_checkpoint_by_operation_and_its_history(ask: Ask) -> None:
    status, begun = ask("POST", f"{JOB}/checkpoints")
    assert (status, begun["kind"]) == (202, "checkpoint")
    status, done = ask("GET", f"{JOB}/operations/{begun['id']}?wait=25")
    assert (status, done["status"], done["problem"]) == (200, "succeeded", None)
    status, found = ask("GET", f"{JOB}/checkpoints")
    assert int(done["result"]) in [checkpoint["checkpoint_id"] for checkpoint in found["latest"]]
    assert begun["id"] in [operation["id"] for operation in ask("GET", f"{JOB}/operations")[1]]


def test_several_at_once_are_all_answered(ask: Ask) -> None:
    begun = [ask("POST", f"{JOB}/checkpoints")[1]["id"] for _ in range(5)]
    answers: list[str] = []
    asking = [
        threading.Thread(target=lambda id=id: answers.append(ask("GET", f"{JOB}/operations/{id}?wait=25")[1]["status"]))
        for id in begun
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert answers == ["succeeded"] * 5


def test_figures_for_prometheus(ask: Ask) -> None:
    status, text = ask("GET", f"{JOB}/metrics")
    assert status == 200 and 'tidegate_job_running{job_id="endless",job_name="endless <job>"} 1' in text


# -- who may ask -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Basic abc", "Bearer \xff\xfe", "bearer\t", "Bearer a, Bearer b"],
)
@pytest.mark.parametrize("path", ["/tidegate/jobs", "/openapi.json", "/nothing", "/", f"{JOB}/metrics"])
def test_without_the_token_nothing(ask: Ask, authorization: str, path: str) -> None:
    status, problem = ask("GET", path, headers={"Authorization": authorization})
    assert (status, problem["code"]) == (401, "unauthorized")


def test_the_token_of_another_driver_or_in_the_address_is_refused(ask: Ask, running: JobRecord) -> None:
    other = Server(Jobs())
    assert ask("GET", "/tidegate/jobs", headers={"Authorization": f"Bearer {read_token(other.driver)}"})[0] == 401
    assert running.driver is not None
    token = read_token(running.driver)
    assert ask("GET", f"/tidegate/jobs?token={token}", headers={"Authorization": ""})[0] == 401
    for cut in (token[:-1], token + "x", token.upper()):
        assert ask("GET", "/tidegate/jobs", headers={"Authorization": f"Bearer {cut}"})[0] == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost", "evil.example:{port}", "[::1]:{port}"]
)
def test_a_name_that_points_here_is_not_our_name(ask: Ask, running: JobRecord, host: str) -> None:
    port = str(running.endpoint).rpartition(":")[2]
    status, problem = ask("GET", "/tidegate/jobs", headers={"Host": host.format(port=port)})
    assert status == 403 and "Host" in problem["message"]


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1", "file://"]
)
def test_pages_of_other_origins_are_refused(ask: Ask, running: JobRecord, origin: str) -> None:
    port = str(running.endpoint).rpartition(":")[2]
    status, _ = ask("POST", f"{JOB}/cancel", headers={"Origin": origin.format(port=port)})
    assert status == 403
    assert (
        ask("GET", "/tidegate/jobs", headers={"Origin": f"http://localhost:{port}", "Host": f"localhost:{port}"})[0]
        == 200
    )


def test_two_hosts_or_none_are_refused(running: JobRecord) -> None:
    assert running.endpoint is not None and running.driver is not None
    address, _, port = running.endpoint.partition(":")
    for lines in (f"Host: {running.endpoint}\r\nHost: evil.example", "X-Nothing: 1"):
        with socket.create_connection((address, int(port)), timeout=60) as connection:
            head = f"GET /tidegate/jobs HTTP/1.1\r\n{lines}\r\nAuthorization: Bearer {read_token(running.driver)}\r\n"
            connection.sendall(f"{head}Connection: close\r\n\r\n".encode())
            answer = connection.makefile("rb").readline()
        assert answer.split()[1] in (b"400", b"403"), answer


def test_it_listens_on_loopback_only(running: JobRecord) -> None:
    port = int(str(running.endpoint).rpartition(":")[2])
    listening = [
        line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"
    ]
    assert [place for place in listening if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


# -- what nobody should send -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/tidegate/jobs/../../etc/passwd",
        "/tidegate/jobs/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/tidegate/jobs/%252e%252e%252fetc%252fpasswd",
        "/tidegate/jobs/endless/operations/..%2f..%2f",
        "/tidegate/jobs/endless/operations/%252e%252e",
        "/tidegate/jobs/endless%00",
        "/tidegate/jobs/ENDLESS",
        "//tidegate/jobs",
        "/tidegate/jobs/endless/nothing",
    ],
)
def test_paths_lead_nowhere_else(ask: Ask, path: str) -> None:
    status, problem = ask("GET", path)
    assert (status, problem["code"]) == (404, "unknown"), problem


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'"x"', b"\xff", b'{"tarjet": "/x"}', b'{"target": 5}', b'{"savepoint": "yes"}', b"[" * 50_000],
)
def test_bodies_that_are_none_change_nothing(ask: Ask, body: bytes) -> None:
    status, problem = ask("POST", f"{JOB}/cancel", body)
    assert (status, problem["code"]) == (400, "bad-request"), problem
    assert ask("GET", JOB)[1]["state"] == "RUNNING"


def test_a_body_is_small(ask: Ask) -> None:
    status, _ = ask("POST", f"{JOB}/savepoints", b'{"target": "/' + b"x" * 100_000 + b'"}')
    assert status == 413


@pytest.mark.parametrize("wait", ["-1", "26", "1e9", "nan", "x", "", "[]"])
def test_waits_are_bounded(ask: Ask, wait: str) -> None:
    assert ask("GET", f"{JOB}/operations/x?wait={wait}")[0] == 400


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", JOB), ("PUT", JOB), ("GET", f"{JOB}/cancel"), ("POST", "/tidegate/jobs")]
)
def test_other_methods_are_refused(ask: Ask, method: str, path: str) -> None:
    assert ask(method, path)[0] == 405


# -- the description -------------------------------------------------------------------------------------------------------


def test_every_path_is_described_and_none_is_made_up(ask: Ask) -> None:
    status, page = ask("GET", "/openapi.json")
    assert status == 200 and page == json.loads(json.dumps(description()))
    ways = ("get", "post", "put", "patch", "delete")
    described = {(path, method.upper()) for path, item in page["paths"].items() for method in item if method in ways}
    # Only the page asks for these paths
    of_page = {route.path for route in page_routes(ProcessJobs(Jobs())) if isinstance(route, Route)}
    every = [route for route in Endpoint(Jobs()).application().routes if isinstance(route, Route)]
    routes = [route for route in every if route.path not in of_page]
    served = {(r.path, method) for r in routes for method in (r.methods or set()) - {"HEAD"}}
    bare = {(path, method) for path, method in served if (f"/v1{path}", method) in served}
    assert described == served - bare and len(bare) == sum(path.startswith("/v1/") for path, _ in described)


def test_of_two_runs_of_one_job_the_first_is_known_again_when_the_second_has_ended() -> None:
    jobs = Jobs()
    first, second = (ControlledJob(cast("StartedJob", SimpleNamespace(job_id="j"))) for _ in range(2))
    for job in (first, second):
        jobs.add(job)
    assert jobs.all() == [first, second] and jobs.get("j") is second
    jobs.remove(second)
    assert jobs.all() == [first] and jobs.get("j") is first
    jobs.remove(first)
    assert jobs.get("j") is None


def test_the_face_ignores_what_is_no_job_of_ours() -> None:
    ControlFace().watch(object(), awaited=True)()
