"""``tidegate doctor``: checks whether jobs can run on this machine, and says how to cure what is wrong."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import msgspec

import tidegate
from tidegate.base.errors import TidegateError
from tidegate.base.files import Files
from tidegate.base.hashing import new_token
from tidegate.base.plain_text import plain_line
from tidegate.cli.outcome import print_json, say
from tidegate.common import global_configuration
from tidegate.common.configuration import effective
from tidegate.common.options import CHECKPOINT_DIR, JOB_ID, LOCAL_DIR, METRICS_PORT, SAVEPOINT_DIR
from tidegate.control import registry
from tidegate.state.local_dir import ENOUGH_FREE, SHARED_MEMORY, choose_root

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
OLDEST_JAVA = 17
OLDEST_SPARK, NEWEST_SPARK = (4, 1), (4, 3)
ENOUGH_FILES, ENOUGH_PROCESSES = 4_096, 1_024
ENOUGH_MEMORY = 2 << 30
ENOUGH_DISK = 1 << 30
_VECTOR_MODULE = "jdk.incubator.vector"

NEEDED = {
    "pyspark": "pyspark",
    "lmdb": "lmdb",
    "msgspec": "msgspec",
    "xxhash": "xxhash",
    "numpy": "numpy",
    "fsspec": "fsspec",
    "cloudpickle": "cloudpickle",
    "PyYAML": "yaml",
}
"""Package -> its module. The command line itself needs the others, so they are there."""
EXTRAS = {
    "formats": ("pyarrow", "fastavro"),
    "kafka": ("kafka", "aiokafka"),
    "postgresql": ("psycopg",),
    "mysql": ("pymysql",),
    "redis": ("redis",),
    "delta": ("deltalake", "pyarrow"),
    "iceberg": ("pyiceberg", "pyarrow"),
    "rocksdb": ("rocksdict",),
    "s3": ("s3fs",),
    "hdfs": ("hdfs_native",),
    "otel": ("opentelemetry",),
    "top": ("textual",),
}
"""Extra -> the modules that it brings."""


class Level(Enum):
    OK = "ok"
    NOTE = "note"
    """Jobs run. Something is optional, or could be better."""
    PROBLEM = "problem"
    """Jobs do not run, or only some."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a check has found. ``cure``: a command or a key; nothing if all is well."""

    check: str
    level: Level
    found: str
    cure: str | None = None


def show(*, json: bool) -> int:
    """Print the findings of all checks, and return the exit code: 1 if there is a problem."""
    findings = list(examine())
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    if json:
        print_json({"problems": problems, "findings": findings})
    else:
        width = max(len(finding.check) for finding in findings)
        for finding in findings:
            say(plain_line(f"{finding.level.value:<8} {finding.check:<{width}}  {finding.found}"))
            if finding.cure is not None:
                say(plain_line(f"{'':8} {'':<{width}}  cure: {finding.cure}"))
        say("jobs can run here" if problems == 0 else f"problems: {problems}")
    return 1 if problems else 0


def examine() -> Iterator[Finding]:
    """Run all checks. One check that fails unexpectedly is a problem, and does not stop the others."""
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", python),
        ("packages", packages),
        ("spark", spark),
        ("java", java),
        ("memory", memory),
        ("shared memory", shared_memory),
        ("disk", disk),
        ("limits", limits),
        ("network", network),
        ("registry", home),
        ("configuration", configuration),
        ("extras", extras),
    ]
    for name, check in checks:
        try:
            yield from check()
        except TidegateError as error:
            yield Finding(name, Level.PROBLEM, _one_line(error), error.cure)
        except Exception as error:
            yield Finding(name, Level.PROBLEM, f"the check failed: {type(error).__name__}: {error}")


def _one_line(error: TidegateError) -> str:
    return "; ".join(filter(None, [error.rule.rstrip("."), error.where, error.found]))


# -- programs and packages


def python() -> Iterator[Finding]:
    version = sys.version_info[:2]
    found = f"Python {platform.python_version()} at {sys.executable}; Tidegate {tidegate.__version__}"
    if version < OLDEST_PYTHON or sys.platform == "win32":
        yield Finding("python", Level.PROBLEM, found, "use Python 3.11 to 3.14 on Linux")
    elif version > NEWEST_PYTHON:
        yield Finding(
            "python", Level.NOTE, f"{found}; tested up to {_dotted(NEWEST_PYTHON)}", "use Python 3.11 to 3.14"
        )
    else:
        yield Finding("python", Level.OK, found)


