"""Typed errors for failures of a database: one class and one rule for each kind of failure."""

from __future__ import annotations

from enum import Enum

from tidegate.base.errors import AccessError, ConfigurationError, RowError, ServiceError, TidegateError


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
