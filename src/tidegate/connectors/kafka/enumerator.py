"""Plan the rounds of a Kafka source: which offsets of which partitions each subtask reads."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from tidegate.base.errors import ConfigurationError
from tidegate.connectors.kafka.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from tidegate.connectors.kafka.libraries import ClientPartition, CoordinatorType, OffsetAndMetadata
from tidegate.connectors.kafka.offsets import KafkaOffsetsInitializer
from tidegate.connectors.kafka.properties import ClientProperties
from tidegate.connectors.kafka.reader import offsets_gone
from tidegate.operators.contracts.source import SourcePlan, SplitEnumerator, SplitInterval

log = logging.getLogger(__name__)

_LAST_COMMIT_S = 5.0
_background = ThreadPoolExecutor(1, "tidegate-kafka-offsets")


@dataclass(frozen=True)
class Subscription:
    """Topics, a pattern or partitions: one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()

    def find(self, cluster: Cluster) -> list[TopicPartition]:
        """The partitions that exist now. Raises ConfigurationError for missing topics and partitions."""
        if self.pattern:
            return sorted(place for places in cluster.matching(self.pattern).values() for place in places)
        topics = self.topics or tuple(dict.fromkeys(place.topic for place in self.partitions))
        found = cluster.metadata(topics)
        missing = [f"topic {name}" for name in topics if name not in found]
        missing += [f"partition {p}" for p in self.partitions if p.topic in found and p not in found[p.topic]]
        if missing:
            raise ConfigurationError(
                "A topic or partition of the Kafka source does not exist",
                where=f"bootstrap servers {cluster.servers}",
                found=f"no {', no '.join(missing)}",
                cure="create it, or correct the name",
            )
        return sorted(self.partitions or [place for places in found.values() for place in places])


