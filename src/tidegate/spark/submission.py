"""Submits a program to a cluster, so that its driver runs in a container there (YARN's cluster mode), through spark-submit.

One archive brings Tidegate itself, the program, the modules beside it, the files that the configuration names, and the token for
commands. spark-submit puts the archive into the staging directory of the application, which only the user can read. Settings
and arguments travel in the archive and in a file, never as arguments of a process, which every user of a host can read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import tidegate
from tidegate.base.errors import ConfigurationError
from tidegate.common.options import (
    PYTHON_ARCHIVES,
    PYTHON_EXECUTABLE,
    PYTHON_FILES,
    PYTHON_REQUIREMENTS,
    SIGNING_KEY_FILE,
)
from tidegate.spark import driver_main
from tidegate.spark.bundle import staging
from tidegate.spark.driver_main import PLACE
from tidegate.spark.launch import properties_file
from tidegate.spark.pyspark_internals import spark_home
from tidegate.spark.session import FAILURES_COUNT_FOR
from tidegate.spark.shipping import PACKAGES, modules_beside, storage_packages

_PATHS = (PYTHON_FILES.key, PYTHON_ARCHIVES.key, PYTHON_REQUIREMENTS.key, SIGNING_KEY_FILE.key)
_ARCHIVES = "spark.archives"
MORE_PACKAGES = {
    "fsspec": "fsspec",
    "rich": "rich",
    "typer": "typer",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "prometheus_client": "prometheus-client",
    "pyspark": "pyspark",
}
"""What a driver needs besides the packages of every task."""
_ATTEMPTS_COUNT_FOR = {"spark.yarn.am.attemptFailuresValidityInterval": "1h"}
"""YARN starts a driver twice by default, however long it has run: a job that runs for months would end with its second host."""
_APPLICATION = re.compile(r"\bapplication_\d+_\d+\b")
_STATE = re.compile(r"Application report for \S+ \(state: (\w+)\)")
_LINES = 60


@dataclass(frozen=True)
class Job:
    """What the driver in the container gets (``job.json``). ``properties`` are keys and values as in ``-D``."""

    script: str
    arguments: list[str]
    properties: dict[str, Any]
    launch: str
    place: str
    """The job's directory on checkpoint storage."""
    token: str = field(repr=False)
    run: str
    """What the container calls, as ``module:function``, with ``job.json`` and the directory of the archive."""
    pyflink: bool = False
    entry: str | None = None
    verbose: bool = False


def check(master: str, deploy_mode: str) -> None:
    """Refuse a deploy mode that Spark does not have for Python programs."""
    if deploy_mode not in ("client", "cluster"):
        raise ConfigurationError(
            "--deploy-mode is client or cluster", found=deploy_mode, cure="omit it to run the driver here (client)"
        )
    if deploy_mode == "cluster" and master != "yarn":
        instead = {
            "k8": "deploy/kubernetes has manifests for a driver in a pod",
            "sp": "run the driver on a host of the cluster",
        }
        raise ConfigurationError(
            "Tidegate submits drivers to YARN only",
            where=f"--master {master or '(none)'}, --deploy-mode cluster",
            found="Spark runs Python drivers of a standalone cluster only in client mode"
            if master.startswith("spark:")
            else "another master",
            cure=f"use --master yarn; otherwise {instead.get(master[:2], 'omit --deploy-mode')} (docs/clusters.md)",
        )
    if not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
        raise ConfigurationError(
            "YARN is found through Hadoop's configuration",
            found="neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set",
            cure="export HADOOP_CONF_DIR=/etc/hadoop/conf",
        )


