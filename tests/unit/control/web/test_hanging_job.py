"""A job whose storage hangs keeps no other job from being listed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.unit.control.drivers import Driver
from tests.unit.control.web.browser import Browser
from tests.waiting import eventually
from tidegate.base.hashing import flink_job_id
from tidegate.checkpoint.owner import this_process
from tidegate.control import registry
from tidegate.control.jobs import JobDetails
from tidegate.control.registry_jobs import RegistryJob, RegistryJobs
from tidegate.control.web import routes
from tidegate.control.web.server import PageServer


def test_list_shows_the_others_and_what_was_known_of_the_hanging_one(
    driver: Callable[..., Driver], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "CARD_S", 0.5)
    for name in ("one", "two"):
        driver(name).running()
    released, hangs = threading.Event(), False
    true_details = RegistryJob.details

    def details(self: RegistryJob) -> tuple[JobDetails, int]:
        if hangs and self.job_id == "one":
            released.wait(60)
        return true_details(self)

    monkeypatch.setattr(RegistryJob, "details", details)
    server = PageServer(RegistryJobs(), server="installation")
    try:
        browser = Browser(server).log_in()
        eventually(lambda: len(browser.page("/jobs")) == 2, "both are listed")
        hangs = True
        for _ in range(3):
            assert {card["job_id"] for card in browser.page("/jobs")} == {"one", "two"}
            assert browser.page("/jobs/two")["answers"]
    finally:
        released.set()
        server.close()


def test_list_shows_the_others_beside_a_driver_that_answers_nonsense(
    driver: Callable[..., Driver], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver("one").running()
    odd = driver("odd").running()
    odd.end()
    registry.write(msgspec.structs.replace(odd.record(), owner=this_process(), socket=None, endpoint="nowhere:x"))
    server = PageServer(RegistryJobs(), server="installation")
    try:
        browser = Browser(server).log_in()
        assert "one" in {card["job_id"] for card in browser.page("/jobs")}
        status, answer = browser.ask("GET", "/v1/jobs/overview")
        assert status == 200 and flink_job_id("one") in {job["jid"] for job in answer["jobs"]}, answer
    finally:
        server.close()
