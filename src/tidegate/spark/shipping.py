"""Brings Tidegate itself, the program's modules and the job's dependencies from the driver to the executors."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext, SparkFiles

import tidegate
from tidegate.base.errors import ConfigurationError, DependencyError
from tidegate.base.user_code import is_the_users
from tidegate.common.dependencies import Dependencies
from tidegate.common.options import CHECKPOINT_DIR, RECOVERY_PATH, SAVEPOINT_DIR, WORKER_LOG_LEVEL
from tidegate.spark.bundle import make_bundle, staging
from tidegate.spark.pyspark_internals import executors, has_python_file, piped
from tidegate.spark.task import WorkerSetup

log = logging.getLogger(__name__)

_MOST_FILES, _MOST_BYTES = 3_000, 32 << 20
PACKAGES = {
    "cloudpickle": "cloudpickle",
    "lmdb": "lmdb",
    "msgspec": "msgspec",
    "numpy": "numpy",
    "yaml": "pyyaml",
    "xxhash": "xxhash",
}
"""Module -> package, of those that every task imports. Storage, connectors and formats may need more, and name it themselves."""
_STORAGE_PACKAGES = {
    "hdfs": ("hdfs_native", "hdfs-native"),
    "viewfs": ("hdfs_native", "hdfs-native"),
    "s3": ("s3fs", "s3fs"),
    "s3a": ("s3fs", "s3fs"),
}
_ADDRESSES = (CHECKPOINT_DIR, SAVEPOINT_DIR, RECOVERY_PATH)
_HADOOP_FILES = ("core-site.xml", "hdfs-site.xml")
_HADOOP_KEYS = ("fs.defaultFS", "fs.default.name", "fs.viewfs.", "dfs.", "hadoop.security.", "hadoop.rpc.", "ipc.")
"""What a client of HDFS reads. Other keys stay here: they may be secrets of other storages."""
_FOUND = "tidegate found: "
_NO_PYTHON = re.compile(r"Cannot run program .*|Subprocess exited with status \d+")
_FAILED_ON = re.compile(r"\(TID \d+\) \((\S+) executor")
"""The host, in Spark's message of a failed task."""
_checked: set[tuple[str, tuple[str, ...], frozenset[str]]] = set()
"""Contexts, by application id, the modules that were looked for, and the executors."""


def ship(context: SparkContext, configuration: Mapping[str, Any], job_id: str, job_name: str) -> WorkerSetup:
    """Put everything where executors fetch it, and prepare every host. Errors name the host."""
    remote = not str(context.master).startswith("local")
    dependencies = Dependencies.of(configuration)
    if remote:
        check_executors(context, {**PACKAGES, **storage_packages(configuration)})
        ship_tidegate(context)
    modules = program_modules() if remote else {}  # a local worker finds them on the path it inherits
    hadoop = hadoop_files() if remote else {}  # a local worker inherits HADOOP_CONF_DIR
    needed = dependencies or modules or hadoop
    bundle = make_bundle(dependencies, modules, staging(), hadoop) if needed else None
    if bundle is not None:
        _add_file(context, bundle)
    level = configuration.get(WORKER_LOG_LEVEL.key) or WORKER_LOG_LEVEL.default
    setup = WorkerSetup(job_id, job_name, None if bundle is None else bundle.name, level)
    if dependencies:
        _prepare(context, setup)
    return setup


def _prepare(context: SparkContext, setup: WorkerSetup) -> None:
    log.info("job '%s': bringing its dependencies to the executors ...", setup.job_name)
    tasks = max(1, context.defaultParallelism)
    for host, why in context.parallelize(range(tasks), tasks).mapPartitions(setup.prepare).collect():
        if why is not None:
            raise DependencyError(
                "A host cannot prepare the dependencies of the job",
                where=f"host {host}",
                found=why.replace("\n", "\n  "),
            )


def _add_file(context: SparkContext, file: Path) -> None:
    """Add the file once: Spark keeps a file as long as the context lives, and the name stands for the content."""
    added = Path(SparkFiles.getRootDirectory(), file.name)
    if not added.exists():
        context.addFile(str(file))


