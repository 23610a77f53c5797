"""A standalone Spark cluster on loopback, from pyspark's own jars: a master and workers, each in a directory of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent
SITE = HOME.parent


@dataclass(frozen=True)
class Cluster:
    """``work``: where executors run, and keep what they print."""

    master: str
    work: Path

    def printed(self) -> str:
        """What executors have written to stderr."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.work.glob("*/app-*/*/stderr")))


def bare_python() -> str:
    """A Python that finds installed packages by PYTHONPATH, and not what is only linked into this environment: Tidegate."""
    return str(Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}"))


@contextmanager
def cluster(directory: Path, workers: int = 2, site: Path = SITE) -> Iterator[Cluster]:
    """``site``: where the Python of executors finds packages."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        log = directory / "master.log"
        _start(processes, log, site, "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = _awaited(processes[0], log, r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            log, place = directory / f"worker-{number}.log", directory / "work" / str(number)
            place.mkdir(parents=True)
            size = ["--cores", "1", "--memory", "512m", "--work-dir", str(place)]
            _start(processes, log, site, "worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", *size, master)
        for number in range(workers):
            _awaited(processes[number + 1], directory / f"worker-{number}.log", r"(Successfully registered)")
        yield Cluster(master, directory / "work")
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            process.wait(60)


def _start(processes: list[subprocess.Popen[bytes]], log: Path, site: Path, name: str, *arguments: str) -> None:
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "JAVA_HOME") if key in os.environ}
    environment = {**kept, "SPARK_HOME": str(HOME), "PYTHONPATH": str(site), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as output:
        processes.append(
            subprocess.Popen(
                command, env=environment, cwd=log.parent, stdout=output, stderr=output, start_new_session=True
            )
        )


def _awaited(process: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    while True:
        found = re.search(pattern, log.read_text())
        if found:
            return found[1]
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.05)  # a look at another process's log, not a guess how long it takes
