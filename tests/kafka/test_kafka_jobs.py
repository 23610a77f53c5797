"""Whole jobs from Kafka to Kafka, on Spark and with real kills, read by a stranger."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.kafka_tools import Broker, Topics
from tests.waiting import eventually
from tidegate.testing import kill_hook

EXAMPLE = Path(__file__).parents[2] / "examples" / "kafka"
sys.path.insert(0, str(EXAMPLE))

from payments_audit import Audit, audit, read_topic  # noqa: E402

COUNT, ACCOUNTS = 3_000, 40


class PaymentsRun:
    """The example's job as processes of its own: started again until it ends by itself."""

    def __init__(self, directory: Path, servers: str, *plan: str) -> None:
        self.directory, self.servers, self.plan = directory, servers, plan
        self.kills = directory / "kills"
        self.kills.mkdir()
        self._environment = {
            **os.environ,
            "TIDEGATE_FAULT_HOOK": "tidegate.testing.kill_hook:hook",
            "TIDEGATE_KILL_DIR": str(self.kills),
            "TIDEGATE_KILL_PLAN": ";".join(plan),
            "TIDEGATE_MASTER": "local[2,4]",
        }
        self.codes: list[int] = []

    def start(self) -> int:
        ended = self.begin("bounded")
        self.codes.append(ended.wait(280))
        return ended.returncode

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Without arguments it runs until it is stopped."""
        tool = [sys.executable, "-m", "tidegate.cli", "run", "-D", f"tidegate.round.max-records={COUNT // 6}"]
        command = [*tool, str(EXAMPLE / "payments_job.py"), self.servers, str(self.directory), *arguments]
        with open(self.directory / f"log-{len(self.codes)}", "wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)

    def log(self) -> str:
        return (self.directory / f"log-{len(self.codes)}").read_text()[-5000:]

    def finish(self, most: int = 6) -> None:
        while self.start() != 0:
            assert len(self.codes) < most, (self.directory / f"log-{len(self.codes) - 1}").read_text()[-3000:]


@pytest.fixture
def payments(own_broker: Any) -> tuple[Broker, list[dict[str, Any]]]:
    broker = own_broker()
    topics = Topics(broker.bootstrap_servers)
    for name in ("payments", "balances"):
        topics.named(name, 2)
    dice = random.Random(7)
    made: list[dict[str, Any]] = [
        {"id": n, "account": f"a{n % ACCOUNTS}", "amount": dice.randint(-50, 90)} for n in range(COUNT)
    ]
    for partition in (0, 1):
        mine = [json.dumps(payment) for payment in made if int(payment["account"][1:]) % 2 == partition]
        topics.write("payments", mine, partition=partition, transaction="commit")
    return broker, made


def check(broker: Broker) -> None:
    found = audit(read_topic(broker.bootstrap_servers, "payments"), read_topic(broker.bootstrap_servers, "balances"))
    assert found == Audit(COUNT, COUNT, 0, 0, 0)


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "plan",
    [
        ("K1.kafka.flushed@2=self", "C6.published@1=self"),  # a worker in step 5, the driver before any commit
        ("K3.kafka.committed@1=self",),  # between EndTxn and its confirmation
    ],
    ids=["worker-and-driver", "between-commits"],
)
def test_killed_at_the_points_of_the_sink(
    plan: tuple[str, ...], payments: tuple[Broker, list[dict[str, Any]]], tmp_path: Path
) -> None:
    broker, _ = payments
    run = PaymentsRun(tmp_path, broker.bootstrap_servers, *plan)
    run.finish()
    assert kill_hook.fired(run.kills) == sorted(plan)
    assert -9 in run.codes
    check(broker)


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_readers_do_not_wait_for_the_transaction_of_a_dead_worker(
    payments: tuple[Broker, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Its task is tried again and the round is accepted, in the same attempt of the job: nobody restores. Left alone, what the
    worker had open would hold back readers of the topic for 15 minutes."""
    broker, _ = payments
    run = PaymentsRun(tmp_path, broker.bootstrap_servers, "K1.kafka.flushed@3=self")
    topics = Topics(broker.bootstrap_servers)
    driver = run.begin()
    try:
        eventually(lambda: driver.poll() is not None or len(topics.read("balances")) == COUNT, timeout=180)
        assert driver.poll() is None, run.log()
        assert kill_hook.fired(run.kills) == list(run.plan)
        assert "restart in" not in run.log()
        check(broker)
    finally:
        driver.terminate()
        driver.wait(60)
