"""A connection to PostgreSQL, values as PostgreSQL's text, and the meaning of the server's errors.

A connection makes COPY, upserts by arrays and PREPARE TRANSACTION, and writes the bookkeeping table. Python values
become text column by column: for COPY, and as arrays for upserts. An error of the server becomes an error that says
what it means for a job.
"""

from __future__ import annotations

import datetime
import decimal
import json
import re
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import msgspec
import psycopg
from psycopg import errors, sql

from tidegate.base.errors import RowError, ServiceError, TidegateError
from tidegate.connectors.sql.database import Answer, DatabaseFailure, Session
from tidegate.connectors.sql.table import Form, Frame, RowEncoder, ServerColumn, Table
from tidegate.operators.loop.blame import reprlib_repr

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


Texts = list[str | None]
_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_IN_ARRAY = str.maketrans({"\\": "\\\\", '"': '\\"'})


def _number(value: Any) -> str:
    return repr(float(value)) if isinstance(value, float) else str(value)


def _interval(value: datetime.timedelta) -> str:
    return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"


_INTS = Form((int,), int.__repr__)
_TEXT = Form((str,), str.__str__, plain=False)
_JSON = Form((dict, list, str, int, float, bool), json.dumps, plain=False)


class PostgreSqlEncoder(RowEncoder):
    other = Form((str, int, float, decimal.Decimal), str, plain=False)
    null = None
    forms: ClassVar[dict[str, Form]] = {
        "bool": Form((bool,), lambda value: "t" if value else "f"),
        **dict.fromkeys(("int2", "int4", "int8"), _INTS),
        **dict.fromkeys(("float4", "float8"), Form((float, int), _number)),
        "numeric": Form((int, decimal.Decimal, float), _number),
        **dict.fromkeys(("text", "varchar", "bpchar", "name", "citext"), _TEXT),
        "bytea": Form((bytes, bytearray, memoryview), lambda value: "\\x" + bytes(value).hex(), plain=False),
        "date": Form((datetime.date,), lambda value: value.isoformat()[:10]),
        **dict.fromkeys(("timestamp", "timestamptz"), Form((datetime.datetime,), datetime.datetime.isoformat)),
        **dict.fromkeys(("time", "timetz"), Form((datetime.time,), datetime.time.isoformat)),
        "interval": Form((datetime.timedelta,), _interval),
        "uuid": Form((uuid.UUID, str), str, plain=False),
        **dict.fromkeys(("json", "jsonb"), _JSON),
    }

    def encode(self, table: int, rows: list[Sequence[Any]]) -> Frame:
        made, forms = self._texts(table, rows), self._forms[table]
        if self._tables[table].key:
            arrays = [_array(texts, form) for texts, form in zip(made, forms, strict=True)]
            return Frame(table, len(rows), msgspec.msgpack.encode(arrays))
        fields = [_copied(texts, form) for texts, form in zip(made, forms, strict=True)]
        lines = "\n".join(map("\t".join, zip(*fields, strict=True)))
        return Frame(table, len(rows), f"{lines}\n".encode())

    def _column(
        self, table: Table, column: ServerColumn, form: Form, values: tuple[Any, ...], rows: list[Sequence[Any]]
    ) -> Texts:
        texts: Texts = super()._column(table, column, form, values, rows)
        if not form.plain and "\x00" in "".join(filter(None, texts)):
            number = next(n for n, text in enumerate(texts) if text is not None and "\x00" in text)
            raise RowError(
                "PostgreSQL cannot store text with the character U+0000",
                where=f"column {column.name} of {table.name}, row {table.key_of(rows[number])}",
                found=reprlib_repr(values[number]),
                cure="remove the character in a map before the sink: text.replace('\\x00', '')",
            )
        return texts


_AS_ARRAYS = frozenset(PostgreSqlEncoder.forms) - {"json", "jsonb"}
"""Families whose arrays the server reads without a cast of each element."""


def elements(columns: Sequence[ServerColumn]) -> list[tuple[str, str]]:
    """For each column of an upsert: the type of the array that is sent, and the cast of an element to the column."""
    return [(column.bare, "") if column.family in _AS_ARRAYS else ("text", f"::{column.bare}") for column in columns]


def _copied(texts: Texts, form: Form) -> list[str]:
    if not form.plain:
        joined = "".join(filter(None, texts))
        if "\\" in joined or "\t" in joined or "\n" in joined or "\r" in joined:
            return ["\\N" if text is None else text.translate(_ESCAPED) for text in texts]
    if None in texts:
        return ["\\N" if text is None else text for text in texts]
    return texts  # type: ignore[return-value]


def _array(texts: Texts, form: Form) -> str:
    """An array literal: elements in quotes, except NULL."""
    if not form.plain:
        joined = "".join(filter(None, texts))
        if "\\" in joined or '"' in joined:
            texts = [None if text is None else text.translate(_IN_ARRAY) for text in texts]
    if None in texts:
        return "{" + ",".join("NULL" if text is None else f'"{text}"' for text in texts) + "}"
    return '{"' + '","'.join(texts) + '"}'  # type: ignore[arg-type]


