"""User functions, their life cycle, and their contexts.

A function is called for a record. The contexts have PyFlink's method names: runtime context, cached files, process
contexts, timer service.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from enum import Enum
from typing import Any, NoReturn, Protocol

from tidegate.base.errors import ProgramError, StateAccessError
from tidegate.base.user_code import UserFunction, UserValue
from tidegate.graph.plan import Operator
from tidegate.metrics.metricbase import MetricGroup
from tidegate.operators.contracts.metrics import SubtaskMetricGroup, SubtaskMetrics
from tidegate.operators.contracts.watermarks import EventTime
from tidegate.operators.loop.blame import user_error
from tidegate.state.backend import KeyedBackend
from tidegate.state.descriptors import AggregatingState, ListState, MapState, ReducingState, StateDescriptor, ValueState

_arrived: dict[str, dict[str, str]] = {}
"""Job id -> name -> path, of files that were sent to this host."""


def arrived(job_id: str, files: Mapping[str, str]) -> None:
    """Note the job's files on this host. Without this call the files are where the program was started: on the same
    host."""
    _arrived[job_id] = dict(files)


class DistributedCache:
    """Return cached files by the name they were registered with; the result of
    ``RuntimeContext.get_distributed_cache``. ``files``: name -> path where the program was started."""

    def __init__(self, job_id: str, files: Mapping[str, str]) -> None:
        self._files = {**files, **_arrived.get(job_id, {})}

    def get_file(self, name: str) -> str:
        """Return the path of the file or directory on this host. Do not change the file: other subtasks read it too."""
        if name not in self._files:
            raise ProgramError(
                "No cached file is registered with this name",
                found=f"no cached file '{name}'",
                cure=f"use one of {', '.join(sorted(self._files))}"
                if self._files
                else f'call env.register_cached_file("/path", "{name}")',
            )
        return self._files[name]


class TimeDomain(Enum):
    """Name the clock on which a timer was set."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1


class SubtaskRuntimeContext:
    """Be the argument of ``open``. Valid as long as the function object lives."""

    def __init__(
        self,
        operator: Operator,
        subtask: int,
        backend: KeyedBackend | None,
        parameters: dict[str, str] | None = None,
        metrics: SubtaskMetrics | None = None,
        cache: DistributedCache | None = None,
    ) -> None:
        self._operator, self._subtask, self._backend = operator, subtask, backend
        self._parameters = parameters or {}
        self._cache = cache or DistributedCache("", {})
        self.attempt_number = 0
        self._metrics = metrics or SubtaskMetrics(operator.name)

    def get_task_name(self) -> str:
        return self._operator.name

    def get_number_of_parallel_subtasks(self) -> int:
        return self._operator.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        return self._operator.max_parallelism

    def get_index_of_this_subtask(self) -> int:
        return self._subtask

    def get_attempt_number(self) -> int:
        return self.attempt_number

    def get_task_name_with_subtasks(self) -> str:
        return f"{self._operator.name} ({self._subtask + 1}/{self._operator.parallelism})"

    def get_job_parameter(self, key: str, default_value: str) -> str:
        return self._parameters.get(key, default_value)

    def get_distributed_cache(self) -> DistributedCache:
        return self._cache

    def get_metrics_group(self) -> MetricGroup:
        return SubtaskMetricGroup(self._metrics)

    def get_state(self, state_descriptor: StateDescriptor) -> ValueState[UserValue]:
        state: ValueState[UserValue] = self._keyed(state_descriptor)
        return state

    def get_list_state(self, state_descriptor: StateDescriptor) -> ListState[UserValue]:
        state: ListState[UserValue] = self._keyed(state_descriptor)
        return state

    def get_map_state(self, state_descriptor: StateDescriptor) -> MapState[UserValue, UserValue]:
        state: MapState[UserValue, UserValue] = self._keyed(state_descriptor)
        return state

    def get_reducing_state(self, state_descriptor: StateDescriptor) -> ReducingState[UserValue]:
        state: ReducingState[UserValue] = self._keyed(state_descriptor)
        return state

    def get_aggregating_state(self, state_descriptor: StateDescriptor) -> AggregatingState[UserValue, UserValue]:
        state: AggregatingState[UserValue, UserValue] = self._keyed(state_descriptor)
        return state

    def _keyed(self, descriptor: StateDescriptor) -> Any:
        if self._backend is None:
            raise StateAccessError(
                "Keyed state can only be used in a function on a keyed stream",
                where=f"operator '{self._operator.name}', state '{descriptor.get_name()}'",
                found="the operator's input is not keyed",
                cure="call key_by(...) before this operator",
            )
        return self._backend.state(descriptor)


