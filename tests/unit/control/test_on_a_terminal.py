"""Commands on a real terminal show that they wait; and what nobody uses is not loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest
from typer.testing import CliRunner

from tests.unit.control.drivers import PROGRAM, Driver
from tidegate.cli.main import app
from tidegate.cli.outcome import ExitCode


def test_progress_is_shown_and_goes_again(driver: Callable[..., Driver]) -> None:
    driver("shown").running()
    seen = pexpect.spawn(
        sys.executable, ["-m", "tidegate.cli", "checkpoint", "shown"], encoding="utf-8", use_poll=True, timeout=90
    )
    seen.expect(r"checkpoint of job 'counting' \(shown\): \d+ s")
    seen.expect(r"\r\x1b\[2Kcheckpoint 1 is complete\r\n")
    seen.expect(pexpect.EOF)
    seen.close()
    assert seen.exitstatus == 0


def test_an_error_on_a_terminal_is_one_message_and_harms_no_job(driver: Callable[..., Driver]) -> None:
    one = driver("waits").running()
    seen = pexpect.spawn(
        sys.executable, ["-m", "tidegate.cli", "cancel", "unknown"], encoding="utf-8", use_poll=True, timeout=90
    )
    seen.expect("UnknownJobError: There is no job with this id")
    seen.expect(pexpect.EOF)
    seen.close()
    assert seen.exitstatus == ExitCode.UNKNOWN_JOB
    assert one.process.poll() is None


def test_info_and_explain_of_a_file_as_data(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = PROGRAM.replace('"execution.target": "simulated", ', "")
    (tmp_path / "job.py").write_text(program)
    for command in ("explain --json job.py", "info job.py --json"):
        done = CliRunner().invoke(app, command.split())
        assert done.exit_code == 0, done.output
        facts = json.loads(done.stdout)
        assert facts["name"] == "counting"
        assert [operator["uid"] for operator in facts["operators"]] == ["numbers", "totals", "out"]
        assert {edge["ship"] for edge in facts["edges"]} == {"HASH"}
        assert [chain["level"] for chain in facts["chains"]] == [0, 1]
        assert {"operator", "function", "how", "reason", "fast"} == facts["functions"][0].keys()
    assert not home.exists()


def test_options_as_data() -> None:
    listed = json.loads(CliRunner().invoke(app, ["options", "--json"]).stdout)
    assert "tidegate.control.enabled" in [option["key"] for option in listed]


@pytest.mark.parametrize("module", ["tidegate.datastream", "tidegate.cli.main", "tidegate.control.face"])
def test_the_server_is_loaded_only_when_it_serves(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('starlette', 'uvicorn', 'prometheus_client', 'pyspark') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
