"""A connection to MariaDB or MySQL, values as literals, and the meaning of the server's errors.

A connection makes INSERTs of many rows and XA transactions, and writes the bookkeeping table. Python values become
literals column by column, for the rows of an INSERT. An error of the server becomes an error that says what it means
for a job.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import pymysql
from pymysql.converters import escape_string

from tidegate.base.errors import ServiceError, TidegateError
from tidegate.base.hashing import new_token
from tidegate.connectors.sql.database import Answer, DatabaseFailure, Session
from tidegate.connectors.sql.table import Form, Frame, RowEncoder, ServerColumn, Table, wrong_value

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


BETWEEN_ROWS = b",\n"
"""No literal holds a raw line feed: line feeds are escaped."""


def _quoted(value: Any) -> str:
    return f"'{escape_string(str(value))}'"


def _float(value: Any) -> str:
    return repr(float(value)) if math.isfinite(value) else "nan"


def _moment(value: datetime.datetime) -> str:
    """Times with a zone become UTC, which is the zone of the session."""
    plain = value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo is not None else value
    return f"'{plain.isoformat(' ')}'"


_INTS = Form((int, bool), lambda value: str(int(value)))
_FLOATS = Form((float, int), _float)
_TEXT = Form((str,), _quoted)
_BYTES = Form((bytes, bytearray, memoryview), lambda value: f"x'{bytes(value).hex()}'")


class MySqlEncoder(RowEncoder):
    other = Form((str, int, decimal.Decimal), _quoted)
    null = "NULL"
    forms: ClassVar[dict[str, Form]] = {
        **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "bit", "year"), _INTS),
        **dict.fromkeys(("float", "double"), _FLOATS),
        "decimal": Form((int, decimal.Decimal, float), str),
        **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"), _TEXT),
        **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), _BYTES),
        "date": Form((datetime.date,), lambda value: f"'{value.isoformat()[:10]}'"),
        **dict.fromkeys(("datetime", "timestamp"), Form((datetime.datetime,), _moment)),
        "time": Form((datetime.time,), lambda value: f"'{value.isoformat()}'"),
        "uuid": Form((uuid.UUID, str), _quoted),
        "json": Form((dict, list, str, int, float, bool), lambda value: _quoted(json.dumps(value))),
    }

    def encode(self, table: int, rows: list[Sequence[Any]]) -> Frame:
        lines = [f"({line})" for line in map(",".join, zip(*self._texts(table, rows), strict=True))]
        return Frame(table, len(rows), BETWEEN_ROWS.decode().join(lines).encode())

    def _column(
        self, table: Table, column: ServerColumn, form: Form, values: tuple[Any, ...], rows: list[Sequence[Any]]
    ) -> list[str]:
        made = super()._column(table, column, form, values, rows)
        if form is _FLOATS and "nan" in made:
            raise wrong_value(table, column, "finite numbers", values[made.index("nan")], rows[made.index("nan")])
        return made


_ROW = re.compile(r"at row (\d+)")
_LITERAL = re.compile(r"x?'(?:[^'\\]|\\.)*'|[^,']+", re.DOTALL)
"""A field of a row as ``encode_rows`` writes it."""


class MySqlSession(Session):
    """``packet``: the greatest length of a statement, in bytes."""

    shared_lock = "LOCK IN SHARE MODE"

    def __init__(self, connection: Any, tables: Sequence[Table], *, packet: int, **shared: Any) -> None:
        super().__init__(connection, tables, **shared)
        self._packet = packet
        self._insert = [_insert(table) for table in tables]

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> Answer:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    @contextmanager
    def _translated(self, *untouched: int) -> Iterator[None]:
        """Errors with an ``untouched`` code pass as they are."""
        try:
            yield
        except (pymysql.Error, OSError) as error:
            if code_of(error) in untouched:
                raise
            raise translated(error, self._where) from None

    # -- rows ----------------------------------------------------------------------------------------------------------

    def begin(self, name: str | None) -> None:
        self._name = name
        self.execute("START TRANSACTION" if name is None else f"XA START {_xid(name)}")

    def write(self, frame: Frame) -> None:
        if len(frame.payload) < self._packet // 2:
            self._send(frame.table, frame.payload)
            return
        piece: list[bytes] = []
        for row in frame.payload.split(BETWEEN_ROWS):
            if piece and sum(map(len, piece)) + len(row) > self._packet // 2:
                self._send(frame.table, BETWEEN_ROWS.join(piece))
                piece = []
            piece.append(row)
        self._send(frame.table, BETWEEN_ROWS.join(piece))

    def _send(self, table: int, rows: bytes) -> None:
        before, after = self._insert[table]
        with self._translated():
            try:
                self._connection.query(before + rows + after)
            except pymysql.Error as error:
                row = self._refused_row(error, table, rows)
                raise translated(error, self._where, self._tables[table].name, row) from None

    def _refused_row(self, error: pymysql.Error, table: int, rows: bytes) -> str:
        """The row at which a statement failed. MariaDB (10.7 and later) gives its number on request; some messages have it."""
        if code_of(error) not in OF_A_ROW:
            return ""
        named = _ROW.search(str(error))
        number = int(named.group(1)) if named else 0
        with suppress(pymysql.Error, OSError):
            self._execute("GET DIAGNOSTICS CONDITION 1 @tidegate_row = ROW_NUMBER")
            [(number,)] = self._execute("SELECT @tidegate_row")
        lines = rows.split(BETWEEN_ROWS)
        if not number or number > len(lines):
            return ""
        return self._tables[table].sent(_LITERAL.findall(lines[number - 1].decode(errors="replace")[1:-1]))

    def flush(self) -> None:
        """Nothing to wait for: the server answered every statement."""

    def prepare(self) -> None:
        assert self._name is not None
        self.execute(f"XA END {_xid(self._name)}")
        self.execute(f"XA PREPARE {_xid(self._name)}")

    def close(self) -> None:
        with suppress(pymysql.Error, OSError):
            self._connection.close()

    # -- transactions of others ----------------------------------------------------------------------------------------

    def _end_prepared(self, how: str, name: str) -> bool:
        """A transaction belongs to the session that prepared it until the server has noticed the end of that session. Until
        then XA RECOVER lists the transaction, and other sessions cannot end it."""
        deadline = time.monotonic() + self._lock_timeout_ms / 1000
        while True:
            try:
                with self._translated(UNKNOWN_XID, *BUSY_XID, *ROLLED_BACK):
                    self._execute(f"XA {how} {_xid(name)}")
                return True
            except pymysql.Error as error:
                code = code_of(error)
            if code in ROLLED_BACK or (code == UNKNOWN_XID and name not in self.prepared(_base(name))):
                return False
            if time.monotonic() > deadline:
                raise ServiceError(
                    "Another session holds a prepared transaction of the sink",
                    where=self._where,
                    found=f"XA RECOVER lists {name}, and XA {how} is refused",
                    cure="KILL the session that holds it",
                )
            time.sleep(0.01)

    def prepared(self, base: str) -> list[str]:
        names = []
        for _, first, second, data in self.execute("XA RECOVER"):
            text = data if isinstance(data, str) else bytes(data).decode("latin-1")
            if text[:first] == base:
                names.append(f"{base}-{text[first : first + second]}")
        return names

    # -- sessions ------------------------------------------------------------------------------------------------------

    def tag(self, base: str, lease: int) -> None:
        """Record the owner of this session. A row names a lock that the session holds as long as it lives. So the row leads to
        this session, and never to another one that got the same number after a restart of the server."""
        token = new_token()
        self.mark(base, f"#{lease} {token}", lease, 0)
        self.execute("SELECT GET_LOCK(%s, 0)", (token,))

    def end_sessions(self, base: str, below: int) -> None:
        known = self.execute(
            f"SELECT name FROM {self.bookkeeping} WHERE base = %s AND name LIKE '#%%' AND lease < %s", (base, below)
        )
        self._end_all(
            lambda: [number for (name,) in known if (number := self._holder(name)) is not None],
            self._kill,
        )
        for (name,) in known:
            self._unmark(base, name)

    def _kill(self, number: int) -> None:
        with suppress(pymysql.Error):  # the session ended in the meantime
            self._execute(f"KILL CONNECTION {number}")

    def _holder(self, tag: str) -> int | None:
        """The number of the session that a tag names; None: the session ended."""
        [(number,)] = self.execute("SELECT IS_USED_LOCK(%s)", (tag.rpartition(" ")[2],))
        return None if number is None else int(number)

    # -- the bookkeeping table -----------------------------------------------------------------------------------------

    def raise_fence(self, base: str, lease: int, round: int) -> None:
        """``round`` first: the server makes assignments from left to right."""
        self.execute(
            f"INSERT INTO {self.bookkeeping} (base, name, lease, round) VALUES (%s, '', %s, %s) ON DUPLICATE KEY UPDATE "
            "round = IF(lease < VALUES(lease) OR (lease = VALUES(lease) AND round < VALUES(round)), VALUES(round), round), "
            "lease = GREATEST(lease, VALUES(lease))",
            (base, lease, round),
        )

    def settle(self, base: str, lease: int, round: int, names: Sequence[str]) -> None:
        """Rows are deleted by their whole key. A range would wait for the markers of transactions that are prepared by now, and
        those transactions would wait for this one. Rows of sessions that ended are deleted too."""
        tags = self.execute(
            f"SELECT name FROM {self.bookkeeping} WHERE base = %s AND name LIKE %s", (base, f"#{lease} %")
        )
        ended = [name for (name,) in tags if self._holder(name) is None]
        self.execute("START TRANSACTION")
        self.execute(
            f"INSERT INTO {self.bookkeeping} (base, name, lease, round) VALUES (%s, %s, %s, %s) "
            "ON DUPLICATE KEY UPDATE round = GREATEST(round, VALUES(round))",
            (base, f"@{lease}", lease, round),
        )
        for name in (*names, *ended):
            self._unmark(base, name)
        self.execute("COMMIT")

    def _unmark(self, base: str, name: str) -> None:
        self.execute(f"DELETE FROM {self.bookkeeping} WHERE base = %s AND name = %s", (base, name))


def _insert(table: Table) -> tuple[bytes, bytes]:
    """The parts of the statement before and after the rows."""
    names = ", ".join(map(quoted, table.columns))
    rest = [name for name in table.columns if name not in table.key] or list(table.key)
    change = ", ".join(f"{quoted(name)} = VALUES({quoted(name)})" for name in rest)
    tail = f" ON DUPLICATE KEY UPDATE {change}" if table.key else ""
    return f"INSERT INTO {quoted_path(table.name)} ({names}) VALUES ".encode(), tail.encode()


def _base(name: str) -> str:
    return name.rsplit("-", 4)[0]


def _xid(name: str) -> str:
    """In two parts: neither may be longer than 64 bytes."""
    base = _base(name)
    rest = name[len(base) + 1 :]
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", name), name
    return f"'{base}','{rest}'"


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def quoted_path(name: str) -> str:
    return ".".join(map(quoted, name.split(".")))
