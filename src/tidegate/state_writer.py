"""Writing savepoints: rows or a DataFrame become the state of an operator, alone or beside that of an existing snapshot."""

from __future__ import annotations

from typing import Any, Self

from tidegate.snapshots.writer import SnapshotWriter
from tidegate.state.descriptors import StateDescriptor

__all__ = ["SavepointWriter"]


class SavepointWriter(SnapshotWriter):
    """A new savepoint, to restore with ``-s``: ``SavepointWriter.new()``, or ``from_existing(path)``; then what is to be in it;
    then ``write(path)``. Nothing is done before."""

    def with_keyed_state(self, uid: str, state: StateDescriptor | str, rows: Any, *, key_type: Any = None) -> Self:
        """As ``SnapshotWriter.with_keyed_state``. ``rows`` may be a DataFrame of Spark: then its tasks write the state, each its
        own partitions. Its columns are ``key`` and ``value``, of a map state ``map_key`` too, of windows ``namespace``. Of two rows
        for one key in different partitions either may count."""
        if hasattr(rows, "rdd") and hasattr(rows, "columns"):
            from tidegate.spark.frames import FrameRows  # only who has a DataFrame needs Spark

            rows = FrameRows(rows)
        return super().with_keyed_state(uid, state, rows, key_type=key_type)
