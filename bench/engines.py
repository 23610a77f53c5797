"""The engines of the counts: how each is started, and how many records it gets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_time import CpuTime

BENCH = Path(__file__).resolve().parent
REPO = BENCH.parent
PARALLELISM = 2
INTERVAL_MS = 1000
LIMIT_SECONDS = 1800
"""No run takes that long; one that does hangs and is ended."""
JAVA_OPENS = ["--add-opens=java.base/java.util=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED"]


class RunFailed(Exception):
    """An engine's program did not end with its JSON line."""


@dataclass(frozen=True)
class Sizes:
    """Records of the small and of the large run. The difference of their times is what counts, so start-up and warm-up belong
    into the small one: it is large enough to reach the pace the engine keeps."""

    small: int
    large: int


@dataclass(frozen=True)
class Engine:
    name: str
    label: str
    full: dict[str, Sizes]
    """Scenario -> sizes; an engine takes part in the scenarios named here."""
    quick: dict[str, Sizes]

    def sizes(self, scenario: str, quick: bool) -> Sizes:
        return (self.quick if quick else self.full)[scenario]


def pyflink_venv() -> Path:
    return Path(os.environ.get("TIDEGATE_PYFLINK_VENV", REPO / ".venv-pyflink"))


def _common(records: int, keys: int, directory: Path) -> list[str]:
    return [f"--records={records}", f"--keys={keys}", f"--parallelism={PARALLELISM}", f"--dir={directory}"]


WINDOWS = {"window-count", "sliding"}
"""Scenarios with windows: their programs are others."""

_ROCKSDB = ["state.backend.type=rocksdb", "execution.checkpointing.incremental=true"]
_SMALL_ROCKSDB = [*_ROCKSDB, "state.backend.rocksdb.memory.managed=false", "state.backend.rocksdb.writebuffer.size=1mb"]
SETTINGS: dict[str, dict[str, list[str]]] = {
    # 256 MB for state on either side: more than it takes.
    "keyed-count-rocksdb": {
        "tidegate": [*_ROCKSDB, "state.backend.rocksdb.memory.fixed-per-slot=64mb", "tidegate.state.cache-size=32mb"],
        "flink-java": [*_ROCKSDB, "state.backend.rocksdb.memory.fixed-per-slot=128mb"],
    },
    # 8 MB on either side, a quarter of the state: two write buffers of 1 MB for each of two stores; the rest are caches.
    "keyed-count-rocksdb-4x": {
        "tidegate": [
            *_SMALL_ROCKSDB,
            "state.backend.rocksdb.block.cache-size=512kb",
            "tidegate.state.cache-size=512kb",
        ],
        "flink-java": [*_SMALL_ROCKSDB, "state.backend.rocksdb.block.cache-size=2mb"],
    },
}
"""Scenario -> engine -> settings. A subtask of Flink has one store. Of ours two workers take turns, so each of the two has
caches for both subtasks, and a cache of values stands before the one of RocksDB: four of each kind, a quarter the size."""


def _tidegate(scenario: str, records: int, keys: int, directory: Path, sizes: Sizes) -> list[str]:
    if scenario in WINDOWS:
        return _own(["tidegate_windows.py", scenario], records, keys, directory)
    file = "interval_join.py" if scenario == "interval-join" else "tidegate_jobs.py"
    settings = [f"--set={setting}" for setting in SETTINGS.get(scenario, {}).get("tidegate", [])]
    return _own([file, *settings], records, keys, directory)


def _tumbling(scenario: str, records: int, keys: int, directory: Path, sizes: Sizes) -> list[str]:
    return _own(["tidegate_windows.py", "tumbling"], records, keys, directory)


def _own(program: list[str], records: int, keys: int, directory: Path) -> list[str]:
    file, *arguments = program
    common = [*_common(records, keys, directory), f"--interval-ms={INTERVAL_MS}"]
    return [sys.executable, str(BENCH / file), *arguments, *common]


def _flink_java(scenario: str, records: int, keys: int, directory: Path, sizes: Sizes) -> list[str]:
    jars = next(iter(pyflink_venv().glob("lib/python*/site-packages/pyflink/lib")), None)
    name = {"interval-join": "FlinkIntervalJoin", "window-count": "FlinkWindowCount"}.get(scenario, "FlinkKeyedCount")
    if jars is None or not (BENCH / "build" / f"{name}.class").exists():
        raise RunFailed(f"not set up in {pyflink_venv()} and bench/build; run bench/setup_peers.sh")
    arguments = [str(records), str(keys), str(PARALLELISM), str(INTERVAL_MS), str(directory)]
    arguments += SETTINGS.get(scenario, {}).get("flink-java", [])
    return ["java", *JAVA_OPENS, "-cp", f"{BENCH / 'build'}:{jars}/*", name, *arguments]


def _pyflink(scenario: str, records: int, keys: int, directory: Path, sizes: Sizes) -> list[str]:
    python = pyflink_venv() / "bin" / "python"
    if not python.exists():
        raise RunFailed(f"no PyFlink environment at {pyflink_venv()}; run bench/setup_peers.sh")
    name = "pyflink_window_count.py" if scenario in WINDOWS else "pyflink_keyed_count.py"
    return [
        str(python),
        str(BENCH / "peers" / name),
        *_common(records, keys, directory),
        f"--interval-ms={INTERVAL_MS}",
    ]


