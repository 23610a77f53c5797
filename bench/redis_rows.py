"""Rows a second into Redis: the sink (rows kept with the checkpoint, then written behind the version guard) against a plain client.

    python bench/redis_rows.py [ROWS]

The plain client sends ``SET``, and ``INCRBY``, in pipelines of 1,000. One process and one connection each, the same rows; the
server is started for it, with ``appendonly yes`` and ``appendfsync always``. The sink is driven as the engine does it: batches
of 5,000 records, one checkpoint a run. Not in it: sources, rounds, Spark.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from sink_rows import Way, compare

from tests.servers.redis_servers import client_of, redis_server, url_of
from tidegate.connectors.redis.sink import RedisSink
from tidegate.testing.sink_run import SinkRun

BATCH, PIPELINE = 5_000, 1_000


def plain(url_client: Any, rows: list[tuple[str, int]], command: str) -> None:
    for start in range(0, len(rows), PIPELINE):
        pipeline = url_client.pipeline(transaction=False)
        send = pipeline.set if command == "SET" else pipeline.incrby
        for key, value in rows[start : start + PIPELINE]:
            send(key, value)
        pipeline.execute()


def through_sink(sink: RedisSink, rows: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run = SinkRun(sink, directory, rows.__getitem__, 1)
        writer = sink.create_writer(run.writer_context(0, 1), [])
        for start in range(0, len(rows), BATCH):
            writer.write_batch(rows[start : start + BATCH], None)
        made = writer.prepare_commit(False).committables
        writer.close()
        run.committer.commit(made)
        run.committer.close()


def main(count: int) -> None:
    rows = [(f"account:{n}", n * 7) for n in range(count)]
    with redis_server() as server, client_of(server) as client:
        keys = RedisSink.keys(url_of(server), lambda r: r[0], lambda r: r[1])
        counts = RedisSink.increments(url_of(server), lambda r: r[0], by=lambda r: r[1])

        def check() -> None:
            assert [int(client.get(f"account:{n}")) for n in (1, count - 1)] == [7, (count - 1) * 7]

        def way(work: Any) -> Way:
            return Way(work, client.flushall, check)

        ways = {
            "plain client, SET": way(lambda: plain(client, rows, "SET")),
            "sink, keys": way(lambda: through_sink(keys, rows)),
            "plain client, INCRBY": way(lambda: plain(client, rows, "INCRBY")),
            "sink, increments": way(lambda: through_sink(counts, rows)),
        }
        targets = {"sink, keys": "plain client, SET", "sink, increments": "plain client, INCRBY"}
        compare("redis-rows", "Rows into Redis", count, ways, targets, ["Every key is another one."])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
