"""Sinks without an outside system: print, collect, discard."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

import cloudpickle

from tidegate.base.errors import ArgumentTypeError, OutputClosedError
from tidegate.base.pickling import cure_of, is_encodable, load_stored
from tidegate.operators.contracts.arrow_batch import ArrowBatch
from tidegate.operators.contracts.sink import (
    Committer,
    CommitterContext,
    Prepared,
    Publication,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)


class PrintSink(Sink):
    """Print every record as a line on the driver's standard output or error, in Flink's form ``identifier:subtask> value``.

    Subtasks count from 1, and are printed only if there are several. Without identifier and subtask the line is the value. Lines
    are printed after each round, so they may be duplicated after a failure.
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
    """Escape characters that cannot be encoded. Output for human eyes must not fail a job."""
    if all(map(is_encodable, lines)):
        return lines
    return [line.encode("utf-8", "backslashreplace").decode() for line in lines]


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError as error:  # the terminal has fewer characters
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
                "The job cannot print its records, because the reader of its output is gone",
                where="standard error" if self._stderr else "standard output",
                found="a pipe without a reader",
                cure="write to a file or another sink if the job must outlive the reader",
            ) from error


class CollectChannel:
    """Carry records from the committer to an iterator in the same process. Unbounded: the job never waits for the reader.

    Iterating waits for records until the channel is closed. An error given to ``close`` is raised after the last record.
    """

    def __init__(self) -> None:
        self._values: deque[Any] = deque()
        self._once = Once()
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None

    def begin(self, identities: Iterable[str]) -> None:
        """Begin a commit of these ids. It may repeat the last commit."""
        with self._changed:
            self._once.begin(identities)

    def put(self, identity: str, values: list[Any]) -> None:
        """Add the values, unless this commit, or the commit that it repeats, has put this id before."""
        with self._changed:
            if self._once.first(identity):
                self._values.extend(values)
                self._changed.notify_all()

    def close(self, error: BaseException | None = None) -> None:
        """End the channel. Further calls have no effect."""
        with self._changed:
            if not self._closed:
                self._closed, self._error = True, error
                self._changed.notify_all()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._values or self._closed)
            if self._values:
                return self._values.popleft()
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            raise StopIteration


channels: weakref.WeakValueDictionary[str, CollectChannel] = weakref.WeakValueDictionary()
"""A channel lives as long as its reader. Records that nobody can read any more are dropped."""
_lock = threading.Lock()


def collected(channel_id: str) -> CollectChannel:
    """Return the channel of this id in this process, made on first use. Hold it as long as its records are needed."""
    with _lock:
        return channels.setdefault(channel_id, CollectChannel())


class CollectSink(Sink):
    """Give the records back to the program that started the job."""

    publication = Publication.CHECKPOINT_OR_ROUND
    guarantee = SinkGuarantee.TWO_PHASE_COMMIT
    can_have_uid = False

    def __init__(self, channel_id: str) -> None:
        self.channel_id = channel_id

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _CollectWriter(context.attempt)

    def create_committer(self, context: CommitterContext) -> Committer:
        return _CollectCommitter(self.channel_id)

    def job_ended(self, failure: Exception | None) -> None:
        """End the iteration of the reader, with the failure if there is one."""
        collected(self.channel_id).close(failure)


class _CollectWriter(SinkWriter):
    def __init__(self, attempt: str) -> None:
        self._attempt = attempt
        self._values: list[Any] = []

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._values += values

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        if not self._values:
            return Prepared()
        try:
            values = cloudpickle.dumps(self._values)
        except Exception as error:
            raise ArgumentTypeError(
                "A collected record cannot be pickled",
                found=f"{type(error).__name__}: {error}",
                cure=cure_of(error, "collect plain data, tuples, Rows or instances of importable classes"),
            ) from error
        return Prepared([{"id": self._attempt, "values": values}])


class _CollectCommitter(Committer):
    def __init__(self, channel_id: str) -> None:
        self._channel_id = channel_id

    def commit(self, committables: list[Any]) -> None:
        self._commit(committables, cloudpickle.loads)

    def recover(self, committables: list[Any]) -> None:
        """Commit committables of a snapshot. Those of ``commit`` come from tasks of this job, and are trusted."""
        self._commit(committables, load_stored)

    def _commit(self, committables: list[Any], load: Callable[[bytes], Any]) -> None:
        channel = collected(self._channel_id)
        channel.begin(committable["id"] for committable in committables)
        for committable in committables:
            channel.put(committable["id"], load(committable["values"]))


class DiscardingSink(Sink):
    """Discard all records, for benchmarks and for streams that are run for their side outputs."""

    guarantee = SinkGuarantee.TWO_PHASE_COMMIT
    reads_records = False
    takes_columns = True

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _DiscardingWriter()


class _DiscardingWriter(SinkWriter):
    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        return

    def write_columns(self, batch: ArrowBatch) -> bool:
        return True

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        return Prepared()


class Once:
    """Remember the ids of the latest commit, so that a repeated commit has no effect.

    Only the latest commit is ever repeated, by a retry or by a restore of its checkpoint in the same process. All its ids come
    again then.
    """

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def begin(self, ids: Iterable[str]) -> None:
        """Begin a commit of these ids. Other ids will not come again and are forgotten."""
        self._ids.intersection_update(ids)

    def first(self, identity: str) -> bool:
        """Return True for an id that is new."""
        if identity in self._ids:
            return False
        self._ids.add(identity)
        return True
