"""A connection that executes one statement for many rows, with a transaction for each batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

from tidegate.base.errors import RowError, TidegateError
from tidegate.operators.loop.blame import reprlib_repr

Rows = Sequence[tuple[Any, ...]]


class Batches(ABC):
    """A connection of one driver. The constructor fails unless the database knows the tables and columns of the statement.
    Errors are typed; an error that a row causes names the row."""

    errors: ClassVar[tuple[type[Exception], ...]]
    """Those of the driver."""

    def write(self, rows: Rows) -> None:
        """Execute the statement for every row, in order, and commit. After an error nothing is committed, unless the connection
        broke during the commit: then the outcome is unknown."""
        try:
            self._execute("BEGIN")
            self._send(rows)
            self._execute("COMMIT")
        except self.errors as error:
            raise self._named(rows, self._typed(error, "")) from None

    def _named(self, rows: Rows, problem: TidegateError) -> TidegateError:
        """The error of a batch does not name the refused row: send the rows one by one, and roll them back."""
        try:
            self._execute("ROLLBACK")
            if isinstance(problem, RowError):
                self._execute("BEGIN")
                for row in rows:
                    try:
                        self._send([row])
                    except self.errors as error:
                        return self._typed(error, reprlib_repr(row))
        except self.errors:
            return problem
        finally:
            with suppress(*self.errors):
                self._execute("ROLLBACK")
        return problem

    @abstractmethod
    def _execute(self, command: str) -> None: ...

    @abstractmethod
    def _send(self, rows: Rows) -> None: ...

    @abstractmethod
    def _typed(self, error: Exception, row: str) -> TidegateError: ...

    @abstractmethod
    def close(self) -> None: ...