def check_environment(properties: Mapping[str, Any]) -> None:
    """Refuse a packed environment that does not exist, or that is not brought although the Python is in it."""
    for part in str(properties.get(_ARCHIVES) or "").split(","):
        path = part.strip().partition("#")[0].removeprefix("file://")
        if path and "://" not in path and not path.startswith(("local:", "hdfs:")) and not os.path.isfile(path):
            raise ConfigurationError(
                f"'{_ARCHIVES}' names a file that does not exist",
                found=path,
                cure="pack the environment: venv-pack -o environment.tar.gz",
            )
    executable = str(properties.get(PYTHON_EXECUTABLE.key) or "")
    if executable.startswith("./") and executable[2:].partition("/")[0] not in _targets(properties):
        raise ConfigurationError(
            f"'{PYTHON_EXECUTABLE.key}' lies in an archive that is not brought to the cluster",
            found=f"{executable}, and archives for {', '.join(_targets(properties)) or 'no directory'}",
            cure=f"add -D{_ARCHIVES}=environment.tar.gz#{executable[2:].partition('/')[0]}",
        )


def _targets(properties: Mapping[str, Any]) -> list[str]:
    archives = f"{properties.get(_ARCHIVES) or ''},{properties.get(PYTHON_ARCHIVES.key) or ''}"
    return [part.partition("#")[2] or os.path.basename(part) for part in archives.split(",") if part.strip()]


def make_archive(job: Job, configuration: Mapping[str, Any]) -> Path:
    """Make the archive for the containers. Raise ConfigurationError if a file that the configuration names does not exist."""
    script = Path(job.script)
    target = Path(staging(), f"{PLACE}-{job.launch}.zip")
    properties = {key: value for key, value in job.properties.items() if not key.startswith("spark.")}
    _leave_to_spark(properties)
    handle = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "w+b") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        _add_tidegate(zipped)
        for name, path in {script.name: script, **modules_beside(script)}.items():
            zipped.write(path, f"program/{name}")
        properties |= _with_files(zipped, properties)
        zipped.writestr("token", job.token)
        told = {
            "script": f"program/{script.name}",
            "arguments": job.arguments,
            "properties": properties,
            "run": job.run,
            "launch": job.launch,
            "place": job.place,
            "report": f"{job.place}/control/error-{job.launch}",
            "pyflink": job.pyflink,
            "entry": job.entry,
            "verbose": job.verbose,
            "packages": {**PACKAGES, **MORE_PACKAGES, **storage_packages(configuration)},
        }
        zipped.writestr("job.json", json.dumps(told))
    return target


def _add_tidegate(zipped: zipfile.ZipFile) -> None:
    """Add the package and its entry points, by which the API finds the engine."""
    package = Path(tidegate.__file__).parent
    for path in package.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            zipped.write(path, f"lib/tidegate/{path.relative_to(package)}")
    installed = distribution("tidegate")
    for name in ("METADATA", "entry_points.txt"):
        zipped.writestr(f"lib/tidegate-{installed.version}.dist-info/{name}", installed.read_text(name) or "")


