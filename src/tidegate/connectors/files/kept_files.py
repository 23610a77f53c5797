"""Which unfinished files of a file sink the checkpoints of its job still name."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from tidegate.base.errors import CorruptFileError, RestoreError
from tidegate.base.files import Files
from tidegate.checkpoint.lease_records import RestorePoint
from tidegate.checkpoint.lineage import Lineage, read_lineage
from tidegate.checkpoint.metadata import CheckpointMetadata, decode_metadata, metadata_path
from tidegate.connectors.files.paths import join
from tidegate.connectors.files.success_markers import without_marks
from tidegate.state.snapshot import WRITER

log = logging.getLogger(__name__)


class KeptFiles:
    """Reads the job's own records: the checkpoints its lineage retains, and those it protects because a user went back
    or away from them. Checkpoints of other jobs do not count: they name files of this one only until their first round.

    A job that has ended and given its checkpoints up retains none, though their metadata may still be there.
    """

    def __init__(self, root: str | None, sink_id: str) -> None:
        """``root``: the job's directory on checkpoint storage; without one there are no checkpoints."""
        self._files = None if root is None else Files(root)
        self._sink_id = sink_id
        self._named: dict[RestorePoint, frozenset[str]] = {}

    def named(self) -> frozenset[str] | None:
        """Full paths. None: a record or a checkpoint is damaged, so no file may be called unneeded."""
        if self._files is None:
            return frozenset()
        try:
            lineage = read_lineage(self._files)
            # Metadata never changes and an id is never used twice: what was read once is remembered while it is kept.
            self._named = {point: self._read(self._files, point) for point in _own(lineage)}
        except (CorruptFileError, RestoreError) as error:
            log.warning("unfinished files of a sink are kept, a checkpoint that may need them is damaged: %s", error)
            return None
        return frozenset().union(*self._named.values())

    def _read(self, files: Files, point: RestorePoint) -> frozenset[str]:
        if point in self._named:
            return self._named[point]
        path = metadata_path(point.checkpoint_id)
        content = files.read_if_exists(path)
        if content is None:  # deleted by hand
            return frozenset()
        return frozenset(self._files_of(decode_metadata(files.location(path), content)))

    def _files_of(self, metadata: CheckpointMetadata) -> list[str]:
        operators = [operator for operator in metadata.operators if operator.uid_hash == self._sink_id]
        states = [state for operator in operators for state in operator.values(WRITER)]
        committables = [_unpack(packed) for operator in operators for packed in operator.committables]
        return [
            *fragment_paths(states),
            *(join(item["directory"], item["hidden"]) for item in without_marks(committables)),
        ]


def fragment_paths(states: list[Any]) -> list[str]:
    """Full paths of the fragments that writer states name."""
    parts = [part for state in states for part in state["parts"]]
    return [join(part["directory"], fragment[0]) for part in parts for fragment in part["fragments"]]


def _own(lineage: Lineage) -> list[RestorePoint]:
    return [point for point in (*lineage.protected, *lineage.retained) if not point.directory]


_unpack = msgspec.msgpack.Decoder().decode
