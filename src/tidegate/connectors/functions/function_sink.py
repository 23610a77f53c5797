"""Sinks that write in the task (a function for each record, upserts), and the names of former Flink versions.

``add_source`` and ``add_sink`` take sources and sinks under their former names.
"""

from __future__ import annotations

import inspect
import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.base.errors import ArgumentTypeError
from tidegate.common import WatermarkStrategy
from tidegate.operators.contracts.sink import Prepared, Publication, Sink, SinkGuarantee, SinkWriter, WriterContext
from tidegate.operators.contracts.source import Source
from tidegate.operators.loop.blame import reprlib_repr, user_error


@dataclass(frozen=True)
class SinkRuntimeContext:
    """The argument of a sink function's ``open``."""

    job_id: str
    subtask: int
    parallelism: int
    attempt: str

    def get_index_of_this_subtask(self) -> int:
        return self.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        return self.parallelism


class SinkContext:
    """The context of one record, for sink functions and bucket assigners. Processing time is the start of the round."""

    __slots__ = ("_now_ms", "_timestamp")

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._timestamp: int | None = None

    def current_processing_time(self) -> int:
        return self._now_ms

    def timestamp(self) -> int | None:
        """Return the record's event time in milliseconds. None: the record has no event time."""
        return self._timestamp

    def at(self, timestamp: int | None) -> SinkContext:
        self._timestamp = timestamp
        return self


class FunctionSink(Sink):
    """Call a function for each record, in the task.

    ``sink_function`` is a callable of the value, or an object with ``invoke(value, context)`` or ``invoke(value)``. The object may
    have ``open(runtime_context)``, ``flush()`` and ``close()``. It is opened and closed once for each round and attempt, so its
    buffers are flushed before the round is acknowledged. The sink gives no guarantee: after a failure, or with two attempts of a
    task, records are sent again.
    """

    guarantee = SinkGuarantee.NONE

    def __init__(self, sink_function: Any) -> None:
        if not callable(getattr(sink_function, "invoke", sink_function)):
            raise ArgumentTypeError(
                "add_sink takes a function, or an object with invoke(value, context)",
                where="add_sink",
                found=type(sink_function).__name__,
                cure="pass a function of the value, or an object with invoke(value, context)",
            )
        self.function = sink_function

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _FunctionWriter(self.function, context)


class _FunctionWriter(SinkWriter):
    def __init__(self, function: Any, context: WriterContext) -> None:
        self._function = function
        self._invoke = _two_arguments(getattr(function, "invoke", function))
        self._context = SinkContext(context.now_ms)
        self._closed = False
        if hasattr(function, "open"):
            function.open(SinkRuntimeContext(context.job_id, context.subtask, context.parallelism, context.attempt))

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        invoke, context = self._invoke, self._context
        try:
            for index, value in enumerate(values):
                invoke(value, context.at(timestamps[index] if timestamps else None))
        except BaseException as error:
            raise user_error(error, "sink function", reprlib_repr(value)) from error

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        if hasattr(self._function, "flush"):
            self._function.flush()
        self.close()  # not later: an error while the function flushes its buffer must fail the round
        return Prepared()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if hasattr(self._function, "close"):
                self._function.close()


def _two_arguments(invoke: Any) -> Callable[[Any, SinkContext], Any]:
    try:
        inspect.signature(invoke).bind(None, None)
    except TypeError:
        return lambda value, context: invoke(value)
    except ValueError:  # a builtin without a signature
        return lambda value, context: invoke(value)
    return invoke  # type: ignore[no-any-return]


Version = tuple[int, int]


class UpsertSink(Sink):
    """A base class for sinks into idempotent targets. Extend it, and pass an instance to ``sink_to``.

    The last record of a key counts, however often it is written. After a failure records are written again: readers may see older
    values for a moment, and the final values are right.

    The records of a key must arrive in order, so one subtask must process them: call ``key_by`` with the key before the sink.
    """

    publication = Publication.ROUND
    guarantee = SinkGuarantee.IDEMPOTENT

    @abstractmethod
    def key_of(self, value: Any) -> Any:
        """Return the key under which the target replaces records. The key must be hashable."""

    @abstractmethod
    def upsert(self, entries: dict[Any, Any], version: Version) -> None:
        """Replace the records of these keys in the target, and return when they are durable. Called in a task, with some thousand.

        ``version`` is the attempt of the job and the round; it only grows. A task that was taken for dead may call this late, with
        an older version. A target that can compare versions should refuse the older one.
        """

    def open(self) -> None:
        """Called in a task before the first ``upsert`` of a round."""

    def close(self) -> None:
        """Called in a task after the last ``upsert`` of a round."""

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
        self.close()  # not later: an error in ``close`` must fail the round
        return Prepared()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._sink.close()


class AddedSource(Source):
    """A source for ``add_source``: PyFlink has it as a ``SourceFunction``."""

    watermark_strategy = WatermarkStrategy.no_watermarks()


class AddedSink(Sink):
    """A sink for ``add_sink``: PyFlink has it as a ``SinkFunction``."""


def deprecated(name: str, instead: str) -> None:
    """Warn the user, and name the replacement. Called by the constructor of a class of a former Flink version."""
    warnings.warn(f"{name} is deprecated: use {instead} instead", DeprecationWarning, stacklevel=3)