class KafkaEnumerator(SplitEnumerator):
    """Partitions are assigned to subtasks in their order. Every plan asks for the ends of the partitions: one request for each
    broker.

    ``stopping``: the offsets that bound the source are fixed at the first start, and are part of the position. ``reset``: 'none',
    'earliest' or 'latest', for offsets of the checkpoint that no longer exist.
    """

    def __init__(
        self,
        properties: ClientProperties,
        subscription: Subscription,
        starting: KafkaOffsetsInitializer,
        stopping: KafkaOffsetsInitializer | None,
        *,
        group: str | None,
        isolation: int,
        reset: str,
        discovery_ms: int,
        parallelism: int,
        restored: Any | None,
    ) -> None:
        self._cluster, self._subscription = Cluster.of(properties), subscription
        self._group, self._isolation, self._parallelism = group, isolation, parallelism
        self._discovery_ms = 0 if stopping is not None else discovery_ms
        # A restored job looks at once for partitions that were created while the job was stopped.
        self._next_discovery_ms: int | None = None if restored is None else 0
        self._committing: Future[None] | None = None
        self._held: frozenset[str] = frozenset()
        self._at: dict[TopicPartition, int] = {}
        self._stop: dict[TopicPartition, int] | None = None
        self._numbers: dict[TopicPartition, int] = {}
        self._known_ends: dict[TopicPartition, int] = {}
        self._announced: set[TopicPartition] = set()
        """Partitions that the subtasks of the source know."""
        if restored is None:
            self._start(starting, stopping)
        else:
            self._restore(restored, stopping is not None, reset)

    def _start(self, starting: KafkaOffsetsInitializer, stopping: KafkaOffsetsInitializer | None) -> None:
        found = self._subscription.find(self._cluster)
        self._number(found)
        self._at = starting.start(self._cluster, found, self._group, self._isolation)
        if stopping is not None:
            self._stop = stopping.resolve(self._cluster, found, self._group, self._isolation)

    def _restore(self, restored: dict[str, Any], bounded: bool, reset: str) -> None:
        rows = [(TopicPartition.of(name), *row) for name, row in restored["partitions"].items()]
        self._numbers = {place: number for place, number, _, _ in rows}
        self._at = {place: at for place, _, at, _ in rows}
        if bounded:
            self._stop = {place: at if stop is None else stop for place, _, at, stop in rows}
        begins, ends = self._cluster.offsets(self._at, EARLIEST), self._cluster.offsets(self._at, LATEST)
        for place, at in self._at.items():
            if not begins[place] <= at <= ends[place]:
                self._at[place] = self._reset(place, at, begins[place], ends[place], reset)

    @staticmethod
    def _reset(place: TopicPartition, at: int, begins: int, ends: int, reset: str) -> int:
        if reset == "none":
            raise offsets_gone(place, at, f"the partition holds offsets {begins} to {ends}")
        chosen = begins if reset == "earliest" else ends
        log.warning("%s: offset %d is gone, reading continues at %d (auto.offset.reset=%s)", place, at, chosen, reset)
        return chosen

    def _number(self, places: list[TopicPartition]) -> None:
        for place in places:
            self._numbers.setdefault(place, len(self._numbers))

    # -- rounds ------------------------------------------------------------------------------------------------------

    can_hold = True

    def hold(self, splits: frozenset[str]) -> None:
        self._held = splits

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        self._discover(now_ms)
        ends = self._known_ends = self._ends()
        waiting = {p: ends[p] - at for p, at in self._at.items() if ends[p] > at and str(p) not in self._held}
        intervals, backlog = [], False
        for place, given in _shares(waiting, limit).items():
            start = self._at[place]
            end = self._at[place] = start + given
            last = self._stop is not None and end >= self._stop[place]
            subtask = self._numbers[place] % self._parallelism
            intervals.append(SplitInterval(str(place), subtask, start, end, given, last))
            backlog = backlog or given < waiting[place]
        intervals += self._announce({interval.split for interval in intervals})
        finished = self._stop is not None and all(at >= self._stop[place] for place, at in self._at.items())
        return SourcePlan(intervals, backlog=backlog and not finished, finished=finished)

    def _announce(self, given: set[str]) -> list[SplitInterval]:
        """Empty intervals for partitions that the subtasks do not know yet: event time waits for their first record, or until the
        partitions are idle."""
        new, self._announced = self._at.keys() - self._announced, set(self._at)
        return [
            SplitInterval(str(place), self._numbers[place] % self._parallelism, self._at[place], self._at[place])
            for place in sorted(new)
            if str(place) not in given and (self._stop is None or self._at[place] < self._stop[place])
        ]

    @property
    def awaited(self) -> frozenset[int]:
        """The subtask that will get the first partition, while no partition exists."""
        return frozenset() if self._at else frozenset({0})

    @property
    def behind(self) -> int:
        """Counted in offsets; some of them may be transaction markers."""
        return sum(max(0, end - self._at[place]) for place, end in self._known_ends.items())

    def _ends(self) -> dict[TopicPartition, int]:
        """The end of the readable offsets of each partition. A reader of committed records stops before open transactions."""
        stop = self._stop
        open_ = [place for place, at in self._at.items() if stop is None or at < stop[place]]
        ends = self._cluster.offsets(open_, LATEST, self._isolation)
        if stop is not None:
            ends = {place: min(end, stop[place]) for place, end in ends.items()}
        return {place: ends.get(place, at) for place, at in self._at.items()}

    def _discover(self, now_ms: int) -> None:
        if self._discovery_ms <= 0 or self._subscription.partitions:
            return
        due, self._next_discovery_ms = self._next_discovery_ms, now_ms + self._discovery_ms
        if due is None or now_ms < due:
            self._next_discovery_ms = self._next_discovery_ms if due is None else due
            return
        new = [place for place in self._subscription.find(self._cluster) if place not in self._at]
        if new:
            log.info("new partitions, read from their beginning: %s", ", ".join(map(str, new)))
            self._number(new)
            self._at |= self._cluster.offsets(new, EARLIEST)

    def snapshot(self) -> Any:
        """For every partition: its number, the next offset, and the offset at which it stops."""
        stop = self._stop
        rows = {str(p): [self._numbers[p], at, None if stop is None else stop[p]] for p, at in self._at.items()}
        return {"partitions": rows}

    def checkpoint_complete(self, position: Any) -> None:
        """Commit the offsets to the group, for monitoring: the job neither waits for the commit nor restores from it."""
        if self._group and (self._committing is None or self._committing.done()):
            offsets = {TopicPartition.of(name): row[1] for name, row in position["partitions"].items()}
            self._committing = _background.submit(commit_offsets, self._cluster, self._group, offsets)

    def close(self) -> None:
        """Wait a moment for the last commit: monitoring shows finished jobs too."""
        if self._committing is not None:
            wait([self._committing], timeout=_LAST_COMMIT_S)


def _shares(waiting: dict[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """The number of offsets of each partition in a round: equal shares; an unused rest of a share goes to the others."""
    shares: dict[TopicPartition, int] = {}
    left = limit
    for n, (place, size) in enumerate(sorted(waiting.items(), key=lambda item: item[1])):
        shares[place] = min(size, max(1, left // (len(waiting) - n)))
        left -= shares[place]
    return shares


def commit_offsets(cluster: Cluster, group: str, offsets: dict[TopicPartition, int]) -> None:
    """Best effort."""
    rows = {ClientPartition(*place): OffsetAndMetadata(at, "", -1) for place, at in offsets.items()}

    def ask() -> None:
        cluster.coordinator(group, CoordinatorType.GROUP)
        cluster.admin.alter_group_offsets(group, rows)

    try:
        cluster.retried(f"offsets of group {group}", ask, timeout_s=_LAST_COMMIT_S)
    except Exception as error:
        log.warning(
            "group %s: the offsets (for monitoring only) were not committed: %s",
            group,
            cluster.properties.masked(error),
        )
