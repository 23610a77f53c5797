"""``tidegate doctor``: each problem of a machine is found and has a cure. The machines are real, with something taken away."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidegate.cli import doctor


def examined(*options: str, limit: int | None = None, cwd: Path, **changed: str | None) -> tuple[int, dict[str, Any]]:
    """The findings by check, in a process of its own with other variables (None: without it) or fewer open files."""
    environment = {key: value for key, value in {**os.environ, **changed}.items() if value is not None}
    command = [sys.executable, "-m", "tidegate.cli", "doctor", "--json", *options]
    if limit is not None:
        command = ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh", *command]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)
    facts = json.loads(done.stdout)
    findings = {finding["check"]: finding for finding in facts["findings"]}
    assert facts["problems"] == sum(finding["level"] == "problem" for finding in facts["findings"]), done.stderr
    assert all("cure" in finding for finding in facts["findings"] if finding["level"] == "problem")
    assert done.returncode == (1 if facts["problems"] else 0)
    return done.returncode, findings


@pytest.fixture(scope="module")
def as_it_is(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    return examined(cwd=tmp_path_factory.mktemp("here"))


def test_the_machine_of_the_tests_is_sound(as_it_is: tuple[int, dict[str, Any]]) -> None:
    code, findings = as_it_is
    assert code == 0, [finding for finding in findings.values() if finding["level"] == "problem"]
    assert {"python", "packages", "spark", "java", "limits", "network", "local state", "extra kafka"} <= set(findings)
    assert (
        findings["checkpoints"]["level"] == "note" and "execution.checkpointing.dir" in findings["checkpoints"]["cure"]
    )


def test_without_java_old_java_no_full_jdk_few_files_and_a_bad_directory(tmp_path: Path) -> None:
    """One process finds all of these at once: a problem does not hide the next one."""
    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)
    (tmp_path / "file").write_text("")
    code, findings = examined(
        f"-Dexecution.checkpointing.dir={tmp_path}/file/checkpoints",
        limit=256,
        cwd=tmp_path,
        JAVA_HOME=str(tmp_path),
        SPARK_HOME=str(tmp_path),
        TIDEGATE_HOME=f"{tmp_path}/file/home",
    )
    assert code == 1
    assert findings["java"]["level"] == "problem" and "Java 11.0.2" in findings["java"]["found"]
    assert "openjdk-17" in findings["java"]["cure"]
    assert findings["limits"]["level"] == "problem" and findings["limits"]["found"].startswith("256 open files")
    assert findings["spark"] == {
        "check": "spark",
        "level": "problem",
        "found": f"SPARK_HOME is {tmp_path}, where no Spark is",
        "cure": "unset SPARK_HOME",
    }
    assert "TIDEGATE_HOME" in findings["registry"]["cure"]
    assert findings["checkpoints"]["level"] == "problem"
    assert f"{tmp_path}/file/checkpoints" in findings["checkpoints"]["found"]
    assert "execution.checkpointing.dir" in findings["checkpoints"]["cure"]


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = doctor.java()
    assert finding.level is doctor.Level.PROBLEM and finding.found == "no java on the PATH" and finding.cure is not None


def test_a_java_without_the_modules_of_a_jdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17.0.1"\' >&2\necho java.base@17\n')
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (finding,) = doctor.java()
    assert finding.level is doctor.Level.PROBLEM and "jdk.incubator.vector" in finding.found


def test_a_directory_of_checkpoints_is_tried_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "checkpoints"
    place.mkdir(mode=0o755)
    (finding,) = doctor._storage("checkpoints", str(place))
    assert finding.level is doctor.Level.OK
    assert os.listdir(place) == [] and place.stat().st_mode & 0o777 == 0o755


def test_a_port_in_use_and_a_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        (used,) = doctor._metrics_port(port)
    (free,) = doctor._metrics_port(port)
    assert used.level is doctor.Level.NOTE and used.cure is not None and free.level is doctor.Level.OK


def test_a_check_that_breaks_is_a_problem_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("torn")

    monkeypatch.setattr(doctor, "memory", broken)
    findings = {finding.check: finding for finding in doctor.examine()}
    assert findings["memory"].level is doctor.Level.PROBLEM and "RuntimeError: torn" in findings["memory"].found
    assert "network" in findings and "extra kafka" in findings


def test_extras_of_pyproject_are_those_that_are_checked() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert set(doctor.EXTRAS) == set(project["optional-dependencies"]) - {"dev", "docs", "all"}
    spark = next(text for text in project["dependencies"] if text.startswith("pyspark"))
    newest = f"{doctor.NEWEST_SPARK[0]}.{doctor.NEWEST_SPARK[1] + 1}"
    assert spark == f"pyspark>={doctor.OLDEST_SPARK[0]}.{doctor.OLDEST_SPARK[1]},<{newest}"
    assert project["requires-python"] == f">=3.11,<3.{doctor.NEWEST_PYTHON[1] + 1}"
