"""JobExecutionResult: the result of a finished job."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tidegate.common.job_id import JobID

__all__ = ["JobExecutionResult"]


class JobExecutionResult:
    """``accumulators``: counters the job reported, by name."""

    def __init__(self, job_id: JobID, net_runtime_ms: int, accumulators: Mapping[str, Any] | None = None) -> None:
        self._job_id, self._net_runtime_ms = job_id, net_runtime_ms
        self._accumulators: Mapping[str, Any] = MappingProxyType(dict(accumulators or {}))

    def get_job_id(self) -> JobID:
        """Return the id of the job."""
        return self._job_id

    def get_net_runtime(self) -> int:
        """Return milliseconds from start to end."""
        return self._net_runtime_ms

    def get_accumulator_result(self, accumulator_name: str) -> Any:
        """Return the result of an accumulator; None if there is none of that name."""
        return self._accumulators.get(accumulator_name)

    def get_all_accumulator_results(self) -> dict[str, Any]:
        """Return the results of all accumulators by name."""
        return dict(self._accumulators)

    def __repr__(self) -> str:
        lines = [
            "Program execution finished",
            f"Job with JobID {self._job_id} has finished.",
            f"Job Runtime: {self._net_runtime_ms} ms",
        ]
        return "\n".join(lines + [f"- {name}: {value}" for name, value in self._accumulators.items()])
