"""A harness for functions: push records, advance time, read output, state and timers; no Spark, no JVM.

``harness(...)`` (``harness_kinds.py``) makes one. The function runs in the real operator, with the real generated loop, state
backend, timers and snapshots (``open_rounds.py``). The method names are those of Flink's test harnesses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

from tidegate.base.clock import MAX_WATERMARK, MIN_WATERMARK, ManualClock
from tidegate.base.errors import ArgumentTypeError, ProgramError, StateAccessError
from tidegate.graph.transformation import OutputTag, Program
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.operator import StreamOperator
from tidegate.operators.contracts.sink import Prepared, Sink, SinkWriter, WriterContext
from tidegate.state.backend import KeyedBackend
from tidegate.state.context import NO_KEY, split
from tidegate.state.key_groups import group_of
from tidegate.state.keys import visible
from tidegate.state.timers import TimerQueue
from tidegate.testing.open_rounds import HarnessSnapshot, OpenJob, unwrapped

__all__ = ["FunctionHarness", "HarnessSnapshot", "Record", "Timer"]

T = TypeVar("T")
START_MS = 0
"""Processing time when a harness begins, as in Flink's harnesses."""

_captured: dict[str, list[Record]] = {}
_numbers = itertools.count(1)


class Record(NamedTuple):
    """A record of an output. ``timestamp`` None: it has no event time."""

    value: Any
    timestamp: int | None


class Timer(NamedTuple):
    """A timer that has not fired. ``key``: its key, as the function sees it."""

    timestamp: int
    key: Any


class CaptureSink(Sink):
    """Hand the records of an output to the harness that made the sink."""

    def __init__(self) -> None:
        self.name = f"harness-{next(_numbers)}"
        _captured[self.name] = []

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _CaptureWriter(_captured[self.name])

    @property
    def records(self) -> list[Record]:
        return _captured[self.name]

    def forget(self) -> None:
        _captured.pop(self.name, None)


class _CaptureWriter(SinkWriter):
    def __init__(self, records: list[Record]) -> None:
        self._records = records

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._records.extend(map(Record, values, timestamps or itertools.repeat(None)))

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        return Prepared()


@dataclass(frozen=True)
class Tested:
    """What a harness runs. ``operator``: the id of the operator with the function. ``inputs``: how many there are.
    ``captures``: the outputs by name; None is the main output."""

    name: str
    program: Program
    operator: int
    inputs: int
    captures: dict[str | None, CaptureSink]
    broadcast: bool = False
    divided: bool = False
    """Records of side outputs come with the main output, and are divided here."""


