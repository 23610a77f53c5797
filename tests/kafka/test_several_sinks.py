"""Files, PostgreSQL and Kafka in one job: its driver is killed before, between and after their commits (SIGKILL).

Who looks are outside readers: of the directory, of the table, and of the topic as ``read_committed``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.kafka.kafka_tools import Broker, Topics
from tests.servers import databases
from tidegate.testing import kill_hook

JOB = Path(__file__).with_name("several_sinks_job.py")
A_TIME = 40
"""Numbers that are new to each start: whatever it commits first has some for every sink."""

# The points end with how many sinks were done before. The first commit of a process is that of what it has restored.
BEFORE, FIRST, SECOND, LAST = (
    "C6.before-commit[0}]",
    "C6.sink-committed[0}]",
    "C6.sink-committed[1}]",
    "C6.sink-committed[2}]",
)
KILLS: dict[str, list[tuple[str, int]]] = {
    # Where drivers are killed, one after the other, and how many sinks have the new checkpoint then.
    "before the first": [(f"{BEFORE}@1=self", 0)],
    "behind the first": [(f"{FIRST}@2=self", 1)],
    "behind the second": [(f"{SECOND}@2=self", 2)],
    "behind the last": [(f"{LAST}@2=self", 3)],
    "restoring": [(f"{BEFORE}@2=self", 0), (f"{FIRST}@1=self", 1), (f"{SECOND}@1=self", 2)],
}


Run = Callable[[Path, Path, dict[str, str]], int]
"""Runs a driver: directory, log, environment; gives its exit code."""


@dataclass
class Seen:
    """Sorted, so what is there twice shows."""

    files: list[int]
    table: list[int]
    topic: list[int]

    @property
    def is_one(self) -> bool:
        return self.files == self.table == self.topic


class Job:
    """One job over all its drivers."""

    def __init__(self, directory: Path, url: str, topics: Topics, settings: dict[str, str], run: Run) -> None:
        self.directory, self.url, self.topics, self.settings, self.run = directory, url, topics, settings, run
        self.topic, self.until, self.starts = topics.new(2), 0, 0
        self.table = self.topic.replace("-", "_")
        self._ask(f"CREATE TABLE {self.table} (id bigint, label text)")

    def _ask(self, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def start(self, kill: str | None, *, more: bool = True) -> None:
        """Until it is killed there, or to its end."""
        self.starts += 1
        self.until += A_TIME if more else 0
        own = self.directory / f"start-{self.starts}"
        own.mkdir()
        said = {"url": self.url, "table": self.table, "servers": self.topics.servers, "topic": self.topic}
        said |= {"until": self.until, "ends": kill is None, "settings": self.settings}  # type: ignore[dict-item]
        environment = {
            "TIDEGATE_FAULT_HOOK": "tidegate.testing.kill_hook:hook",
            "TIDEGATE_KILL_DIR": str(own),
            "TIDEGATE_KILL_PLAN": kill or "",
            "TIDEGATE_MASTER": "local[2]",
            "SEVERAL_SINKS": json.dumps(said),
        }
        code = self.run(self.directory, own / "log", environment)
        assert code == (0 if kill is None else -9), (own / "log").read_text()[-4_000:]
        assert kill_hook.fired(own) == ([kill] if kill else [])

    def look(self) -> Seen:
        parts = [path for path in (self.directory / "out").rglob("*") if not path.name.startswith(".")]
        return Seen(
            sorted(int(line) for part in parts if part.is_file() for line in part.open()),
            sorted(int(str(n)) for n, label in self._ask(f"SELECT * FROM {self.table}") if label == f"row {n}"),
            sorted(int(value) for value in self.topics.read(self.topic)),
        )

    def left_behind(self) -> list[object]:
        hidden = [path.name for path in (self.directory / "out").rglob(".*")]
        return [*self._ask("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'tidegate-several-%'"), *hidden]


@contextmanager
def running_job(directory: Path, topics: Topics, settings: dict[str, str], run: Run) -> Iterator[Job]:
    with databases.postgresql() as server:
        yield Job(directory, databases.postgresql_url(server), topics, settings, run)


def run_alone(directory: Path, log: Path, environment: dict[str, str]) -> int:
    with log.open("wb") as stream:
        command, own = [sys.executable, str(JOB), str(directory)], {**os.environ, **environment}
        return subprocess.run(command, stdout=stream, stderr=stream, env=own, timeout=250).returncode


@contextmanager
def forked() -> Iterator[Run]:
    """Drivers by a process that has imported everything before."""
    with subprocess.Popen(
        [sys.executable, str(JOB)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        stdin, stdout = parent.stdin, parent.stdout

        def run(directory: Path, log: Path, environment: dict[str, str]) -> int:
            stdin.write(json.dumps([str(directory), str(log), environment]) + "\n")
            stdin.flush()
            return int(stdout.readline())

        try:
            yield run
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)  # and a driver that hangs


def run_through(job: Job) -> None:
    for name, kills in KILLS.items():
        before = job.look()
        assert before.is_one
        for number, (kill, sinks) in enumerate(kills):
            job.start(kill, more=number == 0)
            killed = job.look()
            found = [killed.files, killed.table, killed.topic]
            assert all(set(before.files) <= set(now) for now in found), f"{name}: what was committed has gone"
            assert sum(len(now) > len(before.files) for now in found) == sinks, f"{name}: {killed}"
        job.start("C2.cut@1=self", more=False)  # it has restored, and begins its first round
        restored = job.look()
        assert restored.is_one, f"{name}: behind the restore the sinks have different checkpoints"
        assert len(restored.files) > len(before.files) and all(set(restored.files) >= set(now) for now in found)
    job.start(None)
    end = job.look()
    assert end.is_one and end.files == list(range(job.until)), end
    assert job.left_behind() == []


@pytest.mark.crash
def test_all_sinks_have_a_checkpoint_or_will_have_it(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    """Real drivers, servers and kills; the tasks run in the driver."""
    with forked() as run, running_job(tmp_path, topics, {"execution.target": "simulated"}, run) as job:
        run_through(job)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_the_same_on_spark(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    with running_job(tmp_path, topics, {}, run_alone) as job:
        run_through(job)
