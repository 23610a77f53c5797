"""What tests of both databases ask of them, as an outside reader: tables, rows, prepared transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from tests.servers import databases
from tests.servers.server import Server
from tidegate.base.hashing import new_token
from tidegate.connectors.sql.sink import SqlSink
from tidegate.datastream.connectors.mysql import MySqlSink
from tidegate.datastream.connectors.postgresql import PostgreSqlSink, Table

LABEL = "tab\t, line\n, percent % %s, \\ and \" and ' {0}"
"""Of row 0: whatever a format could stumble over."""


class Target:
    """A database with its server: makes tables and sinks, and reads."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @property
    def is_postgresql(self) -> bool:
        return self.server.name == "postgresql"

    @property
    def url(self) -> str:
        if self.is_postgresql:
            return databases.postgresql_url(self.server)
        return f"mysql://tide:{databases.PASSWORD}@127.0.0.1:{self.server.port}/tests"

    def sink(self, *tables: Table, **settings: Any) -> SqlSink:
        made = (PostgreSqlSink if self.is_postgresql else MySqlSink)(settings.pop("url", self.url), *tables, **settings)
        assert isinstance(made, SqlSink)
        return made

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """On a connection of its own."""
        if self.is_postgresql:
            with psycopg.connect(self.url, autocommit=True) as connection:
                cursor = connection.execute(statement)
                return cursor.fetchall() if cursor.description else []
        with closing(databases.connect_mariadb(self.server)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def new_table(self, columns: str = "id bigint PRIMARY KEY, label varchar(200)") -> str:
        name = f"t_{new_token()}"
        self.ask(f"CREATE TABLE {name} ({columns})")
        return name

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return sorted(self.ask(f"SELECT * FROM {table}"))

    def prepared(self) -> list[str]:
        if self.is_postgresql:
            return [name for (name,) in self.ask("SELECT gid FROM pg_prepared_xacts")]
        return [str(row[3]) for row in self.ask("XA RECOVER")]

    def end_prepared(self) -> None:
        """As a database administrator would."""
        for name in self.prepared():
            if self.is_postgresql:
                self.ask(f"ROLLBACK PREPARED '{name}'")
        if not self.is_postgresql:
            for _, first, _, data in self.ask("XA RECOVER"):
                text = data if isinstance(data, str) else bytes(data).decode()
                self.ask(f"XA ROLLBACK '{text[:first]}','{text[first:]}'")

    def end_other_sessions(self) -> None:
        """As an administrator would, of everybody but the one who asks."""
        if self.is_postgresql:
            self.ask(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = 'tide'"
            )
            return
        with closing(databases.connect_mariadb(self.server)) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE user = 'tide' AND id <> CONNECTION_ID()"
            )
            for (number,) in cursor.fetchall():
                cursor.execute(f"KILL CONNECTION {number}")


@pytest.fixture(params=["postgresql", "mariadb"])
def target(request: pytest.FixtureRequest) -> Target:
    return Target(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def own_targets() -> Iterator[dict[str, Target]]:
    """Servers that may be killed."""
    with databases.postgresql() as first, databases.mariadb() as second:
        yield {"postgresql": Target(first), "mariadb": Target(second)}
