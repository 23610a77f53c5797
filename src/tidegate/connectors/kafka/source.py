"""Kafka topics as a source, and the enumerator that plans its rounds.

The driver plans which offsets of which partitions each subtask reads, and the tasks read these ranges.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from tidegate.base.arguments import made_by, wrong
from tidegate.base.errors import ConfigurationError, ProgramError
from tidegate.common.serialization import DeserializationSchema
from tidegate.common.typeinfo import TypeInformation
from tidegate.connectors.kafka.cluster import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Cluster,
    TopicPartition,
)
from tidegate.connectors.kafka.libraries import ClientPartition, CoordinatorType, OffsetAndMetadata
from tidegate.connectors.kafka.offsets import KafkaOffsetsInitializer, KafkaTopicPartition
from tidegate.connectors.kafka.properties import ClientProperties
from tidegate.connectors.kafka.reader import KafkaReader, offsets_gone
from tidegate.connectors.kafka.serialization import KafkaRecordDeserializationSchema
from tidegate.graph.transformation import OutputTag
from tidegate.operators.contracts.source import (
    Boundedness,
    Lag,
    Source,
    SourcePlan,
    SplitEnumerator,
    SplitInterval,
    SplitReader,
)

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
        return sum(self.lag.by_subtask.values())

    @property
    def lag(self) -> Lag:
        left: Counter[int] = Counter()
        for place, end in self._known_ends.items():
            left[self._numbers[place] % self._parallelism] += max(0, end - self._at[place])
        return Lag(left)

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


_DISCOVERY_MS = 300_000
USED = {
    "group.id",
    "isolation.level",
    "auto.offset.reset",
    "partition.discovery.interval.ms",
    "commit.offsets.on.checkpoint",
    "max.partition.fetch.bytes",
    "client.id.prefix",
}


@made_by("KafkaSource.builder(), then build()", ClientProperties)
class KafkaSource(Source):
    """Read the records of topics. Made by ``builder``. The checkpoint holds the offsets. With a group id, complete checkpoints also
    commit the offsets to the group, for monitoring only. Rates and limits count records."""

    def __init__(
        self,
        properties: ClientProperties,
        subscription: Subscription,
        starting: KafkaOffsetsInitializer,
        stopping: KafkaOffsetsInitializer | None,
        deserializer: KafkaRecordDeserializationSchema,
        *,
        bounded: bool,
        bad: OutputTag | None = None,
    ) -> None:
        self.properties, self.subscription = properties, subscription
        self.bad, self.emits_tagged = bad, bad is not None
        self.starting, self.stopping, self.deserializer = starting, stopping, deserializer
        self.boundedness = Boundedness.BOUNDED if bounded else Boundedness.CONTINUOUS_UNBOUNDED
        self.group = properties.get("group.id")
        self.isolation = (
            READ_COMMITTED
            if properties.choice("isolation.level", ("read_uncommitted", "read_committed"), "read_uncommitted")
            == "read_committed"
            else READ_UNCOMMITTED
        )
        self.reset = properties.choice("auto.offset.reset", ("none", "earliest", "latest"), "none")
        self.discovery_ms = properties.number("partition.discovery.interval.ms", _DISCOVERY_MS, least=-1)

    @staticmethod
    def builder() -> KafkaSourceBuilder:
        return KafkaSourceBuilder()

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        commits = self.properties.choice("commit.offsets.on.checkpoint", ("true", "false"), "true") == "true"
        return KafkaEnumerator(
            self.properties,
            self.subscription,
            self.starting,
            self.stopping,
            group=self.group if commits or self.starting.kind == "committed" else None,
            isolation=self.isolation,
            reset=self.reset,
            discovery_ms=self.discovery_ms,
            parallelism=parallelism,
            restored=restored,
        )

    def get_produced_type(self) -> TypeInformation | None:
        """The type of the values, if the schema knows it."""
        return self.deserializer.get_produced_type()

    def create_reader(self, subtask: int) -> SplitReader:
        return KafkaReader(self.properties, self.isolation, self.deserializer, self.bad)


class KafkaSourceBuilder:
    """Requires bootstrap servers, topics (or a pattern, or partitions) and a deserializer. By default the source starts at the
    earliest offsets and does not end."""

    def __init__(self) -> None:
        self._properties: dict[str, str] = {}
        self._subscription: Subscription | None = None
        self._starting = KafkaOffsetsInitializer.earliest()
        self._stopping: KafkaOffsetsInitializer | None = None
        self._bounded = False
        self._deserializer: KafkaRecordDeserializationSchema | None = None
        self._bad: OutputTag | None = None

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSourceBuilder:
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_group_id(self, group_id: str) -> KafkaSourceBuilder:
        return self.set_property("group.id", group_id)

    def set_topics(self, *topics: str) -> KafkaSourceBuilder:
        return self._subscribe(Subscription(topics=tuple(topics)))

    def set_topic_pattern(self, topic_pattern: str) -> KafkaSourceBuilder:
        """Read topics whose whole name matches a regular expression, also topics that are created later."""
        pattern = getattr(topic_pattern, "pattern", topic_pattern)
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigurationError(
                "set_topic_pattern takes a regular expression",
                found=f"{pattern!r}: {error}",
                cure='for example "orders-.*"',
            ) from None
        return self._subscribe(Subscription(pattern=pattern))

    def set_partitions(self, partitions: set[KafkaTopicPartition]) -> KafkaSourceBuilder:
        for partition in partitions:
            if not isinstance(partition, KafkaTopicPartition):
                raise wrong("set_partitions", "KafkaTopicPartition objects", partition, 'KafkaTopicPartition("t", 0)')
        return self._subscribe(Subscription(partitions=tuple(sorted(p.place for p in partitions))))

    def _subscribe(self, subscription: Subscription) -> KafkaSourceBuilder:
        if self._subscription is not None:
            raise ProgramError(
                "A Kafka source reads topics, a pattern of topics or partitions, and only one of the three",
                where="KafkaSource.builder()",
                found=f"{self._subscription} and {subscription}",
                cure="call one of set_topics, set_topic_pattern and set_partitions, once",
            )
        if not (subscription.topics or subscription.pattern or subscription.partitions):
            raise ProgramError(
                "A Kafka source needs a topic",
                where="KafkaSource.builder()",
                found="none",
                cure="name at least one topic",
            )
        self._subscription = subscription
        return self

    def set_starting_offsets(self, starting_offsets_initializer: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        self._starting = _initializer("set_starting_offsets", starting_offsets_initializer)
        return self

    def set_unbounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        """Stop at these offsets, in a job that still counts as unbounded."""
        self._stopping = _initializer("set_unbounded", stopping_offsets_initializer)
        self._bounded = False
        return self

    def set_bounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        """Stop at these offsets, which are resolved at the first start."""
        self._stopping = _initializer("set_bounded", stopping_offsets_initializer)
        self._bounded = True
        return self

    def set_value_only_deserializer(self, deserialization_schema: DeserializationSchema) -> KafkaSourceBuilder:
        self._deserializer = KafkaRecordDeserializationSchema.value_only(deserialization_schema)
        return self

    def set_deserializer(self, record_deserializer: KafkaRecordDeserializationSchema) -> KafkaSourceBuilder:
        """For programs that need key, headers, timestamp, partition or offset."""
        if not isinstance(record_deserializer, KafkaRecordDeserializationSchema):
            raise wrong(
                "set_deserializer", "a KafkaRecordDeserializationSchema", record_deserializer, "extend that class"
            )
        self._deserializer = record_deserializer
        return self

    def set_bad_record_output(self, output_tag: OutputTag) -> KafkaSourceBuilder:
        """Send records that do not deserialize to a side output, each as a ``BadRecord``: ``get_side_output(output_tag)`` of the
        source's stream. Without this the first such record fails the job. (Not in PyFlink.)"""
        if not isinstance(output_tag, OutputTag):
            raise wrong("set_bad_record_output", "an OutputTag", output_tag, 'OutputTag("bad")')
        self._bad = output_tag
        return self

    def set_client_id_prefix(self, prefix: str) -> KafkaSourceBuilder:
        return self.set_property("client.id", prefix)

    def set_property(self, key: str, value: str) -> KafkaSourceBuilder:
        self._properties[key] = str(value)
        return self

    def set_properties(self, props: Mapping[str, str]) -> KafkaSourceBuilder:
        for key, value in dict(props).items():
            self.set_property(key, value)
        return self

    def build(self) -> KafkaSource:
        properties = ClientProperties(self._properties)
        properties.check("KafkaSource", USED)
        properties.client()
        needed = {
            "set_bootstrap_servers(...)": "bootstrap.servers" in properties,
            "set_topics(...)": self._subscription is not None,
            "set_value_only_deserializer(...)": self._deserializer is not None,
        }
        missing = [call for call, there in needed.items() if not there]
        if missing:
            raise ProgramError(
                "The Kafka source is not complete",
                found=f"without {', '.join(missing)}",
                cure="call the missing methods",
            )
        if self._starting.kind == "committed" and "group.id" not in properties:
            raise ProgramError(
                "set_group_id is required to start from committed offsets", found="no group", cure="set_group_id(...)"
            )
        assert self._subscription is not None and self._deserializer is not None
        return KafkaSource(
            properties,
            self._subscription,
            self._starting,
            self._stopping,
            self._deserializer,
            bounded=self._bounded,
            bad=self._bad,
        )


def _initializer(where: str, initializer: Any) -> KafkaOffsetsInitializer:
    if not isinstance(initializer, KafkaOffsetsInitializer):
        raise wrong(where, "a KafkaOffsetsInitializer", initializer, "KafkaOffsetsInitializer.earliest()")
    return initializer
