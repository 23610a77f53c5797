"""A Kafka broker of one node on this machine, for tests, demos and first steps. Loopback only; not for production."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tidegate.base.errors import ConfigurationError, ServiceError
from tidegate.base.private_dirs import own_place

VERSION = "4.3.1"
DEFAULT_PORT = 19092
_JAVA = ("-Xmx512m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
_IVY = f"""<ivy-module version="2.0"><info organisation="tidegate" module="kafka-broker"/>
<configurations><conf name="default"/></configurations><dependencies>
<dependency org="org.apache.kafka" name="kafka_2.13" rev="{VERSION}" conf="default->default"/>
<dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default->default"/>
</dependencies></ivy-module>"""
_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}

Progress = Callable[[str], None]


def home() -> Path:
    """The directory of jars and development brokers, below the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or own_place() / ".cache", "tidegate")


def fetch_jars(say: Progress = lambda _: None) -> Path:
    """The directory with the broker's jars. The first call fetches them from Maven Central, with the Ivy of pyspark."""
    place = home() / f"kafka-{VERSION}"
    done, jars = place / "complete", place / "libs"
    place.mkdir(parents=True, exist_ok=True)
    with _locked(place / "lock"):
        if not done.exists():
            say(f"fetching Kafka {VERSION} (44 MB, once) into {place} ...")
            shutil.rmtree(jars, ignore_errors=True)
            (place / "ivy.xml").write_text(_IVY)
            pattern = f"{jars}/[artifact]-[revision].[ext]"
            # bundle: some jars are published with that type only
            ivy = ["-cache", str(place / "ivy"), "-ivy", str(place / "ivy.xml"), "-confs", "default"]
            command = [java(), "-jar", str(_ivy_jar()), *ivy, "-types", "jar", "bundle", "-retrieve", pattern]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode != 0 or not list(jars.glob("kafka_2.13-*.jar")):
                raise ServiceError(
                    "The jars of the Kafka broker cannot be fetched from Maven Central",
                    found=(ended.stdout + ended.stderr).strip()[-600:],
                    cure="check the network and try again; fetched jars are not fetched again",
                )
            done.touch()
    return jars


def java() -> str:
    found = shutil.which("java")
    if found is None:
        raise ConfigurationError(
            "A Kafka broker needs Java",
            found="no java on the PATH",
            cure="sudo apt-get install openjdk-17-jdk-headless",
        )
    return found


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    for place in places:
        for jar in Path(place).glob("jars/ivy-2*.jar"):
            return jar
    raise ConfigurationError(
        "The Kafka broker is fetched with the Ivy of pyspark, which is missing",
        found=f"no jars/ivy-2*.jar in {places}",
        cure="pip install pyspark",
    )


class DevBroker:
    """A broker with its data in a directory. Its process outlives this one; another object for the same directory finds it by its
    pid file. ``properties``: of the broker; they replace the defaults. ``format_options``: of Kafka's storage tool, for the
    first start. ``cluster_id``: the same for all brokers of a cluster."""

    def __init__(
        self,
        directory: str | Path,
        port: int = DEFAULT_PORT,
        *,
        properties: Mapping[str, str] | None = None,
        format_options: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        cluster_id: str | None = None,
    ) -> None:
        self.directory, self.port = Path(directory), port
        self._properties, self._format_options = dict(properties or {}), format_options
        self._environment = dict(environment or {})
        self._cluster_id = cluster_id or new_cluster_id()
        self._pid_file = self.directory / "pid"

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id of the running broker; None: the broker does not run."""
        try:
            pid = int(self._pid_file.read_text())
            command = Path(f"/proc/{pid}/cmdline")
            if command.parent.parent.joinpath("self").exists() and b"kafka.Kafka" not in command.read_bytes():
                return None  # another process has the number by now
            os.kill(pid, 0)
        except (OSError, ValueError):
            return None
        return pid

    def start(self, say: Progress = lambda _: None, *, patience_s: float = 240) -> None:
        """Start the broker and return when it answers. Does nothing if the broker runs."""
        if self.pid is not None:
            return
        jars = fetch_jars(say)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write_properties()
        if not (self.directory / "data" / "meta.properties").exists():
            say("formatting its storage ...")
            tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={self._cluster_id}"]
            self._run_tool(jars, [*tool, "-c", str(self._server_properties), *self._format_options])
        say(f"starting on {self.bootstrap_servers} ...")
        log = self.directory / "server.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                self._command(jars, ["kafka.Kafka", str(self._server_properties)]),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # Ctrl-C in the terminal does not stop the broker
                env={**os.environ, **self._environment},
            )
        self._pid_file.write_text(str(process.pid))
        self._wait_until_open(process, log, time.monotonic() + patience_s)

    def stop(self) -> None:
        """Stop the broker in order. Returns when its process has ended."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker, like a crash of the machine."""
        self._end(signal.SIGKILL)

    def delete(self) -> None:
        """Kill the broker, and delete all its topics."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid is not None:
            os.kill(pid, number)
            while _is_alive(pid):
                time.sleep(0.05)
        self._pid_file.unlink(missing_ok=True)

    @property
    def _server_properties(self) -> Path:
        return self.directory / "server.properties"

    def _write_properties(self) -> None:
        controller = free_port()
        own = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(self.directory / "data"),
        }
        settings = {**_PROPERTIES, **own, **self._properties}
        for key in ("listeners", "controller.quorum.voters"):
            settings[key] = settings[key].replace("{controller}", str(controller))
        self._server_properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._server_properties.chmod(0o600)  # it may hold passwords

    def _command(self, jars: Path, arguments: list[str]) -> list[str]:
        return [java(), *_JAVA, "-cp", f"{jars}/*", *arguments]

    def _run_tool(self, jars: Path, arguments: list[str]) -> None:
        ended = subprocess.run(self._command(jars, arguments), capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise ServiceError(
                "The storage of the Kafka broker cannot be formatted",
                where=str(self.directory),
                found=(ended.stdout + ended.stderr).strip()[-600:],
                cure="delete the directory and try again",
            )

    def _wait_until_open(self, process: subprocess.Popen[bytes], log: Path, deadline: float) -> None:
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if process.poll() is not None:
                break
            time.sleep(0.1)
        state = "ended" if process.poll() is not None else "does not answer"
        raise ServiceError(
            "The Kafka broker did not start",
            where=self.bootstrap_servers,
            found=f"its process {state}; the end of {log}: {_tail(log)}",
            cure="choose another port with --port: another process may use this one",
        )


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # reap our own child
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tail(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()[-600:]
    except OSError:
        return "(cannot be read)"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
