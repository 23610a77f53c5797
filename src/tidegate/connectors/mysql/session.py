"""A connection to MariaDB or MySQL: INSERTs of many rows, XA transactions, and the bookkeeping table."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pymysql

from tidegate.base.errors import ServiceError
from tidegate.base.ids import new_token
from tidegate.connectors.mysql.encoding import BETWEEN_ROWS
from tidegate.connectors.mysql.failures import BUSY_XID, OF_A_ROW, ROLLED_BACK, UNKNOWN_XID, code_of, translated
from tidegate.connectors.sql.database import Answer, Session
from tidegate.connectors.sql.frames import Frame
from tidegate.connectors.sql.table import Table

_ROW = re.compile(r"at row (\d+)")
_LITERAL = re.compile(r"x?'(?:[^'\\]|\\.)*'|[^,']+", re.DOTALL)
"""A field of a row as ``encoding.py`` writes it."""


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
