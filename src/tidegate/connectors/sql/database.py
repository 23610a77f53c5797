"""What writer and committer ask of a database: sessions with prepared transactions, and the table of what was committed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tidegate.connectors.sql.frames import Frame
from tidegate.connectors.sql.table import Table

BOOKKEEPING = "tidegate_transactions"
"""The table of markers. Rows of a sink (``base``): one for each transaction whose commit is not settled (``name``), one for each
attempt of the job with the last round that is committed (``@lease``), one with the lease and round that may write (no name)."""


class Session(ABC):
    """A connection. Every statement waits for locks no longer than the database's ``lock_timeout_ms``."""

    @abstractmethod
    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def begin(self, name: str | None) -> None:
        """``name``: of a transaction that will be prepared; None: of one that is committed by this session."""

    @abstractmethod
    def write(self, frame: Frame) -> None:
        """Raises ``RowError`` for rows that the table does not take."""

    @abstractmethod
    def flush(self) -> None:
        """All rows have arrived and were taken."""

    @abstractmethod
    def prepare(self) -> None:
        """Flushed and durable: whoever knows the name can commit or roll back."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    # -- transactions of others ------------------------------------------------------------------------------------------

    @abstractmethod
    def commit_prepared(self, name: str) -> bool:
        """False: the server does not know it (any more)."""

    @abstractmethod
    def rollback_prepared(self, name: str) -> bool: ...

    @abstractmethod
    def prepared(self, base: str) -> list[str]:
        """Names of prepared transactions that start with ``base`` and a hyphen."""

    @abstractmethod
    def end_sessions(self, base: str, below: int) -> None:
        """End all sessions that writers of ``base`` with a smaller lease have open; returns when they are gone."""

    # -- what may write --------------------------------------------------------------------------------------------------

    @abstractmethod
    def raise_fence(self, base: str, lease: int, round: int) -> None:
        """Write down that attempts with a smaller (lease, round) may write no more; a smaller one changes nothing."""

    @abstractmethod
    def fence(self, base: str, *, hold: bool) -> tuple[int, int]:
        """The (lease, round) that may write. ``hold``: nobody raises it until this transaction has ended."""

    @abstractmethod
    def settle(self, base: str, lease: int, round: int, names: Sequence[str]) -> None:
        """In one transaction: all up to this round of this lease is committed, and these markers are not needed any more."""

    def mark(self, base: str, name: str, lease: int, round: int) -> None:
        """The marker of a transaction, inside of it."""
        values = (base, name, lease, round)
        self.execute(f"INSERT INTO {self.bookkeeping} (base, name, lease, round) VALUES (%s, %s, %s, %s)", values)

    def was_committed(self, base: str, name: str, lease: int, round: int) -> bool:
        found = self.execute(
            f"SELECT 1 FROM {self.bookkeeping} WHERE base = %s AND (name = %s OR (name = %s AND round >= %s))",
            (base, name, f"@{lease}", round),
        )
        return bool(found)

    bookkeeping: str
    """Quoted as the database wants it."""


class Database(ABC):
    """Where it is and who we are there. Pickles; its repr has no password."""

    where: str

    @abstractmethod
    def check(self, tables: Sequence[Table], *, exactly_once: bool) -> None:
        """Before the job starts: server, rights, tables, columns and keys are as they must be. Makes the table of markers."""

    @abstractmethod
    def check_prepared(self, wanted: int) -> None:
        """Before the job starts: so many prepared transactions can be there at once."""

    @abstractmethod
    def encoder(self, tables: Sequence[Table]) -> Encoder: ...

    @abstractmethod
    def open(self, tables: Sequence[Table], *, tag: str = "", patient: bool = True) -> Session:
        """``tag``: names a writer's session, ``base lease``. ``patient``: a server that is away is waited for, for a while."""


class Encoder(ABC):
    @abstractmethod
    def encode(self, table: int, rows: list[Sequence[Any]]) -> Frame:
        """Raises ``RowError`` with column and key for a value that the column cannot hold."""
