"""A connection that executes one statement for many rows, each batch in a transaction of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

from tidegate.base.errors import RowError, TidegateError
from tidegate.operators.loop.blame import reprlib_repr

Rows = Sequence[tuple[Any, ...]]


class Batches(ABC):
    """Of one database's driver. It is made only if the database knows the tables and columns of the statement. Errors are typed;
    one that a row is to blame for names the row."""

    errors: ClassVar[tuple[type[Exception], ...]]
    """What the driver raises."""

    def write(self, rows: Rows) -> None:
        """Execute the statement for every row, in order, and commit. On an error nothing is committed, unless the connection broke
        during the commit: then nobody knows."""
        try:
            self._execute("BEGIN")
            self._send(rows)
            self._execute("COMMIT")
        except self.errors as error:
            raise self._named(rows, self._typed(error, "")) from None

    def _named(self, rows: Rows, problem: TidegateError) -> TidegateError:
        """A batch does not tell which row was refused: the rows are sent one by one, and rolled back."""
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
