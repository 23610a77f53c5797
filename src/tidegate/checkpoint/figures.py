"""What is measured of a checkpoint: how long each step took, how much it holds, operator by operator."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tidegate.checkpoint.metadata import CheckpointMetadata

STEPS = ("trigger", "run", "align", "snapshot", "complete", "commit", "subsume")
"""The steps of the protocol that take time: 1, 3 with all it contains, 4, 5, 7, 8 and 9."""


class OperatorFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operator in a checkpoint; times are those of its slowest subtask, in milliseconds.

    The operators of a chain run in one loop: how long that took, how long its barriers took to come in, and what was on its way
    to it, is said of the first one. ``size``: of all state files it refers to; ``incremental``: of those the checkpoint before did
    not have. ``behind``: records a source knows of and has not read yet, None where it cannot tell.
    """

    name: str = ""
    run_ms: float = 0.0
    align_ms: float = 0.0
    snapshot_ms: float = 0.0
    size: int = 0
    incremental: int = 0
    in_flight_bytes: int = 0
    in_flight_records: int = 0
    behind: int | None = None

    def with_subtask(self, other: OperatorFigures) -> OperatorFigures:
        """With one more subtask."""
        return msgspec.structs.replace(
            self,
            name=other.name,
            run_ms=max(self.run_ms, other.run_ms),
            align_ms=max(self.align_ms, other.align_ms),
            snapshot_ms=max(self.snapshot_ms, other.snapshot_ms),
            in_flight_bytes=self.in_flight_bytes + other.in_flight_bytes,
            in_flight_records=self.in_flight_records + other.in_flight_records,
        )


_NOTHING = OperatorFigures()


@dataclass
class CheckpointFigures:
    """Of a checkpoint under way. ``operators``: by uid hash. Times of ``passed`` are on one monotonic clock, in milliseconds."""

    steps_ms: dict[str, float] = field(default_factory=dict)
    operators: dict[str, OperatorFigures] = field(default_factory=dict)
    size: int = 0
    incremental: int = 0
    _at: float = 0.0

    @property
    def in_flight_bytes(self) -> int:
        return sum(figures.in_flight_bytes for figures in self.operators.values())

    @property
    def in_flight_records(self) -> int:
        return sum(figures.in_flight_records for figures in self.operators.values())

    @property
    def behind(self) -> int | None:
        """Of all sources that can tell; None: none can."""
        known = [figures.behind for figures in self.operators.values() if figures.behind is not None]
        return sum(known) if known else None

    def begins(self, now_ms: float) -> None:
        """What ``passed`` tells next begins now."""
        self._at = now_ms

    def passed(self, step: str, now_ms: float) -> None:
        self.steps_ms[step] = round(now_ms - self._at, 1)
        self._at = now_ms

    def acknowledged(self, operator: str, figures: OperatorFigures) -> None:
        """By a subtask."""
        self.operators[operator] = self.operators.get(operator, _NOTHING).with_subtask(figures)

    def ran(self, round_ms: float) -> None:
        """All subtasks have acknowledged; steps 4 and 5 took as long as with the slowest."""
        of_all = self.operators.values()
        self.steps_ms["run"] = round(round_ms, 1)
        self.steps_ms["align"] = max((figures.align_ms for figures in of_all), default=0.0)
        self.steps_ms["snapshot"] = max((figures.snapshot_ms for figures in of_all), default=0.0)

    def fell_behind(self, sources: Mapping[str, int]) -> None:
        """Records the sources know of, and had not read."""
        for operator, behind in sources.items():
            before = self.operators.get(operator, _NOTHING)
            self.operators[operator] = msgspec.structs.replace(before, behind=behind)

    def stored(self, sizes: Sizes) -> None:
        self.size, self.incremental = sizes.size, sizes.incremental
        for operator, (name, size, new) in sizes.operators.items():
            known = self.operators.get(operator, _NOTHING)
            known = known if known.name else msgspec.structs.replace(known, name=name)
            self.operators[operator] = msgspec.structs.replace(known, size=size, incremental=new)


class Sizes(NamedTuple):
    """Bytes of a checkpoint with its metadata: of all state files it refers to, and of those the one before did not have.
    ``operators``: by uid hash the name and both figures."""

    size: int
    incremental: int
    operators: dict[str, tuple[str, int, int]]


def sizes_of(metadata: CheckpointMetadata, metadata_bytes: int, before: Collection[str]) -> Sizes:
    """``before``: paths of the state files of the checkpoint before."""
    operators, seen = {}, set[str]()
    for operator in metadata.operators:
        files = {file.path: file.size for file in operator.state_files() if file.path not in seen}
        seen |= files.keys()  # every file counts once
        new = sum(size for path, size in files.items() if path not in before)
        operators[operator.uid_hash] = (operator.name, sum(files.values()), new)
    size = metadata_bytes + sum(size for _, size, _ in operators.values())
    return Sizes(size, metadata_bytes + sum(new for _, _, new in operators.values()), operators)
