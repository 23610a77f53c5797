"""Plan a round: how much each source reads, how sources are aligned, and which state files are merged.

**Reading.** The planner asks the sources' enumerators, and adapts the amount to the target time of a round.

**Alignment** (``with_watermark_alignment``). The driver decides how much of each source may be read. Rounds are planned
here, and the event time of every split comes with the accepted round. So nothing has to be sent to running readers. A
split that is too far ahead of its group is left out of the next rounds, and a split near the limit is read less.

**Merging.** The state files of all subtasks become bases for checkpoints that share no files, and for the changelog.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from tidegate.base.errors import RestoreError
from tidegate.common import options
from tidegate.common.options import Option
from tidegate.operators.contracts.source import Lag, Source, SourceContext, SourcePlan, SplitEnumerator, SplitInterval
from tidegate.operators.contracts.specs import SourceNode
from tidegate.operators.contracts.watermarks import BETWEEN, split_status
from tidegate.operators.flow.rows import MAX_WATERMARK, MIN_WATERMARK
from tidegate.state.snapshot import EMPTY, SPLITS, OperatorSnapshot

FIRST_LIMIT = 256
"""Units of an aligned source's first round: it is not known yet how much event time the units span."""


@dataclass
class _Group:
    """A group of aligned sources. ``allowed``: the event time up to which members are read, computed every ``interval_ms``."""

    drift_ms: int
    interval_ms: int
    allowed: int = MAX_WATERMARK
    next_look_ms: int | None = None


@dataclass
class _Member:
    """An aligned source. ``splits``: split -> event time, for splits that are not idle. ``units``: read by the running round."""

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
    """Limit how far aligned sources read ahead of each other.

    Call ``observe`` before a round is planned. Then ``held``, ``is_held`` and ``limit`` say how much each source may read."""

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
        """Take in the event times. ``snapshots``: the state after the accepted rounds. ``finished``: sources that have ended. No
        source waits for a finished source."""
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


log = logging.getLogger(__name__)

Snapshots = Mapping[tuple[int, int], OperatorSnapshot]
_LEAST_LIMIT, _MOST_LIMIT = 256, 1 << 40
_LEAST_SHARE = 1 / 16
"""The least part of its limit that a source is asked for in a short round. Without any request, new records are not found."""
_LITTLE = 0.25
"""A round that takes less than this part of the target time had little to do."""


class _Reading(Enum):
    ON = "on"
    STOPPED = "stopped"
    """No source is asked, because the job ends with a savepoint."""
    DRAINED = "drained"
    """The job plans as if all sources had ended."""


@dataclass
class _PlannedSource:
    """A source while the job runs. ``before`` is the position to which a discarded round returns."""

    operator: SourceNode
    source: Source
    enumerator: SplitEnumerator
    limit: int
    most: int | None
    before: object = None
    is_before: bool = False
    """``before`` is still valid, because nothing was planned since. So an idle source needs no new snapshot for every plan."""
    plan: SourcePlan | None = None
    finished: bool = False


