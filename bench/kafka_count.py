"""Kafka -> keyed count of texts -> Kafka, exactly once, a checkpoint a second: Tidegate and its peers on one broker.

``python bench/kafka_count.py [--engines tidegate flink-java pyflink-process pyflink-thread ...] [--records N] [--repeat N]``

Each engine is a process of its own that reads a topic which is full when it starts. An independent reader (``read_committed``)
looks at the other topic. *records/s*: what became visible between its first and its last look at output, by that time; the
start is not in it. *CPU*: of the engine's processes in the same time, without the broker. Then records come at a steady pace
with the time they were sent; *latency* is the time until they were read. Engines take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from engines import BENCH, INTERVAL_MS, JAVA_OPENS, PARALLELISM, RunFailed, pyflink_venv
from report import machine

from tidegate.connectors.kafka.dev_broker import DevBroker, free_port

KEYS = 20_000
JAR = BENCH / "build" / "flink-sql-connector-kafka-5.0.0-2.2.jar"
PATIENCE_S = 240.0
_QUIET = {"log_level": 0}


def command(engine: str, servers: str, start: str, end: str, directory: Path) -> list[str]:
    options = [f"--servers={servers}", f"--start={start}", f"--end={end}", f"--dir={directory}"]
    options += [f"--parallelism={PARALLELISM}", f"--interval-ms={INTERVAL_MS}"]
    if engine.startswith("tidegate"):
        extra = ["--no-copy"] if engine.endswith("no-copy") else []
        return [sys.executable, str(BENCH / "tidegate_kafka_count.py"), *options, *extra]
    if not JAR.exists():
        raise RunFailed(f"no {JAR}; run bench/setup_peers.sh")
    if engine.startswith("pyflink-"):
        program = str(BENCH / "peers" / "pyflink_kafka_count.py")
        mode = f"--mode={engine.removeprefix('pyflink-')}"
        return [str(pyflink_venv() / "bin" / "python"), program, *options, f"--jar={JAR}", mode]
    jars = next(iter(pyflink_venv().glob("lib/python*/site-packages/pyflink/lib")))
    arguments = [servers, start, end, str(PARALLELISM), str(INTERVAL_MS), str(directory)]
    return ["java", *JAVA_OPENS, "-cp", f"{BENCH / 'build'}:{JAR}:{jars}/*", "FlinkKafkaCount", *arguments]


class Observer:
    """Reads everything of a topic that is committed."""

    def __init__(self, servers: str, topic: str) -> None:
        settings = {"group.id": topic, "isolation.level": "read_committed", "enable.auto.commit": False}
        self._consumer = Consumer(
            {**_QUIET, "bootstrap.servers": servers, "fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 5, **settings}
        )
        self._consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(PARALLELISM)])

    def poll(self, wait_s: float = 0.05) -> list[bytes]:
        return [m.value() or b"" for m in self._consumer.consume(5_000, wait_s) if m.error() is None]


def cpu_seconds(process: psutil.Process) -> float:
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        try:
            times = each.cpu_times()
            total += times.user + times.system
        except psutil.Error:
            continue
    return total


def fill(servers: str, topic: str, records: int) -> None:
    producer = Producer({**_QUIET, "bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000})
    for n in range(records):
        if n % 100_000 == 0:
            producer.flush()
        producer.produce(topic, f"k{(n * 2654435761) % KEYS} 0".encode(), partition=n % PARALLELISM)
        producer.poll(0)
    producer.flush()


def measure(engine: str, servers: str, records: int, seconds: float, pace: int) -> dict[str, Any]:
    name = f"{engine}-{time.time_ns()}"
    start, end = f"in-{name}", f"out-{name}"
    admin = AdminClient({**_QUIET, "bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(topic, PARALLELISM, 1) for topic in (start, end)]).values():
        future.result(30)
    fill(servers, start, records)
    observer = Observer(servers, end)
    directory = Path(tempfile.mkdtemp(prefix="kafka-count-"))
    log = open(directory / "log", "wb")  # noqa: SIM115 - as long as the process
    started = subprocess.Popen(
        command(engine, servers, start, end, directory), stdout=log, stderr=log, start_new_session=True
    )
    try:
        process = psutil.Process(started.pid)
        figures = backlog(observer, process, started, records, directory)
        return {"engine": engine, **figures, **steady(observer, servers, start, seconds, pace)}
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        log.close()
        shutil.rmtree(directory, ignore_errors=True)


def backlog(
    observer: Observer, process: psutil.Process, started: subprocess.Popen[bytes], records: int, directory: Path
) -> dict[str, Any]:
    begun, first, seen = time.monotonic(), None, 0
    cpu = last = 0.0
    before = 0
    while seen < records:
        found = len(observer.poll())
        now = time.monotonic()
        if found:
            seen, last = seen + found, now
            if first is None:
                first, before, cpu = now, seen, cpu_seconds(process)
        if started.poll() is not None or now - begun > PATIENCE_S:
            raise RunFailed(f"{seen} of {records}: {(directory / 'log').read_text(errors='replace')[-2000:]}")
    assert first is not None
    took, used = max(last - first, 1e-9), max(cpu_seconds(process) - cpu, 1e-9)
    return {
        "records": records,
        "start_seconds": round(first - begun, 1),
        "seconds": round(took, 2),
        "records_per_second": int((records - before) / took),
        "records_per_cpu_second": int((records - before) / used),
    }


def steady(observer: Observer, servers: str, topic: str, seconds: float, pace: int) -> dict[str, Any]:
    """``pace`` records a second, in steps of 10 ms. The first quarter is not counted."""
    producer = Producer({**_QUIET, "bootstrap.servers": servers, "linger.ms": 1})
    latencies: list[float] = []
    sent, begun = 0, time.time()
    counted_from = begun + seconds / 4
    while time.time() < begun + seconds + 5 and (sent == 0 or len(latencies) < sent):
        now = time.time()
        wanted = int((min(now, begun + seconds) - begun) * pace)
        for n in range(sent, wanted):
            producer.produce(topic, f"k{n % KEYS} {time.time():.4f}".encode(), partition=n % PARALLELISM)
        sent = max(sent, wanted)
        producer.poll(0)
        arrived = observer.poll(0.01)
        now = time.time()
        latencies += [now - float(text.rsplit(b" ", 1)[1]) for text in arrived]
    counted = sorted(latencies[int(len(latencies) * (counted_from - begun) / seconds) :])
    return {
        "paced": pace,
        "latency_median_ms": round(statistics.median(counted) * 1000),
        "latency_p99_ms": round(counted[int(len(counted) * 0.99)] * 1000),
        "arrived": len(latencies),
        "sent": sent,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--engines",
        nargs="*",
        default=["tidegate", "flink-java", "pyflink-process", "pyflink-thread", "tidegate-no-copy"],
    )
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--slow-records", type=int, default=300_000, help="of PyFlink")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--pace", type=int, default=2_000)
    args = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="kafka-bench-") as directory:
        broker = DevBroker(directory, free_port())
        try:
            broker.start()
            for _ in range(args.repeat):
                for engine in args.engines:
                    records = args.slow_records if engine.startswith("pyflink") else args.records
                    try:
                        run = measure(engine, broker.bootstrap_servers, records, args.seconds, args.pace)
                    except RunFailed as error:
                        run = {"engine": engine, "failed": str(error)}
                    runs.append({**run, "load": os.getloadavg()[0]})
                    print(json.dumps(runs[-1]), flush=True)
        finally:
            broker.delete()
    results = BENCH / "results"
    results.mkdir(exist_ok=True)
    (results / "kafka-count.json").write_text(json.dumps({"machine": machine(), "runs": runs}, indent=2) + "\n")


if __name__ == "__main__":
    main()
