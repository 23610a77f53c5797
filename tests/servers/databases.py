"""PostgreSQL and MariaDB as servers of the tests, with one user who needs a password."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pymysql

from tests.servers.server import Server, binary

PASSWORD = "planted-7f3a-secret"
"""Of every user of the tests' servers: it must be in no message, log or file."""


def postgresql(**settings: str) -> Server:
    """``settings``: of postgresql.conf."""
    program = binary("postgres", "postgresql", "/usr/lib/postgresql/*/bin/postgres")

    def prepare(server: Server) -> None:
        secret = server.directory / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        tool = str(Path(program).with_name("initdb"))
        options = ["-U", "tide", "-A", "scram-sha-256", f"--pwfile={secret}", "--encoding=UTF8", "--no-locale"]
        server.run(tool, "-D", str(server.directory / "data"), "--no-sync", *options)
        secret.unlink()

    def command(server: Server) -> list[str]:
        own = {
            "port": str(server.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_prepared_transactions": "100",
            "max_connections": "100",
            "fsync": "off",  # a killed process loses nothing that it wrote; only a killed machine would
            **settings,
        }
        options = [part for key, value in own.items() for part in ("-c", f"{key}={value}")]
        return [program, "-D", str(server.directory / "data"), *options]

    return Server(
        "postgresql",
        command,
        prepare=prepare,
        answers=lambda s: psycopg.connect(postgresql_url(s)).close(),
        user="postgres",
    )


def postgresql_url(server: Server, password: str = PASSWORD) -> str:
    return f"postgresql://tide:{password}@127.0.0.1:{server.port}/postgres"


def mariadb(**settings: str) -> Server:
    """``settings``: options of mariadbd."""
    program = binary("mariadbd", "mariadb-server")

    def prepare(server: Server) -> None:
        tool = binary("mariadb-install-db", "mariadb-server")
        options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        server.run(tool, "--no-defaults", f"--datadir={server.directory}/data", *options)
        grants = f"CREATE DATABASE IF NOT EXISTS tests; CREATE USER IF NOT EXISTS tide@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n"
        grants += "GRANT ALL ON *.* TO tide@'127.0.0.1' WITH GRANT OPTION;\n"
        (server.directory / "init.sql").write_text(grants.replace("; ", ";\n"))

    def command(server: Server) -> list[str]:
        own = {
            "datadir": f"{server.directory}/data",
            "port": str(server.port),
            "bind-address": "127.0.0.1",
            "socket": f"{server.directory}/socket",
            "pid-file": f"{server.directory}/pid",
            "init-file": f"{server.directory}/init.sql",
            "skip-name-resolve": "1",
            "innodb-flush-log-at-trx-commit": "2",
            **settings,
        }
        return [program, "--no-defaults", *(f"--{key}={value}" for key, value in own.items())]

    return Server("mariadb", command, prepare=prepare, answers=lambda s: connect_mariadb(s).close(), user="mysql")


def connect_mariadb(server: Server) -> pymysql.Connection:  # type: ignore[type-arg]
    return pymysql.connect(
        host="127.0.0.1", port=server.port, user="tide", password=PASSWORD, database="tests", autocommit=True
    )