def _with_files(zipped: zipfile.ZipFile, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Add the files that keys name, and return these keys with the places of the files in the container."""
    changed: dict[str, Any] = {}
    for key in _PATHS:
        separator = "#" if key == PYTHON_REQUIREMENTS.key else ","
        parts = [part.strip() for part in str(properties.get(key) or "").split(separator) if part.strip()]
        moved = []
        for number, part in enumerate(parts):
            path, mark, name = part.partition("#")
            place = f"files/{key}/{number}/{os.path.basename(path.rstrip('/'))}"
            _add_file(zipped, key, path, place)
            moved.append(f"{PLACE}/{place}{mark}{name}")
        if moved:
            changed[key] = separator.join(moved)
    return changed


def _add_file(zipped: zipfile.ZipFile, key: str, path: str, place: str) -> None:
    if not os.path.exists(path):
        raise ConfigurationError(
            f"'{key}' names a file that does not exist",
            found=f"no file or directory {path}",
            cure="correct the path; a relative path starts in the directory in which the command runs",
        )
    if os.path.isdir(path):
        for each in sorted(Path(path).rglob("*")):
            if each.is_file():
                zipped.write(each, f"{place}/{each.relative_to(path)}")
    else:
        zipped.write(path, place)


# -- spark-submit --------------------------------------------------------------------------------------------------------------


class Submission:
    """A running spark-submit. It follows the application until its end, unless it is left."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=_LINES)
        self.application: str | None = None
        self.state = ""
        self._reading = threading.Thread(target=self._read, name="tidegate-spark-submit", daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            found = _APPLICATION.search(line)
            self.application = self.application or (found[0] if found else None)
            state = _STATE.search(line)
            self.state = state[1] if state else self.state
            if not state:
                self._lines.append(line)

    def ended(self) -> int | None:
        """Return the exit code of spark-submit, None while it runs."""
        code = self._process.poll()
        if code is not None:
            self._reading.join(5)
        return code

    def leave(self) -> None:
        """End spark-submit. The application continues."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def why(self) -> str:
        """Return what spark-submit has said of a failure."""
        lines = [
            line for line in self._lines if not line.startswith(("\t", " ")) or "diagnostics:" in line or "exit" in line
        ]
        return "".join(lines[-12:]).rstrip()


@contextlib.contextmanager
def submitted(job: Job, configuration: Mapping[str, Any], name: str) -> Iterator[Submission]:
    """Submit the program. Raise ConfigurationError before anything is submitted. The end of the context leaves spark-submit."""
    archive = make_archive(job, configuration)
    settings = spark_settings(job, archive, name)
    home = spark_home()
    environment = {**os.environ, "SPARK_HOME": home}
    try:
        with properties_file(settings.items(), []) as properties:
            command = [os.path.join(home, "bin", "spark-submit"), "--properties-file", properties, driver_main.__file__]
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            submission = Submission(process)
            try:
                yield submission
            finally:
                submission.leave()
    finally:
        archive.unlink(missing_ok=True)


def spark_settings(job: Job, archive: Path, name: str) -> dict[str, str]:
    """Return what spark-submit gets. The user's keys win, except for those that make the application Tidegate's."""
    spark = {key: str(value) for key, value in job.properties.items() if key.startswith("spark.")}
    settings = {
        **FAILURES_COUNT_FOR,
        **_ATTEMPTS_COUNT_FOR,
        **spark,
        "spark.master": "yarn",
        "spark.submit.deployMode": "cluster",
        "spark.yarn.submit.waitAppCompletion": "true",  # its end is the application's; for -d it is left
        "spark.app.name": spark.get("spark.app.name") or name,
        _ARCHIVES: ",".join(filter(None, [*_archives(job.properties), f"{archive}#{PLACE}"])),
    }
    executable = _executable(job.properties)
    if executable is not None:
        settings.setdefault("spark.pyspark.python", executable)
    return settings


def _archives(properties: Mapping[str, Any]) -> list[str]:
    """Return the archives that Spark unpacks before a Python starts: those of Spark's key, and the one with the Python in it."""
    ours = [part if "#" in part else f"{part}#{os.path.basename(part)}" for part in _with_the_python(properties)]
    return [*str(properties.get(_ARCHIVES) or "").split(","), *ours]


def _with_the_python(properties: Mapping[str, Any]) -> list[str]:
    of_python = [part.strip() for part in str(properties.get(PYTHON_ARCHIVES.key) or "").split(",") if part.strip()]
    executable = str(properties.get(PYTHON_EXECUTABLE.key) or "").removeprefix("./")
    return [part for part in of_python if executable.startswith(f"{part.partition('#')[2] or os.path.basename(part)}/")]


def _leave_to_spark(properties: dict[str, Any]) -> None:
    """Remove the keys of the Python and its archive: in a container Spark has unpacked it already."""
    for part in _with_the_python(properties):
        rest = [other for other in str(properties[PYTHON_ARCHIVES.key]).split(",") if other.strip() != part]
        properties[PYTHON_ARCHIVES.key] = ",".join(rest)
    properties.pop(PYTHON_EXECUTABLE.key, None)


def _executable(properties: Mapping[str, Any]) -> str | None:
    executable = properties.get(PYTHON_EXECUTABLE.key)
    if not executable:
        return os.environ.get("PYSPARK_PYTHON")
    in_archive = str(executable).partition("/")[0] in _targets(properties)
    return f"./{executable}" if in_archive else str(executable)