_REMEMBERED = 8 << 20
_LINE = re.compile(r"line (\d+)")
_OF_ONE_ROW = (psycopg.DataError, errors.CheckViolation, errors.NotNullViolation)
_KEY = re.compile(r"Key \(([^,()]+)\)=\((.*)\) ")


class PostgreSqlSession(Session):
    """``columns`` gives the columns of each table."""

    shared_lock = "FOR SHARE"

    def __init__(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        tables: Sequence[Table],
        columns: Callable[[], Sequence[Sequence[ServerColumn]]],
        **shared: Any,
    ) -> None:
        super().__init__(connection, tables, **shared)
        self._columns = columns
        self._copy: tuple[int, Any, Any] | None = None
        """The table of the running COPY, its context manager and the copy."""
        self._sent: deque[tuple[int, bytes]] = deque()
        """The last frames of the COPY with the number of their first line: the server names the line that it refuses."""
        self._sent_lines = self._sent_bytes = self._copied = 0

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> Answer:
        cursor = self._connection.execute(statement, values)
        return cursor.fetchall() if cursor.description is not None else []

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            table = self._tables[self._copied].name
            raise translated(error, self._where, holders=self._holders, table=table, row=self._row_of(error)) from None

    def _holders(self) -> str:
        """Prepared transactions of this database, of any owner: they hold their locks until a session ends them."""
        try:
            with suppress(psycopg.Error):
                self._connection.rollback()
            found = self._connection.execute(
                "SELECT gid, prepared FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared LIMIT 3"
            ).fetchall()
        except psycopg.Error:
            return "the holder is not known"
        shown = ", ".join(f"{name} since {moment:%Y-%m-%d %H:%M:%S}" for name, moment in found)
        return f"prepared transactions: {shown}" if shown else "there are no prepared transactions"

    # -- rows ----------------------------------------------------------------------------------------------------------

    def begin(self, name: str | None) -> None:
        self._name = name
        self.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")

    def write(self, frame: Frame) -> None:
        if self._tables[frame.table].key:
            self.flush()
            self._upsert(frame)
            return
        if self._copy is None or self._copy[0] != frame.table:
            self.flush()
            self._begin_copy(frame.table)
        assert self._copy is not None
        self._remember(frame)
        with self._translated():
            try:
                self._copy[2].write(frame.payload)
            except psycopg.Error:
                self._end_copy()  # raises the reason
                raise

    def _begin_copy(self, table: int) -> None:
        target = self._tables[table]
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
            identifier(target.name), sql.SQL(", ").join(map(sql.Identifier, target.columns))
        )
        manager = self._connection.cursor().copy(statement)
        with self._translated():
            self._copy = (table, manager, manager.__enter__())
        self._sent.clear()
        self._sent_lines = self._sent_bytes = 0
        self._copied = table

    def _end_copy(self) -> None:
        if self._copy is not None:
            _, manager, _ = self._copy
            self._copy = None
            manager.__exit__(None, None, None)

    def flush(self) -> None:
        with self._translated():
            self._end_copy()

    def _remember(self, frame: Frame) -> None:
        self._sent.append((self._sent_lines + 1, frame.payload))
        self._sent_lines += frame.rows
        self._sent_bytes += len(frame.payload)
        while self._sent_bytes > _REMEMBERED and len(self._sent) > 1:
            self._sent_bytes -= len(self._sent.popleft()[1])

    def _row_of(self, error: psycopg.Error) -> str:
        """The line of COPY that the server names."""
        found = _LINE.search(error.diag.context or "")
        line = int(found.group(1)) if found else 0
        for first, payload in reversed(self._sent):
            if first <= line:
                lines = payload.decode().split("\n")
                sent = lines[line - first].split("\t") if line - first < len(lines) else []
                return self._tables[self._copied].sent(["NULL" if field == "\\N" else field for field in sent])
        return ""

    def _upsert(self, frame: Frame) -> None:
        arrays = msgspec.msgpack.decode(frame.payload)
        try:
            self._connection.execute(self._upserting(frame.table), arrays)
        except psycopg.Error as error:
            row = ""
            if isinstance(error, _OF_ONE_ROW):
                row = self._misfit(frame.table, arrays, frame.rows)
            elif isinstance(error, psycopg.IntegrityError):
                row = self._with_value(frame.table, arrays, error.diag.message_detail or "")
            name = self._tables[frame.table].name
            raise translated(error, self._where, holders=self._holders, table=name, row=row) from None

    def _with_value(self, table: int, arrays: list[str], detail: str) -> str:
        """The row with the value that a foreign key or another unique index refuses: the server names only the value."""
        target, found = self._tables[table], _KEY.match(detail)
        if found is None or found[1].strip('"') not in target.columns:
            return ""
        with suppress(psycopg.Error):
            self._connection.rollback()
            values = arrays[target.columns.index(found[1].strip('"'))]
            statement = "SELECT n FROM unnest(%s::text[]) WITH ORDINALITY AS given(value, n) WHERE value = %s LIMIT 1"
            rows = self._connection.execute(statement, (values, found[2])).fetchall()
            return self._row_at(table, arrays, rows[0][0]) if rows else ""
        return ""

    def _misfit(self, table: int, arrays: list[str], count: int) -> str:
        """The row that the server refuses, found by bisection: the server does not name it. The transaction is given up. Whether
        one of these rows is refused does not depend on other rows."""
        low, high = 1, count
        with suppress(psycopg.Error):
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if self._fits(table, arrays, low, middle) else (low, middle)
            self._connection.rollback()
            return self._row_at(table, arrays, low)
        return ""

    def _row_at(self, table: int, arrays: list[str], number: int) -> str:
        fields = ", ".join(f"(%s::text[])[{number}]" for _ in arrays)
        [found] = self._connection.execute(f"SELECT {fields}", arrays).fetchall()
        return self._tables[table].sent(["NULL" if field is None else field for field in found])

    def _fits(self, table: int, arrays: list[str], low: int, high: int) -> bool:
        self._connection.rollback()
        self._connection.execute("BEGIN")
        try:
            self._connection.execute(self._upserting(table, f"[{low}:{high}]"), arrays)
        except _OF_ONE_ROW:
            return False
        return True

    def _upserting(self, table: int, piece: str = "") -> str:
        """``piece`` selects rows, as the bounds of an array."""
        target, columns = self._tables[table], self._columns()[table]
        names = [quoted(name) for name in target.columns]
        made = elements(columns)
        arrays = ", ".join(f"(%s::text[]){piece}::{kind}[]" if piece else f"%s::{kind}[]" for kind, _ in made)
        fields = ", ".join(f"given.c{number}{cast}" for number, (_, cast) in enumerate(made))
        aliases = ", ".join(f"c{number}" for number in range(len(made)))
        rest = [quoted(name) for name in target.columns if name not in target.key]
        change = ", ".join(f"{name} = EXCLUDED.{name}" for name in rest)
        return (
            f"INSERT INTO {quoted_path(target.name)} ({', '.join(names)}) SELECT {fields} "
            f"FROM unnest({arrays}) AS given({aliases}) "
            f"ON CONFLICT ({', '.join(map(quoted, target.key))}) DO " + (f"UPDATE SET {change}" if rest else "NOTHING")
        )

    # -- the end of a transaction --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        assert self._name is not None
        self.execute(f"PREPARE TRANSACTION {literal(self._name)}")

    def rollback(self) -> None:
        self._copy = None
        super().rollback()

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()

    def _end_prepared(self, how: str, name: str) -> bool:
        try:
            self._connection.execute(f"{how} PREPARED {literal(name)}")
        except errors.UndefinedObject:
            return False
        except errors.ObjectNotInPrerequisiteState as error:
            raise ServiceError(
                "Another session is ending a prepared transaction of the sink",
                where=self._where,
                found=str(error),
                cure="wait: the sink retries",
            ) from None
        except psycopg.Error as error:
            raise translated(error, self._where) from None
        return True

    def prepared(self, base: str) -> list[str]:
        found = self.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)",
            (f"{base}-",),
        )
        return [name for (name,) in found]

    def end_sessions(self, base: str, below: int) -> None:
        self._end_all(
            lambda: self._sessions(base, below),
            lambda pid: self.execute("SELECT pg_terminate_backend(%s)", (pid,)),
        )

    def _sessions(self, base: str, below: int) -> list[int]:
        """``application_name`` names the owner of a session: base and lease."""
        found = self.execute(
            "SELECT pid, application_name FROM pg_stat_activity "
            "WHERE starts_with(application_name, %s) AND pid <> pg_backend_pid()",
            (f"{base} ",),
        )
        return [pid for pid, name in found if int(name.rpartition(" ")[2]) < below]

    # -- the bookkeeping table ------------------------------------------------------------------------------------------

    def raise_fence(self, base: str, lease: int, round: int) -> None:
        self.execute(
            f"INSERT INTO {self.bookkeeping} AS known (base, name, lease, round) VALUES (%s, '', %s, %s) ON CONFLICT (base, name) "
            "DO UPDATE SET lease = EXCLUDED.lease, round = EXCLUDED.round "
            "WHERE (known.lease, known.round) < (EXCLUDED.lease, EXCLUDED.round)",
            (base, lease, round),
        )

    def settle(self, base: str, lease: int, round: int, names: Sequence[str]) -> None:
        self.execute(
            f"WITH gone AS (DELETE FROM {self.bookkeeping} WHERE base = %s AND name = ANY(%s)) "
            f"INSERT INTO {self.bookkeeping} AS known (base, name, lease, round) VALUES (%s, %s, %s, %s) ON CONFLICT (base, name) "
            "DO UPDATE SET round = greatest(known.round, EXCLUDED.round)",
            (base, list(names), base, f"@{lease}", lease, round),
        )


def quoted(name: str) -> str:
    """For a statement as text, where a percent sign would be a placeholder."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def quoted_path(name: str) -> str:
    return ".".join(map(quoted, name.split(".")))


def identifier(name: str) -> sql.Identifier:
    return sql.Identifier(*name.split("."))


def literal(name: str) -> str:
    """Of a name of ours: letters, digits, hyphens."""
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", name), name
    return f"'{name}'"
