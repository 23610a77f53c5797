"""The PostgreSQL sink under the contract suite of committing sinks, on a real server: rows of COPY and upserts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from databases import postgresql_url
from server import Server

from tidegate.common.ids import new_token
from tidegate.datastream.connectors.postgresql import PostgreSqlSink, Table
from tidegate.testing.sink_contract import SinkContract


class TestPostgreSqlCopy(SinkContract):
    """Each test directory has a table, and a table of markers."""

    key: tuple[str, ...] = ()
    seeds = 5

    @pytest.fixture(autouse=True)
    def _server(self, postgresql: Server) -> Any:
        self.url = postgresql_url(postgresql)
        self.made: dict[str, str] = {}
        with psycopg.connect(self.url, autocommit=True) as self.reader:
            yield

    def table(self, directory: Path) -> str:
        name = self.made.get(str(directory))
        if name is None:
            name = self.made[str(directory)] = f"t_{new_token()}"
            unique = ", PRIMARY KEY (id)" if self.key else ""
            self.reader.execute(f"CREATE TABLE {name} (id bigint, label text{unique})")
        return name

    def make_sink(self, directory: Path) -> PostgreSqlSink:
        table = Table(self.table(directory), ["id", "label"], self.key)
        sink = PostgreSqlSink(self.url, table, bookkeeping=f"marks_{self.table(directory)}")
        sink.validate()
        return sink

    def value(self, number: int) -> Any:
        return (number, f"tab\t, line\n, {number}, \\ and \" and '")

    def visible(self, directory: Path) -> list[Any]:
        return self.reader.execute(f"SELECT id, label FROM {self.table(directory)}").fetchall()

    def leftovers(self, directory: Path) -> list[str]:
        """Prepared transactions, markers of settled commits, staged files."""
        prepared = self.reader.execute("SELECT gid FROM pg_prepared_xacts").fetchall()
        marks = f"SELECT name FROM marks_{self.table(directory)} WHERE name <> '' AND name NOT LIKE '@%'"
        staged = [str(path) for path in directory.glob("staging/rows/*")]
        return [name for (name,) in [*prepared, *self.reader.execute(marks).fetchall()]] + staged


class TestPostgreSqlUpserts(TestPostgreSqlCopy):
    key = ("id",)
