"""The figures of single subtasks: what they did in the latest rounds, and in a checkpoint.

The job's thread adds the acks of accepted rounds: one or two microseconds for each subtask. Views are made only when somebody
looks, in the thread of who looks.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.graph.plan import JobGraph
from tidegate.operators.contracts.source import Lag
from tidegate.operators.flow.rows import Ack
from tidegate.state.snapshot import OperatorSnapshot

_LATEST, _LATEST_MS = 20, 10_000
"""How many of the latest rounds the parts of time are of, and over which time: at least one round."""
_SHARES = 1000
_KEYS, _HEAVY = 5, 0.01
"""How many heavy keys of an operator are shown, and from which part of its records on."""


@dataclass(frozen=True)
class HeavyKey:
    """A key of a keyed operator that takes a large part of its records. ``share``: of all records of the operator in the latest
    rounds, 0 to 1; an estimate by a few records of each chunk. ``subtask``: which subtask has the key."""

    key: str
    share: float
    subtask: int


@dataclass(frozen=True)
class OperatorState:
    """The state of an operator: bytes of all its files, and about how many belong to which state."""

    bytes: int
    states: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SubtaskView:
    """A subtask of a chain. Parts of time are of the latest rounds, between 0 and 1, and add up to 1."""

    chain: int
    subtask: int
    host: str | None = None
    """Where the subtask ran last: the host, and the executor of Spark if there are several."""
    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    """Of chunks from other subtasks: a source has none."""
    bytes_out: int = 0
    records_in_per_second: float = 0.0
    """Over the latest rounds."""
    busy: float = 0.0
    back_pressured: float = 0.0
    """The subtask had finished its part and waited for slower subtasks of the same or a later level."""
    idle: float = 0.0
    seconds: float = 0.0
    """How long the subtask took in the latest round."""
    watermark: int | None = None
    lag: int | None = None
    """What the source knows of and has not read; None for other operators, and where the source does not know."""
    lag_unit: str = "records"
    """What ``lag`` counts: ``records``, or ``bytes`` of files."""
    state_bytes: int = 0
    retries: int = 0
    """How often Spark ran a task of the subtask again."""
    busy_seconds: float = 0.0
    """In all accepted rounds of the latest attempt."""
    back_pressured_seconds: float = 0.0
    """As ``busy_seconds``."""
    records_out_per_second: float = 0.0
    """Over the latest rounds."""


class Shown(NamedTuple):
    """The figures of the latest rounds. States and keys: by operator id; keys by that of their chain's first one."""

    subtasks: tuple[SubtaskView, ...]
    states: Mapping[int, OperatorState]
    heavy_keys: Mapping[int, tuple[HeavyKey, ...]]


class _Round(NamedTuple):
    """An accepted round. ``rest``: by level, how long the slowest tasks of this level and of all later levels worked. ``work``,
    ``records`` and ``sent``: by place, of each subtask. ``heavy``: as in acks, where there are keys."""

    started_ms: int
    ended_ms: float
    rest: list[float]
    work: dict[tuple[int, int], float]
    records: dict[tuple[int, int], int]
    sent: dict[tuple[int, int], int]
    heavy: dict[tuple[int, int], tuple[int, tuple[tuple[str, int], ...]]]


