"""A real YARN and HDFS for tests: Hadoop's mini clusters, from pyspark's jars and some more, which come from Maven Central.

``MiniCluster.java`` beside this file is compiled the first time. The cluster ends with its standard input, so it never outlives the
tests, and everything that its containers have left is killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyspark

from tests.clusters.standalone import SITE, bare_python
from tests.waiting import eventually

HERE = Path(__file__).parent
PROGRAM = HERE / "programs" / "counts.py"
PYSPARK = Path(pyspark.__file__).parent
_CENTRAL = "https://repo1.maven.org/maven2"
_BOUNCY, _JUNIT = "1.78.1", "5.13.4"
_RUN_S = 600
SMALL_ROUNDS = "-Dtidegate.round.max-records=100"
"""For slow programs: else the first round takes minutes."""
_ON_ANOTHER_HOST = """
hostname elsewhere
for socket in $(find /tmp -maxdepth 2 -type s -path '/tmp/tidegate-*'); do
    mount -t tmpfs none "$(dirname "$socket")"
done
exec "$@"
"""
"""Another name, other processes, and none of the drivers' sockets."""


def _coordinates() -> list[str]:
    """Of the version of Hadoop that pyspark has. The resource manager needs Bouncy Castle, the mini cluster JUnit."""
    [api] = (PYSPARK / "jars").glob("hadoop-client-api-*.jar")
    hadoop = api.stem.removeprefix("hadoop-client-api-")
    return [
        f"org/apache/hadoop/hadoop-client-minicluster/{hadoop}/hadoop-client-minicluster-{hadoop}.jar",
        *(
            f"org/bouncycastle/bc{part}-jdk18on/{_BOUNCY}/bc{part}-jdk18on-{_BOUNCY}.jar"
            for part in ("prov", "pkix", "util")
        ),
        f"org/junit/jupiter/junit-jupiter-api/{_JUNIT}/junit-jupiter-api-{_JUNIT}.jar",
        "org/junit/platform/junit-platform-commons/1.13.4/junit-platform-commons-1.13.4.jar",
        "org/opentest4j/opentest4j/1.3.0/opentest4j-1.3.0.jar",
    ]