class SubtaskTimerService:
    """Set timers and read the time of one operator. The methods for timers are those of its queues: many functions set timers for
    every record."""

    __slots__ = (
        "_operator",
        "_time",
        "current_processing_time",
        "delete_event_time_timer",
        "delete_processing_time_timer",
        "register_event_time_timer",
        "register_processing_time_timer",
    )

    register_event_time_timer: Callable[[int], None]
    register_processing_time_timer: Callable[[int], None]
    delete_event_time_timer: Callable[[int], None]
    delete_processing_time_timer: Callable[[int], None]

    def __init__(
        self, operator: Operator, time: EventTime, backend: KeyedBackend | None, now_ms: Callable[[], int]
    ) -> None:
        self._operator, self._time = operator, time
        self.current_processing_time = now_ms
        if backend is None:
            self.register_event_time_timer = self.register_processing_time_timer = self._refuse
            self.delete_event_time_timer = self.delete_processing_time_timer = self._refuse
            return
        self.register_event_time_timer = backend.event_timers.register
        self.register_processing_time_timer = backend.processing_timers.register
        self.delete_event_time_timer = backend.event_timers.delete
        self.delete_processing_time_timer = backend.processing_timers.delete

    def current_watermark(self) -> int:
        return self._time.watermark

    def _refuse(self, timestamp: int) -> NoReturn:
        raise StateAccessError(
            "Timers can only be set on a keyed stream",
            where=f"operator '{self._operator.name}'",
            found="the operator's input is not keyed",
            cure="call key_by(...) before process(...)",
        )


class ProcessContext:
    """Be the ``ctx`` of ``process_element`` and ``on_timer``. The loop sets ``ts`` for every record."""

    __slots__ = ("_backend", "_timer_service", "domain", "ts")

    def __init__(self, timer_service: SubtaskTimerService, backend: KeyedBackend | None) -> None:
        self._timer_service, self._backend = timer_service, backend
        self.ts: int | None = None
        self.domain = TimeDomain.EVENT_TIME

    def timestamp(self) -> int | None:
        return self.ts

    def timer_service(self) -> SubtaskTimerService:
        return self._timer_service

    def time_domain(self) -> TimeDomain:
        return self.domain

    def get_current_key(self) -> UserValue:
        if self._backend is None:
            raise StateAccessError(
                "There is no current key, because the stream is not keyed", cure="call key_by(...) before process(...)"
            )
        return self._backend.context.visible_key


class FunctionObject:
    """The root of the function classes that users extend: the life cycle, with empty hooks. All hooks are optional.

    For an object of such a class, the method of its kind is called (``map``, ``reduce``, ...), even if the object is
    callable as well.
    """

    def open(self, runtime_context: Any, /) -> None:
        """Ask for state, open connections. Called once per copy, before its first record."""

    open.does_nothing = True  # type: ignore[attr-defined]

    def close(self) -> None:
        """Release resources. Called at most once per copy, after its last record. Not called when a worker is
        killed."""

    def notify_checkpoint_complete(self, checkpoint_id: int, /) -> None:
        """Handle a complete checkpoint. Best effort: called before a later round's records, on the copy that runs that
        round. Ids may be skipped (a higher id covers all lower ids), and a crash loses the call."""

    def notify_checkpoint_aborted(self, checkpoint_id: int, /) -> None:
        """Handle an aborted checkpoint; a later checkpoint will cover its changes. Best effort, as for a complete
        one."""


class CheckpointedFunction:
    """A function with state of its own besides keyed state: lists that are redistributed when the parallelism changes.

    Mix it into any function class, sinks too. Fields may hold data that belongs to the state between the two calls. If
    the fields of a copy are not what the last round left, the copy is discarded, and a new copy receives the state.
    """

    def initialize_state(self, context: Any, /) -> None:
        """Ask for states, and take over their contents. Called once per copy, before ``open``. ``context``:
        FunctionInitializationContext."""
        raise NotImplementedError

    def snapshot_state(self, context: Any, /) -> None:
        """Bring the states up to date. Called at the end of every round, after its last record. ``context``:
        FunctionSnapshotContext."""
        raise NotImplementedError


