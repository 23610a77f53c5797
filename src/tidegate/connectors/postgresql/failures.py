"""What errors of PostgreSQL mean for a job."""

from __future__ import annotations

import re
from collections.abc import Callable

import psycopg
from psycopg import errors

from tidegate.base.errors import TidegateError
from tidegate.connectors.sql.failures import Failure

_ACCESS = (errors.InvalidAuthorizationSpecification, errors.InvalidPassword, errors.InsufficientPrivilege)
_NOT_LET_IN = re.compile(r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist")
_NO_DATABASE = re.compile(r"database .* does not exist")
"""Texts of a refused connection, which has no code."""
_MISSING = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidCatalogName, errors.InvalidSchemaName)
_CURES = {
    Failure.ACCESS: "check user and password (or ~/.pgpass), and GRANT the missing rights",
    Failure.NO_DATABASE: "check the end of the URL, postgresql://user@host:5432/database, or CREATE DATABASE",
    Failure.LOCKED: "find the holder in pg_locks. Two subtasks that write the same key wait for each other: key_by that key "
    "before the sink. A prepared transaction of a job that no longer exists: ROLLBACK PREPARED",
    Failure.NO_ROOM: "raise max_prepared_transactions in postgresql.conf (two for each subtask of a sink) and restart the server, "
    "or roll back forgotten ones of pg_prepared_xacts",
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
    if failure is Failure.LOCKED:
        found = f"{found}; {holders()}"
    if failure is Failure.CONSTRAINT:
        name = error.diag.constraint_name or f"NOT NULL of {error.diag.column_name}"
        table = f"{error.diag.table_name}: {name}"
    of_a_row = failure in (Failure.CONSTRAINT, Failure.VALUE)
    return failure.error(where, found, cure=_CURES.get(failure), table=table, row=row if of_a_row else "")


def _failure(error: psycopg.Error, found: str) -> Failure:
    if isinstance(error, _ACCESS) or (error.sqlstate is None and _NOT_LET_IN.search(found)):
        return Failure.ACCESS
    if error.sqlstate is None and _NO_DATABASE.search(found):
        return Failure.NO_DATABASE
    if isinstance(error, errors.LockNotAvailable | errors.DeadlockDetected):
        return Failure.LOCKED
    if isinstance(error, errors.DiskFull) or "could not extend file" in found:
        return Failure.FULL
    if isinstance(error, errors.OutOfMemory) and "max_prepared_transactions" in found:
        return Failure.NO_ROOM
    if isinstance(error, _MISSING):
        return Failure.NO_TABLE
    if isinstance(error, errors.CardinalityViolation):
        return Failure.SAME_KEY
    if isinstance(error, psycopg.IntegrityError):
        return Failure.CONSTRAINT
    if isinstance(error, psycopg.DataError):
        return Failure.VALUE
    if isinstance(error, psycopg.ProgrammingError | psycopg.NotSupportedError):
        return Failure.STATEMENT
    return Failure.NO_ANSWER


def _found(error: psycopg.Error) -> str:
    """Without the server's hints and the statement. A connection error of libpq names host and user, never a password."""
    diag = error.diag
    parts = [diag.message_primary or str(error).strip() or type(error).__name__, diag.message_detail, diag.context]
    return "; ".join(part.splitlines()[0] for part in parts if part)
