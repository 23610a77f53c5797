"""What a JVM writes to its standard error comes out of ours, but for what it says of itself. Without a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError

from tidegate.spark import launch
from tidegate.spark.launch import properties_file
from tidegate.spark.pyspark_internals import with_properties

SAYS = """
import os, subprocess, sys
from tidegate.spark.launch import _own_stderr

with _own_stderr() as stderr:
    subprocess.run([sys.executable, "-c", sys.argv[1]], stderr=stderr)
    if sys.argv[2:]:
        raise RuntimeError("not started")
"""


def heard(program: str, *failing: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", SAYS, program, *failing], capture_output=True, text=True, check=False)
    return done.stderr.splitlines()


def test_what_java_says_of_itself_is_left_out_and_all_else_is_shown_whole() -> None:
    program = """
import sys
print("WARNING: Using incubator modules: jdk.incubator.vector", file=sys.stderr)
print("WARNING: something of the user's", file=sys.stderr)
print("Picked up JAVA_TOOL_OPTIONS: -Xmx1g", file=sys.stderr)
for n in range(2000): print("line", n, "\\u00e4" * 50, file=sys.stderr)
sys.stderr.write("no line feed at the end")
"""
    lines = heard(program)
    assert lines[0] == "WARNING: something of the user's"
    assert [line.split()[1] for line in lines[1:-1]] == [str(n) for n in range(2000)]
    assert lines[-1] == "no line feed at the end"


def test_why_it_did_not_start_comes_before_the_error() -> None:
    lines = heard("import sys; print('java: not found', file=sys.stderr)", "fail")
    assert lines[0] == "java: not found"
    assert lines[-1] == "RuntimeError: not started"


def test_a_jvm_that_ends_without_a_word_is_no_endless_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With code 0: pyspark by itself would wait for ever."""
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text("#!/bin/sh\nexit 0\n")
    submit.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with pytest.raises(PySparkRuntimeError, match="JAVA_GATEWAY_EXITED"):
        launch._launch(SparkConf(loadDefaults=False))


def test_the_level_holds_from_the_first_line_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    settings = launch.log_settings({"spark.driver.defaultJavaOptions": "-Dmine=1"}, "WARN")
    options = settings["spark.driver.defaultJavaOptions"].split()
    file = options[0].removeprefix("-Dlog4j2.configurationFile=file://")
    assert os.path.exists(file) and options[1:] == ["-Dtidegate.spark.log-level=WARN", "-Dmine=1"]


def test_a_configuration_of_the_users_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "log4j2.properties").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert launch.log_settings({}, "WARN") == {}


def test_settings_are_in_a_file_of_the_users_own_while_the_jvm_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text("spark.default 1")
    with properties_file([("spark.a:b", " x\\y\n\U0001f30aé")], []) as path:
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert Path(path).read_text() == "spark.default 1\n\nspark.a\\:b=\\ x\\\\y\\n\\ud83c\\udf0a\\u00e9\n"
    assert not os.path.exists(path)


@pytest.mark.parametrize("arguments", [["--properties-file", "{own}"], ["--properties-file={own}"]])
def test_properties_file_of_the_user_takes_the_place_of_the_defaults(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text("spark.default 1")
    (tmp_path / "own.conf").write_text("spark.own 1")
    given = [*(each.format(own=tmp_path / "own.conf") for each in arguments), "--name", "n", "pyspark-shell"]
    with properties_file([("spark.a", "b")], given) as path:
        assert Path(path).read_text() == "spark.own 1\n\nspark.a=b\n"
        expected = ["submit", "--properties-file", path, "--name", "n", "pyspark-shell"]
        assert with_properties(["submit", *given], path) == expected
