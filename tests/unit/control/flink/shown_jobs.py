"""A server with a running, a restarted, a failed and a finished job, on the simulated engine, and all paths that show them."""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.simulation.executor import SimulatedExecutor, simulated_environment
from tests.waiting import eventually
from tidegate.common import Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.control.endpoint import flink_api
from tidegate.control.jobs import ControlledJob, Jobs
from tidegate.control.registry import read_token
from tidegate.control.server import Server
from tidegate.datastream.connectors.datagen import DataGeneratorSource
from tidegate.runtime.handle import StartedJob

SECRET = "hunter2-of-the-store"
LIVES = ("running", "restarted", "failed", "finished")


class Seconds(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1]) * 1000


class FailsAt:
    """Fails at one record, every time or once."""

    def __init__(self, index: int, place: Path, *, once: bool) -> None:
        self.index, self.place, self.once = index, place, once

    def __call__(self, value: tuple[int, int]) -> tuple[int, int]:
        if value[1] == self.index and not (self.once and self.place.exists()):
            self.place.touch()
            raise ValueError(f"no good: {value}")
        return value


def start(place: Path, life: str, **keys: Any) -> StartedJob:
    """Start a job of two chains with two subtasks each. A running one never ends."""
    keys = {
        "tidegate.job-id": f"{life}-job",
        "execution.checkpointing.interval": "20 ms",
        "execution.checkpointing.num-retained": 2,
        "execution.checkpointing.savepoint-dir": f"{place}/savepoints",
        "tidegate.round.max-records": 10,
        "tidegate.control.enabled": "false",  # else the server of this process would be in the home of one test
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        **({"restart-strategy.type": "fixed-delay"} if life == "restarted" else {}),
        **({"restart-strategy.fixed-delay.delay": "1 ms"} if life == "restarted" else {}),
        **keys,
    }
    env = simulated_environment(place / life, workers=1, **keys).set_parallelism(2)
    source = DataGeneratorSource(
        lambda index: (index % 3, index), 60 if life == "finished" else None, records_per_second=1000
    )
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Seconds())
    numbers = env.from_source(source, times, "numbers").uid("numbers")
    if life in ("failed", "restarted"):
        numbers = numbers.map(FailsAt(40, place / f"{life}-once", once=life == "restarted")).name("check")
    totals = numbers.key_by(lambda pair: pair[0], key_type=Types.LONG()).sum(1).uid("totals")
    totals.add_sink(lambda value: None).uid("out")
    env.execute_async(f"counting {life}")
    return SimulatedExecutor.last


class Shown:
    """``ask`` sends a request with the token, below ``/v1``."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs, self.server = jobs, Server(jobs)
        self.token = read_token(self.server.driver)

    def add(self, job: StartedJob) -> ControlledJob:
        controlled = ControlledJob(job)
        self.jobs.add(controlled)
        return controlled

    def ask(self, method: str, path: str, body: Any = None, *, prefix: str = "/v1", **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.server.address, timeout=60)
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, prefix + path, content, {"Authorization": f"Bearer {self.token}", **headers})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(text) if is_json else text.decode()

    def get(self, path: str) -> Any:
        status, answer = self.ask("GET", path)
        assert status == 200, (path, status, answer)
        return answer

    def has_rounds(self, job: str) -> bool:
        return bool(self.get(f"/jobs/{job}/metrics?get=tidegate.rounds")[0]["value"] != "0")

    def has_ended(self, job: str) -> bool:
        return self.get(f"/jobs/{job}/status")["status"] in ("FINISHED", "CANCELED")

    def after(self, path: str, body: Any, answers: str) -> Any:
        """Trigger an operation and return its result."""
        status, begun = self.ask("POST", path, body)
        assert status in (200, 202), begun
        (result,) = eventually(lambda: self.result(f"{answers}/{begun['request-id']}"), f"{path} has ended")
        return result

    def result(self, path: str) -> Any:
        """Return the result of an operation in a tuple; None: it has not ended."""
        answer = self.get(path)
        return (answer["operation"],) if answer["status"]["id"] == "COMPLETED" else None


@contextmanager
def shown_jobs(place: Path) -> Iterator[Shown]:
    """Show a job of each of ``LIVES``. The running ones have completed checkpoints and a savepoint."""
    shown, started = Shown(Jobs()), [start(place, life) for life in LIVES]
    for job in started:
        shown.add(job)

    def as_named(job: StartedJob, life: str) -> bool:
        view = job.view()
        if life == "failed":
            return view.status.name == "FAILED" and job.wait(0)
        if life == "finished":
            return view.status.name == "FINISHED" and job.wait(0)
        return len(view.attempts) == 1 + (life == "restarted") and view.totals.checkpoints > 3

    for job, life in zip(started, LIVES, strict=True):
        eventually(partial(as_named, job, life), f"the job is {life}")
    shown.after(
        "/jobs/running-job/savepoints", {"target-directory": f"{place}/savepoints"}, "/jobs/running-job/savepoints"
    )
    try:
        yield shown
    finally:
        for job in started:
            job.cancel()
            with suppress(Exception):
                job.result()


def every_get(shown: Shown, job: str) -> Iterator[tuple[str, str]]:
    """Yield every GET of the description with ids of the job: the path with names of parameters, and the path to ask for."""
    triggers = _triggers(shown) if job == "running-job" else {}
    vertices = [vertex["id"] for vertex in shown.get(f"/jobs/{job}")["vertices"]]
    history = [c["id"] for c in shown.get(f"/jobs/{job}/checkpoints")["history"]]
    executors = [each["id"] for each in shown.get("/taskmanagers")["taskmanagers"]]
    of_job = shown.get(f"/jobs/{job}")["jid"]
    for template, methods in flink_api()["paths"].items():
        if "get" not in methods:
            continue
        values = {
            "jobid": [job],
            "applicationid": [of_job],
            "vertexid": vertices,
            "checkpointid": history[:3],
            "subtaskindex": [0, 1],
            "attempt": [1 if job == "restarted-job" else 0],
            "taskmanagerid": executors,
            "rescaleuuid": ["0" * 32],
            "triggerid": [triggers.get(template, "0" * 32)],
        }
        names = [part[1:-1] for part in template.split("/") if part.startswith("{")]
        for chosen in itertools.product(*(values[name] for name in names)):
            path = template
            for name, value in zip(names, chosen, strict=True):
                path = path.replace("{" + name + "}", str(value))
            yield template, path


def _triggers(shown: Shown) -> dict[str, str]:
    """Trigger ids of operations that have ended, by the path that shows them."""
    found = {}
    for kind in ("checkpoints", "savepoints"):
        status, begun = shown.ask("POST", f"/jobs/running-job/{kind}", {})
        assert status == 202, begun
        path = f"/jobs/running-job/{kind}/{begun['request-id']}"
        eventually(partial(shown.result, path), "the operation has ended")
        found[f"/jobs/{{jobid}}/{kind}/{{triggerid}}"] = begun["request-id"]
    return found
