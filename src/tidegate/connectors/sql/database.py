"""The part that all databases share: sessions, the bookkeeping table, checks of tables, errors, transaction names.

Sessions have prepared transactions. Each kind of failure of a database has one class of error and one rule.

No two jobs, sinks, subtasks or attempts share the name of a transaction, and each name shows its owner:
``tidegate-<job>-<sink>-<mark>-<lease>-<round>-<subtask>-<token>``. The part before the lease is the ``base`` of the
sink. The mark is made once for each directory of a job. Otherwise the same program with the same job id in another
directory (a copy for tests, another host) would take prepared transactions of the first job for leftovers of its own,
and roll them back.
"""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, ClassVar

import msgspec

from tidegate.base.errors import AccessError, ConfigurationError, RowError, ServiceError, StorageError, TidegateError
from tidegate.base.files import Files
from tidegate.base.hashing import new_token
from tidegate.base.plain_text import count
from tidegate.connectors.sql.table import Frame, RowEncoder, ServerColumn, Table
from tidegate.connectors.staged_file import new_mark
from tidegate.operators.contracts.sink import CommitterContext, WriterContext

BOOKKEEPING = "tidegate_transactions"
"""The bookkeeping table. Its rows of a sink (``base``): a marker for each transaction whose commit is not settled (``name``), one
row for each attempt of the job with the last committed round (``@lease``), one row with the lease and round that may write (no
name)."""

Answer = list[tuple[Any, ...]]


class Session(ABC):
    """A connection. Every statement waits for locks at most ``lock_timeout_ms``; so does the wait for sessions to end."""

    shared_lock: ClassVar[str]
    """The end of a SELECT that keeps others from changing the row until this transaction ends."""

    def __init__(
        self, connection: Any, tables: Sequence[Table], *, where: str, bookkeeping: str, lock_timeout_ms: int
    ) -> None:
        self._connection, self._tables, self._where = connection, tables, where
        self._lock_timeout_ms = lock_timeout_ms
        self.bookkeeping = bookkeeping
        """The name of the bookkeeping table, quoted for this database."""
        self._name: str | None = None

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Answer:
        """Raises typed errors only."""
        with self._translated():
            return self._execute(statement, values)

    @abstractmethod
    def _execute(self, statement: str, values: Sequence[Any] = ()) -> Answer:
        """Raises the driver's errors."""

    @abstractmethod
    def _translated(self) -> AbstractContextManager[None]:
        """Turn the driver's errors into typed ones."""

    # -- the transaction of this session ---------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, name: str | None) -> None:
        """``name``: of a transaction that will be prepared. None: this session itself commits the transaction."""

    @abstractmethod
    def write(self, frame: Frame) -> None:
        """Raises ``RowError`` for rows that the table does not take."""

    @abstractmethod
    def flush(self) -> None:
        """Return when the server has taken all rows."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the transaction durable: from now on every session that knows the name can commit it or roll it back."""

    def commit(self) -> None:
        self.execute("COMMIT")

    def rollback(self) -> None:
        """Close the session: the server rolls back what is not prepared."""
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    # -- transactions of others ------------------------------------------------------------------------------------------

    def commit_prepared(self, name: str) -> bool:
        """False: the server does not know the transaction (any more)."""
        return self._end_prepared("COMMIT", name)

    def rollback_prepared(self, name: str) -> bool:
        """False: the server does not know the transaction (any more)."""
        return self._end_prepared("ROLLBACK", name)

    @abstractmethod
    def _end_prepared(self, how: str, name: str) -> bool: ...

    @abstractmethod
    def prepared(self, base: str) -> list[str]:
        """Names of prepared transactions that start with ``base`` and a hyphen."""

    @abstractmethod
    def end_sessions(self, base: str, below: int) -> None:
        """End all sessions that writers of ``base`` with a smaller lease have open. Return when they are gone."""

    def _end_all(self, others: Callable[[], list[int]], end: Callable[[int], object]) -> None:
        """Call ``end`` for the ``others`` until none is left."""
        deadline = time.monotonic() + self._lock_timeout_ms / 1000
        while found := others():
            for number in found:
                end(number)
            if time.monotonic() > deadline:
                raise ServiceError(
                    "Sessions of an earlier attempt of the job do not end",
                    where=self._where,
                    found=f"sessions {found}",
                    cure="end these sessions on the server",
                )
            time.sleep(0.02)

    # -- the bookkeeping table -------------------------------------------------------------------------------------------

    @abstractmethod
    def raise_fence(self, base: str, lease: int, round: int) -> None:
        """Record that attempts with a smaller (lease, round) may write no more. A smaller one changes nothing."""

    def fence(self, base: str, *, hold: bool) -> tuple[int, int]:
        """The (lease, round) that may write. ``hold``: nobody raises it until this transaction ends."""
        found = self.execute(
            f"SELECT lease, round FROM {self.bookkeeping} WHERE base = %s AND name = ''"
            f"{f' {self.shared_lock}' if hold else ''}",
            (base,),
        )
        return (found[0][0], found[0][1]) if found else (-1, -1)

    @abstractmethod
    def settle(self, base: str, lease: int, round: int, names: Sequence[str]) -> None:
        """In one transaction: record that this lease has committed everything up to this round, and delete these markers."""

    def mark(self, base: str, name: str, lease: int, round: int) -> None:
        """Insert a row with this name. As the marker of a transaction it is part of that transaction."""
        values = (base, name, lease, round)
        self.execute(f"INSERT INTO {self.bookkeeping} (base, name, lease, round) VALUES (%s, %s, %s, %s)", values)

    def was_committed(self, base: str, name: str, lease: int, round: int) -> bool:
        found = self.execute(
            f"SELECT 1 FROM {self.bookkeeping} WHERE base = %s AND (name = %s OR (name = %s AND round >= %s))",
            (base, name, f"@{lease}", round),
        )
        return bool(found)