class SourcePlanner:
    """Carry out steps 1 and 2 for the sources: the ends of the planned intervals are the cut.

    ``plan`` is followed by either ``accept`` or ``discard``. ``restored`` maps operator ids to enumerator snapshots. ``most``: no
    source may exceed this number of units in a round, whatever the target time. ``whole``: batch mode, in which one round reads
    the bounded sources to their end. ``place`` gives a source its directory on checkpoint storage; None: sources have no directory.
    ``on_refused`` is called for each source that cannot continue from its snapshot, so that all of them are reported. The planner
    is unusable afterwards. None: the first such source raises.
    """

    def __init__(
        self,
        operators: list[SourceNode],
        target_ms: int,
        restored: Mapping[int, object],
        most: int | None = None,
        *,
        whole: bool = False,
        place: Callable[[SourceNode], SourceContext] | None = None,
        on_refused: Callable[[SourceNode, RestoreError], None] | None = None,
    ) -> None:
        self._target_ms, self._most, self._whole = target_ms, most, whole
        self._reading = _Reading.ON
        self.rest_ms = 0
        """How long to rest, counted from the start of the last accepted round. A rest follows a round that had little to do and
        read all sources to their present end. 0: the next round begins at once."""
        self.rounds_behind = 0.0
        """How many rounds it would take to process the records that subtasks have received but not processed."""
        self._share = 1.0
        self._place = place
        self._alignment = Alignment(operators)
        self._sources: list[_PlannedSource] = []
        try:
            for operator in operators:
                try:
                    self._sources.append(self._create(operator, restored.get(operator.id)))
                except RestoreError as error:
                    if on_refused is None:
                        raise
                    on_refused(operator, error)
        except BaseException:
            self.close()
            raise

    def _create(self, operator: SourceNode, restored: object) -> _PlannedSource:
        source = operator.spec.source
        enumerator = self._enumerator(operator, restored)
        most = min((limit for limit in (self._most, source.maximum_limit) if limit), default=None)
        limit = min(source.initial_limit, most) if most else source.initial_limit
        return _PlannedSource(operator, source, enumerator, limit, most)

    def _enumerator(self, operator: SourceNode, restored: object) -> SplitEnumerator:
        source = operator.spec.source
        if self._place is None:
            return source.create_enumerator(operator.parallelism, restored)
        return source.create_enumerator_in(self._place(operator), operator.parallelism, restored)

    def plan(
        self, now_ms: int, snapshots: Snapshots = MappingProxyType({}), room_ms: float | None = None
    ) -> dict[int, SourcePlan]:
        """Return by operator id what the subtasks of a source read in this round. ``snapshots``: the state after the accepted
        rounds. ``room_ms``: how long subtasks take input, if that time is bounded."""
        if self._whole:
            return self._plan_whole(now_ms)
        if self._reading is not _Reading.ON:
            return self._plan_nothing()
        self._share = self._admitted(room_ms)
        self._alignment.observe(snapshots, {s.operator.id for s in self._sources if s.finished}, now_ms)
        for s in self._sources:
            if not s.is_before:
                s.before = s.enumerator.snapshot()
            s.plan = replace(self._next(s, now_ms), awaited=s.enumerator.awaited)
            s.is_before = not s.plan.intervals and not s.plan.finished
        return {s.operator.id: s.plan for s in self._sources if s.plan is not None}

    def _admitted(self, room_ms: float | None) -> float:
        """Return the part of their limits that sources are asked for. Records that would only wait stay in the source."""
        if self.rounds_behind >= 1:
            return 0.0
        share = 1.0 if room_ms is None else min(1.0, max(_LEAST_SHARE, room_ms / self._target_ms))
        return share * (1 - self.rounds_behind)

    def _next(self, s: _PlannedSource, now_ms: int) -> SourcePlan:
        """Plan one source. A finished source is not asked again, however long other sources or the last checkpoint take."""
        if s.finished:
            return SourcePlan(finished=True)
        if self._share == 0:
            return SourcePlan(backlog=True, held=True)
        limit = s.limit if self._share == 1 else min(s.limit, max(_LEAST_LIMIT, int(s.limit * self._share)))
        return self._aligned(s, limit, now_ms) if s.operator.id in self._alignment else s.enumerator.plan(limit, now_ms)

    def _plan_nothing(self) -> dict[int, SourcePlan]:
        for s in self._sources:
            if not s.is_before:
                s.before, s.is_before = s.enumerator.snapshot(), True
            s.plan = SourcePlan(finished=s.finished or self._reading is _Reading.DRAINED, awaited=s.enumerator.awaited)
        return {s.operator.id: s.plan for s in self._sources if s.plan is not None}

    def stop(self, *, drain: bool) -> None:
        """Ask no source from now on. ``drain``: plan as if all sources were finished."""
        self._reading = _Reading.DRAINED if drain else _Reading.STOPPED

    def resume(self) -> None:
        """Continue to ask the sources: the job does not stop after all. Not possible after an accepted drained round, because event
        time ended in it."""
        self._reading = _Reading.ON

    def _plan_whole(self, now_ms: int) -> dict[int, SourcePlan]:
        """Plan nothing until every source is finished."""
        for s in self._sources:
            if not s.is_before:
                s.before, s.is_before = s.enumerator.snapshot(), True
            while s.plan is None or not s.plan.finished:
                more = s.enumerator.plan(_MOST_LIMIT, now_ms)
                before = s.plan.intervals if s.plan is not None else []
                s.plan = SourcePlan([*before, *more.intervals], False, more.wake_up_ms, more.finished)
                if not more.backlog:
                    break
        plans = {s.operator.id: s.plan for s in self._sources if s.plan is not None}
        if all(plan.finished for plan in plans.values()):
            return plans
        return {operator_id: SourcePlan(wake_up_ms=plan.wake_up_ms) for operator_id, plan in plans.items()}

    def _aligned(self, s: _PlannedSource, limit: int, now_ms: int) -> SourcePlan:
        alignment, operator_id = self._alignment, s.operator.id
        if s.enumerator.can_hold:
            s.enumerator.hold(alignment.held(operator_id))
        elif alignment.is_held(operator_id):
            return SourcePlan(wake_up_ms=alignment.next_look_ms(operator_id))
        plan = s.enumerator.plan(alignment.limit(operator_id, limit), now_ms)
        alignment.planned(operator_id, plan.intervals)
        return plan

    def accept(self, seconds: float, behind: float = 0.0) -> None:
        """Accept the round, and size the next round by its duration. For an interrupted round this is the time that the whole round
        would have taken: ``behind`` is the missing time, as a multiple of the time that the round took."""
        self.rounds_behind = behind
        idle = not behind and not any(s.plan is None or s.plan.backlog or s.plan.finished for s in self._sources)
        self.rest_ms = self._target_ms if idle and seconds * 1000 <= self._target_ms * _LITTLE else 0
        for s in self._sources:
            assert s.plan is not None
            s.finished = s.finished or s.plan.finished
            if self._whole:
                s.plan = SourcePlan(finished=s.finished)
            long = seconds * (1 + behind) * 1000 > 2 * self._target_ms and self._was_large(s)
            if long or (s.plan.backlog and self._share >= 0.5):  # a short round says little about a long one
                s.limit = self._adapted(s, seconds * (1 + behind))

    def _was_large(self, s: _PlannedSource) -> bool:
        """Whether the source gave a large part of its limit. A source that keeps up gives only its new records. If few records took
        long, a machine was busy. The limit is not the cause then, and with a smaller limit the source would no longer keep up."""
        assert s.plan is not None
        given = sum(interval.units for interval in s.plan.intervals)
        return given > 0 and given * 2 >= s.limit * self._share

    def _adapted(self, s: _PlannedSource, seconds: float) -> int:
        """Return a limit nearer to the target. The limit grows quickly, because a job starts small. It shrinks slowly, because one
        slow round says little. A source may give less than its limit although it has more records (a throttled source, say). Then
        the given records, not the limit, belong to the measured time."""
        least = 1 / 64 if self.rounds_behind else 0.5  # an interrupted round has shown how slow the job is
        factor = min(8.0, max(least, self._target_ms / max(1.0, seconds * 1000)))
        assert s.plan is not None
        given = sum(interval.units for interval in s.plan.intervals)
        limit = max(_LEAST_LIMIT, int(min(s.limit, given or s.limit) * factor))
        return min(limit, s.most or _MOST_LIMIT)

    def discard(self) -> None:
        """Undo the planned round: the next plan starts where this one started."""
        for s in self._sources:
            if not s.enumerator.rewind(s.before):
                s.enumerator.close()
                s.enumerator = self._enumerator(s.operator, s.before)
            s.plan = None

    def snapshots(self) -> dict[int, object]:
        """Step 2: return the positions after everything accepted."""
        return {s.operator.id: s.enumerator.snapshot() for s in self._sources}

    def behind(self) -> dict[str, int]:
        """Return, by uid hash, the number of records that are not planned yet, for the sources that know it."""
        known = {s.operator.uid_hash: 0 if s.finished else s.enumerator.behind for s in self._sources}
        return {operator: behind for operator, behind in known.items() if behind is not None}

    def lags(self) -> dict[int, Lag]:
        """Return, by operator id, what each subtask has not planned yet, for the sources that know it."""
        known = {s.operator.id: s.enumerator.lag for s in self._sources}
        return {operator_id: lag for operator_id, lag in known.items() if lag is not None}

    def checkpoint_complete(self, positions: Mapping[str, object]) -> None:
        """Notify the sources of a committed checkpoint. ``positions`` maps uid hashes to the positions in this checkpoint."""
        for s in self._sources:
            position = positions.get(s.operator.uid_hash)
            if position is not None:
                try:
                    s.enumerator.checkpoint_complete(position)
                except Exception as error:
                    log.warning("source '%s' could not be notified of a checkpoint: %s", s.operator.name, error)

    @property
    def some_finished(self) -> bool:
        """Whether a source is finished, in an earlier round or in the planned one. A drained source does not count."""
        planned = self._reading is _Reading.ON and any(s.plan is not None and s.plan.finished for s in self._sources)
        return planned or any(s.finished for s in self._sources)

    @property
    def finished(self) -> bool:
        return all(s.finished for s in self._sources)

    def close(self) -> None:
        for s in self._sources:
            s.enumerator.close()


