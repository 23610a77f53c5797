"""A driver is killed while its database is away: the supervisor starts it again, and it waits as its restart strategy says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.servers.databases import postgresql_url
from tests.servers.server import Server
from tests.waiting import eventually
from tidegate.control import registry
from tidegate.control.registry import JobRecord

COUNT = 2000
PROGRAM = """
import sys
from tidegate.common import Configuration, Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment, executor
from tidegate.datastream.connectors.datagen import DataGeneratorSource
from tidegate.datastream.connectors.postgresql import PostgreSqlSink, Table
from tests.simulation.executor import SimulatedExecutor

executor.register_executor("simulated", SimulatedExecutor)
url, directory, count = sys.argv[1:]
keys = {"execution.target": "simulated", "execution.checkpointing.dir": directory, "execution.checkpointing.interval": "50 ms"}
keys |= {"restart-strategy.exponential-delay.max-backoff": "1 s"}
env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(keys)).set_parallelism(1)
source = DataGeneratorSource(lambda index: (index,), int(count), records_per_second=500)
rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows", Types.TUPLE([Types.LONG()])).uid("rows")
rows.sink_to(PostgreSqlSink(url, Table("supervised", ["id"]), patience_ms=500)).uid("table")
env.execute("supervised")
"""


def rows(server: Server) -> list[int]:
    with psycopg.connect(postgresql_url(server)) as connection:
        return [number for (number,) in connection.execute("SELECT id FROM supervised ORDER BY id")]


def latest(state: str) -> JobRecord | None:
    found = [record for record in registry.records() if record.state == state]
    return found[-1] if found else None


def test_driver_killed_while_its_database_is_away_continues_when_the_database_is_back(
    postgresql: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "home"))
    (tmp_path / "job.py").write_text(PROGRAM)
    with psycopg.connect(postgresql_url(postgresql)) as connection:
        connection.execute("CREATE TABLE supervised (id BIGINT)")
    options = ["--supervise", "-Dexecution.target=simulated", "job.py"]
    command = [sys.executable, "-m", "tidegate.cli", "run", *options, postgresql_url(postgresql), f"{tmp_path}/ck"]
    log = tmp_path / "log"
    with log.open("wb") as out:
        supervisor = subprocess.Popen([*command, str(COUNT)], cwd=tmp_path, stdout=out, stderr=out)
    try:
        eventually(lambda: rows(postgresql), "rows are committed")
        first = eventually(lambda: latest("RUNNING"), "the job is registered")
        os.kill(first.owner.pid, signal.SIGSTOP)  # it does not see the database go
        postgresql.kill()
        os.kill(first.owner.pid, signal.SIGKILL)
        again = eventually(lambda: latest("RESTARTING"), "the new driver waits for the database")
        assert again.owner.pid != first.owner.pid and again.job_id == first.job_id
        eventually(lambda: log.read_text().count("same failure as before, retried") >= 2, "it goes on waiting")
        assert supervisor.poll() is None, log.read_text()
    finally:
        postgresql.start()
        if sys.exc_info()[0] is not None:
            supervisor.terminate()
    assert supervisor.wait(240) == 0, log.read_text()
    assert rows(postgresql) == list(range(COUNT))
