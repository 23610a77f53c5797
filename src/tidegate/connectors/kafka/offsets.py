"""The first and last offsets of a Kafka source: PyFlink's offset initializers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidegate.base.arguments import expect_int, wrong
from tidegate.base.errors import ConfigurationError
from tidegate.connectors.kafka.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from tidegate.connectors.kafka.libraries import CoordinatorType

log = logging.getLogger(__name__)


class KafkaOffsetResetStrategy(Enum):
    """The offset for a partition in which the requested offset does not exist."""

    LATEST = 0
    EARLIEST = 1
    NONE = 2


class KafkaTopicPartition:
    """A topic and one of its partitions."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, expect_int("KafkaTopicPartition", partition, "a partition from 0")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KafkaTopicPartition) and self.place == other.place

    def __hash__(self) -> int:
        return hash(self.place)

    def __repr__(self) -> str:
        return f"KafkaTopicPartition({self.topic!r}, {self.partition})"

    @property
    def place(self) -> TopicPartition:
        """The topic and the partition as the Kafka library names them."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True)
class KafkaOffsetsInitializer:
    """Made by the static methods. Starting and stopping offsets are resolved once, at the first start of a job; after that the
    checkpoint holds the position in each partition."""

    kind: str
    reset: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE
    moment: int = 0
    given: Mapping[TopicPartition, int] = field(default_factory=dict)

    @staticmethod
    def committed_offsets(
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE,
    ) -> KafkaOffsetsInitializer:
        """The offsets that the group has committed. For partitions without one the strategy decides; NONE fails the start."""
        return KafkaOffsetsInitializer("committed", _strategy("committed_offsets", offset_reset_strategy))

    @staticmethod
    def timestamp(timestamp: int) -> KafkaOffsetsInitializer:
        """The first record whose timestamp in milliseconds is not less; the end of partitions without such a record."""
        return KafkaOffsetsInitializer("timestamp", moment=expect_int("timestamp", timestamp, "milliseconds"))

    @staticmethod
    def earliest() -> KafkaOffsetsInitializer:
        """Start at the earliest offset of each partition."""
        return KafkaOffsetsInitializer("earliest", KafkaOffsetResetStrategy.EARLIEST)

    @staticmethod
    def latest() -> KafkaOffsetsInitializer:
        """Start at the end that each partition has when the job starts."""
        return KafkaOffsetsInitializer("latest", KafkaOffsetResetStrategy.LATEST)

    @staticmethod
    def offsets(
        offsets: Mapping[KafkaTopicPartition, int],
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST,
    ) -> KafkaOffsetsInitializer:
        """The given offsets; for other partitions the strategy decides."""
        given: dict[TopicPartition, int] = {}
        for place, offset in dict(offsets).items():
            if not isinstance(place, KafkaTopicPartition):
                raise wrong("offsets", "KafkaTopicPartition objects as keys", place, 'KafkaTopicPartition("t", 0)')
            given[place.place] = expect_int("offsets", offset, "an offset from 0")
        return KafkaOffsetsInitializer("given", _strategy("offsets", offset_reset_strategy), given=given)

    # -- on the driver -----------------------------------------------------------------------------------------------

    def start(
        self, cluster: Cluster, partitions: Iterable[TopicPartition], group: str | None, isolation: int
    ) -> dict[TopicPartition, int]:
        """The first offset to read of every partition. The strategy replaces offsets that the partition does not hold (deleted by
        retention, or not written yet), as in Kafka's own consumers."""
        chosen = self.resolve(cluster, partitions, group, isolation)
        if self.kind not in ("given", "committed"):
            return chosen
        begins, ends = cluster.offsets(chosen, EARLIEST), cluster.offsets(chosen, LATEST)
        gone = [place for place, at in chosen.items() if not begins[place] <= at <= ends[place]]
        for place in gone:
            found = f"offset {chosen[place]}, the partition holds {begins[place]} to {ends[place]}"
            if self.reset is KafkaOffsetResetStrategy.NONE:
                raise ConfigurationError(
                    "The starting offset of a Kafka source does not exist",
                    where=f"topic {place.topic}, partition {place.partition}",
                    found=found,
                    cure="pass another offset, or a KafkaOffsetResetStrategy: EARLIEST or LATEST",
                )
            log.warning("%s: %s; reading starts at the %s", place, found, self.reset.name.lower())
        return chosen | self._by_strategy(cluster, gone, isolation)

    def resolve(
        self, cluster: Cluster, partitions: Iterable[TopicPartition], group: str | None, isolation: int
    ) -> dict[TopicPartition, int]:
        """An offset for every partition."""
        every = list(partitions)
        if self.kind == "earliest":
            return cluster.offsets(every, EARLIEST)
        if self.kind == "latest":
            return cluster.offsets(every, LATEST, isolation)
        if self.kind == "timestamp":
            found = cluster.offsets(every, self.moment, isolation)
            ends = cluster.offsets([p for p, offset in found.items() if offset < 0], LATEST, isolation)
            return found | ends
        known = dict(self.given) if self.kind == "given" else committed(cluster, group or "", every)
        chosen = {place: known[place] for place in every if place in known}
        return chosen | self._by_strategy(cluster, [p for p in every if p not in chosen], isolation)

    def _by_strategy(
        self, cluster: Cluster, partitions: list[TopicPartition], isolation: int
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        if self.reset is KafkaOffsetResetStrategy.NONE:
            raise ConfigurationError(
                "A partition has no starting offset",
                where="KafkaSource",
                found=f"none for {', '.join(map(str, partitions))}",
                cure="pass a KafkaOffsetResetStrategy: EARLIEST or LATEST",
            )
        moment = EARLIEST if self.reset is KafkaOffsetResetStrategy.EARLIEST else LATEST
        return cluster.offsets(partitions, moment, isolation)


def committed(cluster: Cluster, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The committed offsets of a consumer group, for these partitions."""

    def ask() -> dict[TopicPartition, int]:
        cluster.coordinator(group, CoordinatorType.GROUP)
        found = cluster.admin.list_group_offsets({group: None})
        offsets = found.get(group, {})
        return {TopicPartition(p.topic, p.partition): o.offset for p, o in offsets.items() if o.offset >= 0}

    known = cluster.retried(f"committed offsets of group {group}", ask)
    wanted = set(partitions)
    return {place: offset for place, offset in known.items() if place in wanted}


def _strategy(where: str, strategy: object) -> KafkaOffsetResetStrategy:
    if not isinstance(strategy, KafkaOffsetResetStrategy):
        raise wrong(where, "a KafkaOffsetResetStrategy", strategy, "KafkaOffsetResetStrategy.EARLIEST")
    return strategy
