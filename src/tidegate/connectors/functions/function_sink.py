"""A sink that calls the user's function for each record, in the task."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.base.errors import ArgumentTypeError
from tidegate.operators.contracts.sink import Prepared, Sink, SinkGuarantee, SinkWriter, WriterContext
from tidegate.operators.loop.blame import reprlib_repr, user_error


@dataclass(frozen=True)
class SinkRuntimeContext:
    """What ``open`` of a sink function gets."""

    job_id: str
    subtask: int
    parallelism: int
    attempt: str

    def get_index_of_this_subtask(self) -> int:
        return self.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        return self.parallelism


class SinkContext:
    """What ``invoke`` gets beside the value. Processing time is the time the round started."""

    __slots__ = ("_now_ms", "_timestamp")

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._timestamp: int | None = None

    def current_processing_time(self) -> int:
        return self._now_ms

    def timestamp(self) -> int | None:
        """The record's event time in milliseconds, None if it has none."""
        return self._timestamp

    def at(self, timestamp: int | None) -> SinkContext:
        self._timestamp = timestamp
        return self


class FunctionSink(Sink):
    """``sink_function``: a callable of the value, or an object with ``invoke(value, context)`` (or
    ``invoke(value)``) and, if it likes, ``open(runtime_context)``, ``flush()`` and ``close()``.

    Opened and closed once per round and attempt, so what it buffers is out before the round is acknowledged. No
    guarantee of its own: after a failure, or with two attempts of a task, records are sent again.
    """

    guarantee = SinkGuarantee.NONE

    def __init__(self, sink_function: Any) -> None:
        if not callable(getattr(sink_function, "invoke", sink_function)):
            raise ArgumentTypeError(
                "a sink function is callable or has invoke(value, context)",
                where="add_sink",
                found=type(sink_function).__name__,
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
        self.close()  # here and not later: an error while it writes out its buffer must fail the round
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
