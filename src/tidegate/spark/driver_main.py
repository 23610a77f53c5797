"""The first program of a driver in a container of a cluster. It needs only Python and pyspark, and says what else is missing.

spark-submit brings this file, and beside it the archive ``tidegate_job`` (``submission.py``). Nothing of Tidegate may be imported
before the check, because the packages that Tidegate imports may be missing.
"""

import importlib
import importlib.util
import json
import os
import sys
import threading
import time
from typing import Any

PLACE = "tidegate_job"
_LOOK_S = 0.1
_BAD_PROGRAM = 10


def main() -> None:
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), name="tidegate-parent", daemon=True).start()
    with open(os.path.join(PLACE, "job.json"), encoding="utf-8") as file:
        job = json.load(file)
    missing = sorted(package for module, package in job["packages"].items() if importlib.util.find_spec(module) is None)
    if missing:
        _refuse(job, missing)
    sys.path.insert(0, os.path.abspath(os.path.join(PLACE, "lib")))
    module, _, function = job["run"].partition(":")
    getattr(importlib.import_module(module), function)(job, PLACE)


def _end_with(parent: int) -> None:
    """End like a crash when the JVM that has started this process is gone: the next attempt of the cluster continues the job. A
    driver that went on would report the job as failed, only because its Spark is gone."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(137)


def _refuse(job: dict[str, Any], missing: list[str]) -> None:
    text = (
        "DependencyError: The driver's container lacks packages that Tidegate depends on\n"
        f"  where: host {os.uname().nodename}, Python {sys.executable} {sys.version.split()[0]}\n"
        f"  found: no {', '.join(missing)}\n"
        f"  cure: install them for that Python on all hosts (pip install {' '.join(missing)}), or give a packed environment: "
        "-Dspark.archives=environment.tar.gz#environment -Dpython.executable=./environment/bin/python (docs/clusters.md)\n"
    )
    sys.stderr.write(text)
    try:
        _leave(job["report"], json.dumps({"text": text, "code": _BAD_PROGRAM}))
    except Exception as error:
        sys.stderr.write(f"the error is not reported at {job['report']}: {error}\n")
    sys.exit(_BAD_PROGRAM)


def _leave(address: str, text: str) -> None:
    """Write a file for the user's command, with Hadoop's client in the JVM: no package of Python may be there.

    The command looks for the file all the time, so the file gets its name when it is complete.
    """
    directory, _, name = address.rpartition("/")
    part = f"{directory}/.{name}"
    if "://" not in address:
        os.makedirs(directory, exist_ok=True)
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, address)
        return
    from pyspark.java_gateway import launch_gateway

    jvm: Any = launch_gateway().jvm  # type: ignore[no-untyped-call]
    path = jvm.org.apache.hadoop.fs.Path(part)
    settings = jvm.org.apache.hadoop.conf.Configuration()
    files = path.getFileSystem(settings)
    stream = files.create(path)
    stream.write(text.encode())
    stream.close()
    files.rename(path, jvm.org.apache.hadoop.fs.Path(address))


if __name__ == "__main__":
    main()
