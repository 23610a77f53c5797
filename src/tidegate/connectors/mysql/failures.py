"""What errors of MariaDB and MySQL mean for a job: typed, with the row's key where a row is to blame, without a password."""

from __future__ import annotations

import pymysql

from tidegate.base.errors import AccessError, ConfigurationError, RowError, ServiceError, TidegateError

UNKNOWN_XID = 1397
BUSY_XID = (1399, 1440)
ROLLED_BACK = (1402, 1613, 1614)
_ACCESS = {1044, 1045, 1142, 1143, 1227, 1698}
_LOCKED = {1205, 1213}
_NO_DATABASE = 1049
_MISSING = {1054, 1146}
_FULL = {1021, 1114, 3, 28}
_CONSTRAINT = {1062, 1048, 1451, 1452, 1557, 1586, 1216, 1217, 3819, 4025}
_VALUE = {1264, 1265, 1292, 1366, 1367, 1406, 1411, 1364}
OF_A_ROW = _CONSTRAINT | _VALUE


def code_of(error: pymysql.Error) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def translated(error: pymysql.Error, where: str, table: str = "its table", row: str = "") -> TidegateError:
    """``row``: which one was being written, and into which table."""
    code, found = code_of(error), str(error.args[1] if len(error.args) > 1 else error)
    if code in _ACCESS:
        return AccessError(
            "The database must let the sink in, and let it write",
            where=where,
            found=found,
            cure="check user and password, and GRANT what is missing",
        )
    if code in _LOCKED:
        return ServiceError(
            "A lock that the sink needs must be given within lock_timeout_ms",
            where=where,
            found=found,
            cure="see information_schema.innodb_trx for who holds it, and XA RECOVER. Two subtasks that write the same key "
            "wait for each other: key_by that key before the sink",
        )
    if code in ROLLED_BACK:
        return ServiceError(
            "A transaction of the sink must last until its checkpoint is complete",
            where=where,
            found=f"the server has rolled it back: {found}",
            cure="see the server's log; the round is run again",
        )
    if code in _FULL:
        return ServiceError("The database server has no space left", where=where, found=found, cure="make room there")
    if code == _NO_DATABASE:
        return ConfigurationError(
            "The database of the sink must be there",
            where=where,
            found=found,
            cure="check the end of the URL, mysql://user@host:3306/database, or CREATE DATABASE",
        )
    if code in _MISSING:
        return ConfigurationError("A table of the sink must be there", where=where, found=found, cure="see the names")
    if code in _CONSTRAINT:
        return RowError(
            f"A row violates a constraint of {table}",
            where=f"{where}; row {row}" if row else where,
            found=found,
            cure="filter or correct such records before the sink",
        )
    if code in _VALUE:
        return RowError(
            f"A value does not fit its column of {table}",
            where=f"{where}; row {row}" if row else where,
            found=found,
            cure="convert or filter such records before the sink",
        )
    if isinstance(error, pymysql.err.ProgrammingError | pymysql.err.NotSupportedError):
        return ConfigurationError("The database refuses a statement of the sink", where=where, found=found)
    return ServiceError(
        "The database must answer",
        where=where,
        found=found,
        cure="see whether the server is up, and host and port are right",
    )
