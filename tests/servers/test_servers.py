"""The servers of this folder: they start, keep what was committed over a SIGKILL, and leave nothing behind."""

from __future__ import annotations

import psycopg

from tests.servers import databases
from tests.servers.server import Server


def test_postgresql_keeps_prepared_transactions_over_a_kill(postgresql: Server) -> None:
    with databases.postgresql() as own:
        with psycopg.connect(databases.postgresql_url(own), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept (n int)")
            connection.execute("BEGIN")
            connection.execute("INSERT INTO kept VALUES (1)")
            connection.execute("PREPARE TRANSACTION 'p'")
        own.kill()
        own.start()
        with psycopg.connect(databases.postgresql_url(own), autocommit=True) as connection:
            connection.execute("COMMIT PREPARED 'p'")
            assert connection.execute("SELECT n FROM kept").fetchall() == [(1,)]
        assert own.port != postgresql.port
        directory = own.directory
    assert not directory.exists()


def test_mariadb_keeps_prepared_transactions_over_a_kill() -> None:
    with databases.mariadb() as own:
        with databases.connect_mariadb(own) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE kept (n int) ENGINE=InnoDB")
            for statement in ("XA START 'p'", "INSERT INTO kept VALUES (1)", "XA END 'p'", "XA PREPARE 'p'"):
                cursor.execute(statement)
        own.kill()
        own.start()
        with databases.connect_mariadb(own) as connection, connection.cursor() as cursor:
            cursor.execute("XA COMMIT 'p'")
            cursor.execute("SELECT n FROM kept")
            assert list(cursor.fetchall()) == [(1,)]
        directory = own.directory
    assert not directory.exists()
