"""From the driver to the executors: Tidegate itself, the program's modules, and what the job depends on."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkContext, SparkFiles

import tidegate
from tidegate.base.errors import DependencyError
from tidegate.base.user_code import is_the_users
from tidegate.common.dependencies import Dependencies
from tidegate.common.options import WORKER_LOG_LEVEL
from tidegate.spark.bundle import make_bundle, staging
from tidegate.spark.needs import check_executors
from tidegate.spark.worker_setup import WorkerSetup

log = logging.getLogger(__name__)

_MOST_FILES, _MOST_BYTES = 3_000, 32 << 20


def ship(context: SparkContext, configuration: Mapping[str, Any], job_id: str, job_name: str) -> WorkerSetup:
    """Bring everything to where the executors fetch it from, and let every host get ready. Errors name the host."""
    remote = not str(context.master).startswith("local")
    dependencies = Dependencies.of(configuration)
    if remote:
        check_executors(context)
        ship_tidegate(context)
    modules = program_modules() if remote else {}  # a local worker finds them by the path it inherits
    bundle = make_bundle(dependencies, modules, staging()) if dependencies or modules else None
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
                "A job starts when every host has what it depends on",
                where=f"host {host}",
                found=why.replace("\n", "\n  "),
            )


def _add_file(context: SparkContext, file: Path) -> None:
    """Once: Spark keeps a file as long as the context lives, and this one's name says what is in it."""
    kept = Path(SparkFiles.getRootDirectory(), file.name)
    if not kept.exists():
        context.addFile(str(file))


def ship_tidegate(context: SparkContext) -> None:
    """Executors run the driver's version of Tidegate, whatever is installed there; its dependencies must be."""
    package = Path(tidegate.__file__).parent
    files = (path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    modules = {f"tidegate/{path.relative_to(package)}": path for path in files}
    zipped = _zip(modules, staging())
    if zipped.name not in (context._python_includes or []):
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
    """The Python files beside the program that was started, and below: what it can import. None of an interactive session."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None or not is_the_users(os.path.abspath(main)):
        return {}
    root = Path(main).resolve().parent
    if str(root) == sysconfig.get_path("scripts"):
        return {}
    found: dict[str, Path] = {}
    size = 0
    for path in _python_files(root):
        found[str(path.relative_to(root))] = path
        size += path.stat().st_size
        if len(found) > _MOST_FILES or size > _MOST_BYTES:
            log.warning(
                "Too many Python files are below %s to bring all of them to the executors: modules beside the program are not "
                "found there. Name those that functions import: env.add_python_file(path)",
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