def _jars() -> list[Path]:
    place = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tidegate", "hadoop")
    place.mkdir(parents=True, exist_ok=True)
    found = []
    with open(place / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for coordinates in _coordinates():
            jar = place / coordinates.rpartition("/")[2]
            if not jar.exists():
                print(f"fetching {jar.name} (once) from Maven Central ...", flush=True)
                part = jar.with_suffix(".part")
                with urllib.request.urlopen(f"{_CENTRAL}/{coordinates}") as source, part.open("wb") as target:
                    shutil.copyfileobj(source, target)
                part.rename(jar)
            found.append(jar)
    return found


class Yarn:
    """YARN with node managers, and HDFS, on the loopback. ``conf`` is its HADOOP_CONF_DIR."""

    def __init__(self, directory: Path, process: subprocess.Popen[str] | None) -> None:
        self.directory, self.conf, self._process = directory, directory / "conf", process

    def stop_node(self, number: int) -> None:
        """Stop a node manager with its containers."""
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"stop {number}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"done stop {number}\n"

    # -- containers ------------------------------------------------------------------------------------------------------------

    def processes(self, container: str) -> list[psutil.Process]:
        """The processes in the containers whose names match: ``_01_000001`` is the driver of the first attempt."""
        found = []
        for process in psutil.process_iter():
            try:
                where = process.cwd()
            except psutil.Error:
                continue
            if where.startswith(str(self.directory)) and re.search(rf"/container_\w*{container}(/|$)", where):
                found.append(process)
        return found

    def kill(self, container: str) -> int:
        """SIGKILL for all processes of the containers, as the kernel does when memory runs out."""
        killed = self.processes(container)
        for process in killed:
            with_suppressed(process)
        return len(killed)

    def printed(self, application: str) -> str:
        """What the containers of an application have written to their logs."""
        return "".join(
            p.read_text(errors="replace") for p in sorted(self.directory.glob(f"target/**/{application}/*/std*"))
        )

    # -- commands --------------------------------------------------------------------------------------------------------------

    def environment(self, home: Path) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "JAVA_HOME", "LANG") if key in os.environ}
        return {
            **kept,
            "HADOOP_CONF_DIR": str(self.conf),
            "PYSPARK_PYTHON": bare_python(),
            "TIDEGATE_HOME": str(home),
            "TMPDIR": str(home.parent),
        }

    def options(self, **more: str) -> list[str]:
        """Small containers, packages as on hosts where they are installed, Spark's jars as installed on all hosts."""
        keys = {
            "spark.executor.instances": "2",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.driver.memory": "512m",
            "spark.yarn.jars": f"local:{PYSPARK}/jars/*",
            "spark.executorEnv.PYTHONPATH": str(SITE),
            "spark.yarn.appMasterEnv.PYTHONPATH": str(SITE),
            "execution.checkpointing.interval": "1s",
            **{name.replace("__", "."): value for name, value in more.items()},
        }
        return [f"-D{key}={value}" for key, value in keys.items() if value]

    def tidegate(
        self, home: Path, *words: str, elsewhere: bool = False, code: int = 0, timeout: float = _RUN_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command. ``elsewhere``: as on another host, which has another name and sees none of the processes here."""
        command = [sys.executable, "-m", "tidegate.cli", *words]
        if elsewhere:
            isolated = ["unshare", "--uts", "--pid", "--fork", "--mount-proc"]
            command = [*isolated, "sh", "-c", _ON_ANOTHER_HOST, "sh", *command]
        done = subprocess.run(
            command,
            env=self.environment(home),
            cwd=home.parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        assert done.returncode == code, (
            f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr[-6000:]}"
        )
        return done

    @contextmanager
    def following(self, home: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command that does not end by itself. It has ended at the end of the context."""
        command = [sys.executable, "-m", "tidegate.cli", *words]
        with subprocess.Popen(
            command, env=self.environment(home), cwd=home.parent, stdout=subprocess.PIPE, text=True
        ) as running:
            try:
                yield running
            finally:
                running.kill()

    def listed(self, home: Path, directory: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads(self.tidegate(home, "list", "--dir", directory, "--json").stdout)
        return listed

    def client(self) -> Any:
        """A client of HDFS, without Tidegate."""
        import hdfs_native

        os.environ["HADOOP_CONF_DIR"] = str(self.conf)
        return hdfs_native.Client("hdfs:///")


def with_suppressed(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


@contextmanager
def yarn_cluster(nodes: int = 2) -> Iterator[Yarn]:
    directory = Path(tempfile.mkdtemp(prefix="tidegate-yarn-"))
    jars = os.pathsep.join(map(str, _jars()))
    path = os.pathsep.join([str(directory / "classes"), jars, f"{PYSPARK}/jars/*"])
    process: subprocess.Popen[str] | None = None
    try:
        subprocess.run(
            ["javac", "-nowarn", "-d", directory / "classes", "-cp", path, HERE / "MiniCluster.java"], check=True
        )
        options = ["-Xmx700m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        with (directory / "cluster.log").open("w") as log:
            process = subprocess.Popen(
                ["java", *options, "-cp", path, "MiniCluster", directory, str(nodes)],
                cwd=directory,
                env={
                    key: value
                    for key, value in os.environ.items()
                    if not key.startswith(("HADOOP_", "PYTHON", "TIDEGATE"))
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", (directory / "cluster.log").read_text()[-5000:]
        yield Yarn(directory, process)
    finally:
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait(60)
            left = Yarn(directory, process)
            eventually(lambda: left.kill("") == 0, "containers end")
        shutil.rmtree(directory, ignore_errors=True)


# -- an independent reader -------------------------------------------------------------------------------------------------------


def lines_on_hdfs(cluster: Yarn, directory: str) -> list[str]:
    """All lines of complete files below a directory. Names that begin with . or _ are not complete."""
    client = cluster.client()
    lines: list[str] = []
    for status in client.list_status(directory, recursive=True):
        parts = status.path.removeprefix(directory).split("/")
        if status.isdir or any(part.startswith((".", "_")) for part in parts):
            continue
        with client.read(status.path) as file:
            lines += file.read(status.length).decode().splitlines()
    return lines


def assert_counted_exactly_once(lines: Sequence[str], records: int, keys: int = 20) -> None:
    """Every number once; and the counts of each key are 1, 2, 3 ... without a gap: state was neither lost nor counted twice."""
    pairs = [tuple(map(int, line.split())) for line in lines]
    numbers = Counter(number for number, _ in pairs)
    missing, doubled = (
        set(range(1, records + 1)) - set(numbers),
        [number for number, times in numbers.items() if times > 1],
    )
    assert not missing and not doubled, f"missing {sorted(missing)[:10]}, doubled {sorted(doubled)[:10]}"
    by_key: dict[int, list[int]] = {}
    for number, count in pairs:
        by_key.setdefault(number % keys, []).append(count)
    assert all(sorted(counts) == list(range(1, len(counts) + 1)) for counts in by_key.values())
    assert len(by_key) == keys
