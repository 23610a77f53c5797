"""The database sinks under the contract suite of committing sinks, on real servers: new rows and upserts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.servers.sql_cases import LABEL, Target
from tidegate.connectors.sql.sink import SqlSink
from tidegate.datastream.connectors.postgresql import Table
from tidegate.testing.sink_contract import SinkContract


class DatabaseContract(SinkContract):
    """Each test directory has a table, and a bookkeeping table."""

    seeds = 3
    server = "postgresql"
    key: tuple[str, ...] = ()

    @pytest.fixture(autouse=True)
    def _target(self, request: pytest.FixtureRequest) -> None:
        self.target, self.made = Target(request.getfixturevalue(self.server)), dict[str, str]()

    # Workers that die at each point are in test_sql_crashes.py too, and for every day.
    test_killed_at_any_point_of_an_attempt = pytest.mark.slow(SinkContract.test_killed_at_any_point_of_an_attempt)
    test_killed_at_any_point_of_a_restore = pytest.mark.slow(SinkContract.test_killed_at_any_point_of_a_restore)

    def table(self, directory: Path) -> str:
        if str(directory) not in self.made:
            columns = "id bigint, label varchar(200)" + (", PRIMARY KEY (id)" if self.key else "")
            self.made[str(directory)] = self.target.new_table(columns)
        return self.made[str(directory)]

    def make_sink(self, directory: Path) -> SqlSink:
        table = self.table(directory)
        sink = self.target.sink(Table(table, ["id", "label"], self.key), bookkeeping=f"marks_{table}")
        sink.validate()
        return sink

    def value(self, number: int) -> Any:
        return (number, f"{LABEL} {number}")

    def visible(self, directory: Path) -> list[Any]:
        return self.target.rows(self.table(directory))

    def leftovers(self, directory: Path) -> list[str]:
        """Prepared transactions, markers of settled commits, staged files."""
        marks = f"SELECT name FROM marks_{self.table(directory)} WHERE name LIKE 'tidegate%'"
        staged = [str(path) for path in directory.glob("staging/rows/*")]
        return self.target.prepared() + [name for (name,) in self.target.ask(marks)] + staged


class TestPostgreSqlCopy(DatabaseContract):
    pass


class TestPostgreSqlUpserts(DatabaseContract):
    key = ("id",)


class TestMariaDbUpserts(DatabaseContract):
    server, key = "mariadb", ("id",)
