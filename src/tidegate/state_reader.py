"""Read the state of checkpoints and savepoints: operators and states, rows in Python, a DataFrame in Spark."""

from __future__ import annotations

from typing import Any

from tidegate.snapshots.entries import StateRow, TimerRow, Unreadable
from tidegate.snapshots.reader import Count, OperatorInfo, SnapshotReader, StateInfo
from tidegate.state.namespaces import Window

__all__ = ["Count", "OperatorInfo", "SavepointReader", "StateInfo", "StateRow", "TimerRow", "Unreadable", "Window"]


class SavepointReader(SnapshotReader):
    """A checkpoint or savepoint to read. ``SnapshotReader`` has the methods that need no Spark."""

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
        """Return a state as a DataFrame. Spark's tasks read it, each some key groups: nothing goes through the driver.

        Columns: ``key``, ``namespace`` for windows, ``map_key`` for maps, ``value``, ``expires_ms`` with a time to live. Columns
        with a declared type have Spark's type for it. Pickled keys and values are texts, unless you give their types.
        """
        from tidegate.spark.frames import StateFrame  # only a DataFrame needs Spark

        types = {"key_type": key_type, "value_type": value_type, "map_key_type": map_key_type}
        return StateFrame(self, operator, state, expired=expired, **types).read(spark)

    def timers_dataframe(self, spark: Any, operator: str, *, key_type: Any = None) -> Any:
        """Return the timers of an operator: ``key``, ``namespace`` for windows, ``time_ms``, ``domain``."""
        from tidegate.spark.frames import TimerFrame

        return TimerFrame(self, operator, key_type=key_type).read(spark)