class Merge(Enum):
    """Which state files a round merges."""

    TIERS = "tiers"
    """Small neighbours, so that files do not pile up (``state/materialize.py``)."""
    BASES = "bases"
    """Each list as a whole: its segments can be deleted. If the merge fails, a later round retries."""
    WHOLE = "whole"
    """As BASES, also for a list that is already a base. The round's state refers to no file of an earlier round, otherwise the
    round is declined."""


@dataclass(frozen=True)
class MergePolicy:
    """``incremental``: checkpoints share files. ``materialize_ms``: how often the changelog becomes bases; None: never."""

    incremental: bool = options.INCREMENTAL.default
    materialize_ms: int | None = None

    @staticmethod
    def of(get: Callable[[Option], Any]) -> MergePolicy:
        """Read the policy. With the changelog a checkpoint is a base with changes, whatever the backend's own settings say."""
        if not get(options.CHANGELOG):
            return MergePolicy(get(options.INCREMENTAL))
        interval: int = get(options.MATERIALIZE_INTERVAL)
        return MergePolicy(True, interval if interval > 0 else None)


class Merging:
    """Decide the merges of one attempt. Call ``of_round`` once for every planned round."""

    def __init__(self, policy: MergePolicy, now_ms: int) -> None:
        self._policy, self._last_ms = policy, now_ms

    def of_round(self, now_ms: int, *, checkpoint: bool) -> Merge:
        """Return the kind of merge for the next round. ``checkpoint``: whether the round carries a checkpoint."""
        policy = self._policy
        if checkpoint and not policy.incremental:
            return Merge.WHOLE
        if policy.materialize_ms is not None and now_ms - self._last_ms >= policy.materialize_ms:
            self._last_ms = now_ms
            return Merge.BASES
        return Merge.TIERS
