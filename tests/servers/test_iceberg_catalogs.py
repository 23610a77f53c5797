"""Iceberg's SQL catalogs on their databases: of drivers that append the same checkpoint at the same moment, one gets through."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.servers import databases
from tests.servers.server import Server
from tidegate.base import faults
from tidegate.base.errors import RetryableCommitError, ServiceError
from tidegate.common import Row, Types
from tidegate.connectors.tables.iceberg import IcebergSink
from tidegate.testing.sink_run import SinkRun

CHECKPOINTS, ROWS = 6, 3
ROW = Types.ROW_NAMED(["n"], [Types.LONG()])


def address(server: Server, **options: str) -> str:
    return databases.postgresql_url(server, **options).replace("postgresql:", "postgresql+psycopg:")


def sink_of(uri: str, directory: Path) -> IcebergSink:
    lake = {"type": "sql", "uri": uri, "warehouse": f"file://{directory}/warehouse"}
    return IcebergSink("lake", f"a.{directory.name.replace('-', '_')}", ROW, catalog_properties=lake)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_drivers_append_the_same_checkpoint_at_the_same_moment(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sqlite = f"sqlite:///{tmp_path}/catalog.db"
    sink = sink_of(sqlite if kind == "sqlite" else address(request.getfixturevalue(kind)), tmp_path)
    run = SinkRun(sink, str(tmp_path / "staging"), lambda n: Row(n=n))
    both, refused = threading.Barrier(2), list[str]()

    def hook(name: str, where: dict[str, Any]) -> None:
        if name == "K3.table.append":
            both.wait()  # each has looked, and found that the checkpoint is not there

    def commit(committer: Any, pending: list[Any]) -> None:
        try:
            committer.commit(pending)
        except RetryableCommitError as error:
            refused.append(str(error))

    sink.create_table()
    for _ in range(CHECKPOINTS):
        run.accept(run.attempt(ROWS, checkpoint=True), ROWS)
        run.complete()
        drivers = [threading.Thread(target=commit, args=(run.new_committer(), list(run.pending))) for _ in range(2)]
        faults.install(hook)
        try:
            for driver in drivers:
                driver.start()
            for driver in drivers:
                driver.join()
        finally:
            faults.install(None)
        run.commit()
    assert len(refused) == CHECKPOINTS and all("CommitFailedException" in text for text in refused), refused
    assert sorted(sink.table().scan().to_arrow()["n"].to_pylist()) == list(range(CHECKPOINTS * ROWS))


def test_commits_leave_no_connections(postgresql: Server, tmp_path: Path) -> None:
    sink = sink_of(f"{address(postgresql)}?application_name=counted", tmp_path)
    run = SinkRun(sink, str(tmp_path / "staging"), lambda n: Row(n=n))
    gc.disable()  # which would close those that nobody has
    try:
        for _ in range(CHECKPOINTS):
            run.step(ROWS, checkpoint=True)
        with psycopg.connect(databases.postgresql_url(postgresql)) as connection:
            asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'"
            assert connection.execute(asked).fetchall() == [(1,)]
    finally:
        gc.enable()


def test_a_database_that_does_not_let_the_catalog_in(postgresql: Server, tmp_path: Path) -> None:
    wrong = "planted-wrong-password"
    with pytest.raises(ServiceError, match=r"does not answer(.|\n)*password authentication failed") as caught:
        sink_of(address(postgresql, password=wrong), tmp_path).validate()
    assert wrong not in str(caught.value)
