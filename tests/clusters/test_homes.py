"""Two hosts, each with local state of its own: a subtask stays on its host as long as the host lives, whatever Spark's load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.clusters.standalone import SITE, Cluster, bare_python
from tests.waiting import eventually

KEYS, PARALLELISM, ROUND = 50, 4, 200
PROGRAM = f"""\
import json, sys
from tidegate.common import Encoder, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink, RollingPolicy
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.spark.engine import SparkEngine

class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield f"{{value}} {{count}}"

places = []
run = SparkEngine.run

def noted(engine, plan):
    acks = run(engine, plan)
    sources = {{chain for chain, _ in engine._spec.partitions[0]}}
    places.append({{f"{{a.chain}}/{{a.subtask}}": a.run.place for a in acks if a.chain not in sources}})
    with open(sys.argv[2], "a") as file:
        print(len(places), file=file)
    return acks

SparkEngine.run = noted
env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism({PARALLELISM})
env.enable_checkpointing(500)
numbers = env.from_source(NumberSequenceSource(1, int(sys.argv[3])), WatermarkStrategy.no_watermarks(), "numbers")
counts = numbers.key_by(lambda n: n % {KEYS}, Types.LONG()).process(Count(), Types.STRING())
sink = FileSink.for_row_format(sys.argv[1], Encoder.simple_string_encoder())
counts.sink_to(sink.with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy()).build())
job = env._start("homes")
job.result()
view = job.view()
told = {{"attempts": len(view.attempts), "rebuilds": view.totals.rebuilds, "places": places}}
print(json.dumps(told))
"""


def start_host(started: Cluster, number: int) -> None:
    try:
        started.start_host(number, cores=2, memory="600m")
    except PermissionError as error:
        pytest.skip(f"a host name of its own needs root: {error}")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Cluster]:
    """The first host."""
    (tmp_path / "cluster").mkdir()
    started = Cluster(tmp_path / "cluster", SITE, {})
    try:
        start_host(started, 0)
        yield started
    finally:
        started.stop()


@dataclass
class Told:
    """What a program prints at its end. ``places``: of each round, where which subtask with keys has run."""

    attempts: int
    rebuilds: int
    places: list[dict[str, str]]


class Job:
    """The program in a driver of its own, a round for each ``ROUND`` records. Its hosts keep local state in ``local``."""

    def __init__(self, directory: Path, started: Cluster, rounds: int) -> None:
        self._records = rounds * ROUND
        self.output, self.local, self._rounds = directory / "out", directory / "local", directory / "rounds"
        self.local.mkdir()
        (directory / "job.py").write_text(PROGRAM)
        keys = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "600m",
            "execution.checkpointing.dir": str(directory / "checkpoints"),
            "tidegate.round.max-records": str(ROUND),
            "tidegate.state.local-dir": str(self.local),
            "tidegate.state.cache-size": "0",  # every round reads its store
        }
        environment = {**os.environ, "PYSPARK_PYTHON": bare_python(), "TMPDIR": str(directory)}
        environment.pop("PYTHONPATH", None)
        options = [f"-D{key}={value}" for key, value in keys.items()]
        command = [sys.executable, "-m", "tidegate.cli.main", "run", "--master", started.master, *options, "job.py"]
        self.process = subprocess.Popen(
            [*command, str(self.output), str(self._rounds), str(self._records)],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def rounds(self) -> int:
        assert self.process.poll() is None, self.process.communicate()[1][-5000:]
        return len(self._rounds.read_text().splitlines()) if self._rounds.exists() else 0

    def result(self) -> Told:
        printed, logged = self.process.communicate(timeout=200)
        assert self.process.returncode == 0, logged[-5000:]
        return Told(**json.loads(printed))

    def stores(self) -> list[Path]:
        return [path for path in self.local.glob("tidegate-local-*/*/stores/*") if path.is_dir()]

    def assert_counted_exactly_once(self) -> None:
        files = [file for file in self.output.rglob("*") if file.is_file() and not file.name.startswith((".", "_"))]
        lines = [tuple(map(int, line.split())) for file in files for line in file.read_text().splitlines()]
        assert Counter(number for number, _ in lines) == Counter(range(1, self._records + 1))
        counted = sorted((number % KEYS, count) for number, count in lines)
        assert counted == [(key, count) for key in range(KEYS) for count in range(1, self._records // KEYS + 1)]


def host_of(place: str) -> str:
    return place.partition(",")[0]


def moves(places: list[dict[str, str]]) -> int:
    """How often a subtask has run on another host than in the round before."""
    pairs = pairwise(places)
    return sum(host_of(before[s]) != host_of(after[s]) for before, after in pairs for s in before if s in after)


def test_without_failures_no_subtask_moves_and_no_state_is_built_twice(hosts: Cluster, tmp_path: Path) -> None:
    start_host(hosts, 1)
    job = Job(tmp_path, hosts, rounds=40)
    eventually(job.stores, "local stores of the job", timeout=150)
    told = job.result()
    late = told.places[20:]  # executors may register one after the other, and get their share then
    assert {host_of(place) for place in late[-1].values()} == {"tide0", "tide1"}
    assert moves(late) <= 1, f"{moves(late)} in {len(late)} rounds of {PARALLELISM} subtasks"
    assert told.attempts == 1
    assert told.rebuilds <= 2 * PARALLELISM
    job.assert_counted_exactly_once()
    assert job.stores() == [], "each host removes what it has of a job that is over"


def test_a_lost_host_costs_its_state_only(hosts: Cluster, tmp_path: Path) -> None:
    start_host(hosts, 1)
    job = Job(tmp_path, hosts, rounds=40)
    eventually(lambda: job.rounds() >= 22, "rounds on two hosts", timeout=150)
    hosts.lose_worker(1)
    told = job.result()
    settled = told.places[20]
    assert {host_of(place) for place in settled.values()} == {"tide0", "tide1"}
    stayed = [s for s, place in settled.items() if host_of(place) == "tide0"]
    assert all(host_of(now[s]) == "tide0" for now in told.places[20:] for s in stayed if s in now)
    assert {host_of(place) for place in told.places[-1].values()} == {"tide0"}
    job.assert_counted_exactly_once()


@pytest.mark.slow
def test_a_host_that_comes_late_gets_its_share_and_the_other_tasks_stay(hosts: Cluster, tmp_path: Path) -> None:
    job = Job(tmp_path, hosts, rounds=110)
    eventually(lambda: job.rounds() >= 3, "rounds on one host", timeout=150)
    start_host(hosts, 1)
    told = job.result()
    assert Counter(map(host_of, told.places[0].values())) == {"tide0": PARALLELISM}
    assert Counter(map(host_of, told.places[-1].values())) == {"tide0": PARALLELISM // 2, "tide1": PARALLELISM // 2}
    assert moves(told.places) <= PARALLELISM, "two that move to their new home, or wait elsewhere first"
    job.assert_counted_exactly_once()