def packages() -> Iterator[Finding]:
    missing = [name for name, module in NEEDED.items() if find_spec(module) is None]
    if missing:
        cure = f"{sys.executable} -m pip install {' '.join(missing)}"
        yield Finding("packages", Level.PROBLEM, f"missing: {', '.join(missing)}", cure)
    else:
        yield Finding("packages", Level.OK, f"all {len(NEEDED)} that jobs need")


def spark() -> Iterator[Finding]:
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        yield Finding("spark", Level.PROBLEM, "pyspark is not installed", f"{sys.executable} -m pip install pyspark")
        return
    short = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    tested = f"{_dotted(OLDEST_SPARK)} to {_dotted(NEWEST_SPARK)}"
    cure = (
        f"{sys.executable} -m pip install 'pyspark>={_dotted(OLDEST_SPARK)},<{NEWEST_SPARK[0]}.{NEWEST_SPARK[1] + 1}'"
    )
    if short < OLDEST_SPARK:
        yield Finding("spark", Level.PROBLEM, f"pyspark {version}; Tidegate needs {tested}", cure)
    elif short > NEWEST_SPARK:
        yield Finding("spark", Level.NOTE, f"pyspark {version}; tested with {tested}", cure)
    else:
        yield Finding("spark", Level.OK, f"pyspark {version}")
    named = os.environ.get("SPARK_HOME")
    if named and not Path(named, "bin", "spark-class").exists():
        yield Finding("spark", Level.PROBLEM, f"SPARK_HOME is {named}, where no Spark is", "unset SPARK_HOME")
    elif named and Path(named).resolve() != _own_spark():
        found = f"SPARK_HOME is {named}: its jars are used, not those of the installed pyspark"
        yield Finding("spark", Level.NOTE, found, "unset SPARK_HOME, or install the pyspark of that version")


def _own_spark() -> Path | None:
    spec = find_spec("pyspark")
    return Path(spec.origin).resolve().parent if spec is not None and spec.origin is not None else None


