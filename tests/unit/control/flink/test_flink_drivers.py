"""Drivers in processes of their own, over Flink's API: their end, and the ids that commands take."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.control.drivers import Driver
from tests.waiting import eventually
from tidegate.base.hashing import flink_job_id
from tidegate.control.client import DriverClient, find
from tidegate.control.registry import JobRecord, read_token


def ask(record: JobRecord, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(str(record.endpoint), timeout=60)
    headers = {"Authorization": f"Bearer {read_token(str(record.driver))}"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_client_gets_the_savepoint_of_a_stop_although_the_driver_ends_with_its_job(
    driver: Callable[..., Driver],
    tmp_path: Path,
) -> None:
    running = driver("ends").running()
    record, path = running.record(), f"/v1/jobs/{flink_job_id('ends')}"
    status, begun = ask(record, "POST", f"{path}/stop", {"targetDirectory": f"{tmp_path}/saved"})
    assert status == 202
    eventually(lambda: running.record().state == "FINISHED", "the job has finished")
    assert running.process.poll() is None, "the driver waits for the client"
    status, answer = ask(record, "GET", f"{path}/savepoints/{begun['request-id']}")
    assert status == 200 and answer["status"] == {"id": "COMPLETED"}
    assert (Path(answer["operation"]["location"]) / "_metadata").is_file()
    eventually(lambda: running.process.poll() is not None, "the driver has ended")
    assert running.process.returncode == 0


def test_commands_find_a_job_by_the_id_that_flinks_clients_show(driver: Callable[..., Driver]) -> None:
    driver("mine").running()
    by_hex = find(flink_job_id("mine").upper())
    assert by_hex.job_id == "mine" and DriverClient(by_hex).details().state == "RUNNING"
