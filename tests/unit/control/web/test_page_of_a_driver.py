"""The page of one driver: ``run --web``, ``create_local_environment_with_web_ui``, Flink's keys for its address."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.control.drivers import PROGRAM
from tests.waiting import eventually
from tidegate.common import Configuration
from tidegate.common.configuration import effective
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.runtime.settings import JobSettings, WebSettings

WITH_UI = PROGRAM.replace(
    "StreamExecutionEnvironment.get_execution_environment(",
    "StreamExecutionEnvironment.create_local_environment_with_web_ui(",
)


class Shown:
    """A driver that prints the address of its page."""

    def __init__(self, place: Path, program: str, *command: str) -> None:
        (place / "job.py").write_text(program)
        self._log = place / "driver.log"
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
        keys = [f"execution.checkpointing.dir={place}/ck", "tidegate.job-id=shown"]
        with open(self._log, "wb") as log:
            line = [sys.executable, *command, "job.py", *keys]
            self.process = subprocess.Popen(line, cwd=place, stdout=log, stderr=log, env=environment)

    def said(self, pattern: str) -> str:
        def look() -> str | None:
            found = re.search(pattern, self._log.read_text(errors="replace"))
            return found.group(0) if found else None

        return eventually(look, pattern)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def cards(address: str) -> list[dict[str, str]]:
    host, _, path = address.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request("GET", f"/{path}")
    answer = connection.getresponse()
    answer.read()
    cookie = str(answer.headers["set-cookie"]).partition(";")[0]
    connection.request("GET", "/tidegate/page/jobs", headers={"Cookie": cookie})
    found: list[dict[str, str]] = json.loads(connection.getresponse().read())
    connection.close()
    return found


@pytest.fixture
def shown(home: Path, tmp_path: Path) -> Iterator[list[Shown]]:
    started: list[Shown] = []
    yield started
    for each in started:
        each.end()


@pytest.mark.parametrize("option", ["--web=0", "--web-port=0", "-Drest.bind-port=0"])
def test_run_with_web_shows_the_job_of_the_driver(option: str, shown: list[Shown], tmp_path: Path) -> None:
    options = ["--web", option] if option != "--web=0" else [option]
    shown.append(Shown(tmp_path, PROGRAM, "-m", "tidegate.cli", "run", "-Dexecution.target=simulated", *options))
    address = shown[0].said(r"http://localhost:\d+/tidegate/login\?code=\S+")
    assert [(card["job_id"], card["life"]) for card in eventually(lambda: cards_or_none(shown[0], address))] == [
        ("shown", "live")
    ]


def cards_or_none(driver: Shown, address: str) -> list[dict[str, str]]:
    assert driver.process.poll() is None
    return cards(address)


def test_environment_with_web_ui_shows_its_jobs(shown: list[Shown], tmp_path: Path) -> None:
    program = WITH_UI.replace("keys |= dict", 'keys["rest.port"] = 0\nkeys |= dict', 1)
    shown.append(Shown(tmp_path, program))
    address = shown[0].said(r"http://localhost:\d+/tidegate/login\?code=\S+")
    assert cards(address)[0]["name"] == "counting"


def test_page_that_cannot_be_shown_is_said_and_the_job_runs(shown: list[Shown], tmp_path: Path) -> None:
    program = WITH_UI.replace(
        "keys |= dict", 'keys |= {"rest.port": 0, "rest.bind-address": "0.0.0.0"}\nkeys |= dict', 1
    )
    shown.append(Shown(tmp_path, program))
    shown[0].said("the page of the job is not shown: Beyond loopback the page needs a password or a token")
    assert shown[0].process.poll() is None


def web_of(env: StreamExecutionEnvironment) -> WebSettings | None:
    return JobSettings.of(effective(env._configuration)).web


def test_flinks_keys_say_where_the_page_listens() -> None:
    local = StreamExecutionEnvironment.create_local_environment_with_web_ui
    both = {"rest.bind-port": "8090-8095", "rest.bind-address": "127.0.0.2"}
    web = web_of(local(Configuration.from_dict(both)))
    assert web is not None and (web.address, web.ports) == ("127.0.0.2", range(8090, 8096))
    one = web_of(local(Configuration.from_dict({"rest.port": 9000})))
    assert one is not None and (one.address, one.ports) == ("127.0.0.1", range(9000, 9001))
    assert web_of(StreamExecutionEnvironment.get_execution_environment()) is None