def java() -> Iterator[Finding]:
    cure = "sudo apt-get install openjdk-17-jdk-headless; or set JAVA_HOME to a JDK of Java 17 or later"
    named = os.environ.get("JAVA_HOME")
    program = str(Path(named, "bin", "java")) if named else shutil.which("java")
    if program is None or not os.access(program, os.X_OK):
        found = f"JAVA_HOME is {named}, where no bin/java is" if named else "no java on the PATH"
        yield Finding("java", Level.PROBLEM, found, cure)
        return
    said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    version = re.search(r'version "(\d+)[^"]*"', said.stderr + said.stdout)
    if said.returncode != 0 or version is None:
        yield Finding("java", Level.PROBLEM, f"{program} does not tell its version: {said.stderr.strip()[:200]}", cure)
        return
    found = f"Java {version[0].split(chr(34))[1]} at {program}"
    if int(version[1]) < OLDEST_JAVA:
        yield Finding("java", Level.PROBLEM, f"{found}; Spark needs {OLDEST_JAVA} or later", cure)
        return
    modules = subprocess.run([program, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    if _VECTOR_MODULE not in modules.stdout:
        yield Finding("java", Level.PROBLEM, f"{found} lacks the module {_VECTOR_MODULE}: no full JDK", cure)
    else:
        yield Finding("java", Level.OK, found)


def extras() -> Iterator[Finding]:
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if find_spec(module) is None]
        if missing:
            yield Finding(
                f"extra {extra}", Level.NOTE, "not installed", f"pip install 'tidegate[{extra}]', if you need it"
            )
        else:
            yield Finding(f"extra {extra}", Level.OK, "installed")


# -- the machine


def memory() -> Iterator[Finding]:
    """The memory of the container counts, where there is one."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(path).read_text().strip() if Path(path).is_file() else ""
        total = min(total, int(text)) if text.isdigit() else total
    found = (
        f"{_gib(total)}, {len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores"
    )
    if total < ENOUGH_MEMORY:
        yield Finding("memory", Level.NOTE, f"{found}; a JVM and workers need about 1 GiB", "give the container 2 GiB")
    else:
        yield Finding("memory", Level.OK, found)


def shared_memory() -> Iterator[Finding]:
    """Local state lies there if there is space."""
    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        free = 0
    if free >= ENOUGH_FREE and os.access(SHARED_MEMORY, os.W_OK):
        yield Finding("shared memory", Level.OK, f"{_gib(free)} free in {SHARED_MEMORY}")
    else:
        found = (
            f"{_gib(free)} free in {SHARED_MEMORY}, so local state goes to {tempfile.gettempdir()}, which may be slow"
        )
        cure = "docker run --shm-size=4g; or set tidegate.state.local-dir to a fast disk"
        yield Finding("shared memory", Level.NOTE, found, cure)


def disk() -> Iterator[Finding]:
    place = tempfile.gettempdir()
    free = shutil.disk_usage(place).free
    found = f"{_gib(free)} free in {place}, for Spark's shuffle"
    if free < ENOUGH_DISK:
        yield Finding("disk", Level.NOTE, found, "set TMPDIR and spark.local.dir to a larger disk")
    else:
        yield Finding("disk", Level.OK, found)


def limits() -> Iterator[Finding]:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < ENOUGH_FILES:
        possible = most == resource.RLIM_INFINITY or most >= ENOUGH_FILES
        cure = (
            "ulimit -n 65536"
            if possible
            else "raise nofile in /etc/security/limits.conf (LimitNOFILE= of a systemd unit)"
        )
        yield Finding("limits", Level.PROBLEM, f"{files} open files; Spark and state files need {ENOUGH_FILES:,}", cure)
    else:
        yield Finding(
            "limits", Level.OK, f"{'unlimited' if files == resource.RLIM_INFINITY else f'{files:,}'} open files"
        )
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if processes != resource.RLIM_INFINITY and processes < ENOUGH_PROCESSES:
        yield Finding(
            "limits", Level.NOTE, f"{processes} processes and threads; the JVM alone has 100", "ulimit -u 4096"
        )
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        found = f"address space limited to {_gib(space)}; each local store reserves tidegate.state.map-size"
        yield Finding("limits", Level.NOTE, found, "ulimit -v unlimited; or set a smaller tidegate.state.map-size")


def network() -> Iterator[Finding]:
    """Spark and its workers talk over loopback, with ports that the system chooses."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 10):
            pass
    except OSError as error:
        found = f"no connection to this host over 127.0.0.1: {error}"
        yield Finding("network", Level.PROBLEM, found, "ip link set lo up; and allow loopback in the firewall")
        return
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        cure = f"echo '127.0.1.1 {socket.gethostname()}' | sudo tee -a /etc/hosts"
        yield Finding("network", Level.NOTE, f"the name of this host, {socket.gethostname()}, has no address", cure)
        return
    yield Finding("network", Level.OK, "loopback works")


# -- what is configured


def home() -> Iterator[Finding]:
    """Commands find jobs by the registry."""
    place = registry.home()
    nearest = place
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        cure = f"set {registry.VARIABLE} to a directory of your own"
        yield Finding("registry", Level.NOTE, f"{place} cannot be written: tidegate list will not find jobs", cure)
    else:
        yield Finding("registry", Level.OK, str(place))


def configuration() -> Iterator[Finding]:
    path = global_configuration.configuration_file()
    settings = effective(global_configuration.load())
    yield Finding("configuration", Level.OK, "no file" if path is None else str(path.absolute()))
    get = partial(_value, settings)
    root = choose_root(get(LOCAL_DIR.key))
    yield Finding("local state", Level.OK, root)
    for name, key in (("checkpoints", CHECKPOINT_DIR.key), ("savepoints", SAVEPOINT_DIR.key)):
        if (directory := get(key)) is not None:
            yield from _storage(name, directory)
        elif name == "checkpoints":
            found = "no directory: checkpoints help restarts, but not a new driver"
            yield Finding(name, Level.NOTE, found, f"set {key} (and {JOB_ID.key} to continue a job)")
    yield from _metrics_port(get(METRICS_PORT.key))


def _value(settings: dict[str, object], key: str) -> str | None:
    value = settings.get(key)
    return None if value is None else str(value)


def _storage(name: str, directory: str) -> Iterator[Finding]:
    """Write, read and delete a file in a directory of its own, as a job does."""
    probe = f"doctor-{new_token()}"
    try:
        Files(f"{directory.rstrip('/')}/{probe}").check_writable()
    except TidegateError as error:
        yield Finding(name, Level.PROBLEM, _one_line(error), error.cure)
        return
    finally:
        with suppress(TidegateError):
            Files(directory).delete_tree(probe)
    yield Finding(name, Level.OK, f"{directory}: wrote, read and deleted a file")


def _metrics_port(port: str | None) -> Iterator[Finding]:
    if port is None or not port.isdigit():
        return
    try:
        socket.create_server(("127.0.0.1", int(port))).close()
    except OSError as error:
        cure = f"set {METRICS_PORT.key} to a free port, or to a range"
        yield Finding("metrics port", Level.NOTE, f"{port} is in use: {error.strerror}", cure)
    else:
        yield Finding("metrics port", Level.OK, f"{port} is free")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
