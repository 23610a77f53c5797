"""What errors of PostgreSQL mean for a job."""

from __future__ import annotations

import re
from collections.abc import Callable

import psycopg
from psycopg import errors

from tidegate.base.errors import TidegateError
from tidegate.connectors.sql.failures import DatabaseFailure

_ACCESS = (errors.InvalidAuthorizationSpecification, errors.InvalidPassword, errors.InsufficientPrivilege)
_NOT_LET_IN = re.compile(r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist")
_NO_DATABASE = re.compile(r"database .* does not exist")
"""Texts of a refused connection, which has no code."""
_MISSING = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidCatalogName, errors.InvalidSchemaName)
_CURES = {
    DatabaseFailure.ACCESS: "check user and password (or ~/.pgpass), and GRANT the missing rights",
    DatabaseFailure.NO_DATABASE: "check the end of the URL, postgresql://user@host:5432/database, or CREATE DATABASE",
    DatabaseFailure.LOCKED: "find the holder in pg_locks. Two subtasks that write the same key wait for each other: key_by that "
    "key before the sink. A prepared transaction of a job that no longer exists: ROLLBACK PREPARED",
    DatabaseFailure.NO_ROOM: "raise max_prepared_transactions in postgresql.conf (two for each subtask of a sink) and restart the "
    "server, or roll back forgotten ones of pg_prepared_xacts",
}


def translated(
    error: psycopg.Error,
    where: str,
    *,
    holders: Callable[[], str] = lambda: "",
    table: str = "",
    row: str = "",
) -> TidegateError:
    """The typed error for an error of the driver. ``holders`` names prepared transactions, where a lock was not given.
    ``row``: the refused row of ``table``; empty where the server did not say enough."""
    found = _found(error)
    failure = _failure(error, found)
    if failure is DatabaseFailure.LOCKED:
        found = f"{found}; {holders()}"
    if failure is DatabaseFailure.CONSTRAINT:
        name = error.diag.constraint_name or f"NOT NULL of {error.diag.column_name}"
        table = f"{error.diag.table_name}: {name}"
    return failure.error(where, found, cure=_CURES.get(failure), table=table, row=row)


def _failure(error: psycopg.Error, found: str) -> DatabaseFailure:
    if isinstance(error, _ACCESS) or (error.sqlstate is None and _NOT_LET_IN.search(found)):
        return DatabaseFailure.ACCESS
    if error.sqlstate is None and _NO_DATABASE.search(found):
        return DatabaseFailure.NO_DATABASE
    if isinstance(error, errors.LockNotAvailable | errors.DeadlockDetected):
        return DatabaseFailure.LOCKED
    if isinstance(error, errors.DiskFull) or "could not extend file" in found:
        return DatabaseFailure.FULL
    if isinstance(error, errors.OutOfMemory) and "max_prepared_transactions" in found:
        return DatabaseFailure.NO_ROOM
    if isinstance(error, _MISSING):
        return DatabaseFailure.NO_TABLE
    if isinstance(error, errors.CardinalityViolation):
        return DatabaseFailure.SAME_KEY
    if isinstance(error, psycopg.IntegrityError):
        return DatabaseFailure.CONSTRAINT
    if isinstance(error, psycopg.DataError):
        return DatabaseFailure.VALUE
    if isinstance(error, psycopg.ProgrammingError | psycopg.NotSupportedError):
        return DatabaseFailure.STATEMENT
    return DatabaseFailure.NO_ANSWER


def _found(error: psycopg.Error) -> str:
    """Without the server's hints and the statement. A connection error of libpq names host and user, never a password."""
    diag = error.diag
    parts = [diag.message_primary or str(error).strip() or type(error).__name__, diag.message_detail, diag.context]
    return "; ".join(part.splitlines()[0] for part in parts if part)
