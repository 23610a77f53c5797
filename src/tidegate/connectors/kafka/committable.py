"""What a round hands over to the driver: a transaction that is written and open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.base.counts import count
from tidegate.connectors.kafka.cluster import TopicPartition
from tidegate.connectors.kafka.transactions import Producer


@dataclass(frozen=True)
class KafkaCommittable:
    """``firsts``: the first offset in every partition, which lets the log tell how it ended. ``kept``: the file with a copy of
    what was written (its path, size and hash), or None."""

    producer: Producer
    firsts: dict[TopicPartition, int]
    records: int
    kept: tuple[str, int, str] | None = None

    @staticmethod
    def of(
        producer: Producer, firsts: dict[TopicPartition, int], records: int, kept: tuple[str, int, str] | None
    ) -> KafkaCommittable:
        return KafkaCommittable(producer, dict(firsts), records, kept)

    @property
    def name(self) -> str:
        """Unique for ever: an id and an epoch have one transaction."""
        p = self.producer
        return f"{p.transactional_id}-{p.producer_id}-{p.epoch}"

    def plain(self) -> dict[str, Any]:
        p = self.producer
        return {
            "id": p.transactional_id,
            "producer": [p.producer_id, p.epoch],
            "firsts": [[*place, first] for place, first in self.firsts.items()],
            "records": self.records,
            "kept": None if self.kept is None else list(self.kept),
        }

    @staticmethod
    def from_plain(data: dict[str, Any]) -> KafkaCommittable:
        producer = Producer(data["id"], *data["producer"])
        firsts = {TopicPartition(topic, partition): first for topic, partition, first in data["firsts"]}
        kept = data["kept"]
        return KafkaCommittable(
            producer, firsts, data["records"], None if kept is None else (kept[0], kept[1], kept[2])
        )

    def __str__(self) -> str:
        places = ", ".join(f"{place} from offset {first}" for place, first in self.firsts.items())
        return f"transaction {self.name} with {count(self.records, 'record')} ({places})"
