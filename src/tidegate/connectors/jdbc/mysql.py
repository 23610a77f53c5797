"""MariaDB and MySQL by a JDBC URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from urllib.parse import unquote, urlsplit

import pymysql
from pymysql.cursors import RE_INSERT_VALUES

from tidegate.base.errors import ConfigurationError, TidegateError
from tidegate.common.typeinfo import TypeInformation
from tidegate.connectors.jdbc.statement import Batches, Rows, Statement
from tidegate.connectors.mysql.session import code_of, translated
from tidegate.connectors.mysql.sink import MySqlDatabase

_NOT_PREPARED = 1295
"""The server cannot prepare a statement of this kind; the statement may still be valid."""
_OFF = {"", "false", "disabled", "disable", "preferred"}


def database_of(
    authority: str, database: str, parameters: Mapping[str, str], user: str | None, password: str | None
) -> tuple[MySqlDatabase, list[str]]:
    """The database of a URL, and the parameters without a counterpart."""
    try:
        parts = urlsplit(f"//{authority}")
        host, port = parts.hostname or "", parts.port or 3306
    except ValueError:
        host, port = "", 0
    who = user or parameters.get("user") or unquote(parts.username or "" if host else "")
    if not host or "," in authority or not database or not who:
        raise ConfigurationError(
            "A JDBC URL of MariaDB and MySQL names one host and a database, and needs a user",
            where="JdbcSink.sink",
            found=f"host {host!r}, database {database!r}, user {who!r}",
            cure='with_url("jdbc:mariadb://host:3306/database").with_user_name("writer")',
        )
    ca = parameters.get("serverSslCert")
    wanted = [
        key for key in ("sslMode", "useSSL", "useSsl", "requireSSL") if parameters.get(key, "").lower() not in _OFF
    ]
    if wanted and ca is None:
        raise ConfigurationError(
            "An encrypted connection needs the certificate that has signed the server's",
            where="JdbcSink.sink",
            found=f"{', '.join(wanted)} in the URL, and no serverSslCert",
            cure="add serverSslCert=/path/of/ca.pem to the URL",
        )
    secret = password if password is not None else unquote(parts.password or "")
    ignored = sorted(
        set(parameters) - {"user", "password", "serverSslCert", "sslMode", "useSSL", "useSsl", "requireSSL"}
    )
    return MySqlDatabase(host, port, who, database, secret, ca), ignored


class MySqlBatches(Batches):
    """Send the rows of a plain INSERT in one statement, others one by one."""

    errors = (pymysql.Error, OSError)

    def __init__(
        self, database: MySqlDatabase, statement: Statement, types: Sequence[TypeInformation], *, patient: bool
    ) -> None:
        self._where = database.where
        self._formatted = statement.formatted()
        plain = RE_INSERT_VALUES.match(self._formatted)
        self._at_once = plain is not None and "%" not in (plain[3] or "")  # the driver puts no values after the list
        self._connection = database.connected(patient=patient)
        self._check(statement)

    def _check(self, statement: Statement) -> None:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("PREPARE tidegate_check FROM %s", (statement.marked(),))
                cursor.execute("DEALLOCATE PREPARE tidegate_check")
        except self.errors as error:
            if code_of(error) != _NOT_PREPARED:
                self.close()
                raise self._typed(error, "") from None

    def _execute(self, command: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(command)

    def _send(self, rows: Rows) -> None:
        with self._connection.cursor() as cursor:
            if self._at_once:
                cursor.executemany(self._formatted, rows)
                return
            for row in rows:
                cursor.execute(self._formatted, row)

    def _typed(self, error: Exception, row: str) -> TidegateError:
        return translated(error, self._where, "the statement", row)

    def close(self) -> None:
        with suppress(*self.errors):
            self._connection.close()


connect = MySqlBatches