def _pyspark(scenario: str, records: int, keys: int, directory: Path, sizes: Sizes) -> list[str]:
    # The small run is one micro-batch, the large one several of that size. Large batches favour
    # PySpark, which reads and writes a key's state once per batch (bench/README.md has figures), and break "a checkpoint a second".
    program = str(BENCH / "peers" / "pyspark_keyed_count.py")
    return [sys.executable, program, *_common(records, keys, directory), f"--batch={sizes.small}"]


_COMMANDS = {
    "tidegate": _tidegate,
    "tidegate-tumbling": _tumbling,
    "flink-java": _flink_java,
    "pyflink-thread": _pyflink,
    "pyspark-tws": _pyspark,
}

ENGINES = [
    Engine(
        "tidegate",
        "Tidegate",
        full={
            "keyed-count": Sizes(10_000_000, 40_000_000),
            "keyed-count-1m": Sizes(5_000_000, 20_000_000),
            "window-count": Sizes(5_000_000, 20_000_000),
            "sliding": Sizes(24_000_000, 48_000_000),
            "interval-join": Sizes(1_000_000, 4_000_000),
            "keyed-count-rocksdb": Sizes(2_000_000, 8_000_000),
            "keyed-count-rocksdb-4x": Sizes(2_000_000, 5_000_000),
        },
        quick={
            "keyed-count": Sizes(2_000_000, 6_000_000),
            "keyed-count-1m": Sizes(2_000_000, 4_000_000),
            "window-count": Sizes(1_000_000, 4_000_000),
            "sliding": Sizes(12_000_000, 18_000_000),
            "interval-join": Sizes(200_000, 800_000),
            "keyed-count-rocksdb": Sizes(1_000_000, 2_000_000),
            "keyed-count-rocksdb-4x": Sizes(1_000_000, 3_000_000),
        },
    ),
    Engine(
        "tidegate-tumbling",
        "Tidegate, one window instead of sixty",
        full={"sliding": Sizes(24_000_000, 48_000_000)},
        quick={"sliding": Sizes(12_000_000, 18_000_000)},
    ),
    Engine(
        "flink-java",
        "Flink 2.3 in Java",
        full={
            "keyed-count": Sizes(10_000_000, 40_000_000),
            "keyed-count-1m": Sizes(5_000_000, 20_000_000),
            "window-count": Sizes(5_000_000, 20_000_000),
            "interval-join": Sizes(2_000_000, 8_000_000),
            "keyed-count-rocksdb": Sizes(2_000_000, 8_000_000),
            "keyed-count-rocksdb-4x": Sizes(2_000_000, 5_000_000),
        },
        quick={
            "keyed-count": Sizes(5_000_000, 15_000_000),
            "keyed-count-1m": Sizes(3_000_000, 9_000_000),
            "window-count": Sizes(3_000_000, 9_000_000),
            "interval-join": Sizes(1_000_000, 4_000_000),
            "keyed-count-rocksdb": Sizes(1_000_000, 2_000_000),
            "keyed-count-rocksdb-4x": Sizes(1_000_000, 3_000_000),
        },
    ),
    Engine(
        "pyflink-thread",
        "PyFlink 2.3, thread mode, hashmap",
        full={"keyed-count": Sizes(50_000, 250_000), "window-count": Sizes(50_000, 150_000)},
        quick={"keyed-count": Sizes(30_000, 100_000), "window-count": Sizes(20_000, 60_000)},
    ),
    Engine(
        "pyspark-tws",
        "PySpark transformWithState (rows), RocksDB",
        full={"keyed-count": Sizes(250_000, 750_000)},
        quick={"keyed-count": Sizes(50_000, 150_000)},
    ),
]


def run_program(command: list[str], *, sources: Path | None = None, path: Path = BENCH) -> dict[str, Any]:
    """Run a program of the bench, return the JSON of its last line and its processor time. Its whole process group ends with it.

    ``sources``: Tidegate's own, if not those of this tree. ``path``: where the program finds its neighbours."""
    python_path = f"{path}{os.pathsep}{sources}" if sources is not None else str(path)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": python_path}
    if command[0] != sys.executable:
        environment.pop("PYSPARK_PYTHON")
        environment.pop("PYTHONPATH")
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        with CpuTime(process.pid) as used:
            output, errors = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"no end after {LIMIT_SECONDS} s: {' '.join(command)}") from None
    finally:
        _end_group(process.pid)
    line = next((line for line in reversed(output.splitlines()) if line.startswith("{")), None)
    if process.returncode != 0 or line is None:
        tail = "\n".join((errors.strip() or output.strip()).splitlines()[-15:])
        raise RunFailed(f"exit code {process.returncode}: {' '.join(command)}\n{tail}")
    result: dict[str, Any] = json.loads(line)
    return {**result, "cpu_seconds": round(used.seconds, 2)}


def _end_group(group: int) -> None:
    """The child leads a group of its own (start_new_session), so this reaches what it started and nothing else."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def run_keyed_count(engine: Engine, scenario: str, records: int, keys: int, sizes: Sizes) -> dict[str, Any]:
    """One run at one size in a fresh process, its checkpoints in a fresh directory on disk."""
    directory = Path(tempfile.mkdtemp(prefix=f"bench-{engine.name}-"))
    try:
        return run_program(_COMMANDS[engine.name](scenario, records, keys, directory, sizes))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