class _Totals:
    """A subtask since the job's start. ``ack``: of the latest accepted round. ``worked`` and ``waited``: seconds in the latest
    attempt."""

    __slots__ = (
        "ack", "bytes_in", "bytes_out", "records_in", "records_out", "retries", "waited", "watermark", "worked",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ack: Ack | None = None
        self.bytes_in = self.bytes_out = self.records_in = self.records_out = self.retries = 0
        self.worked = self.waited = 0.0
        self.watermark: int | None = None

    def add(self, ack: Ack, rest: float) -> None:
        """``rest``: how long the round took from the subtask's level on."""
        self.ack = ack
        worked = ack.work.seconds
        self.worked += worked
        self.waited += max(0.0, rest - worked)
        self.records_in += ack.records_in
        self.records_out += ack.records_out
        self.bytes_in += ack.work.bytes_in
        self.bytes_out += ack.work.bytes_out
        self.retries += ack.run.attempt
        marks = [snapshot.watermark for snapshot in ack.snapshots.values() if not snapshot.idle]
        if marks:
            self.watermark = min(marks)


class SubtaskTally:
    """The subtasks of a job over its accepted rounds. ``add`` belongs to the job's thread, ``shown`` to any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._level: dict[int, int] = {}
        self._totals: dict[tuple[int, int], _Totals] = {}
        self._latest: deque[_Round] = deque(maxlen=_LATEST)
        self._lags: Mapping[int, Lag] = {}
        self._heads: dict[int, int] = {}
        self._shown: Shown | None = None
        self._most_shares = _SHARES
        self._shares: dict[str, Mapping[str, int]] = {}
        """Of state files: about how many bytes belong to which state."""

    def graph(self, graph: JobGraph) -> None:
        """Show every subtask of the program. What is known of a subtask stays."""
        with self._lock:
            self._level = {chain.id: chain.level for chain in graph.chains}
            self._heads = {chain.id: chain.head.operator.id for chain in graph.chains}
            places = [(chain.id, subtask) for chain in graph.chains for subtask in range(chain.parallelism)]
            self._totals = {place: self._totals.get(place) or _Totals() for place in places}
            self._shown = None

    def attempt_started(self) -> None:
        with self._lock:
            for totals in self._totals.values():
                totals.worked = totals.waited = 0.0
            self._shown = None

    def add(self, started_ms: int, seconds: float, acks: Sequence[Ack], lags: Mapping[int, Lag]) -> None:
        """Add an accepted round. ``lags``: by operator id of the sources."""
        slowest = slowest_tasks(acks, self._level)
        rest = [sum(sum(parts) for parts in slowest[level:]) for level in range(len(slowest))]
        work, records, sent, heavy = {}, {}, {}, {}
        with self._lock:
            for ack in acks:
                place = ack.chain, ack.subtask
                work[place], records[place], sent[place] = ack.work.seconds, ack.records_in, ack.records_out
                if ack.heavy is not None:
                    heavy[place] = ack.heavy
                if ack.shares:
                    self._shares |= ack.shares
                self._totals[place].add(ack, rest[self._level[ack.chain]])
            if len(self._shares) > self._most_shares:
                self._forget_shares()
            self._latest.append(_Round(started_ms, started_ms + seconds * 1000, rest, work, records, sent, heavy))
            while len(self._latest) > 1 and self._latest[1].started_ms < started_ms - _LATEST_MS:
                self._latest.popleft()
            self._lags, self._shown = lags, None

    def shown(self) -> Shown:
        """Return the figures of the latest rounds. They are made once a round, when somebody looks."""
        with self._lock:
            if self._shown is None:
                latest = list(self._latest)
                subtasks = tuple(self._view(place, of, latest) for place, of in self._totals.items())
                self._shown = Shown(subtasks, self._states(), self._heavy_keys(latest))
            return self._shown

    def _states(self) -> dict[int, OperatorState]:
        found: dict[int, list[OperatorSnapshot]] = {}
        for totals in self._totals.values():
            for operator_id, snapshot in totals.ack.snapshots.items() if totals.ack is not None else ():
                if snapshot.keyed is not None or snapshot.stored():
                    found.setdefault(operator_id, []).append(snapshot)
        return {operator_id: self._state(snapshots) for operator_id, snapshots in found.items()}

    def _forget_shares(self) -> None:
        """Forget the files that no subtask refers to any more."""
        acks = (totals.ack for totals in self._totals.values() if totals.ack is not None)
        needed = {file.path for ack in acks for snapshot in ack.snapshots.values() for file in snapshot.files()}
        self._shares = {path: share for path, share in self._shares.items() if path in needed}
        self._most_shares = 2 * len(self._shares) + _SHARES

    def _state(self, snapshots: list[OperatorSnapshot]) -> OperatorState:
        states: dict[str, int] = {}
        for snapshot in snapshots:
            for part in snapshot.stored().values():
                size = sum(file.size for file in part.files) + sum(map(len, part.items))
                states[part.schema.name] = states.get(part.schema.name, 0) + size
            keyed = snapshot.keyed
            for file in keyed.files if keyed is not None else ():
                alone = {keyed.schemas[0].name: file.size} if keyed is not None and len(keyed.schemas) == 1 else {}
                for name, size in self._shares.get(file.path, alone).items():
                    states[name] = states.get(name, 0) + size
        return OperatorState(sum(map(state_bytes, snapshots)), dict(sorted(states.items(), key=lambda each: -each[1])))

    def _heavy_keys(self, latest: list[_Round]) -> dict[int, tuple[HeavyKey, ...]]:
        records: dict[int, int] = {}
        counts: dict[int, dict[tuple[str, int], int]] = {}
        for (chain, subtask), (seen, keys) in (each for round in latest for each in round.heavy.items()):
            records[chain] = records.get(chain, 0) + seen
            of_chain = counts.setdefault(chain, {})
            for key, count in keys:
                of_chain[key, subtask] = of_chain.get((key, subtask), 0) + count
        found = {}
        for chain, of_chain in counts.items():
            shares = {place: min(1.0, count / max(1, records[chain])) for place, count in of_chain.items()}
            heaviest = heapq.nlargest(_KEYS, shares.items(), key=lambda each: each[1])
            found[self._heads[chain]] = tuple(
                HeavyKey(key, s, subtask) for (key, subtask), s in heaviest if s >= _HEAVY
            )
        return found

    def _view(self, place: tuple[int, int], totals: _Totals, latest: list[_Round]) -> SubtaskView:
        chain, subtask = place
        ack = totals.ack
        if ack is None:
            return SubtaskView(chain, subtask, idle=1.0)
        level, lag = self._level[chain], self._lags.get(self._heads[chain])
        span = max((latest[-1].ended_ms - latest[0].started_ms) / 1000, 1e-9)
        worked = sum(round.work.get(place, 0.0) for round in latest)
        waited = max(0.0, sum(round.rest[level] for round in latest) - worked)
        span = max(span, worked + waited)  # wall clocks may jump
        busy, back_pressured = worked / span, waited / span
        return SubtaskView(
            chain,
            subtask,
            host=ack.run.place or None,
            records_in=totals.records_in,
            records_out=totals.records_out,
            bytes_in=totals.bytes_in,
            bytes_out=totals.bytes_out,
            records_in_per_second=sum(round.records.get(place, 0) for round in latest) / span,
            records_out_per_second=sum(round.sent.get(place, 0) for round in latest) / span,
            busy=busy,
            back_pressured=back_pressured,
            idle=max(0.0, 1 - busy - back_pressured),
            seconds=ack.seconds,
            watermark=totals.watermark,
            lag=None if lag is None else lag.by_subtask.get(subtask, 0),
            lag_unit="records" if lag is None else lag.unit,
            state_bytes=sum(map(state_bytes, ack.snapshots.values())),
            retries=totals.retries,
            busy_seconds=totals.worked,
            back_pressured_seconds=totals.waited,
        )


def state_bytes(snapshot: OperatorSnapshot) -> int:
    """Return the bytes of all state files of an operator's subtask."""
    return sum(file.size for file in snapshot.files())


Parts = tuple[float, float, float, float]
"""Seconds of reading, user code, packing and snapshots."""


def slowest_tasks(acks: Iterable[Ack], level_of: Mapping[int, int]) -> list[Parts]:
    """Return, by level, the work of its slowest task. Subtasks that share a task of the engine run one after the other."""
    tasks: dict[tuple[int, ...], list[float]] = {}
    for ack in acks:
        level, task = level_of[ack.chain], ack.run.task
        place = (level, task) if task >= 0 else (level, ack.chain, ack.subtask)
        read, user, pack, snapshot, *_ = ack.work
        parts = tasks.get(place)
        if parts is None:
            tasks[place] = [read, user, pack, snapshot]
        else:
            parts[0] += read
            parts[1] += user
            parts[2] += pack
            parts[3] += snapshot
    slowest: list[Parts] = [(0.0, 0.0, 0.0, 0.0)] * (1 + max(level_of.values(), default=-1))
    for (level, *_), (read, user, pack, snapshot) in tasks.items():
        if read + user + pack + snapshot > sum(slowest[level]):
            slowest[level] = read, user, pack, snapshot
    return slowest
