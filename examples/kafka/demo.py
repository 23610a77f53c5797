"""Payments in, balances out, exactly once: a real broker, and a worker, the driver and the broker are killed on the way.

Then a stranger (confluent-kafka with ``read_committed``) reads both topics and compares.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from payments_audit import Audit, audit, read_topic
from payments_job import BALANCES, PAYMENTS
from rich.console import Console

from tidegate.connectors.kafka.dev_broker import DevBroker, free_port

HERE = Path(__file__).parent
ACCOUNTS, PER_SECOND, SECONDS = 500, 2_000, 30
PATIENCE_S = 240.0
show = Console(highlight=False)


def say(text: str, style: str = "") -> None:
    show.print(f"[dim]{time.monotonic() - START:5.1f} s[/dim]  {text}", style=style)


class Payments(threading.Thread):
    """Writes payments at a steady pace, through any outage: an idempotent producer that does not give up."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        settings = {"bootstrap.servers": servers, "enable.idempotence": True, "message.timeout.ms": 0, "log_level": 0}
        self._producer = Producer(settings)
        self._dice = random.Random(1)
        self.written = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            account = f"account-{self._dice.randrange(ACCOUNTS)}"
            payment = {"id": self.written, "account": account, "amount": self._dice.randint(-80, 120)}
            self._producer.produce(PAYMENTS, key=account, value=json.dumps(payment))
            self.written += 1
        self._producer.poll(0)

    def run(self) -> None:
        began = time.monotonic()
        while self.written < PER_SECOND * SECONDS:
            self.write(min(PER_SECOND // 10, PER_SECOND * SECONDS - self.written))
            time.sleep(max(0.0, began + self.written / PER_SECOND - time.monotonic()))
        self._producer.flush()


class Job:
    """The driver's process; started again whenever it ends."""

    def __init__(self, servers: str, directory: Path) -> None:
        run = [sys.executable, "-m", "tidegate.cli", "run", "-D", f"tidegate.round.max-records={2 * PER_SECOND}"]
        self._command = [*run, str(HERE / "payments_job.py"), servers, str(directory)]
        self._log = directory / "job.log"
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        with self._log.open("ab") as log:
            environment = {**os.environ, "TIDEGATE_MASTER": "local[2,4]"}
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)

    def keep_alive(self) -> None:
        if self.process.poll() is not None:
            say(f"the driver has ended (code {self.process.returncode}): started again", "yellow")
            self.start()

    def kill_driver(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill_worker(self) -> bool:
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it may end meanwhile
                if "pyspark.daemon" in process.cmdline() and not process.children():
                    process.kill()
                    return True
        return False

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


def committed(servers: str) -> int:
    return len(read_topic(servers, BALANCES))


def wait_for(what: str, count: int, broker: DevBroker, job: Job) -> int:
    """Until so many balance changes are committed."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        job.keep_alive()
        found = committed(broker.bootstrap_servers)
        if show.is_terminal:
            show.print(f"         committed balance changes: {found:>7,}", end="\r")
        if found >= count:
            say(f"{found:,} balance changes are committed")
            return found
        time.sleep(0.5)
    raise TimeoutError(f"{what}: no progress")


def run(directory: Path) -> Audit:
    broker = DevBroker(directory / "broker", free_port())
    broker.start(say)
    job: Job | None = None
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        for future in admin.create_topics([NewTopic(PAYMENTS, 2, 1), NewTopic(BALANCES, 2, 1)]).values():
            future.result(30)
        payments = Payments(broker.bootstrap_servers)
        payments.write(100)
        say("the job starts, with a checkpoint every second")
        job = Job(broker.bootstrap_servers, directory)
        total = PER_SECOND * SECONDS
        wait_for("start", 100, broker, job)
        payments.start()
        say(f"{PER_SECOND:,} payments a second, for {SECONDS} s")
        seen = wait_for("payments", total // 6, broker, job)
        if job.kill_worker():
            say("kill -9 of a Python worker, in mid-round", "bold red")
        seen = wait_for("worker", min(seen + total // 6, total), broker, job)
        job.kill_driver()
        say("kill -9 of the driver", "bold red")
        seen = wait_for("driver", min(seen + total // 6, total), broker, job)
        broker.kill()
        say("kill -9 of the broker", "bold red")
        broker.start()
        say("the broker is back")
        payments.join()
        wait_for("end", total, broker, job)
        job.stop()
        say(f"all payments are through; the driver was started {job.starts} times")
        return audit(read_topic(broker.bootstrap_servers, PAYMENTS), read_topic(broker.bootstrap_servers, BALANCES))
    finally:
        if job is not None and job.process.poll() is None:
            job.stop()
        broker.delete()


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tidegate-kafka-demo-") as directory:
        found: Any = run(Path(directory))
    show.print()
    show.print("[bold]Audit by a read_committed reader[/bold]")
    for label, number in (
        ("payments in", found.payments),
        ("balance changes out", found.changes),
        ("lost", found.lost),
        ("doubled", found.doubled),
        ("accounts with a wrong balance", found.wrong),
    ):
        show.print(f"  {label:<32}{number:>10,}")
    show.print("[bold green]PASSED[/bold green]" if found.passed else "[bold red]FAILED[/bold red]")
    return 0 if found.passed else 1


START = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
