"""The collect sink: records come back to the program that started the job."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cloudpickle

from tidegate.base.errors import ArgumentTypeError
from tidegate.base.pickling import cure_of, load_stored
from tidegate.connectors.functions.once import Once
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


class CollectChannel:
    """Records on their way from the committer to an iterator in the same process. Unbounded: the job never waits
    for the reader.

    Iterating waits for records until the channel is closed; an error given to ``close`` is raised after the last
    record.
    """

    def __init__(self) -> None:
        self._values: deque[Any] = deque()
        self._once = Once()
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None

    def begin(self, identities: Iterable[str]) -> None:
        """A commit of these begins; it may repeat the one before."""
        with self._changed:
            self._once.begin(identities)

    def put(self, identity: str, values: list[Any]) -> None:
        """Add the values, unless this id was put before in this commit or the one it repeats."""
        with self._changed:
            if self._once.first(identity):
                self._values.extend(values)
                self._changed.notify_all()

    def close(self, error: BaseException | None = None) -> None:
        """Nothing follows. Further calls have no effect."""
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


_channels: weakref.WeakValueDictionary[str, CollectChannel] = weakref.WeakValueDictionary()
"""A channel lives as long as its reader: what is committed when nobody can read it any more is dropped."""
_lock = threading.Lock()


def collected(channel_id: str) -> CollectChannel:
    """The channel of this id in this process, made on first use. Hold it as long as its records are wanted."""
    with _lock:
        return _channels.setdefault(channel_id, CollectChannel())


class CollectSink(Sink):
    publication = Publication.CHECKPOINT_OR_ROUND
    guarantee = SinkGuarantee.TWO_PHASE_COMMIT

    def __init__(self, channel_id: str) -> None:
        self.channel_id = channel_id

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _CollectWriter(context.attempt)

    def create_committer(self, context: CommitterContext) -> Committer:
        return _CollectCommitter(self.channel_id)


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
                "Records that are collected must be picklable",
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
        """These come from a snapshot, and those of ``commit`` from tasks of this job."""
        self._commit(committables, load_stored)

    def _commit(self, committables: list[Any], load: Callable[[bytes], Any]) -> None:
        channel = collected(self._channel_id)
        channel.begin(committable["id"] for committable in committables)
        for committable in committables:
            channel.put(committable["id"], load(committable["values"]))
