"""A connection to MariaDB or MySQL: INSERTs of many rows, XA transactions, and the table of markers."""

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
from tidegate.connectors.sql.database import Session
from tidegate.connectors.sql.frames import Frame
from tidegate.connectors.sql.table import Table

_ROW = re.compile(r"at row (\d+)")
_LITERAL = re.compile(r"x?'(?:[^'\\]|\\.)*'|[^,']+", re.DOTALL)
"""A field of a row as ``encoding.py`` writes it."""


class MySqlSession(Session):
    """``packet``: bytes a statement may have."""

    def __init__(
        self,
        connection: Any,
        tables: Sequence[Table],
        *,
        where: str,
        bookkeeping: str,
        lock_timeout_ms: int,
        packet: int,
    ) -> None:
        self._connection, self._tables, self._where = connection, tables, where
        self._lock_timeout_ms, self._packet = lock_timeout_ms, packet
        self.bookkeeping = bookkeeping
        self._name: str | None = None
        self._insert = [_insert(table) for table in tables]

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._translated():
            return self._execute(statement, values)

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except pymysql.Error as error:
            raise translated(error, self._where) from None
        except OSError as error:
            raise translated(pymysql.OperationalError(2013, str(error)), self._where) from None

    # -- rows ----------------------------------------------------------------------------------------------------------

    def begin(self, name: str | None) -> None:
        self._name = name
        self.execute("START TRANSACTION" if name is None else f"XA START {_xid(name)}")

    def write(self, frame: Frame) -> None:
        head, tail = self._insert[frame.table]
        if len(frame.payload) < self._packet // 2:
            return self._send(frame.table, head + frame.payload + tail, frame.payload)
        piece: list[bytes] = []
        for row in frame.payload.split(BETWEEN_ROWS):
            if piece and sum(map(len, piece)) + len(row) > self._packet // 2:
                self._send(frame.table, head + BETWEEN_ROWS.join(piece) + tail, BETWEEN_ROWS.join(piece))
                piece = []
            piece.append(row)
        self._send(frame.table, head + BETWEEN_ROWS.join(piece) + tail, BETWEEN_ROWS.join(piece))
        return None

    def _send(self, table: int, statement: bytes, rows: bytes) -> None:
        with self._translated():
            try:
                self._connection.query(statement)
            except pymysql.Error as error:
                row = self._refused_row(error, table, rows)
                raise translated(error, self._where, self._tables[table].name, row) from None

    def _refused_row(self, error: pymysql.Error, table: int, rows: bytes) -> str:
        """The row that a statement failed at. MariaDB (10.7 and later) is asked for its number; some messages have it too."""
        if code_of(error) not in OF_A_ROW:
            return ""
        told = _ROW.search(str(error))
        number = int(told.group(1)) if told else 0
        with suppress(pymysql.Error, OSError):
            self._execute("GET DIAGNOSTICS CONDITION 1 @tidegate_row = ROW_NUMBER")
            [(number,)] = self._execute("SELECT @tidegate_row")
        lines = rows.split(BETWEEN_ROWS)
        if not number or number > len(lines):
            return ""
        return self._tables[table].sent(_LITERAL.findall(lines[number - 1].decode(errors="replace")[1:-1]))

    def flush(self) -> None:
        """Every statement was answered."""

    def prepare(self) -> None:
        assert self._name is not None
        self.execute(f"XA END {_xid(self._name)}")
        self.execute(f"XA PREPARE {_xid(self._name)}")

    def commit(self) -> None:
        self.execute("COMMIT")

    def rollback(self) -> None:
        """The server does it when the session ends, for what is not prepared."""
        self.close()

    def close(self) -> None:
        with suppress(pymysql.Error, OSError):
            self._connection.close()

    # -- transactions of others ----------------------------------------------------------------------------------------

    def commit_prepared(self, name: str) -> bool:
        return self._end_prepared("COMMIT", name)

    def rollback_prepared(self, name: str) -> bool:
        return self._end_prepared("ROLLBACK", name)

    def _end_prepared(self, how: str, name: str) -> bool:
        """A transaction belongs to the session that prepared it until the server has seen that one's end: until then it is
        listed, and refused to others."""
        deadline = time.monotonic() + self._lock_timeout_ms / 1000
        while True:
            try:
                with self._translated_but_xa():
                    self._execute(f"XA {how} {_xid(name)}")
                return True
            except pymysql.Error as error:
                code = code_of(error)
            if code in ROLLED_BACK or (code == UNKNOWN_XID and name not in self.prepared(_base(name))):
                return False
            if time.monotonic() > deadline:
                raise ServiceError(
                    "A prepared transaction must be free to be ended",
                    where=self._where,
                    found=f"{name} is listed by XA RECOVER, and belongs to another session",
                    cure="KILL the session that holds it",
                )
            time.sleep(0.01)

    @contextmanager
    def _translated_but_xa(self) -> Iterator[None]:
        try:
            yield
        except pymysql.Error as error:
            if code_of(error) in (UNKNOWN_XID, *BUSY_XID, *ROLLED_BACK):
                raise
            raise translated(error, self._where) from None
        except OSError as error:
            raise translated(pymysql.OperationalError(2013, str(error)), self._where) from None

    def prepared(self, base: str) -> list[str]:
        names = []
        for _, first, second, data in self.execute("XA RECOVER"):
            text = data if isinstance(data, str) else bytes(data).decode("latin-1")
            if text[:first] == base:
                names.append(f"{base}-{text[first : first + second]}")
        return names

    # -- sessions ------------------------------------------------------------------------------------------------------

    def tag(self, base: str, lease: int) -> None:
        """Say whose session this is: a row names a lock that the session holds as long as it lives, so who reads the row finds
        the session, and never another one that got its number after a restart of the server."""
        token = new_token()
        values = (base, f"#{lease} {token}", lease, 0)
        self.execute(f"INSERT INTO {self.bookkeeping} (base, name, lease, round) VALUES (%s, %s, %s, %s)", values)
        self.execute("SELECT GET_LOCK(%s, 0)", (token,))

    def end_sessions(self, base: str, below: int) -> None:
        deadline = time.monotonic() + self._lock_timeout_ms / 1000
        known = self.execute(
            f"SELECT name FROM {self.bookkeeping} WHERE base = %s AND name LIKE '#%%' AND lease < %s", (base, below)
        )
        tokens = [name.rpartition(" ")[2] for (name,) in known]
        while others := [number for token in tokens if (number := self._holder(token)) is not None]:
            for number in others:
                with suppress(pymysql.Error):  # gone since
                    self._execute(f"KILL CONNECTION {number}")
            if time.monotonic() > deadline:
                raise ServiceError(
                    "Sessions of an earlier attempt of the job must end",
                    where=self._where,
                    found=f"connections {others}",
                )
            time.sleep(0.02)
        for (name,) in known:
            self.execute(f"DELETE FROM {self.bookkeeping} WHERE base = %s AND name = %s", (base, name))

    def _holder(self, token: str) -> int | None:
        [(number,)] = self.execute("SELECT IS_USED_LOCK(%s)", (token,))
        return None if number is None else int(number)

    # -- the table of markers ------------------------------------------------------------------------------------------

    def raise_fence(self, base: str, lease: int, round: int) -> None:
        """``round`` first: assignments are made from left to right."""
        self.execute(
            f"INSERT INTO {self.bookkeeping} (base, name, lease, round) VALUES (%s, '', %s, %s) ON DUPLICATE KEY UPDATE "
            "round = IF(lease < VALUES(lease) OR (lease = VALUES(lease) AND round < VALUES(round)), VALUES(round), round), "
            "lease = GREATEST(lease, VALUES(lease))",
            (base, lease, round),
        )

    def fence(self, base: str, *, hold: bool) -> tuple[int, int]:
        lock = " LOCK IN SHARE MODE" if hold else ""
        found = self.execute(
            f"SELECT lease, round FROM {self.bookkeeping} WHERE base = %s AND name = ''{lock}", (base,)
        )
        return (found[0][0], found[0][1]) if found else (-1, -1)

    def settle(self, base: str, lease: int, round: int, names: Sequence[str]) -> None:
        """Rows are deleted by their whole key: a range would wait for markers of transactions that are prepared by now, and those
        for this. Rows of sessions that are over go too."""
        tagged = self.execute(
            f"SELECT name FROM {self.bookkeeping} WHERE base = %s AND name LIKE %s", (base, f"#{lease} %")
        )
        over = [name for (name,) in tagged if self._holder(name.rpartition(" ")[2]) is None]
        self.execute("START TRANSACTION")
        self.execute(
            f"INSERT INTO {self.bookkeeping} (base, name, lease, round) VALUES (%s, %s, %s, %s) "
            "ON DUPLICATE KEY UPDATE round = GREATEST(round, VALUES(round))",
            (base, f"@{lease}", lease, round),
        )
        for name in (*names, *over):
            self.execute(f"DELETE FROM {self.bookkeeping} WHERE base = %s AND name = %s", (base, name))
        self.execute("COMMIT")


def _insert(table: Table) -> tuple[bytes, bytes]:
    """What stands before and behind the rows."""
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
