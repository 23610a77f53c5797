"""Reading the state in checkpoints and savepoints: operators and states, rows in Python, a DataFrame in Spark."""

from __future__ import annotations

from typing import Any

from tidegate.snapshots.entries import StateRow, TimerRow, Unreadable
from tidegate.snapshots.reader import Count, OperatorInfo, SnapshotReader, StateInfo
from tidegate.state.namespaces import Window

__all__ = ["Count", "OperatorInfo", "SavepointReader", "StateInfo", "StateRow", "TimerRow", "Unreadable", "Window"]


class SavepointReader(SnapshotReader):
    """A checkpoint or savepoint to look into. What can be read without Spark: see ``SnapshotReader``."""

    def dataframe(
        self,
        spark: Any,
        operator: str,
        state: str,
        *,
        key_type: Any = None,
        value_type: Any = None,
        map_key_type: Any = None,
        expired: bool = False,
    ) -> Any:
        """A state as a DataFrame, read by Spark's tasks, each some key groups: nothing goes through the driver.

        Columns: ``key``, ``namespace`` where there are windows, ``map_key`` of maps, ``value``, ``expires_ms`` with time to live.
        What has a type has Spark's type for it; pickled keys and values are texts, unless you name the type they have.
        """
        from tidegate.spark.frames import StateFrame  # only who asks for a DataFrame needs Spark

        types = {"key_type": key_type, "value_type": value_type, "map_key_type": map_key_type}
        return StateFrame(self, operator, state, expired=expired, **types).read(spark)

    def timers_dataframe(self, spark: Any, operator: str, *, key_type: Any = None) -> Any:
        """The timers of an operator: ``key``, ``namespace`` where there are windows, ``time_ms``, ``domain``."""
        from tidegate.spark.frames import TimerFrame

        return TimerFrame(self, operator, key_type=key_type).read(spark)
