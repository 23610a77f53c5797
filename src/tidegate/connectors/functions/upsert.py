"""A base for sinks into idempotent targets: the last record of a key is what counts, however often it is written."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from tidegate.operators.contracts.sink import Prepared, Publication, Sink, SinkGuarantee, SinkWriter, WriterContext

Version = tuple[int, int]


class UpsertSink(Sink):
    """Extend it, and hand it to ``sink_to``. At least once, and effectively once: after a failure records are written again, so a
    reader may see older values for a moment, and the end result is right.

    Records of a key must come in order, so they must pass one subtask: ``key_by`` the key before the sink.
    """

    publication = Publication.ROUND
    guarantee = SinkGuarantee.IDEMPOTENT

    @abstractmethod
    def key_of(self, value: Any) -> Any:
        """What the target replaces by. It must be hashable."""

    @abstractmethod
    def upsert(self, entries: dict[Any, Any], version: Version) -> None:
        """In a task, some thousand at a time: replace what the target has for each key. Returns when it is durable there.
        ``version``: attempt of the job and round, which only grow. A task that was taken for dead may call this late, with an older
        one: a target that can compare refuses what is older than what it has."""

    def open(self) -> None:
        """In a task, before the first ``upsert`` of a round."""

    def close(self) -> None:
        """In a task, behind the last."""

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _UpsertWriter(self, (context.lease, context.round))


class _UpsertWriter(SinkWriter):
    def __init__(self, sink: UpsertSink, version: Version) -> None:
        self._sink, self._version = sink, version
        self._is_open = False

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        if not self._is_open:
            self._sink.open()
            self._is_open = True
        self._sink.upsert({self._sink.key_of(value): value for value in values}, self._version)

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        self.close()  # here and not later: an error while it closes must fail the round
        return Prepared()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._sink.close()
