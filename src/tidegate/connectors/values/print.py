"""The print sink: every record as a line on the driver's standard output or error."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from tidegate.base.errors import OutputClosedError
from tidegate.base.plain_data import is_encodable
from tidegate.connectors.functions.once import Once
from tidegate.operators.contracts.sink import (
    Committer,
    CommitterContext,
    Prepared,
    Publication,
    Sink,
    SinkWriter,
    WriterContext,
)


class PrintSink(Sink):
    """Lines as Flink prints them: ``identifier:subtask> value`` with subtasks counted from 1; the subtask only if
    there are several, nothing in front if there is neither. Printed after each round, so lines may repeat after a
    failure.
    """

    publication = Publication.ROUND

    def __init__(self, identifier: str = "", stderr: bool = False) -> None:
        self.identifier, self.stderr = identifier, stderr

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _PrintWriter(prefix(self.identifier, context.subtask, context.parallelism), context.attempt)

    def create_committer(self, context: CommitterContext) -> Committer:
        return _PrintCommitter(self.stderr)


def prefix(identifier: str, subtask: int, parallelism: int) -> str:
    names = [identifier] if identifier else []
    if parallelism > 1:
        names.append(str(subtask + 1))
    return f"{':'.join(names)}> " if names else ""


class _PrintWriter(SinkWriter):
    def __init__(self, line_prefix: str, attempt: str) -> None:
        self._prefix, self._attempt = line_prefix, attempt
        self._lines: list[str] = []

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        front = self._prefix
        self._lines += [f"{front}{value}" for value in values]

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        return Prepared([{"id": self._attempt, "lines": _printable(self._lines)}] if self._lines else [])


def _printable(lines: list[str]) -> list[str]:
    """What is printed is for eyes: what no character set has is shown, and fails no job."""
    if all(map(is_encodable, lines)):
        return lines
    return [line.encode("utf-8", "backslashreplace").decode() for line in lines]


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError as error:  # of a terminal that has fewer characters
        stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))


class _PrintCommitter(Committer):
    def __init__(self, stderr: bool) -> None:
        self._stderr, self._once = stderr, Once()

    def commit(self, committables: list[Any]) -> None:
        stream = sys.stderr if self._stderr else sys.stdout
        self._once.begin(committable["id"] for committable in committables)
        try:
            for committable in committables:
                if self._once.first(committable["id"]):
                    _write(stream, "".join(f"{line}\n" for line in committable["lines"]))
            stream.flush()
        except BrokenPipeError as error:
            raise OutputClosedError(
                "A job prints its records while somebody reads them",
                where="standard error" if self._stderr else "standard output",
                found="a pipe whose reader has ended",
                cure="use a file or another sink for a job that runs on",
            ) from error