class FunctionHarness:
    """Run one function by hand. Use it in a ``with`` statement, or call ``close``. Times are in milliseconds.

    An exception of the function is raised as it is, with a note that names operator, line and record.
    """

    def __init__(self, tested: Tested, *, restored: HarnessSnapshot | None = None) -> None:
        self._tested, self._closed = tested, False
        self._clock = ManualClock(START_MS if restored is None else restored.processing_time)
        self._watermarks = [MIN_WATERMARK] * tested.inputs
        taken = [tested.operator] if tested.divided else []
        self._job = _with_users_errors(lambda: OpenJob(tested.program, self._clock, taken, restored))
        self._main: list[Record] = []
        self._sides: dict[str, list[Record]] = {}
        self._ended = False

    # -- life cycle ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the function, and delete the files of the harness. Later calls have no effect."""
        if not self._closed:
            self._closed = True
            try:
                _with_users_errors(self._job.close)
            finally:
                for capture in self._tested.captures.values():
                    capture.forget()

    # -- records -------------------------------------------------------------------------------------------------------

    def process_element(self, value: Any, timestamp: int | None = None) -> None:
        """Send a record to the first input."""
        self._push(0, [value], [timestamp])

    def process_element1(self, value: Any, timestamp: int | None = None) -> None:
        """Send a record to the first of two inputs."""
        self._expect_two("process_element1")
        self._push(0, [value], [timestamp])

    def process_element2(self, value: Any, timestamp: int | None = None) -> None:
        """Send a record to the second of two inputs."""
        self._expect_two("process_element2")
        self._push(1, [value], [timestamp])

    def process_broadcast_element(self, value: Any, timestamp: int | None = None) -> None:
        """Send a record to the broadcast input: it reaches every subtask."""
        if not self._tested.broadcast:
            raise ProgramError(
                "The function has no broadcast input",
                where=self._where("process_broadcast_element"),
                cure="use process_element, or process_element1 and process_element2",
            )
        self._push(1, [value], [timestamp])

    def process_elements(self, values: Iterable[Any], *, timestamp: Callable[[Any], int] | None = None) -> None:
        """Send records to the first input as one batch. ``timestamp`` gives the event time of each."""
        every = list(values)
        self._push(0, every, [None if timestamp is None else timestamp(value) for value in every])

    def _push(self, number: int, values: list[Any], timestamps: list[int | None]) -> None:
        self._expect_open()
        for timestamp in timestamps:
            if timestamp is not None and (isinstance(timestamp, bool) or not isinstance(timestamp, int)):
                raise ArgumentTypeError(
                    "An event time is not a whole number of milliseconds",
                    where=self._where("process_element"),
                    found=repr(timestamp),
                    cure="process_element(value, 1_000)",
                )
        times: list[Any] | None = timestamps if any(moment is not None for moment in timestamps) else None
        if values:
            _with_users_errors(lambda: self._job.push(number, Batch(values, times)))

    # -- time ----------------------------------------------------------------------------------------------------------

    def process_watermark(self, watermark: int) -> None:
        """Advance event time on all inputs. Due timers and windows fire."""
        for number in range(self._tested.inputs):
            self._reach(number, watermark)

    def process_watermark1(self, watermark: int) -> None:
        """Advance event time on the first input. The function's time is that of the slower input."""
        self._expect_two("process_watermark1")
        self._reach(0, watermark)

    def process_watermark2(self, watermark: int) -> None:
        """Advance event time on the second input."""
        self._expect_two("process_watermark2")
        self._reach(1, watermark)

    def _reach(self, number: int, watermark: int) -> None:
        self._expect_open()
        if isinstance(watermark, bool) or not isinstance(watermark, int):
            raise ArgumentTypeError(
                "A watermark is not a whole number of milliseconds",
                where=self._where("process_watermark"),
                found=repr(watermark),
                cure="process_watermark(1_000)",
            )
        if watermark < self._watermarks[number]:
            raise ProgramError(
                "A watermark never falls",
                where=self._where("process_watermark"),
                found=f"{watermark} after {self._watermarks[number]}",
                cure="send a record with an earlier timestamp to see how the function treats late records",
            )
        self._watermarks[number] = watermark
        _with_users_errors(lambda: self._job.reach(number, watermark))

    def set_processing_time(self, ms: int) -> None:
        """Set the clock. Due timers fire."""
        now = self._clock.now_ms()
        if ms < now:
            raise ProgramError(
                "Processing time never falls",
                where=self._where("set_processing_time"),
                found=f"{ms} after {now}",
                cure="use advance_processing_time(...)",
            )
        self.advance_processing_time(ms - now)

    def advance_processing_time(self, ms: int) -> None:
        """Advance the clock. Due timers fire."""
        self._expect_open()
        self._clock.advance(ms)
        _with_users_errors(self._job.on_clock)

    @property
    def processing_time(self) -> int:
        """The clock."""
        return self._clock.now_ms()

    @property
    def current_watermark(self) -> int:
        """The event time at the function. Raise if no input, or only one of two, has had a watermark."""
        reached = min(operator.input_time.watermark for operator in self._operators())
        if reached == MIN_WATERMARK:
            behind = [f"input {n + 1}" for n, mark in enumerate(self._watermarks) if mark == MIN_WATERMARK]
            raise ProgramError(
                "There is no watermark yet",
                where=self._where("current_watermark"),
                found=f"none on {' and '.join(behind) or 'the input since the restore'}",
                cure="call process_watermark(...) first",
            )
        return reached

    def end_input(self) -> None:
        """End all inputs: event time reaches its end, event-time timers and windows fire. No record may follow."""
        self._expect_open()
        self._watermarks = [MAX_WATERMARK] * self._tested.inputs

        def end() -> None:
            self._job.ended = True
            self._job.finish_round()
            self._job.begin()

        _with_users_errors(end)
        self._ended = True

    # -- output --------------------------------------------------------------------------------------------------------

    def get_output(self) -> list[Any]:
        """Return all values of the main output so far, in order."""
        return [record.value for record in self.get_records()]

    def get_records(self) -> list[Record]:
        """Return all records of the main output so far, with their timestamps."""
        self._collect()
        return list(self._main)

    def take_output(self) -> list[Any]:
        """Return the values of the main output since the last call of this method, in order."""
        return [record.value for record in self.take_records()]

    def take_records(self) -> list[Record]:
        """Do as ``take_output``, with timestamps."""
        self._collect()
        taken, self._main = self._main, []
        return taken

    def get_side_output(self, tag: OutputTag | str) -> list[Any]:
        """Return all values of a side output so far."""
        self._collect()
        return [record.value for record in self._sides.get(_name(tag), [])]

    def take_side_output(self, tag: OutputTag | str) -> list[Any]:
        """Return the values of a side output since the last call of this method for it."""
        self._collect()
        return [record.value for record in self._sides.pop(_name(tag), [])]

    def _collect(self) -> None:
        if not self._closed:
            _with_users_errors(self._job.drain)
        for name, capture in self._tested.captures.items():
            for value, timestamp in capture.records:
                if name is not None:
                    self._sides.setdefault(name, []).append(Record(value, timestamp))
                elif self._tested.divided and _is_tagged(value):
                    self._sides.setdefault(value[0].tag_id, []).append(Record(value[1], timestamp))
                else:
                    self._main.append(Record(value, timestamp))
            capture.records.clear()

    # -- state and timers ----------------------------------------------------------------------------------------------

    def state(self, name: str, key: Any) -> Any:
        """Return the keyed state of a key: the value, a list, or a dict; None, ``[]`` or ``{}`` if the key has none.

        Expired state is not shown. To look at a state neither renews nor removes it."""
        backend = self._backend(key)
        states = backend.registered()
        if name not in states:
            raise self._unknown_state(name, list(states))
        context, before = backend.context, backend.context.slot
        try:
            context.enter(backend.identity.identify(key), b"")
            context.time = self._clock.now_ms()
            with getattr(states[name], "undone", nullcontext)():
                return _contents(states[name])
        finally:
            context.slot = before

    def broadcast_state(self, name: str) -> dict[Any, Any]:
        """Return a broadcast state, as the first subtask has it: all subtasks have the same."""
        return dict(self._own_state(name).items())

    def operator_state(self, name: str) -> list[Any]:
        """Return a list state of the operator (of ``CheckpointedFunction``), over all subtasks."""
        return [item for number in range(len(self._operators())) for item in self._own_state(name, number).get()]

    def _own_state(self, name: str, number: int = 0) -> Any:
        own: Any = getattr(self._operators()[number], "own_state", None)
        states = {} if own is None else {state.schema.name: state for state in own.states._states.values()}
        if name not in states:
            raise self._unknown_state(name, list(states))
        return states[name]

    def _unknown_state(self, name: str, known: list[str]) -> StateAccessError:
        return StateAccessError(
            "The function has declared no state with this name",
            where=self._where(f"state {name!r}"),
            found=f"declared are: {', '.join(sorted(known))}" if known else "no state is declared",
            cure="get the state from the runtime context in open(), or correct the name",
        )

    def _backend(self, key: Any) -> KeyedBackend:
        every = self._backends()
        if not every:
            raise StateAccessError(
                "The function has no keyed state, because its input has no key",
                where=self._where("state"),
                cure="give the harness a key: harness(function, key=lambda value: ...)",
            )
        form = every[0].identity.identify(key)
        group = group_of(form, every[0].max_parallelism)
        return next(backend for backend in every if backend.groups.first <= group <= backend.groups.last)

    def _backends(self) -> list[KeyedBackend]:
        every = [getattr(operator, "backend", None) for operator in self._operators()]
        return [backend for backend in every if backend is not None]

    def event_time_timers(self, key: Any = NO_KEY) -> list[Timer]:
        """Return the event-time timers that wait, in order: all of them, or those of a key."""
        return self._timers([backend.event_timers for backend in self._backends()], key)

    def processing_time_timers(self, key: Any = NO_KEY) -> list[Timer]:
        """Return the processing-time timers that wait, in order: all of them, or those of a key."""
        return self._timers([backend.processing_timers for backend in self._backends()], key)

    def _timers(self, queues: list[TimerQueue], key: Any) -> list[Timer]:
        found = [Timer(moment, visible(split(slot)[0])) for queue in queues for moment, slot in queue.pending()]
        found.sort(key=lambda timer: (timer.timestamp, repr(timer.key)))
        return found if key is NO_KEY else [timer for timer in found if timer.key == key]

    def num_event_time_timers(self) -> int:
        """Return how many event-time timers wait."""
        return len(self.event_time_timers())

    def num_processing_time_timers(self) -> int:
        """Return how many processing-time timers wait."""
        return len(self.processing_time_timers())

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> HarnessSnapshot:
        """Take a snapshot, and continue. A sink pre-commits. Restore it with ``harness(..., restore=snapshot)``."""
        self._expect_open()
        return _with_users_errors(self._job.snapshot)

    def notify_checkpoint_complete(self, snapshot: HarnessSnapshot | int) -> None:
        """Complete a checkpoint: a sink commits, and functions that listen are notified."""
        checkpoint_id = snapshot if isinstance(snapshot, int) else snapshot.checkpoint_id
        _with_users_errors(lambda: self._job.complete(checkpoint_id))

    def notify_checkpoint_aborted(self, snapshot: HarnessSnapshot | int) -> None:
        """Abort a checkpoint: functions that listen are notified. A sink commits its output with the next checkpoint."""
        checkpoint_id = snapshot if isinstance(snapshot, int) else snapshot.checkpoint_id
        _with_users_errors(lambda: self._job.abort(checkpoint_id))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _operators(self) -> list[StreamOperator]:
        return self._job.operators(self._tested.operator)

    def _expect_open(self) -> None:
        if self._closed:
            raise ProgramError("The harness is closed", where=self._where(""), cure="make another one")
        if getattr(self, "_ended", False):
            raise ProgramError("The input has ended", where=self._where(""), cure="call end_input() last")

    def _expect_two(self, method: str) -> None:
        if self._tested.inputs != 2:
            raise ProgramError(
                "The function has one input",
                where=self._where(method),
                cure=f"use {method.removesuffix('1').removesuffix('2')}",
            )

    def _where(self, what: str) -> str:
        return f"harness of {self._tested.name}" + (f", {what}" if what else "")


def _with_users_errors(act: Callable[[], T]) -> T:
    """Act, and raise an exception of user code as it is."""
    try:
        return act()
    except Exception as error:
        failed = unwrapped(error)
        if failed is error:
            raise
    raise failed


def _name(tag: OutputTag | str) -> str:
    return tag.tag_id if isinstance(tag, OutputTag) else tag


def _is_tagged(value: Any) -> bool:
    return value.__class__ is tuple and len(value) == 2 and value[0].__class__ is OutputTag


def _contents(state: Any) -> Any:
    for method in ("value", "items", "get"):
        read = getattr(state, method, None)
        if read is not None:
            return dict(read()) if method == "items" else read()
    raise AssertionError(f"a state that cannot be read: {state!r}")