def ship_tidegate(context: SparkContext) -> None:
    """Let executors run the driver's version of Tidegate, whatever version they have. Its dependencies must be installed there."""
    package = Path(tidegate.__file__).parent
    files = (path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    modules = {f"tidegate/{path.relative_to(package)}": path for path in files}
    zipped = _zip(modules, staging())
    if not has_python_file(context, zipped.name):
        context.addPyFile(str(zipped))


def _zip(modules: dict[str, Path], directory: str) -> Path:
    digest = hashlib.sha256()
    for name, path in sorted(modules.items()):
        digest.update(name.encode() + b"\0" + path.read_bytes())
    target = Path(directory, f"tidegate-package-{digest.hexdigest()[:16]}.zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, path in sorted(modules.items()):
            zipped.write(path, name)
    return target


def program_modules() -> dict[str, Path]:
    """Return the Python files beside the program and below: what it can import. None in an interactive session."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None or not is_the_users(os.path.abspath(main)):
        return {}
    return modules_beside(Path(main))


def modules_beside(main: Path) -> dict[str, Path]:
    """Return the Python files beside a program and below. None if there are too many, or they are scripts of installed packages."""
    root = main.resolve().parent
    if str(root) == sysconfig.get_path("scripts"):
        return {}
    found: dict[str, Path] = {}
    size = 0
    for path in _python_files(root):
        found[str(path.relative_to(root))] = path
        size += path.stat().st_size
        if len(found) > _MOST_FILES or size > _MOST_BYTES:
            log.warning(
                "Too many Python files are below %s to bring all of them to the executors: functions cannot import modules beside "
                "the program there. Name the modules that functions import: env.add_python_file(path)",
                root,
            )
            return {}
    return found


def _python_files(root: Path) -> Iterator[Path]:
    for directory, folders, files in os.walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in ("__pycache__", "site-packages", "node_modules")
            and not os.path.exists(os.path.join(directory, name, "pyvenv.cfg"))
        )
        yield from (Path(directory, name) for name in sorted(files) if name.endswith(".py"))


# -- Hadoop's configuration ------------------------------------------------------------------------------------------------


def hadoop_files() -> dict[str, bytes]:
    """Return the part of the driver's Hadoop configuration (``HADOOP_CONF_DIR``) that clients of HDFS need, by file name."""
    place = os.environ.get("HADOOP_CONF_DIR")
    if not place:
        return {}
    return {name: _for_clients(path) for name in _HADOOP_FILES if (path := Path(place, name)).is_file()}


def _for_clients(path: Path) -> bytes:
    try:
        root = ElementTree.parse(path).getroot()  # noqa: S314 (the user's own file)
    except (ElementTree.ParseError, OSError) as error:
        raise ConfigurationError(
            "A file of Hadoop's configuration cannot be read",
            where=str(path),
            found=f"{type(error).__name__}: {error}",
            cure="correct the file, or set HADOOP_CONF_DIR to another directory",
        ) from error
    for each in list(root):
        name = (each.findtext("name") or "").strip()
        if each.tag == "property" and (not name.startswith(_HADOOP_KEYS) or "password" in name or "secret" in name):
            root.remove(each)
    return ElementTree.tostring(root)


# -- packages of executors -------------------------------------------------------------------------------------------------


def check_executors(context: SparkContext, packages: Mapping[str, str] = MappingProxyType(PACKAGES)) -> None:
    """Check the Python and the packages of all executors that are there. Executors that were checked before are not asked again.

    Without the check a task would fail when it is unpickled. The JVMs of the executors start their Python for this, since pyspark
    runs nothing in a Python of another version.
    """
    checked = str(context.applicationId), tuple(sorted(packages)), executors(context)
    if checked in _checked:
        return
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for line in _looked(context, packages):
        host, python, version, missing = json.loads(line.removeprefix(_FOUND))
        if version != own:
            raise DependencyError(
                "An executor has another version of Python than the driver",
                where=f"host {host}, Python {python}",
                found=f"Python {version}, and {own} in the driver",
                cure=f"install Python {own} on all hosts and set PYSPARK_PYTHON, or the key python.executable, to its path; or "
                "give the executors a packed environment (docs/clusters.md)",
            )
        if missing:
            raise DependencyError(
                "An executor lacks packages that Tidegate depends on",
                where=f"host {host}, Python {python}",
                found=f"no {', '.join(missing)}",
                cure=f"install them for that Python (pip install {' '.join(missing)}), or give the executors a packed "
                "environment (docs/clusters.md)",
            )
    _checked.add(checked)


def _looked(context: SparkContext, packages: Mapping[str, str]) -> list[str]:
    try:
        printed = piped(context, [context.pythonExec, "-c", looking(packages)])
    except Py4JJavaError as error:
        failed = _NO_PYTHON.search(str(error))
        if failed is None:
            raise
        host = _FAILED_ON.search(str(error))
        raise DependencyError(
            "An executor cannot run Python",
            where=f"host {host[1] if host else '(unknown)'}, Python {context.pythonExec}",
            found=failed[0],
            cure="set PYSPARK_PYTHON, or the key python.executable, to a Python that works at this path on all hosts",
        ) from error
    # a Python may print something of its own when it starts
    return [line for line in printed if line.startswith(_FOUND)]


def storage_packages(configuration: Mapping[str, Any]) -> dict[str, str]:
    """Return the packages that the job's storage needs, by module."""
    schemes = (str(configuration.get(option.key) or "").partition("://")[0] for option in _ADDRESSES)
    return dict(_STORAGE_PACKAGES[scheme] for scheme in schemes if scheme in _STORAGE_PACKAGES)


def looking(packages: Mapping[str, str]) -> str:
    """Return a program for the Python of an executor, whatever its version: a line with host, path, version and missing
    packages. What lies in the executor's directory does not count."""
    return f"""
import importlib.util, json, os, sys
sys.path[:] = [place for place in sys.path if place]
missing = sorted(p for m, p in {dict(packages)!r}.items() if importlib.util.find_spec(m) is None)
print({_FOUND!r} + json.dumps([os.uname()[1], sys.executable, "%d.%d" % sys.version_info[:2], missing]))
"""
