"""The password of a server is in no file of a job, in no log and in no message: a planted one is looked for everywhere."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.servers import databases
from tests.servers.redis_servers import client_of, redis_server, url_of
from tests.servers.server import Server
from tests.servers.sql_cases import Target
from tidegate.base.errors import TidegateError
from tidegate.common import Types
from tidegate.connectors.redis.sink import RedisSink
from tidegate.connectors.tables.iceberg import IcebergSink
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcSink
from tidegate.datastream.connectors.postgresql import Table
from tidegate.graph.transformation import Input, Program, Transformation
from tidegate.operators.contracts.sink import Sink
from tidegate.operators.contracts.specs import MapSpec, SinkSpec, SourceSpec
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine


def run_job(directory: Path, *sinks: Sink, label: Any = str) -> str:
    """Its files stay. The message it ended with, if it failed."""
    numbers = Transformation(1, "numbers", SourceSpec(NumberSequenceSource(0, 39)))
    rows = Transformation(2, "rows", MapSpec(lambda n: (n, label(n))), (Input(1),))
    written = [Transformation(3 + n, f"sink {n}", SinkSpec(sink), (Input(2),)) for n, sink in enumerate(sinks)]
    settings: dict[str, Any] = {
        "execution.checkpointing.interval": 10,
        "execution.checkpointing.dir": f"{directory}/checkpoints",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.tolerable-failed-checkpoints": 1,
        "restart-strategy.type": "none",
        "tidegate.commit.backoff": 1,
        "tidegate.round.max-records": 5,
        "tidegate.job-id": "secrets",
        "parallelism.default": 1,
    }
    program = Program("secrets", (numbers, rows, *written), settings)
    try:
        JobMaster(program, SimulatedEngine(seed=1), local_root=f"{directory}/local").run()
    except TidegateError as error:
        return f"{error} {error!r}"
    return ""


def found_in(directory: Path) -> list[str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert files, "a job leaves files"
    return [str(path) for path in files if databases.PASSWORD.encode() in path.read_bytes()]


@pytest.mark.parametrize("fails", [False, True])
def test_databases(target: Target, tmp_path: Path, caplog: pytest.LogCaptureFixture, fails: bool) -> None:
    caplog.set_level(logging.DEBUG)
    table = target.new_table("id bigint PRIMARY KEY, label varchar(3)")
    message = run_job(
        tmp_path,
        target.sink(Table(table, ["id", "label"], ["id"])),
        label=lambda n: "too long" if fails and n == 37 else str(n),
    )
    assert bool(message) == fails and (not fails or "does not fit" in message)
    assert found_in(tmp_path) == [] and databases.PASSWORD not in message + caplog.text
    target.end_prepared()


@pytest.mark.parametrize("fails", [False, True])
def test_jdbc(target: Target, tmp_path: Path, caplog: pytest.LogCaptureFixture, fails: bool) -> None:
    caplog.set_level(logging.DEBUG)
    table = target.new_table("id bigint, label varchar(3)")
    kind, database = ("postgresql", "postgres") if target.is_postgresql else ("mysql", "tests")
    url = f"jdbc:{kind}://127.0.0.1:{target.server.port}/{database}?user=tide&password={databases.PASSWORD}"
    options = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(url).build()
    row_type = Types.ROW([Types.LONG(), Types.STRING()])
    message = run_job(
        tmp_path,
        JdbcSink.sink(f"INSERT INTO {table} VALUES (?, ?)", row_type, options),
        label=lambda n: "too long" if fails and n == 37 else str(n),
    )
    assert bool(message) == fails and (not fails or "row (37, 'too long')" in message)
    assert found_in(tmp_path) == [] and databases.PASSWORD not in message + caplog.text + repr(options)


@pytest.mark.parametrize("fails", [False, True])
def test_redis(tmp_path: Path, caplog: pytest.LogCaptureFixture, fails: bool) -> None:
    caplog.set_level(logging.DEBUG)
    with redis_server() as server, client_of(server) as client:
        if fails:
            client.set("c1", "no number")
        message = run_job(tmp_path, RedisSink.increments(url_of(server), lambda row: f"c{row[0] % 3}"))
    assert bool(message) == fails and (not fails or "key c1 holds no whole number" in message)
    assert found_in(tmp_path) == [] and databases.PASSWORD not in message + caplog.text


@pytest.mark.parametrize("fails", [False, True])
def test_a_catalog_of_iceberg(
    postgresql: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    uri = databases.postgresql_url(postgresql).replace("postgresql:", "postgresql+psycopg:")
    row_type = Types.ROW_NAMED(["id", "label"], [Types.LONG(), Types.STRING()])
    lake = {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/warehouse"}
    sink = IcebergSink("lake", f"secrets.labels_{fails}", row_type, catalog_properties=lake)
    message = run_job(tmp_path, sink, label=lambda n: 5 if fails and n == 37 else str(n))
    assert bool(message) == fails and (not fails or "label" in message)
    assert fails or len(sink.table().scan().to_arrow()) == 40  # a job that fails early makes no table
    assert found_in(tmp_path) == [] and databases.PASSWORD not in message + caplog.text
