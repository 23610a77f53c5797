"""Names, keys, values and errors of strangers on a terminal: it obeys none of them. And which configuration is used is said."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from tidegate.base.errors import TidegateError
from tidegate.base.plain_text import PlainFormatter, plain, plain_line
from tidegate.checkpoint.owner import this_process
from tidegate.cli import state_views
from tidegate.cli.main import app
from tidegate.cli.outcome import readable, say, table
from tidegate.cli.screen import Terminal
from tidegate.common import Types, global_configuration
from tidegate.control import registry
from tidegate.control.registry import JobRecord
from tidegate.snapshots.reader import StateColumn

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eb\nFAKE  LINE"
SHOWN = "a\\u001b]0;owned\\u0007\\u001b[2J\\u009b31m\\u202eb"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def test_what_a_terminal_obeys_becomes_visible_and_all_else_stays() -> None:
    assert plain(EVIL) == f"{SHOWN}\nFAKE  LINE"
    assert plain_line(EVIL) == f"{SHOWN}\\u000aFAKE  LINE"
    good = "täglich \U0001f30a 日本\tعربى\n"
    assert plain(good) == good
    assert plain("\ud800") == "\\ud800", "half of a character, which cannot be printed"


def test_table_cells_stay_in_their_line() -> None:
    assert table(("A", "B"), [(EVIL, "x")]).splitlines()[1:] == [f"{SHOWN}\\u000aFAKE  LINE  x"]


def test_errors_are_neutralised_with_their_causes(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise TidegateError("Rule", found=EVIL) from ValueError(EVIL)
    except TidegateError as error:
        say(readable(error), err=True)
    printed = capsys.readouterr().err
    assert not OBEYED.search(printed) and f"caused by ValueError: {SHOWN}\n  FAKE  LINE" in printed


@pytest.fixture
def evil_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobRecord:
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "home"))
    record = JobRecord(
        run=registry.new_run(),
        job_id="evil",
        name=EVIL,
        program=f"/tmp/{EVIL}",
        owner=msgspec.structs.replace(this_process(), started="1"),
        started_ms=1,
        state="FAILED",
        ended_ms=2,
        error=EVIL,
        directory=EVIL,
        checkpoint_interval_ms=1000,
    )
    registry.write(record)
    return record


@pytest.mark.parametrize("command", [["list", "-a"], ["info", "evil"], ["cancel", "evil"], ["checkpoints", "evil"]])
@pytest.mark.parametrize("more", [[], ["--json"], ["-v"]])
def test_commands_about_a_job_with_an_evil_name(evil_job: JobRecord, command: list[str], more: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, *more])
    assert not OBEYED.search(done.output), repr(done.output)
    assert "owned" in done.output or "evil" in done.output
    if more == ["--json"] and command[0] in ("list", "info"):
        facts = json.loads(done.stdout)
        assert (facts[0] if isinstance(facts, list) else facts)["name"] == EVIL


def test_info_gives_a_name_no_line_of_its_own(evil_job: JobRecord) -> None:
    lines = CliRunner().invoke(app, ["info", "evil"]).stdout.splitlines()
    assert lines[0] == f"job '{SHOWN}\\u000aFAKE  LINE' (evil): FAILED"
    assert not [line for line in lines if line.startswith("FAKE")]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_of_running_jobs_obey_nothing_of_their_names() -> None:
    screen = Screen()
    terminal = Terminal(screen, [], live=True, colours=False)
    terminal.say(EVIL)
    assert screen.getvalue() == f"{SHOWN}\\u000aFAKE  LINE\n"
    terminal.show(EVIL)
    assert screen.getvalue().count("\x1b") == 1 and not OBEYED.search(screen.getvalue().replace("\r\x1b[2K", ""))


def test_rows_of_state_are_plain_on_a_terminal_and_exact_in_a_file() -> None:
    columns, rows = [StateColumn("key", 0, Types.STRING())], [(EVIL,)]
    screen, file = Screen(), io.StringIO()
    state_views.write_csv(screen, columns, iter(rows))
    state_views.write_csv(file, columns, iter(rows))
    assert screen.getvalue() == f"key\n{SHOWN}\\u000aFAKE  LINE\n"
    assert file.getvalue() == f'key\n"{EVIL}"\n'
    state_views.write_json(screen, columns, iter(rows))
    assert not OBEYED.search(screen.getvalue()) and json.loads(screen.getvalue().splitlines()[-1]) == {"key": EVIL}


def test_log_lines_are_neutralised() -> None:
    record = logging.LogRecord("tidegate", logging.WARNING, "f", 1, "job %s", (EVIL,), None)
    assert PlainFormatter("%(message)s").format(record) == f"job {SHOWN}\nFAKE  LINE"


def test_run_names_the_configuration_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    global_configuration.announced.clear()
    monkeypatch.delenv("TIDEGATE_CONF_DIR", raising=False)
    monkeypatch.delenv("FLINK_CONF_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("execution.target: none\n")
    (tmp_path / "job.py").write_text(
        "from tidegate.datastream import StreamExecutionEnvironment as E\n"
        "E.get_execution_environment(); E.get_execution_environment(); print('ran')\n"
    )
    done = CliRunner().invoke(app, ["run", "job.py"])
    assert done.stderr.splitlines().count(f"configuration: {tmp_path}/conf/config.yaml") == 1
    assert done.stdout == "ran\n"


def test_program_without_the_command_line_is_warned_of_a_file_nobody_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    global_configuration.announced.clear()
    monkeypatch.delenv("FLINK_CONF_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("parallelism.default: 2\n")
    caplog.set_level("INFO")
    global_configuration.load()
    global_configuration.load()
    global_configuration.announced.clear()
    monkeypatch.setenv("TIDEGATE_CONF_DIR", str(tmp_path / "conf"))
    global_configuration.load()
    said = [(r.levelname, r.getMessage()) for r in caplog.records]
    assert said == [(level, f"configuration: {tmp_path}/conf/config.yaml") for level in ("WARNING", "INFO")]
