"""The command line: options reach the program's environment, failures become messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import tidegate
from tidegate.base.errors import ConfigurationError
from tidegate.cli.main import app, parse_definitions
from tidegate.cli.outcome import ExitCode

runner = CliRunner()

SHOW = """
import sys
from tidegate.datastream import StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment()
env.from_collection([1]).print()
c = env._program(None).configuration
print(__name__, sys.argv[1:])
for key in ["parallelism.default", "execution.state-recovery.path", "execution.state-recovery.ignore-unclaimed-state",
            "execution.state-recovery.claim-mode", "execution.checkpointing.interval", "spark.master"]:
    print(key, c.get(key))
"""


@pytest.fixture(autouse=True)
def _in_its_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "job.py"
    path.write_text(text)
    return str(path)


def test_version() -> None:
    assert runner.invoke(app, ["--version"]).output == f"tidegate {tidegate.__version__}\n"


def test_options_reach_the_program_and_arguments_the_script(tmp_path: Path) -> None:
    options = ["-p", "3", "-s", "/chk-5", "-n", "--claim-mode", "claim", "--master", "local[2]"]
    define = ["-D", "execution.checkpointing.interval=10 s", "-Dspark.ui.enabled=false"]
    result = runner.invoke(app, ["run", *options, *define, script(tmp_path, SHOW), "--input", "x", "-p", "9"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "__main__ ['--input', 'x', '-p', '9']",
        "parallelism.default 3",
        "execution.state-recovery.path /chk-5",
        "execution.state-recovery.ignore-unclaimed-state True",
        "execution.state-recovery.claim-mode CLAIM",
        "execution.checkpointing.interval 10000",
        "spark.master local[2]",
    ]


def test_the_script_imports_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_job.py").write_text("value = 5\n")
    result = runner.invoke(app, ["run", script(tmp_path, "import neighbour_of_job as n\nprint(n.value)\n")])
    assert result.output == "5\n"


FAILS = """
from tidegate.base.errors import JobFailedError, UserCodeError
raise JobFailedError("The job failed", found="a division") from UserCodeError("A user function raised", where="job.py:3")
"""


def test_a_failure_is_a_message_without_a_stack(tmp_path: Path) -> None:
    result = runner.invoke(app, ["run", script(tmp_path, FAILS)])
    assert result.exit_code == 1
    assert result.stderr == (
        "JobFailedError: The job failed\n  found: a division\n"
        "caused by UserCodeError: A user function raised\n  where: job.py:3\n"
    )


FAILS_AS_JOBS_DO = """
from tidegate.base.errors import JobFailedError, UserCodeError
cause = UserCodeError("A user function raised", where="job.py:3")
cause.__cause__ = KeyError("x")
raise JobFailedError("The job failed", found=str(cause)) from cause
"""


def test_what_a_failure_has_said_is_not_said_again(tmp_path: Path) -> None:
    result = runner.invoke(app, ["run", script(tmp_path, FAILS_AS_JOBS_DO)])
    assert result.stderr == (
        "JobFailedError: The job failed\n  found: A user function raised\n  where: job.py:3\ncaused by KeyError: 'x'\n"
    )


def test_verbose_shows_the_stack(tmp_path: Path) -> None:
    result = runner.invoke(app, ["run", "--verbose", script(tmp_path, FAILS)])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "The job failed" in result.stderr


def test_a_bad_key_is_refused_with_the_place_it_came_from(tmp_path: Path) -> None:
    result = runner.invoke(app, ["run", "-D", "paralelism.default=2", script(tmp_path, SHOW)])
    assert result.exit_code == ExitCode.BAD_PROGRAM
    assert "where: -D of the command line" in result.stderr
    assert "did you mean 'parallelism.default'?" in result.stderr


def test_a_missing_script_and_an_interrupt(tmp_path: Path) -> None:
    missing = runner.invoke(app, ["run", "nowhere.py"])
    assert missing.exit_code == ExitCode.BAD_PROGRAM
    assert "found: no file nowhere.py" in missing.stderr
    interrupted = runner.invoke(app, ["run", script(tmp_path, "raise KeyboardInterrupt\n")])
    assert interrupted.exit_code == 130


def test_of_other_errors_the_traceback_begins_in_the_script(tmp_path: Path) -> None:
    path = script(tmp_path, "def f():\n    raise RuntimeError('mine')\nf()\n")
    result = runner.invoke(app, ["run", path])
    assert result.exit_code == 1
    shown = "".join(line for line in result.stderr.splitlines(keepends=True) if line.strip("~^ \n"))  # marks of 3.13
    assert shown == (
        f'Traceback (most recent call last):\n  File "{path}", line 3, in <module>\n    f()\n'
        f"  File \"{path}\", line 2, in f\n    raise RuntimeError('mine')\nRuntimeError: mine\n"
    )
    assert "runpy" in runner.invoke(app, ["run", "-v", path]).stderr


def test_a_syntax_error_is_shown(tmp_path: Path) -> None:
    result = runner.invoke(app, ["run", script(tmp_path, "def f(:\n")])
    assert result.exit_code == 1 and "SyntaxError" in result.stderr and "line 1" in result.stderr


def test_the_exit_code_of_the_script_passes(tmp_path: Path) -> None:
    assert runner.invoke(app, ["run", script(tmp_path, "import sys; sys.exit(7)\n")]).exit_code == 7


def test_definitions() -> None:
    assert parse_definitions(["a=b=c", "pipeline.object-reuse"]) == {"a": "b=c", "pipeline.object-reuse": "true"}
    for wrong in ("=x", "foo", "parallelism.default"):  # a key alone is the key of a switch
        with pytest.raises(ConfigurationError, match=f"-D needs KEY=VALUE\n  found: '{wrong}'"):
            parse_definitions([wrong])


def test_the_options_are_listed() -> None:
    output = runner.invoke(app, ["options"]).output
    assert "execution.checkpointing.dir (also state.checkpoints.dir)" in output
