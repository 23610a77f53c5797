"""What travels to a container, and what is refused before anything is submitted."""

from __future__ import annotations

import json
import stat
import zipfile
from pathlib import Path

import pytest

from tidegate.base.errors import ConfigurationError
from tidegate.spark.shipping import hadoop_files
from tidegate.spark.submission import Job, check, check_environment, make_archive, spark_settings

HADOOP = """<configuration>
<property><name>fs.defaultFS</name><value>hdfs://cluster</value></property>
<property><name>dfs.nameservices</name><value>cluster</value></property>
<property><name>fs.s3a.secret.key</name><value>geheim</value></property>
<property><name>dfs.http.password</name><value>geheim</value></property>
</configuration>"""


def job(script: Path, **properties: str) -> Job:
    return Job(
        script=str(script),
        arguments=["in", "out"],
        properties=properties,
        launch="l1",
        place="hdfs:///jobs/j",
        token="secret-token",
        run="module:function",
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    program = tmp_path / "program"
    (program / "lib").mkdir(parents=True)
    (program / "job.py").write_text("import lib.more\n")
    (program / "lib" / "more.py").write_text("")
    (program / "data.bin").write_text("not code")
    return program / "job.py"


def test_archive_holds_tidegate_the_program_its_files_and_the_token(script: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 32)
    made = job(
        script,
        **{
            "tidegate.checkpoint.signing-key-file": str(tmp_path / "key"),
            "python.files": f"{script},{script.parent / 'lib'}",
            "python.archives": "environment.tar.gz#e",
            "python.executable": "e/bin/python",
            "spark.executor.memory": "1g",
        },
    )
    archive = make_archive(made, {"execution.checkpointing.dir": "hdfs:///jobs"})
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    with zipfile.ZipFile(archive) as zipped:
        names = set(zipped.namelist())
        told = json.loads(zipped.read("job.json"))
        assert zipped.read("token") == b"secret-token"
        entry_points = next(name for name in names if name.endswith(".dist-info/entry_points.txt"))
        assert b"tidegate.executors" in zipped.read(entry_points)
    archive.unlink()
    assert {"program/job.py", "program/lib/more.py", "lib/tidegate/__init__.py"} <= names
    assert "program/data.bin" not in names
    assert "secret-token" not in json.dumps(told)
    assert told["report"] == "hdfs:///jobs/j/control/error-l1"
    assert {"lmdb", "hdfs_native", "typer"} <= told["packages"].keys()
    properties = told["properties"]
    assert not {"spark.executor.memory", "python.executable"} & properties.keys(), "Spark has them"
    assert properties.get("python.archives") in (None, "")
    place = properties["tidegate.checkpoint.signing-key-file"]
    assert place.removeprefix("tidegate_job/") in names
    assert len(properties["python.files"].split(",")) == 2


def test_archive_of_a_file_that_does_not_exist_is_refused(script: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'python.files' names a file that does not exist"):
        make_archive(job(script, **{"python.files": "/nothing.py"}), {})


@pytest.mark.parametrize(
    ("master", "mode", "said"),
    [
        ("yarn", "there", "--deploy-mode is client or cluster"),
        ("spark://h:7077", "cluster", "only in client mode"),
        ("k8s://https://h", "cluster", "deploy/kubernetes"),
        ("local[2]", "cluster", "omit --deploy-mode"),
        ("", "cluster", "--master (none)"),
        ("yarn", "cluster", "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set"),
    ],
)
def test_deploy_mode_that_spark_does_not_have_is_refused(
    master: str, mode: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    with pytest.raises(ConfigurationError) as raised:
        check(master, mode)
    assert said in str(raised.value)


def test_python_in_an_archive_needs_the_archive(tmp_path: Path) -> None:
    (tmp_path / "e.tar.gz").write_text("")
    python = {"python.executable": "./environment/bin/python"}
    with pytest.raises(ConfigurationError, match="lies in an archive that is not brought"):
        check_environment(python)
    with pytest.raises(ConfigurationError, match=r"'spark.archives' names a file that does not exist"):
        check_environment({**python, "spark.archives": "/none.tar.gz#environment"})
    check_environment({**python, "spark.archives": f"{tmp_path}/e.tar.gz#environment"})
    check_environment({**python, "spark.archives": "hdfs:///e.tar.gz#environment"})
    check_environment({"python.executable": "/usr/bin/python3"})


def test_executors_get_what_clients_of_hdfs_read_and_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    assert hadoop_files() == {}
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    (tmp_path / "core-site.xml").write_text(HADOOP)
    [(name, content)] = hadoop_files().items()
    assert name == "core-site.xml"
    assert b"hdfs://cluster" in content and b"dfs.nameservices" in content and b"geheim" not in content
    (tmp_path / "hdfs-site.xml").write_text("<configuration>")
    with pytest.raises(ConfigurationError, match=r"hdfs-site\.xml"):
        hadoop_files()


def test_failures_of_long_ago_do_not_end_an_application_that_runs_for_ever(script: Path) -> None:
    """YARN starts a driver twice, and Spark ends an application after some failed executors, however long it has run."""
    window = "spark.yarn.am.attemptFailuresValidityInterval"
    settings = spark_settings(job(script), Path("/staging/a.zip"), "name")
    assert settings[window] == settings["spark.executor.failuresValidityInterval"] == "1h"
    assert spark_settings(job(script, **{window: "2h"}), Path("/a.zip"), "name")[window] == "2h"
