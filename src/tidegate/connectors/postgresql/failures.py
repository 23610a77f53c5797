"""What PostgreSQL's errors mean for a job: typed, with the row's key where a row is to blame, and without a password."""

from __future__ import annotations

import re
from collections.abc import Callable

import psycopg
from psycopg import errors

from tidegate.base.errors import AccessError, ConfigurationError, RowError, ServiceError, TidegateError

_ACCESS = (errors.InvalidAuthorizationSpecification, errors.InvalidPassword, errors.InsufficientPrivilege)
_NOT_LET_IN = re.compile(r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist")
_NO_DATABASE = re.compile(r"database .* does not exist")
"""What a connection that is refused says: it has no code."""
_MISSING = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidCatalogName, errors.InvalidSchemaName)


def translated(
    error: psycopg.Error,
    where: str,
    *,
    holders: Callable[[], str] = lambda: "",
    table: str = "",
    row: str = "",
) -> TidegateError:
    """``holders``: who has prepared transactions, for a lock that was not given. ``row``: which one was being written, and into
    which table; empty where the server did not say enough."""
    found = _found(error)
    if isinstance(error, _ACCESS) or (error.sqlstate is None and _NOT_LET_IN.search(found)):
        return AccessError(
            "PostgreSQL must let the sink in, and let it write",
            where=where,
            found=found,
            cure="check user and password (or ~/.pgpass), and GRANT what is missing",
        )
    if error.sqlstate is None and _NO_DATABASE.search(found):
        return ConfigurationError(
            "The database of the sink must be there",
            where=where,
            found=found,
            cure="check the end of the URL, postgresql://user@host:5432/database, or CREATE DATABASE",
        )
    if isinstance(error, errors.LockNotAvailable | errors.DeadlockDetected):
        return ServiceError(
            "A lock that the sink needs must be given within lock_timeout_ms",
            where=where,
            found=f"{found}; {holders()}",
            cure="see pg_locks for who holds it. Two subtasks that write the same key wait for each other: key_by that key "
            "before the sink. A prepared transaction of a job that is gone: ROLLBACK PREPARED",
        )
    if isinstance(error, errors.DiskFull) or "could not extend file" in found:
        return ServiceError("The database server has no space left", where=where, found=found, cure="make room there")
    if isinstance(error, errors.OutOfMemory) and "max_prepared_transactions" in found:
        return ServiceError(
            "The server must take the prepared transactions of all subtasks, twice",
            where=where,
            found=found,
            cure="raise max_prepared_transactions in postgresql.conf and restart it, or look for forgotten ones in "
            "pg_prepared_xacts",
        )
    if isinstance(error, _MISSING):
        return ConfigurationError("A table of the sink must be there", where=where, found=found, cure="see the names")
    if isinstance(error, errors.CardinalityViolation):
        return RowError(
            "Two rows of a batch have the same key in the database, and different ones in Python",
            where=where,
            found=found,
            cure="make keys equal before the sink: the same type, case and precision",
        )
    if isinstance(error, psycopg.IntegrityError):
        name = error.diag.constraint_name or f"NOT NULL of {error.diag.column_name}"
        return RowError(
            f"A row violates a constraint of {error.diag.table_name}: {name}",
            where=f"{where}; row {row}" if row else where,
            found=found,
            cure="filter or correct such records before the sink",
        )
    if isinstance(error, psycopg.DataError):
        return RowError(
            f"A value does not fit its column of {table}",
            where=f"{where}; row {row}" if row else where,
            found=found,
            cure="convert or filter such records before the sink",
        )
    if isinstance(error, psycopg.ProgrammingError | psycopg.NotSupportedError):
        return ConfigurationError("The database refuses a statement of the sink", where=where, found=found)
    return ServiceError(
        "The database must answer",
        where=where,
        found=found,
        cure="see whether the server is up, and host and port are right",
    )


def _found(error: psycopg.Error) -> str:
    """Without the server's advice and the statement. What libpq says of a connection names host and user, never a password."""
    diag = error.diag
    parts = [diag.message_primary or str(error).strip() or type(error).__name__, diag.message_detail, diag.context]
    return "; ".join(part.splitlines()[0] for part in parts if part)
