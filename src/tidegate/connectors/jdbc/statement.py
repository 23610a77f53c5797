"""A statement with JDBC's placeholders for Python's drivers, and a connection that executes it in batches.

``?`` becomes ``%s`` where it is a placeholder. A connection executes one statement for many rows, with a transaction
for each batch.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.base.errors import ProgramError, RowError, TidegateError
from tidegate.operators.loop.blame import reprlib_repr

_POSTGRESQL = re.compile(
    r"""(?P<mark>\?\??)
    | [eE]'(?:[^'\\]|''|\\.)*'                                  # a text with escapes
    | '(?:[^']|'')*' | "(?:[^"]|"")*"                           # a text, a name
    | (?<![\w$])(?P<dollar>\$(?:[^\W\d]\w*)?\$).*?(?P=dollar)   # a text between dollars
    | --[^\n]*
    | (?P<comment>/\*)
    | \w+                                                       # so that the e at the end of a word begins no text""",
    re.VERBOSE | re.DOTALL,
)
_MYSQL = re.compile(
    r"""(?P<mark>\?)
    | '(?:[^'\\]|''|\\.)*' | "(?:[^"\\]|""|\\.)*" | `(?:[^`]|``)*`
    | --(?=\s|\Z)[^\n]* | \#[^\n]*
    | (?P<comment>/\*)""",
    re.VERBOSE | re.DOTALL,
)
_NESTED = re.compile(r"/\*|\*/")


@dataclass(frozen=True)
class Statement:
    """``texts``: the parts before, between and after the placeholders."""

    texts: tuple[str, ...]

    @property
    def placeholders(self) -> int:
        return len(self.texts) - 1

    def formatted(self, casts: Sequence[str] = ()) -> str:
        """For Python's drivers: ``%s`` for a value, ``%%`` for a percent sign. ``casts``: a type for each value."""
        first, *others = (text.replace("%", "%%") for text in self.texts)
        types = [f"::{each}" for each in casts] or [""] * len(others)
        return first + "".join(f"%s{each}{text}" for each, text in zip(types, others, strict=True))

    def numbered(self) -> str:
        """For PostgreSQL itself: ``$1``, ``$2``."""
        first, *others = self.texts
        return first + "".join(f"${number}{text}" for number, text in enumerate(others, 1))

    def marked(self) -> str:
        """For MariaDB itself: ``?``."""
        return "?".join(self.texts)

    @staticmethod
    def parsed(sql: str, *, postgresql: bool) -> Statement:
        """Find the placeholders. A question mark in a text, a quoted name or a comment is none. ``??`` is PostgreSQL's operator
        ``?``, as in its JDBC driver."""
        texts, begin, at = [""], 0, 0
        grammar = _POSTGRESQL if postgresql else _MYSQL
        while (found := grammar.search(sql, at)) is not None:
            at = found.end()
            if found["comment"]:
                at = _end_of_comment(sql, at, nested=postgresql)
            elif found["mark"]:
                texts[-1] += sql[begin : found.start()]
                begin = at
                if found["mark"] == "?":
                    texts.append("")
                else:
                    texts[-1] += "?"
        texts[-1] += sql[begin:]
        return Statement(tuple(texts))


def _end_of_comment(sql: str, at: int, *, nested: bool) -> int:
    """Comments of PostgreSQL can be nested."""
    depth = 1
    while depth:
        found = _NESTED.search(sql, at)
        if found is None:
            raise ProgramError(
                "A comment in the statement of a JDBC sink does not end",
                where="JdbcSink.sink",
                found=sql[:200],
                cure="add */",
            )
        at = found.end()
        if found[0] == "*/":
            depth -= 1
        elif nested:
            depth += 1
    return at


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
