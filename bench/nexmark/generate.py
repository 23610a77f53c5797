"""Write Nexmark events to files or to a Kafka topic.

``python bench/nexmark/generate.py --events N --parallelism P --seed S --out DIR`` writes ``part-0.jsonl`` to ``part-(P-1).jsonl``
and ``side.csv``. Event ``n`` is in part ``n % P``. ``--kafka SERVERS --topic NAME`` fills a topic of P partitions in the same way.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from generator import Generator, side_input


def write_files(out: Path, events: int, parallelism: int, seed: int) -> int:
    """Write the parts and the side input, and return the bytes of the parts. A complete directory of the same arguments is kept."""
    wanted = {"events": events, "parallelism": parallelism, "seed": seed, "format": 1}
    mark = out / ".nexmark"
    parts = [out / f"part-{part}.jsonl" for part in range(parallelism)]
    if not (mark.exists() and json.loads(mark.read_text()) == wanted):
        out.mkdir(parents=True, exist_ok=True)
        mark.unlink(missing_ok=True)
        generator = Generator(seed)
        for part, path in enumerate(parts):
            with path.open("wb") as file:
                for lines in generator.lines(part, events, parallelism):
                    file.write(lines)
        (out / "side.csv").write_bytes(side_input())
        mark.write_text(json.dumps(wanted))
    return sum(path.stat().st_size for path in parts)


def fill_topic(servers: str, topic: str, events: int, parallelism: int, seed: int) -> None:
    """Create a topic of ``parallelism`` partitions and send each event to partition ``n % parallelism``, without a key."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, parallelism, 1)]).values():
        future.result(30)
    producer: Any = Producer(
        {"bootstrap.servers": servers, "log_level": 0, "queue.buffering.max.messages": 500_000, "linger.ms": 20}
    )
    generator = Generator(seed)
    for part in range(parallelism):
        for lines in generator.lines(part, events, parallelism):
            for line in lines.splitlines():
                producer.produce(topic, line, partition=part)
            producer.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kafka", metavar="SERVERS")
    parser.add_argument("--topic", default="nexmark")
    args = parser.parse_args()
    if (args.out is None) == (args.kafka is None):
        parser.error("give either --out or --kafka")
    started, used = time.perf_counter(), time.process_time()
    if args.kafka:
        fill_topic(args.kafka, args.topic, args.events, args.parallelism, args.seed)
    else:
        write_files(args.out, args.events, args.parallelism, args.seed)
    seconds, used = time.perf_counter() - started, time.process_time() - used
    print(json.dumps({"events": args.events, "seconds": round(seconds, 3), "cpu_seconds": round(used, 3)}))


if __name__ == "__main__":
    main()
