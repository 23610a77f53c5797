"""Give user functions their contexts: runtime context, cached files, process contexts, timer service (PyFlink's method
names)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from tidegate.base.errors import ProgramError, StateAccessError
from tidegate.base.user_code import UserValue
from tidegate.graph.plan import Operator
from tidegate.metrics.metricbase import MetricGroup
from tidegate.operators.contracts.metrics import SubtaskMetricGroup, SubtaskMetrics
from tidegate.operators.contracts.watermarks import EventTime
from tidegate.state.backend import KeyedBackend
from tidegate.state.descriptors import StateDescriptor
from tidegate.state.interfaces import AggregatingState, ListState, MapState, ReducingState, ValueState

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
    """Set timers and read the time of one operator."""

    __slots__ = ("_backend", "_operator", "_time", "current_processing_time")

    def __init__(
        self, operator: Operator, time: EventTime, backend: KeyedBackend | None, now_ms: Callable[[], int]
    ) -> None:
        self._operator, self._time, self._backend = operator, time, backend
        self.current_processing_time = now_ms

    def current_watermark(self) -> int:
        return self._time.watermark

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._timers().processing_timers.register(timestamp)

    def register_event_time_timer(self, timestamp: int) -> None:
        self._timers().event_timers.register(timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._timers().processing_timers.delete(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._timers().event_timers.delete(timestamp)

    def _timers(self) -> KeyedBackend:
        if self._backend is None:
            raise StateAccessError(
                "Timers can only be set on a keyed stream",
                where=f"operator '{self._operator.name}'",
                found="the operator's input is not keyed",
                cure="call key_by(...) before process(...)",
            )
        return self._backend


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
