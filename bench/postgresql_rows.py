"""Rows a second into PostgreSQL: the sink (encoding, prepared transaction, commit) against plain COPY of psycopg, in one run.

    python bench/postgresql_rows.py [ROWS]

One process and one connection each, the same rows, in turns; the server is started for it with its usual settings (fsync on). The
sink is driven as the engine does it: batches of 5,000 records, one checkpoint a run. Not in it: sources, rounds, Spark.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from sink_rows import Way, compare

from tests.servers.databases import postgresql, postgresql_url
from tidegate.datastream.connectors.postgresql import PostgreSqlSink, Table
from tidegate.testing.sink_run import SinkRun

BATCH = 5_000
COLUMNS = ["id", "customer", "amount", "price"]


def plain(url: str, table: str, rows: list[tuple[object, ...]]) -> None:
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        with cursor.copy(f"COPY {table} ({', '.join(COLUMNS)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        connection.commit()


def through_sink(url: str, table: Table, rows: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run = SinkRun(PostgreSqlSink(url, table), directory, rows.__getitem__, 1)
        writer = run._copy.create_writer(run.writer_context(0, 1), [])
        for start in range(0, len(rows), BATCH):
            writer.write_batch(rows[start : start + BATCH], None)
        made = writer.prepare_commit(False).committables
        writer.close()
        run.committer.commit(made)
        run.committer.close()


def main(count: int) -> None:
    rows: list[tuple[object, ...]] = [(n, f"customer {n % 1000}", n % 97, n / 7) for n in range(count)]
    with postgresql(fsync="on") as server:
        url = postgresql_url(server)
        with psycopg.connect(url, autocommit=True) as connection:
            for name in ("plain", "bulk", "keyed"):
                unique = " PRIMARY KEY" if name == "keyed" else ""
                connection.execute(f"CREATE TABLE {name} (id bigint{unique}, customer text, amount int, price float8)")
            bulk, keyed = Table("bulk", COLUMNS), Table("keyed", COLUMNS, key=["id"])
            PostgreSqlSink(url, bulk, keyed, to_rows=lambda _: []).validate()

            def way(table: str, work: Callable[[], None]) -> Way:
                def check() -> None:
                    [(found,)] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
                    assert found == count, (table, found)

                return Way(work, lambda: connection.execute("TRUNCATE plain, bulk, keyed"), check)

            ways = {
                "plain COPY": way("plain", lambda: plain(url, "plain", rows)),
                "sink, new rows": way("bulk", lambda: through_sink(url, bulk, rows)),
                "sink, upserts": way("keyed", lambda: through_sink(url, keyed, rows)),
            }
            note = "Upserts go into a table with a primary key, the others into one without."
            compare("postgresql-rows", "Rows into PostgreSQL", count, ways, {"sink, new rows": "plain COPY"}, [note])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300_000)
