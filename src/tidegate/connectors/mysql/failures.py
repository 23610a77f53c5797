"""What errors of MariaDB and MySQL mean for a job."""

from __future__ import annotations

import pymysql

from tidegate.base.errors import TidegateError
from tidegate.connectors.sql.failures import DatabaseFailure

UNKNOWN_XID = 1397
BUSY_XID = (1399, 1440)
ROLLED_BACK = (1402, 1613, 1614)
OF_A_ROW = {
    **dict.fromkeys((1062, 1048, 1451, 1452, 1557, 1586, 1216, 1217, 3819, 4025), DatabaseFailure.CONSTRAINT),
    **dict.fromkeys((1264, 1265, 1292, 1366, 1367, 1406, 1411, 1364), DatabaseFailure.VALUE),
}
_BY_CODE = {
    **OF_A_ROW,
    **dict.fromkeys((1044, 1045, 1142, 1143, 1227, 1698), DatabaseFailure.ACCESS),
    **dict.fromkeys((1205, 1213), DatabaseFailure.LOCKED),
    **dict.fromkeys(ROLLED_BACK, DatabaseFailure.ROLLED_BACK),
    **dict.fromkeys((1021, 1114, 3, 28), DatabaseFailure.FULL),
    1049: DatabaseFailure.NO_DATABASE,
    **dict.fromkeys((1054, 1146), DatabaseFailure.NO_TABLE),
}
_CURES = {
    DatabaseFailure.ACCESS: "check user and password, and GRANT the missing rights",
    DatabaseFailure.LOCKED: "find the holder in information_schema.innodb_trx or with XA RECOVER. Two subtasks that write the "
    "same key wait for each other: key_by that key before the sink",
    DatabaseFailure.ROLLED_BACK: "read the server's log; the round is run again",
    DatabaseFailure.NO_DATABASE: "check the end of the URL, mysql://user@host:3306/database, or CREATE DATABASE",
}


def code_of(error: Exception) -> int:
    """0: the error has none, such as that of a broken connection."""
    known = isinstance(error, pymysql.Error) and error.args and isinstance(error.args[0], int)
    return error.args[0] if known else 0


def translated(error: Exception, where: str, table: str = "its table", row: str = "") -> TidegateError:
    """The typed error for an error of the driver or of the network. ``row``: the refused row of ``table``."""
    failure = _BY_CODE.get(code_of(error))
    if failure is None:
        refused = isinstance(error, pymysql.err.ProgrammingError | pymysql.err.NotSupportedError)
        failure = DatabaseFailure.STATEMENT if refused else DatabaseFailure.NO_ANSWER
    found = str(error.args[1]) if isinstance(error, pymysql.Error) and len(error.args) > 1 else str(error)
    return failure.error(where, found, cure=_CURES.get(failure), table=table, row=row)
