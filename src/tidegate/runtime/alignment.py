"""Align sources (``with_watermark_alignment``): decide on the driver what may be read of each source.

Rounds are planned here and the event time of every split comes with the accepted round, so nothing has to be sent to running
readers: a split that is too far ahead of its group is left out of the next rounds, and a split near the limit is read less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.operators.contracts.source import SplitInterval
from tidegate.operators.contracts.specs import SourceNode
from tidegate.operators.contracts.watermarks import BETWEEN, split_status
from tidegate.operators.flow.rows import MAX_WATERMARK, MIN_WATERMARK
from tidegate.state.snapshot import EMPTY, SPLITS, OperatorSnapshot

FIRST_LIMIT = 256
"""Units of an aligned source's first round: it is not known yet how much event time the units span."""


@dataclass
class _Group:
    """``allowed``: the event time up to which its members are read; computed again every ``interval_ms``."""

    drift_ms: int
    interval_ms: int
    allowed: int = MAX_WATERMARK
    next_look_ms: int | None = None


@dataclass
class _Member:
    """An aligned source. ``splits``: split -> event time, for splits that are not idle. ``units``: what the running round reads."""

    operator: SourceNode
    group: _Group
    splits: dict[str, int] = field(default_factory=dict)
    is_idle: bool = False
    units: int = 0
    units_per_ms: float | None = None

    @property
    def slowest(self) -> int:
        return min(self.splits.values(), default=MIN_WATERMARK)

    @property
    def ahead(self) -> frozenset[str]:
        return frozenset(split for split, mark in self.splits.items() if mark > self.group.allowed)

    @property
    def foremost(self) -> int:
        """The latest event time of the splits that may be read."""
        return max((mark for mark in self.splits.values() if mark <= self.group.allowed), default=MIN_WATERMARK)


class Alignment:
    """Call ``observe`` before a round is planned; then ``held``, ``is_held`` and ``limit`` say what each source may read."""

    def __init__(self, operators: Sequence[SourceNode]) -> None:
        groups: dict[str, _Group] = {}
        self._members: dict[int, _Member] = {}
        for operator in operators:
            strategy = operator.spec.watermarks
            if strategy is None or strategy.alignment_group is None or strategy.kind == "none":
                continue
            drift, interval = strategy.alignment_drift_ms, strategy.alignment_interval_ms
            assert drift is not None and interval is not None  # with_watermark_alignment sets all three
            group = groups.setdefault(strategy.alignment_group, _Group(drift, interval))
            group.drift_ms, group.interval_ms = min(group.drift_ms, drift), min(group.interval_ms, interval)
            self._members[operator.id] = _Member(operator, group)
        self._groups = list(groups.values())

    def __contains__(self, operator_id: int) -> bool:
        return operator_id in self._members

    def observe(self, snapshots: Mapping[tuple[int, int], OperatorSnapshot], finished: set[int], now_ms: int) -> None:
        """Take in the event times. ``snapshots``: the state after the accepted rounds. ``finished``: sources that have ended; no
        source waits for them."""
        for member in self._members.values():
            self._look(member, snapshots, now_ms)
        for group in self._groups:
            if group.next_look_ms is None or now_ms >= group.next_look_ms:
                group.next_look_ms = now_ms + group.interval_ms
                waiting = [m for m in self._members.values() if m.group is group and m.operator.id not in finished]
                slowest = min((m.slowest for m in waiting if not m.is_idle), default=MAX_WATERMARK)
                group.allowed = min(MAX_WATERMARK, slowest + group.drift_ms)

    def _look(self, member: _Member, snapshots: Mapping[tuple[int, int], OperatorSnapshot], now_ms: int) -> None:
        operator, before = member.operator, member.foremost
        left = [snapshots.get((operator.id, subtask), EMPTY) for subtask in range(operator.parallelism)]
        # a subtask between two splits reads nothing, so no other source waits for it
        rows = [row for snapshot in left for row in snapshot.values(SPLITS) if row[0] != BETWEEN]
        statuses = {split: split_status(operator.spec.watermarks, row, now_ms) for split, *row in rows}
        member.splits = {split: status.watermark for split, status in statuses.items() if not status.idle}
        member.is_idle = not member.splits and any(snapshot is not EMPTY for snapshot in left)
        spanned = max(member.splits.values(), default=MIN_WATERMARK) - before
        if member.units and before != MIN_WATERMARK and spanned > 0:
            member.units_per_ms = member.units / spanned
        member.units = 0

    def held(self, operator_id: int) -> frozenset[str]:
        """Return the splits that are too far ahead."""
        return self._members[operator_id].ahead

    def is_held(self, operator_id: int) -> bool:
        """Whether the whole source is too far ahead."""
        member = self._members[operator_id]
        return bool(member.splits) and member.slowest > member.group.allowed

    def next_look_ms(self, operator_id: int) -> int | None:
        return self._members[operator_id].group.next_look_ms

    def limit(self, operator_id: int, limit: int) -> int:
        """Return the part of the limit that about reaches the allowed event time, at the speed of the last round."""
        member = self._members[operator_id]
        if member.units_per_ms is None:
            return min(limit, FIRST_LIMIT)
        left_ms = max(1, member.group.allowed - member.foremost)
        return max(1, min(limit, int(left_ms * member.units_per_ms) + 1))

    def planned(self, operator_id: int, intervals: Sequence[SplitInterval]) -> None:
        """Record how much the source reads in the round."""
        self._members[operator_id].units = sum(interval.units for interval in intervals)
