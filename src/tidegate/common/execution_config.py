"""ExecutionConfig: settings of a program as methods over its configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tidegate.base.arguments import expect_int, wrong
from tidegate.common.configuration import Configuration
from tidegate.common.options import (
    AUTO_UIDS,
    AUTO_WATERMARK_INTERVAL,
    CANCEL_INTERVAL,
    CANCEL_TIMEOUT,
    COMPRESSION,
    JOB_PARAMETERS,
    LATENCY_INTERVAL,
    MAX_PARALLELISM,
    OBJECT_REUSE,
    PARALLELISM,
    Option,
)

__all__ = ["ExecutionConfig"]


class ExecutionConfig:
    """A view of the environment's configuration: both always have the same values."""

    PARALLELISM_DEFAULT = -1
    """The result of ``get_parallelism`` if none is set."""
    PARALLELISM_UNKNOWN = -2
    """Flink's mark for a parallelism that must not change; Tidegate never returns it."""

    def __init__(self, configuration: Configuration | None = None) -> None:
        self._configuration = Configuration() if configuration is None else configuration

    def set_auto_watermark_interval(self, interval: int) -> ExecutionConfig:
        """Set how often, in milliseconds, watermark generators emit while no record comes."""
        return self._set(AUTO_WATERMARK_INTERVAL, interval, "set_auto_watermark_interval")

    def get_auto_watermark_interval(self) -> int:
        """Return the value in milliseconds."""
        return self._get(AUTO_WATERMARK_INTERVAL)

    def set_latency_tracking_interval(self, interval: int) -> ExecutionConfig:
        """Accept the interval without effect: there are no latency markers."""
        return self._set(LATENCY_INTERVAL, interval, "set_latency_tracking_interval")

    def get_latency_tracking_interval(self) -> int:
        """Return the value in milliseconds."""
        return self._get(LATENCY_INTERVAL)

    def get_parallelism(self) -> int:
        """As configured; else the number of processors."""
        return self._configuration.read(PARALLELISM) or os.cpu_count() or 1

    def set_parallelism(self, parallelism: int) -> ExecutionConfig:
        """Set the number of subtasks of operators that set none themselves."""
        return self._set(PARALLELISM, parallelism, "set_parallelism")

    def get_max_parallelism(self) -> int:
        """-1 if not set: then each operator has a default that depends on its parallelism."""
        return self._configuration.read(MAX_PARALLELISM) or -1

    def set_max_parallelism(self, max_parallelism: int) -> ExecutionConfig:
        """Set the number of key groups, 1 to 32768. State depends on it."""
        return self._set(MAX_PARALLELISM, max_parallelism, "set_max_parallelism")

    def get_task_cancellation_interval(self) -> int:
        """Return the value in milliseconds."""
        return self._get(CANCEL_INTERVAL)

    def set_task_cancellation_interval(self, interval: int) -> ExecutionConfig:
        """Accept the value without effect: Spark interrupts tasks."""
        return self._set(CANCEL_INTERVAL, interval, "set_task_cancellation_interval")

    def get_task_cancellation_timeout(self) -> int:
        """Return the value in milliseconds."""
        return self._get(CANCEL_TIMEOUT)

    def set_task_cancellation_timeout(self, timeout: int) -> ExecutionConfig:
        """Accept the value without effect: Spark interrupts tasks."""
        return self._set(CANCEL_TIMEOUT, timeout, "set_task_cancellation_timeout")

    def enable_auto_generated_uids(self) -> None:
        """Generate uids from the place in the program for operators without one: the default."""
        self._configuration.write(AUTO_UIDS, True)

    def disable_auto_generated_uids(self) -> None:
        """Refuse programs with an operator without a uid."""
        self._configuration.write(AUTO_UIDS, False)

    def has_auto_generated_uids_enabled(self) -> bool:
        """Return whether operators may be without a uid."""
        return bool(self._configuration.read(AUTO_UIDS))

    def enable_object_reuse(self) -> ExecutionConfig:
        """Never copy records. The program promises not to change records that it has received or emitted."""
        self._configuration.write(OBJECT_REUSE, True)
        return self

    def disable_object_reuse(self) -> ExecutionConfig:
        """Copy records that a function could still change: the default."""
        self._configuration.write(OBJECT_REUSE, False)
        return self

    def is_object_reuse_enabled(self) -> bool:
        """Return whether records are never copied."""
        return bool(self._configuration.read(OBJECT_REUSE))

    def get_global_job_parameters(self) -> dict[str, str]:
        """Return the values of ``RuntimeContext.get_job_parameter`` as a dict."""
        return dict(self._configuration.read(JOB_PARAMETERS))

    def set_global_job_parameters(self, global_job_parameters_dict: Mapping[str, str]) -> ExecutionConfig:
        """Set the values that functions read with ``RuntimeContext.get_job_parameter``."""
        if not isinstance(global_job_parameters_dict, Mapping):
            raise wrong("set_global_job_parameters", "a dict", global_job_parameters_dict, '{"region": "north"}')
        self._configuration.write(JOB_PARAMETERS, dict(global_job_parameters_dict))
        return self

    def is_use_snapshot_compression(self) -> bool:
        """As set by ``set_use_snapshot_compression``."""
        return bool(self._configuration.read(COMPRESSION))

    def set_use_snapshot_compression(self, use_snapshot_compression: bool) -> ExecutionConfig:
        """Compress files of keyed and operator state: smaller files, more CPU time."""
        self._configuration.write(COMPRESSION, use_snapshot_compression)
        return self

    def _set(self, option: Option, value: int, method: str) -> ExecutionConfig:
        self._configuration.write(option, expect_int(method, value, option.doc))
        return self

    def _get(self, option: Option) -> int:
        return int(self._configuration.read(option))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExecutionConfig) and self._configuration == other._configuration

    def __hash__(self) -> int:
        return hash(self._configuration)
