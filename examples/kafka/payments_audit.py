"""Reads both topics as a stranger would (confluent-kafka, ``read_committed``): every payment once, every balance right."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition


@dataclass(frozen=True)
class Audit:
    payments: int
    changes: int
    lost: int
    doubled: int
    wrong: int
    """Accounts whose changes are not those of its payments."""

    @property
    def passed(self) -> bool:
        return not (self.lost or self.doubled or self.wrong)


def read_topic(servers: str, topic: str) -> list[Any]:
    """All records there are now, committed ones only."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "audit",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    records: list[Any] = []
    ended: set[int | None] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(20)
        if message is None:
            raise TimeoutError("the broker does not answer")
        if message.error() is not None:
            ended.add(message.partition())
        else:
            records.append(json.loads(message.value() or b""))
    consumer.close()
    return records


def audit(payments: list[Any], changes: list[Any]) -> Audit:
    """``balance`` after each payment is known beforehand: payments of an account are ordered, and so are its changes."""
    seen = Counter(change["payment"] for change in changes)
    paid = {payment["id"]: payment for payment in payments}
    balances: dict[str, list[int]] = defaultdict(list)
    for change in changes:
        balances[change["account"]].append(change["balance"])
    expected: dict[str, list[int]] = defaultdict(list)
    for payment in payments:
        account = payment["account"]
        if seen[payment["id"]]:
            expected[account].append((expected[account] or [0])[-1] + payment["amount"])
    return Audit(
        payments=len(payments),
        changes=len(changes),
        lost=sum(1 for number in paid if not seen[number]),
        doubled=sum(count - 1 for number, count in seen.items() if count > 1),
        wrong=sum(1 for account, values in expected.items() if sorted(values) != sorted(balances[account])),
    )