def checkpointed(function: object) -> CheckpointedFunction | None:
    """Return the user's function, if it has state of its own."""
    while isinstance(function, FunctionWrapper):
        function = function.wrapped
    return function if isinstance(function, CheckpointedFunction) else None


class FunctionWrapper(FunctionObject):
    """Wrap a user's function in a function object of Tidegate, and pass the life cycle on to ``wrapped``."""

    def __init__(self, wrapped: UserValue) -> None:
        self.wrapped = wrapped

    def open(self, runtime_context: Any) -> None:
        self._pass_on("open", runtime_context)

    def close(self) -> None:
        self._pass_on("close")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._pass_on("notify_checkpoint_complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._pass_on("notify_checkpoint_aborted", checkpoint_id)

    def _pass_on(self, hook: str, *arguments: object) -> None:
        method = hook_of(self.wrapped, hook)
        if method is not None:
            method(*arguments)


def hook_of(function: object, name: str) -> UserFunction | None:
    """Return a method of the life cycle. A class stands for its constructor, and has no life cycle."""
    found: UserFunction | None = None if isinstance(function, type) else getattr(function, name, None)
    return found


def method_of(function: UserValue, method: str) -> UserFunction:
    """Return what is called for a record where a callable may stand for a function object with the method.

    A callable object of a user's own class is called, whatever methods it has besides.
    """
    handed_over: UserFunction = function
    if callable(function) and not isinstance(function, FunctionObject):
        return handed_over
    found: UserFunction = getattr(function, method, handed_over)
    return found


def is_notified(function: object) -> bool:
    """Tell whether a function has a hook for complete checkpoints, other than the empty hook that all function classes
    inherit."""
    while isinstance(function, FunctionWrapper):
        function = function.wrapped
    hook = getattr(type(function), "notify_checkpoint_complete", None)
    return hook is not None and hook is not FunctionObject.notify_checkpoint_complete


class Hooks:
    """Run the life cycle of one function object: ``open`` before its first record, ``close`` after its last record,
    notifications between.

    A closed function that is needed again, because its last round is repeated, is opened again.
    """

    def __init__(self, function: object, where: str, context: SubtaskRuntimeContext) -> None:
        """Prepare the hooks. ``context``: the argument of ``open``."""
        self._function, self._where, self.context = function, where, context
        self._is_open = False
        self.listens = is_notified(function)
        """Whether the function wants notifications of checkpoints: it is then closed after the notification of the last
        one."""

    def open(self) -> None:
        """Open the function, unless it is open."""
        if not self._is_open:
            self._is_open = True
            self._call("open", self.context)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._call("close")

    def notify(self, completed: tuple[int, ...], aborted: tuple[int, ...]) -> None:
        for checkpoint_id in completed:
            self._call("notify_checkpoint_complete", checkpoint_id)
        for checkpoint_id in aborted:
            self._call("notify_checkpoint_aborted", checkpoint_id)

    def _call(self, name: str, *arguments: object) -> None:
        method = hook_of(self._function, name)
        if method is None:
            return
        try:
            method(*arguments)
        except BaseException as error:
            raise user_error(error, f"{name}() of {self._where}", None) from error


class AsyncInvoked(Protocol):
    """A function for asynchronous calls."""

    def async_invoke(self, value: UserValue) -> Coroutine[object, object, Iterable[UserValue]]: ...

    def timeout(self, value: UserValue) -> Iterable[UserValue]: ...


class RetryPredicate(Protocol):
    """Say when a retry strategy wants another call; None: never."""

    def result_predicate(self) -> Callable[[UserValue], bool] | None: ...

    def exception_predicate(self) -> Callable[[Exception], bool] | None: ...


class RetryRules(Protocol):
    """Give what the engine asks of a retry strategy."""

    def can_retry(self, current_attempts: int) -> bool: ...

    def get_backoff_time_millis(self, current_attempts: int) -> int: ...

    def get_retry_predicate(self) -> RetryPredicate: ...
