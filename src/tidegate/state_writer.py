"""Write savepoints: rows or a DataFrame become the state of an operator, in a new savepoint or a changed copy of a snapshot."""

from __future__ import annotations

from typing import Any, Self

from tidegate.snapshots.writer import SnapshotWriter
from tidegate.state.descriptors import StateDescriptor

__all__ = ["SavepointWriter"]


class SavepointWriter(SnapshotWriter):
    """Writes a new savepoint, to restore with ``-s``. Call ``SavepointWriter.new()`` or ``from_existing(path)``, then the methods
    that describe its state, then ``write(path)``, which does all the work."""

    def with_keyed_state(self, uid: str, state: StateDescriptor | str, rows: Any, *, key_type: Any = None) -> Self:
        """Make rows a keyed state, as ``SnapshotWriter.with_keyed_state``. ``rows`` may be a DataFrame of Spark: then Spark's
        tasks write the state, each its own partitions. Its columns are ``key`` and ``value``, for a map state also ``map_key``,
        for windows also ``namespace``. Of two rows for one key in different partitions either may count."""
        if hasattr(rows, "rdd") and hasattr(rows, "columns"):
            from tidegate.spark.frames import FrameRows  # only a DataFrame needs Spark

            rows = FrameRows(rows)
        return super().with_keyed_state(uid, state, rows, key_type=key_type)
