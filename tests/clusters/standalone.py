"""A standalone Spark cluster on loopback, from pyspark's own jars: a master, and workers each on an address of its own."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import psutil
import pyspark

HOME = Path(pyspark.__file__).parent
SITE = HOME.parent
_NEW_UTS = 0x04000000


class Cluster:
    """``master`` is its address; executors run below ``work``, and keep there what they print."""

    def __init__(self, directory: Path, site: Path, settings: Mapping[str, str]) -> None:
        self.work = directory / "work"
        self._local = directory / "local"
        self._local.mkdir()
        self._directory, self._site, self._settings = directory, site, settings
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self.master = self._start("master", {}, r"Starting Spark master at (spark://\S+)", "master.Master", *where)

    def start_worker(
        self, number: int, environment: Mapping[str, str] = MappingProxyType({}), cores: int = 1, memory: str = "512m"
    ) -> None:
        """Start a worker at 127.0.0.1, 127.0.0.2 ...: for Spark each is a host. ``environment`` is that of its executors too."""
        place = self.work / str(number)
        place.mkdir(parents=True, exist_ok=True)
        where = ["--host", self.host(number), "--webui-port", "0"]
        size = ["--cores", str(cores), "--memory", memory, "--work-dir", str(place)]
        command = ["worker.Worker", *where, *size, self.master]
        self._start(f"worker-{number}", environment, r"(Successfully registered)", *command)

    def start_host(self, number: int, cores: int, memory: str) -> None:
        """Start a worker that has a host name of its own (tide0, tide1 ...), so local state of its own. A namespace belongs to a
        thread. Raise PermissionError without root."""

        def start() -> None:
            if ctypes.CDLL(None, use_errno=True).unshare(_NEW_UTS) != 0:
                failed.append(os.strerror(ctypes.get_errno()))
                return
            socket.sethostname(f"tide{number}")
            self.start_worker(number, cores=cores, memory=memory)

        failed: list[str] = []
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        if failed:
            raise PermissionError(failed[0])

    @staticmethod
    def host(number: int) -> str:
        return f"127.0.0.{number + 1}"

    def lose_worker(self, number: int) -> None:
        """SIGKILL for a worker and everything that it has started, as if its host had lost its power."""
        self._kill(self._processes.pop(f"worker-{number}"), signal.SIGKILL)
        self.kill_executors(number)  # what has left the worker's process group

    def decommission_worker(self, number: int) -> None:
        """Tell a worker that its host will go: with ``spark.decommission.enabled`` its executors hand on their blocks."""
        self._processes[f"worker-{number}"].send_signal(signal.SIGPWR)

    def start_shuffle_service(self, port: int | None = None, **settings: str) -> int:
        """Start Spark's external shuffle service, one for all hosts here, and return its port.

        It remembers executors on disk, and serves only files below its own local directories.
        """
        if port is None:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
        given = {"spark.shuffle.service.port": str(port), "spark.local.dir": str(self._local), **settings}
        options = " ".join(f"-D{key}={value}" for key, value in given.items())
        ready = rf"(Starting shuffle service on port {port})"
        self._start("shuffle-service", {"SPARK_SHUFFLE_OPTS": options}, ready, "ExternalShuffleService")
        return port

    def lose_shuffle_service(self) -> None:
        self._kill(self._processes.pop("shuffle-service"), signal.SIGKILL)

    def executors(self, number: int | None = None) -> list[psutil.Process]:
        """The JVMs of the executors: of one worker, or of all."""
        return [process for process in self._inside(number) if "java" in process.name()]

    def kill_executors(self, number: int) -> int:
        """SIGKILL for the executors of a worker with their Python workers. The worker starts others."""
        found = self._inside(number)
        for process in found:
            _kill(process)
        return len(found)

    def printed(self) -> str:
        """What executors have written to stderr."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.work.glob("*/app-*/*/stderr")))

    def stop(self) -> None:
        for process in self._processes.values():
            self._kill(process, signal.SIGTERM)

    def _inside(self, number: int | None) -> list[psutil.Process]:
        place = str(self.work if number is None else self.work / str(number))
        found = []
        for process in psutil.process_iter():
            try:
                where = process.cwd()
            except psutil.Error:
                continue
            if f"{where}/".startswith(f"{place}/"):
                found.append(process)
        return found

    @staticmethod
    def _kill(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            return
        finally:
            process.wait(60)

    def _start(self, name: str, environment: Mapping[str, str], ready: str, module: str, *arguments: str) -> str:
        """Return what ``ready`` finds in the log of the new process."""
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "JAVA_HOME") if key in os.environ}
        options = " ".join(f"-D{key}={value}" for key, value in self._settings.items())
        own = {"SPARK_HOME": str(HOME), "PYTHONPATH": str(self._site), "SPARK_LOCAL_IP": "127.0.0.1"}
        own |= {"SPARK_LOCAL_DIRS": str(self._local), "SPARK_DAEMON_JAVA_OPTS": options, "SPARK_DAEMON_MEMORY": "256m"}
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{module}", *arguments]
        log = self._directory / f"{name}.log"
        with log.open("wb") as output:
            process = self._processes[name] = subprocess.Popen(
                command,
                env={**kept, **own, **environment},
                cwd=log.parent,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        while not (found := re.search(ready, log.read_text())):
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.05)  # a look at another process's log, not a guess how long it takes
        return found[1]


def bare_python() -> str:
    """A Python that finds installed packages by PYTHONPATH, and not what is only linked into this environment: Tidegate."""
    return str(Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}"))


@contextmanager
def cluster(
    directory: Path,
    workers: int = 2,
    site: Path = SITE,
    *,
    cores: int = 1,
    memory: str = "512m",
    settings: Mapping[str, str] | None = None,
    environments: Sequence[Mapping[str, str]] = (),
) -> Iterator[Cluster]:
    """``site``: where the Python of executors finds packages. ``settings``: of Spark, for master and workers.

    ``environments``: variables for the first worker, the second ...
    """
    started = Cluster(directory, site, settings or {})
    try:
        for number in range(workers):
            environment = environments[number] if number < len(environments) else {}
            started.start_worker(number, environment, cores, memory)
        yield started
    finally:
        started.stop()


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
