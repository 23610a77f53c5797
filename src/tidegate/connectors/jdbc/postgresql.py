"""PostgreSQL by a JDBC URL: the parameters of the Java driver for libpq, and batches by psycopg's pipelines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg import errors

from tidegate.base.errors import TidegateError
from tidegate.common.typeinfo import ElementTypeInfo, TypeInformation, is_bytes
from tidegate.connectors.jdbc.statement import Batches, Rows, Statement
from tidegate.connectors.postgresql.session import translated
from tidegate.connectors.postgresql.sink import PostgreSqlDatabase

_PARAMETERS = {
    "user": "user",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "options": "options",
    "ApplicationName": "application_name",
    "connectTimeout": "connect_timeout",
}
"""Parameters of the Java driver that libpq has too."""
_PREPARED = re.compile(r"\s*(insert|update|delete|merge|with|select)\b", re.IGNORECASE)
"""Statements that PREPARE takes."""
_TYPES = {
    **dict.fromkeys(("STRING", "CHAR"), "varchar"),
    "BOOLEAN": "boolean",
    **dict.fromkeys(("BYTE", "SHORT"), "smallint"),
    "INT": "integer",
    "LONG": "bigint",
    "FLOAT": "real",
    "DOUBLE": "double precision",
    **dict.fromkeys(("BIG_INT", "BIG_DEC"), "numeric"),
    **dict.fromkeys(("SQL_DATE", "LOCAL_DATE"), "date"),
    **dict.fromkeys(("SQL_TIME", "LOCAL_TIME"), "time"),
    **dict.fromkeys(("SQL_TIMESTAMP", "LOCAL_DATE_TIME"), "timestamp"),
    "INSTANT": "timestamptz",
}
"""The type in PostgreSQL for each type of a field."""


def database_of(
    authority: str, database: str, parameters: Mapping[str, str], user: str | None, password: str | None
) -> tuple[PostgreSqlDatabase, list[str]]:
    """The database of a URL, and the parameters without a counterpart. ``authority``: hosts with ports."""
    hosts = [host.rpartition(":") if re.search(r":\d+$", host) else (host, "", "") for host in authority.split(",")]
    settings = {"host": ",".join(host.strip("[]") or "localhost" for host, _, _ in hosts)}
    settings["port"] = ",".join(port or "5432" for _, _, port in hosts)
    settings |= {ours: parameters[theirs] for theirs, ours in _PARAMETERS.items() if theirs in parameters}
    if parameters.get("ssl", "false").lower() == "true":
        settings.setdefault("sslmode", "verify-full")
    if "currentSchema" in parameters:
        path = re.sub(r"([\\ ])", r"\\\1", parameters["currentSchema"])
        settings["options"] = f"{settings.get('options', '')} -c search_path={path}".strip()
    if user is not None:
        settings["user"] = user
    if database or "user" in settings:
        settings["dbname"] = database or settings["user"]
    ignored = sorted(set(parameters) - {*_PARAMETERS, "password", "ssl", "currentSchema"})
    return PostgreSqlDatabase(tuple(sorted(settings.items())), password), ignored


class PostgreSqlBatches(Batches):
    errors = (psycopg.Error,)

    def __init__(
        self, database: PostgreSqlDatabase, statement: Statement, types: Sequence[TypeInformation], *, patient: bool
    ) -> None:
        self._where = database.where
        self._connection = database.connected(patient=patient)
        try:
            casts = [_cast(info) for info in types] if self._needs_types(statement) else []
            self._formatted: Any = statement.formatted(casts)
        except psycopg.Error as error:
            self.close()
            raise self._typed(error, "") from None

    def _needs_types(self, statement: Statement) -> bool:
        """Whether the server cannot derive the type of a value from its position. Otherwise values are sent without a type: a
        text then also fits a column of JSON or of times."""
        if _PREPARED.match(statement.texts[0]):
            try:
                self._execute(f"PREPARE tidegate_check AS {statement.numbered()}")
                self._execute("DEALLOCATE tidegate_check")
            except errors.IndeterminateDatatype:
                return True
        return False

    def _execute(self, command: str) -> None:
        self._connection.execute(command.encode())

    def _send(self, rows: Rows) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(self._formatted, rows)

    def _typed(self, error: Exception, row: str) -> TidegateError:
        assert isinstance(error, psycopg.Error)
        return translated(error, self._where, table="the statement", row=row)

    def close(self) -> None:
        self._connection.close()


connect = PostgreSqlBatches


def _cast(info: TypeInformation) -> str:
    if is_bytes(info):
        return "bytea"
    if isinstance(info, ElementTypeInfo):
        return f"{_cast(info.elem_type)}[]"
    return _TYPES[info.describe()]