@dataclass(frozen=True, kw_only=True)
class Database(ABC):
    """Address and user of a database. Pickles; the repr shows no password. ``patience_ms``: how long a task or a commit waits
    for a server that is down."""

    bookkeeping: str = BOOKKEEPING
    lock_timeout_ms: int = 10_000
    patience_ms: int = 10_000

    encoder_type: ClassVar[type[RowEncoder]]
    _columns_known: ClassVar[dict[tuple[Any, ...], list[list[ServerColumn]]]] = {}

    @property
    @abstractmethod
    def where(self) -> str:
        """For messages."""

    # -- connections ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def open(self, tables: Sequence[Table], *, tag: str = "") -> Session:
        """``tag``: names the session of a writer, ``base lease``."""

    def connected(self, *, patient: bool, tag: str = "") -> Any:
        """A connection of the driver. ``patient``: wait for a server that is down, ``patience_ms`` at most."""
        deadline, pause = time.monotonic() + (self.patience_ms / 1000 if patient else 0), 0.05
        while True:
            try:
                return self._connect(tag)
            except TidegateError as error:
                if time.monotonic() + pause > deadline or not error.restart_helps:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 2.0)

    @abstractmethod
    def _connect(self, tag: str) -> Any:
        """Raises typed errors only."""

    @abstractmethod
    def _ask(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> Answer:
        """Raises typed errors only."""

    # -- tables --------------------------------------------------------------------------------------------------------

    def encoder(self, tables: Sequence[Table]) -> RowEncoder:
        return self.encoder_type(tables, self._columns(tables))

    def _columns(self, tables: Sequence[Table]) -> list[list[ServerColumn]]:
        """Asked once in a process."""
        key = (os.getpid(), self, tuple(tables))
        if key not in self._columns_known:
            with closing(self.connected(patient=True)) as connection:
                self._columns_known[key] = [self._columns_of(connection, table) for table in tables]
        return self._columns_known[key]

    def _columns_of(self, connection: Any, table: Table) -> list[ServerColumn]:
        there = {column.name: column for column in self._described(connection, table)}
        missing = [name for name in table.columns if name not in there]
        if missing:
            raise ConfigurationError(
                "The sink does not find a table or a column",
                where=f"{self.where}, table {table.name}",
                found=f"no column {', '.join(missing)}; there are {', '.join(there)}" if there else "no such table",
                cure="create it before the job starts; check the case of the names and the rights of the user",
            )
        return [there[name] for name in table.columns]

    @abstractmethod
    def _described(self, connection: Any, table: Table) -> list[ServerColumn]:
        """All columns of the table; none: no such table."""

    @abstractmethod
    def _unique_keys(self, connection: Any, table: Table) -> Iterable[Iterable[str]]:
        """The columns of the primary key and of each unique index."""

    # -- before the job starts -----------------------------------------------------------------------------------------

    def check(self, tables: Sequence[Table], *, exactly_once: bool) -> None:
        """Check server, rights, tables, columns and keys. Create the bookkeeping table."""
        with closing(self.connected(patient=False)) as connection:
            self._check_server(connection, exactly_once)
            for table in tables:
                self._columns_of(connection, table)
                self._check_table(connection, table)
                if table.key:
                    self._check_key(connection, table)
            self._create_bookkeeping(connection)

    @abstractmethod
    def _check_server(self, connection: Any, exactly_once: bool) -> None: ...

    @abstractmethod
    def _check_table(self, connection: Any, table: Table) -> None: ...

    def _check_key(self, connection: Any, table: Table) -> None:
        unique = [set(names) for names in self._unique_keys(connection, table)]
        if set(table.key) not in unique:
            there = "; ".join(", ".join(sorted(names)) for names in unique)
            raise ConfigurationError(
                "An upsert needs a primary key or a unique index of exactly the columns of its key",
                where=f"{self.where}, table {table.name}",
                found=f"key {', '.join(table.key)}; unique are: {there or 'none'}",
                cure=f"CREATE UNIQUE INDEX by_key ON {table.name} ({', '.join(table.key)})",
            )

    @abstractmethod
    def _create_bookkeeping(self, connection: Any) -> None: ...

    def check_prepared(self, wanted: int) -> None:
        """Check that the server can hold this number of prepared transactions. Not every server has a limit."""


class DatabaseFailure(Enum):
    """A kind of failure. Each database maps its error codes to a kind and adds the cure. ``{table}`` is filled in."""

    ACCESS = AccessError, "The database refuses the user of the sink, or the user lacks a right"
    NO_DATABASE = ConfigurationError, "The database of the sink does not exist"
    NO_TABLE = ConfigurationError, "A table or column of the sink does not exist"
    LOCKED = ServiceError, "The sink did not get a lock: it waited longer than lock_timeout_ms, or met a deadlock"
    ROLLED_BACK = ServiceError, "The server rolled back a transaction before its checkpoint was complete"
    FULL = ServiceError, "The database server has no space left"
    NO_ROOM = ServiceError, "The server has no room for another prepared transaction"
    CONSTRAINT = RowError, "A row violates a constraint of {table}"
    VALUE = RowError, "A value does not fit its column of {table}"
    SAME_KEY = RowError, "Two rows of a batch have equal keys in the database and different keys in Python"
    STATEMENT = ConfigurationError, "The database refuses a statement of the sink"
    NO_ANSWER = ServiceError, "The database does not answer"

    def error(
        self, where: str, found: str, *, cure: str | None = None, table: str = "", row: str = ""
    ) -> TidegateError:
        """Make the error. ``row`` describes the refused row; it is empty where the server did not say enough."""
        kind, rule = self.value
        place = f"{where}; row {row}" if row and self in _OF_A_ROW else where
        made: TidegateError = kind(rule.format(table=table), where=place, found=found, cure=cure or _CURES.get(self))
        return made


_OF_A_ROW = (DatabaseFailure.CONSTRAINT, DatabaseFailure.VALUE)
_CURES = {
    DatabaseFailure.NO_TABLE: "check the names of the tables and columns",
    DatabaseFailure.FULL: "free space on the server",
    DatabaseFailure.CONSTRAINT: "filter or correct such records before the sink",
    DatabaseFailure.VALUE: "convert or filter such records before the sink",
    DatabaseFailure.SAME_KEY: "make the keys equal before the sink: the same type, case and precision",
    DatabaseFailure.NO_ANSWER: "check that the server runs, and that host and port are right",
}


PREFIX = "tidegate-"
_RECORD = "sql-sink.json"
_VERSION = 1
_MOST = 16


class _BaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    version: int = _VERSION
    base: str


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """A prepared transaction, as a checkpoint stores it. ``staged``: files whose rows are in it; they are deleted after the
    commit."""

    name: str
    base: str
    lease: int
    round: int
    rows: int
    staged: list[str]

    def __str__(self) -> str:
        return f"transaction {self.name} of {count(self.rows, 'row')}"


def new_name(base: str, context: WriterContext) -> str:
    return f"{base}-{context.lease}-{context.round}-{context.subtask}-{new_token()[:12]}"


def base_for(context: CommitterContext) -> str:
    """Called on the driver, before any writer. A base that is already recorded counts."""
    files = Files(context.staging)
    record = _read(files)
    if record is None:
        mark = new_mark(context)
        job, sink = re.sub(r"[^a-zA-Z0-9_]", "_", context.job_id)[:_MOST], context.sink_id[:8]
        record = _BaseRecord(base=f"{PREFIX}{job}-{sink}-{mark}")
        files.replace(_RECORD, msgspec.json.encode(record))
    return record.base


def base_of(context: WriterContext) -> str:
    """Called in a task. Reads the record once for each attempt of the job."""
    return _base(context.staging, context.lease)


@lru_cache(256)
def _base(staging: str, lease: int) -> str:
    record = _read(Files(staging))
    if record is None:
        raise StorageError(
            "The record with the names of the sink's transactions is missing",
            where=Files(staging).location(_RECORD),
            found="no such file",
            cure="do not delete files of a running job; restart the job, which writes the record again",
        )
    return record.base


def _read(files: Files) -> _BaseRecord | None:
    content = files.read_if_exists(_RECORD)
    return None if content is None else msgspec.json.decode(content, type=_BaseRecord)
