"""What Flink's API says of jobs, what it does to them, and how it refuses requests that nobody should send."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import StreamingResponse

from tests.unit.control.flink.shown_jobs import SECRET, Shown, shown_jobs, start
from tests.waiting import eventually
from tidegate.base.errors import RefusedError
from tidegate.base.hashing import flink_job_id, vertex_id
from tidegate.checkpoint.metadata import CHECKPOINT
from tidegate.control.flink import routes
from tidegate.control.flink.checkpoints import checkpoint_of_vertex
from tidegate.control.flink.job import JobNow
from tidegate.control.flink.jobs import configuration, io_metrics
from tidegate.control.flink.programs import Program, RunRequest
from tidegate.control.flink.requests import ApiError, Call, TextFile
from tidegate.control.jobs import Jobs
from tidegate.control.process_jobs import ProcessJobs
from tidegate.runtime.view import CheckpointView, Outcome, SubtaskFigures, SubtaskView

JOB = "/jobs/running-job"
HEX = flink_job_id("running-job")
UNKNOWN = "0" * 32


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flink")


@pytest.fixture(scope="module")
def shown(place: Path) -> Iterator[Shown]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEGATE_HOME", f"{place}/home")
        with shown_jobs(place) as jobs:
            yield jobs


def test_log_is_sent_in_parts_up_to_the_end_that_it_had(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_bytes(b"line\n" * 200_000)
    answer = routes._response(TextFile(log))
    assert isinstance(answer, StreamingResponse) and answer.headers["content-length"] == "1000000"
    with log.open("ab") as file:
        file.write(b"later")

    async def read() -> list[int]:
        return [len(part) async for part in answer.body_iterator]

    parts = asyncio.run(read())
    assert sum(parts) == 1_000_000 and max(parts) <= routes._LARGEST_PART


# -- what it says ----------------------------------------------------------------------------------------------------------


def test_both_forms_of_a_job_id_and_both_prefixes_name_the_same_job(shown: Shown) -> None:
    for path in (JOB, f"/jobs/{HEX}", f"/jobs/{HEX.upper()}"):
        for prefix in ("", "/v1"):
            assert shown.ask("GET", path, prefix=prefix)[1]["jid"] == HEX
    assert shown.ask("GET", f"/tidegate/jobs/{HEX}", prefix="")[1]["job_id"] == "running-job"


def test_states_of_jobs(shown: Shown) -> None:
    states = {each["jid"]: each["state"] for each in shown.get("/jobs/overview")["jobs"]}
    expected = {"running": "RUNNING", "restarted": "RUNNING", "failed": "FAILED", "finished": "FINISHED"}
    assert states == {flink_job_id(f"{life}-job"): state for life, state in expected.items()}
    overview = shown.get("/overview")
    assert [overview[f"jobs-{name}"] for name in ("running", "finished", "cancelled", "failed")] == [2, 1, 0, 1]
    assert overview["taskmanagers"] == 1 and overview["slots-total"] == 4


def test_vertices_are_chains_with_the_edges_of_the_program(shown: Shown) -> None:
    job = shown.get(JOB)
    source, totals = job["vertices"]
    assert (source["id"], totals["id"]) == (vertex_id("numbers", 0), vertex_id("totals", 1))
    assert "numbers" in source["name"] and source["parallelism"] == 2 and source["status"] == "RUNNING"
    (edge,) = next(node for node in job["plan"]["nodes"] if node["id"] == totals["id"])["inputs"]
    assert (edge["id"], edge["ship_strategy"]) == (source["id"], "HASH")
    assert 0 < totals["metrics"]["read-records"] <= source["metrics"]["write-records"]
    subtasks = shown.get(f"{JOB}/vertices/{totals['id']}")["subtasks"]
    assert [each["subtask"] for each in subtasks] == [0, 1] and all(each["metrics"]["read-bytes"] for each in subtasks)


def test_restarted_job_shows_its_restart_and_what_it_restored(shown: Shown) -> None:
    job = shown.get("/jobs/restarted-job")
    times = job["timestamps"]
    assert 0 < times["CREATED"] <= times["RESTARTING"] <= times["RUNNING"]
    (entry,) = shown.get("/jobs/restarted-job/exceptions")["exceptionHistory"]["entries"]
    assert "no good: (1, 40)" in entry["stacktrace"] and entry["failureLabels"]["attempt"] == "1"
    only = "/jobs/restarted-job/exceptions?failureLabelFilter=attempt:"
    assert [len(shown.get(only + n)["exceptionHistory"]["entries"]) for n in "12"] == [1, 0]
    assert shown.get("/jobs/restarted-job/exceptions?maxExceptions=0")["exceptionHistory"]["truncated"] is True
    checkpoints = shown.get("/jobs/restarted-job/checkpoints")
    assert checkpoints["counts"]["restored"] == 1
    restored = checkpoints["latest"]["restored"]
    assert restored["external_path"].endswith(f"/chk-{restored['id']}") and not restored["is_savepoint"]
    assert shown.get("/jobs/restarted-job/metrics?get=numRestarts") == [{"id": "numRestarts", "value": "1"}]
    vertex = job["vertices"][0]["id"]
    assert shown.get(f"/jobs/restarted-job/vertices/{vertex}/subtasks/0")["attempt"] == 1
    assert shown.ask("GET", f"/jobs/restarted-job/vertices/{vertex}/subtasks/0/attempts/0")[0] == 404


def test_job_that_waits_for_its_restart_is_restarting(shown: Shown, place: Path) -> None:
    keys = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "1 h"}
    job = start(place / "waits", "failed", **{"tidegate.job-id": "waits"}, **keys)
    controlled = shown.add(job)
    try:
        eventually(lambda: shown.get("/jobs/waits/status")["status"] == "RESTARTING", "the job waits")
        assert {vertex["status"] for vertex in shown.get("/jobs/waits")["vertices"]} == {"CREATED"}
        assert shown.get("/jobs/waits/execution-result") == {"status": {"id": "IN_PROGRESS"}}
        shown.ask("PATCH", "/jobs/waits")
        eventually(lambda: shown.get("/jobs/waits/status")["status"] == "CANCELED", "the job is cancelled")
        result = shown.get("/jobs/waits/execution-result")["job-execution-result"]
        assert result["application-status"] == "CANCELED"
    finally:
        job.cancel()
        shown.jobs.remove(controlled)


def test_checkpoints_with_their_subtasks(shown: Shown) -> None:
    page = shown.get(f"{JOB}/checkpoints")
    counts, history = page["counts"], page["history"]
    assert counts["total"] == counts["completed"] + counts["failed"] + counts["in_progress"]
    assert [each["id"] for each in history] == sorted((each["id"] for each in history), reverse=True)
    savepoint = page["latest"]["savepoint"]
    assert savepoint["checkpoint_type"] == "SAVEPOINT" and (Path(savepoint["external_path"]) / "_metadata").is_file()
    latest = page["latest"]["completed"]
    assert latest["num_acknowledged_subtasks"] == latest["num_subtasks"] == 4 and latest["state_size"] > 0
    assert {each["discarded"] for each in history if each["status"] == "COMPLETED"} == {True, False}
    details = shown.get(f"{JOB}/checkpoints/details/{latest['id']}")
    totals = vertex_id("totals", 1)
    assert details["tasks"].keys() == {vertex["id"] for vertex in shown.get(JOB)["vertices"]}
    of_totals = shown.get(f"{JOB}/checkpoints/details/{latest['id']}/subtasks/{totals}")
    assert [each["index"] for each in of_totals["subtasks"]] == [0, 1]
    assert of_totals["state_size"] == sum(each["state_size"] for each in of_totals["subtasks"])
    assert (
        page["summary"]["state_size"]["min"]
        <= page["summary"]["state_size"]["p50"]
        <= page["summary"]["state_size"]["max"]
    )
    config = shown.get(f"{JOB}/checkpoints/config")
    assert (config["interval"], config["mode"], config["state_backend"]) == (20, "EXACTLY_ONCE", "hashmap")


def job_now(shown: Shown, life: str) -> JobNow:
    job = ProcessJobs(shown.jobs).get(f"{life}-job")
    assert job is not None
    return JobNow.of(job, 0)


def test_accumulated_times_are_measured_and_not_those_of_the_latest_rounds(shown: Shown) -> None:
    job = job_now(shown, "finished")
    subtasks = [SubtaskView(0, n, busy=0.9, back_pressured=0.1, busy_seconds=0.002) for n in range(2)]
    found = io_metrics(job, subtasks)
    assert (found["accumulated-busy-time"], found["accumulated-backpressured-time"]) == (4.0, 0)
    assert found["accumulated-idle-time"] == 2 * job.attempt_ms - 4 > 0


def test_start_delay_is_the_time_from_the_trigger_to_the_first_barrier(shown: Shown) -> None:
    job = job_now(shown, "finished")
    source, totals = job.vertices
    ids = [operator.id for operator in totals.operators]
    first = SubtaskFigures(ids[0], 0, run_ms=20.0, align_ms=5.0, snapshot_ms=2.4, acknowledged_ms=1070)
    more = SubtaskFigures(ids[-1], 0, snapshot_ms=7.8, acknowledged_ms=1070)
    taken = CheckpointView(7, CHECKPOINT, 1, Outcome.COMPLETED, {1: 1000, 6: 1080, 7: 1090}, subtasks=(first, more))
    slow, unknown = checkpoint_of_vertex(job, totals, taken)["subtasks"]
    assert (slow["end_to_end_duration"], slow["checkpoint"]["sync"], slow["alignment"]["duration"]) == (70, 10, 5)
    assert slow["start_delay"] == 70 - 10 - 5
    assert unknown["start_delay"] == 0, "it is not known when this subtask acknowledged"
    assert [each["start_delay"] for each in checkpoint_of_vertex(job, source, taken)["subtasks"]] == [0, 0]


def test_savepoint_that_ends_the_job_is_synchronous_and_one_before_a_cancel_is_not(shown: Shown, place: Path) -> None:
    types = {}
    for name, path, body in (
        ("ends", "stop", {"targetDirectory": f"{place}/ends"}),
        ("cancels", "savepoints", {"target-directory": f"{place}/ends", "cancel-job": True}),
    ):
        controlled = shown.add(start(place / name, "running", **{"tidegate.job-id": name}))
        eventually(partial(shown.has_rounds, name), "it runs")
        shown.after(f"/jobs/{name}/{path}", body, f"/jobs/{name}/savepoints")
        eventually(partial(shown.has_ended, name), "it ended")
        types[name] = shown.get(f"/jobs/{name}/checkpoints")["latest"]["savepoint"]["checkpoint_type"]
        shown.jobs.remove(controlled)
    assert types == {"ends": "SYNC_SAVEPOINT", "cancels": "SAVEPOINT"}


def test_secrets_of_a_view_that_names_them_are_masked(shown: Shown) -> None:
    job = job_now(shown, "finished")
    named = {
        "rest.client.basic-auth": "a:b",
        "fs.s3a.access.key": "c",
        "jdbc.url": "postgresql://me:d@host/",
        "port": "1",
    }
    details = msgspec.structs.replace(job.details, configuration=named)
    found = {each["key"]: each["value"] for each in configuration(replace(job, details=details))}
    assert found == {
        "rest.client.basic-auth": "***",
        "fs.s3a.access.key": "***",
        "jdbc.url": "postgresql://me:***@host/",
        "port": "1",
    }


def test_metrics_by_name_subtask_and_aggregate(shown: Shown) -> None:
    totals = f"{JOB}/vertices/{vertex_id('totals', 1)}"
    names = {each["id"] for each in shown.get(f"{totals}/metrics")}
    assert {"0.numRecordsIn", "1.busyTimeMsPerSecond", "1.backPressuredTimeMsPerSecond"} <= names
    one = shown.get(f"{totals}/subtasks/1/metrics?get=numRecordsIn,made-up")
    assert [each["id"] for each in one] == ["numRecordsIn"] and int(one[0]["value"]) > 0
    (both,) = shown.get(f"{totals}/subtasks/metrics?get=numRecordsIn&agg=min,MAX,sum")
    assert both.keys() == {"id", "min", "max", "sum"} and both["min"] + both["max"] == both["sum"]
    (first,) = shown.get(f"{totals}/subtasks/metrics?get=numRecordsIn&subtasks=0-0")
    assert first["min"] == first["max"] == first["avg"] and first["skew"] == 0
    assert {each["id"] for each in shown.get(f"{totals}/subtasks/metrics")} >= {"numRecordsIn", "tidegate.stateBytes"}
    (jobs,) = shown.get(f"/jobs/metrics?get=tidegate.rounds&agg=sum&jobs={HEX}")
    assert jobs["sum"] > 0
    for watermark in shown.get(f"{totals}/watermarks"):
        assert re.fullmatch(r"[01]\.currentInputWatermark", watermark["id"]) and int(watermark["value"]) >= 0
    pressure = shown.get(f"{totals}/backpressure")
    assert pressure["status"] == "ok" and len(pressure["subtasks"]) == 2
    assert all(0 <= each["busyRatio"] <= 1 for each in pressure["subtasks"])


def test_no_answer_has_a_secret(shown: Shown) -> None:
    for path in (f"{JOB}/jobmanager/config", "/jobmanager/config", f"{JOB}/config", f"{JOB}/jobmanager/environment"):
        assert SECRET not in json.dumps(shown.get(path))
    assert shown.token not in json.dumps(shown.get("/jobmanager/thread-dump"))
    threads = {each["threadName"] for each in shown.get("/jobmanager/thread-dump")["threadInfos"]}
    assert threading.current_thread().name in threads


# -- what it does ----------------------------------------------------------------------------------------------------------


def test_checkpoint_and_savepoint_by_trigger_id(shown: Shown, place: Path) -> None:
    taken = shown.after(f"{JOB}/checkpoints", {"checkpointType": "INCREMENTAL"}, f"{JOB}/checkpoints")
    assert taken["checkpointId"] > 0
    saved = shown.after(f"{JOB}/savepoints", {"target-directory": f"{place}/more"}, f"{JOB}/savepoints")
    assert (Path(saved["location"]) / "_metadata").is_file()
    disposed = shown.after("/savepoint-disposal", {"savepoint-path": saved["location"]}, "/savepoint-disposal")
    assert disposed == {} and not (Path(saved["location"]) / "_metadata").exists()
    again = shown.ask("POST", "/savepoint-disposal", {"savepoint-path": saved["location"]})[1]["request-id"]
    path = f"/savepoint-disposal/{again}"
    failed = eventually(lambda: shown.get(path).get("operation"), "the disposal has ended")
    assert "stack-trace" in failed["failure-cause"]


def test_request_with_the_same_trigger_id_begins_one_savepoint(shown: Shown) -> None:
    mine = "ab" * 16
    before = len(shown.ask("GET", f"/tidegate{JOB}/operations", prefix="")[1])
    for _ in range(3):
        assert shown.ask("POST", f"{JOB}/savepoints", {"triggerId": mine}) == (202, {"request-id": mine})
    eventually(lambda: shown.get(f"{JOB}/savepoints/{mine}")["status"]["id"] == "COMPLETED", "the savepoint is there")
    assert len(shown.ask("GET", f"/tidegate{JOB}/operations", prefix="")[1]) == before + 1
    assert shown.ask("GET", f"{JOB}/checkpoints/{mine}")[0] == 404
    assert shown.ask("GET", f"/jobs/restarted-job/savepoints/{mine}")[0] == 404


def test_failed_savepoint_says_why(shown: Shown, place: Path) -> None:
    inside = f"{place}/running/checkpoints/running-job"
    failed = shown.ask("POST", f"{JOB}/savepoints", {"target-directory": inside})[1]["request-id"]
    cause = eventually(lambda: shown.get(f"{JOB}/savepoints/{failed}").get("operation"), "it has failed")[
        "failure-cause"
    ]
    assert "inside the job's own directory" in cause["stack-trace"]


def test_stop_and_cancel_end_jobs_and_their_results_stay(shown: Shown, place: Path) -> None:
    for name, mode in (("stopped", "FINISHED"), ("cancelled", "CANCELED")):
        controlled = shown.add(start(place / name, "running", **{"tidegate.job-id": name}))
        eventually(partial(shown.has_rounds, name), "it runs")
        if name == "stopped":
            saved = shown.after(
                f"/jobs/{name}/stop", {"targetDirectory": f"{place}/last", "drain": True}, f"/jobs/{name}/savepoints"
            )
        else:
            body = {"target-directory": f"{place}/last", "cancel-job": True}
            saved = shown.after(f"/jobs/{name}/savepoints", body, f"/jobs/{name}/savepoints")
        assert (Path(saved["location"]) / "_metadata").is_file()
        eventually(partial(lambda job, end: shown.get(f"/jobs/{job}/status")["status"] == end, name, mode), "it ended")
        status, refused = shown.ask("PATCH", f"/jobs/{name}?mode=cancel")
        assert (status, mode) in ((409, "FINISHED"), (202, "CANCELED")), refused
        shown.jobs.remove(controlled)


# -- what it refuses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/jobs/no..-such-job", 404),
        (f"/jobs/{UNKNOWN}", 404),
        ("/jobs/a%20b", 400),
        ("/jobs/" + "x" * 65, 400),
        (f"{JOB}/vertices/{UNKNOWN}", 404),
        (f"{JOB}/vertices/totals", 400),
        (f"{JOB}/vertices/{vertex_id('totals', 1)}/subtasks/2", 404),
        (f"{JOB}/vertices/{vertex_id('totals', 1)}/subtasks/-1", 404),
        (f"{JOB}/vertices/{vertex_id('totals', 1)}/subtasks/one", 400),
        (f"{JOB}/vertices/{vertex_id('totals', 1)}/subtasks/99999999999", 400),
        (f"{JOB}/vertices/{vertex_id('totals', 1)}/subtasks/metrics?agg=median", 400),
        (f"{JOB}/vertices/{vertex_id('totals', 1)}/subtasks/metrics?subtasks=1-x", 400),
        (f"{JOB}/checkpoints/details/99999999", 404),
        (f"{JOB}/checkpoints/details/x", 400),
        (f"{JOB}/checkpoints/details/1e3", 400),
        (f"{JOB}/checkpoints/{UNKNOWN}", 404),
        (f"{JOB}/checkpoints/xyz", 400),
        (f"{JOB}/savepoints/{UNKNOWN}", 404),
        (f"/savepoint-disposal/{UNKNOWN}", 404),
        (f"/taskmanagers/{UNKNOWN}", 404),
        ("/taskmanagers/here", 400),
        (f"{JOB}/exceptions?maxExceptions=many", 400),
        (f"{JOB}/exceptions?failureLabelFilter=x", 400),
        (f"{JOB}/accumulators?includeSerializedValue=perhaps", 400),
        (f"/jobs/metrics?jobs={UNKNOWN}", 404),
        ("/jobmanager/logs/..%2F..%2Fetc%2Fpasswd", 404),
        ("/jobmanager/logs/passwd", 404),
        ("/datasets", 404),
        (f"{JOB}/rescales/history", 404),
        ("/nothing", 404),
        ("/jars", 403),
    ],
)
def test_bad_get_is_answered_with_one_sentence(shown: Shown, path: str, status: int) -> None:
    found, answer = shown.ask("GET", path)
    assert (found, list(answer)) == (status, ["errors"]) and len(answer["errors"]) == 1, answer


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PATCH", f"{JOB}?mode=explode", None, 400),
        ("PATCH", f"{JOB}?mode=stop", None, 410),
        ("PATCH", f"/jobs/{UNKNOWN}?mode=cancel", None, 404),
        ("PATCH", "/jobs/finished-job?mode=cancel", None, 409),
        ("PATCH", f"{JOB}/rescaling?parallelism=4", None, 404),
        ("PUT", f"{JOB}/resource-requirements", {}, 404),
        ("PATCH", f"{JOB}/clientHeartbeat", {"expiredTimestamp": 1}, 404),
        ("DELETE", "/cluster", None, 404),
        ("DELETE", JOB, None, 405),
        ("POST", f"{JOB}/savepoints", b"{", 400),
        ("POST", f"{JOB}/savepoints", {"target": "/x"}, 400),
        ("POST", f"{JOB}/savepoints", {"target-directory": "relative"}, 400),
        ("POST", f"{JOB}/savepoints", {"target-directory": "/tmp/../etc"}, 400),
        ("POST", f"{JOB}/savepoints", {"formatType": "PICKLE"}, 400),
        ("POST", f"{JOB}/savepoints", {"triggerId": "short"}, 400),
        ("POST", f"{JOB}/checkpoints", {"checkpointType": "FULL"}, 400),
        ("POST", f"{JOB}/checkpoints", {"checkpointType": "HALF"}, 400),
        ("POST", f"{JOB}/stop", {"drain": "yes"}, 400),
        ("POST", f"{JOB}/stop", b"x" * 100_000, 413),
        ("POST", "/savepoint-disposal", {}, 400),
        ("POST", f"/applications/{UNKNOWN}/cancel", None, 404),
        ("POST", "/jars/upload", b"x", 403),
        ("POST", "/jars/x/run", None, 403),
        ("DELETE", "/jars/x", None, 403),
    ],
)
def test_bad_command_is_refused_and_changes_nothing(
    shown: Shown, method: str, path: str, body: Any, status: int
) -> None:
    found, answer = shown.ask(method, path, body)
    assert (found, list(answer)) == (status, ["errors"]) and len(answer["errors"]) == 1, answer
    assert shown.get(f"{JOB}/status") == {"status": "RUNNING"}


def test_disposal_outside_of_the_allowed_directories_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_HOME", f"{tmp_path}/home")
    shown = Shown(Jobs())
    job = start(tmp_path, "running", **{"tidegate.control.allowed-dirs": f"{tmp_path}/mine"})
    shown.add(job)
    try:
        begun = shown.ask("POST", "/savepoint-disposal", {"savepoint-path": f"{tmp_path}/others/savepoint-1"})[1]
        path = f"/savepoint-disposal/{begun['request-id']}"
        failed = eventually(lambda: shown.get(path).get("operation"), "it is refused")
        assert "not below an allowed one" in failed["failure-cause"]["stack-trace"]
    finally:
        job.cancel()


# -- Prometheus ------------------------------------------------------------------------------------------------------------


def test_metrics_of_all_jobs_for_prometheus_with_a_token_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_HOME", f"{tmp_path}/home")
    (tmp_path / "token").write_text("scrape-me\n")
    shown, jobs = Shown(Jobs()), []
    for name in ("one", "two"):
        keys = {"tidegate.job-id": name, "metrics.reporter.prom.token-file": f"{tmp_path}/token"}
        jobs.append(start(tmp_path / name, "running", **keys))
        shown.add(jobs[-1])
    try:
        scraper = {"Authorization": "Bearer scrape-me"}
        eventually(
            lambda: "tidegate_rounds_total" in shown.ask("GET", "/metrics", prefix="", **scraper)[1], "rounds ran"
        )
        families = list(text_string_to_metric_families(shown.ask("GET", "/metrics", prefix="", **scraper)[1]))
        assert len({(family.name, family.type) for family in families}) == len(families)
        (running,) = (family for family in families if family.name == "tidegate_job_running")
        assert {sample.labels["job_id"] for sample in running.samples} == {"one", "two"}
        for path in ("/jobs", "/v1/jobs", "/metrics/", "/tidegate/jobs/one/metrics"):
            assert shown.ask("GET", path, prefix="", **scraper)[0] == 401
        assert shown.ask("GET", "/metrics", prefix="", Authorization="Bearer other")[0] == 401
    finally:
        for job in jobs:
            job.cancel()


# -- programs --------------------------------------------------------------------------------------------------------------


class Kept:
    """Programs in memory: what ``/jars`` does with them is tested here, how they run in ``control/web``."""

    largest_bytes = 1000

    def __init__(self) -> None:
        self.kept: dict[str, tuple[str, bytes]] = {}
        self.ran: list[RunRequest] = []

    def list(self) -> list[Program]:
        return [Program(id=id, name=name, uploaded_ms=1, entries=("main",)) for id, (name, _) in self.kept.items()]

    def add(self, name: str, content: bytes) -> Program:
        if not name.endswith((".py", ".zip")):
            raise RefusedError("The file is no program", found=name)
        self.kept[f"1_{name}"] = (name, content)
        return Program(id=f"1_{name}", name=name, uploaded_ms=1)

    def remove(self, id: str) -> None:
        del self.kept[id]

    def run(self, id: str, request: RunRequest) -> str:
        self.ran.append(request)
        return "started-job"


def handled(site: routes.Site, method: str, path: str, jar: str = "", **call: Any) -> Any:
    (route,) = (each for each in routes.PATHS if (each.method, each.path) == (method, path))
    return route.handler(site, Call({"jarid": jar}, **call))


def form(name: str, content: bytes) -> tuple[str, bytes]:
    boundary = "0f1e2d3c4b5a"
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="jarfile"; filename="{name}"\r\n'
    body = (
        head.encode()
        + b"Content-Type: application/x-java-archive\r\n\r\n"
        + content
        + f"\r\n--{boundary}--\r\n".encode()
    )
    return f"multipart/form-data; boundary={boundary}", body


def test_programs_are_uploaded_listed_run_and_deleted() -> None:
    kept = Kept()
    site = routes.Site(ProcessJobs(Jobs()), programs=kept)
    kind, body = form("job.py", b"print('\xc3\xa9')\r\n\x00\xff")
    uploaded = handled(site, "POST", "/jars/upload", content=body, content_type=kind)
    assert uploaded == {"filename": "1_job.py", "status": "success"}
    assert kept.kept["1_job.py"] == ("job.py", b"print('\xc3\xa9')\r\n\x00\xff")
    (file,) = handled(site, "GET", "/jars")["files"]
    assert (file["id"], file["entry"]) == ("1_job.py", [{"name": "main", "description": ""}])
    body = json.dumps(
        {"parallelism": 3, "programArgsList": ["a b"], "savepointPath": "/s", "claimMode": "CLAIM"}
    ).encode()
    ran = handled(site, "POST", "/jars/{jarid}/run", jar="1_job.py", content=body, query={"entry-class": ["main"]})
    assert ran["jobid"] == flink_job_id("started-job")
    assert kept.ran == [RunRequest(entry="main", parallelism=3, arguments=("a b",), savepoint="/s", claim_mode="claim")]
    with pytest.raises(ApiError, match="at least 1"):
        handled(site, "POST", "/jars/{jarid}/run", jar="1_job.py", content=b'{"parallelism": 0}')
    with pytest.raises(ApiError, match="no program 'x'"):
        handled(site, "POST", "/jars/{jarid}/run", jar="x")
    with pytest.raises(ApiError, match="exactly one file"):
        handled(site, "POST", "/jars/upload", content=b"--x--", content_type="multipart/form-data; boundary=x")
    with pytest.raises(ApiError, match="multipart/form-data"):
        handled(site, "POST", "/jars/upload", content=b"x", content_type="text/plain")
    assert handled(site, "DELETE", "/jars/{jarid}", jar="1_job.py") == {} and kept.kept == {}
