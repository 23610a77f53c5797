"""A sink of one's own with exactly-once output: orders into SQLite by two-phase commit, although the job fails half-way.

    python examples/two_phase_commit.py

A transaction is a name. Its rows wait in the table ``staged`` (pre-commit, step 5 of a checkpoint) until the checkpoint is
complete; then they move to ``orders`` (commit, step 8). Any process can do that with the name alone.
"""

import sqlite3
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.base.errors import CommitError
from tidegate.common import Configuration, Types, WatermarkStrategy
from tidegate.datastream import MapFunction, StreamExecutionEnvironment, TwoPhaseCommitSinkFunction
from tidegate.datastream.connectors.datagen import DataGeneratorSource

COUNT = 6_000


@dataclass
class Transaction:
    """The handle: pickled to the driver, which commits or aborts with it. Rows leave it at pre-commit."""

    name: str
    rows: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


class SqliteSink(TwoPhaseCommitSinkFunction):
    def __init__(self, path: str) -> None:
        self.path = path
        with self.connect() as database:
            database.execute("CREATE TABLE IF NOT EXISTS orders (number INTEGER, cents INTEGER)")
            database.execute("CREATE TABLE IF NOT EXISTS staged (name TEXT, number INTEGER, cents INTEGER)")
            database.execute("CREATE TABLE IF NOT EXISTS committed (name TEXT PRIMARY KEY)")

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=60)

    def begin_transaction(self) -> Transaction:
        return Transaction(uuid.uuid4().hex)  # no other attempt has this name

    def invoke(self, transaction: Transaction, value: tuple[int, int], context: Any) -> None:
        transaction.rows.append(value)

    def pre_commit(self, transaction: Transaction) -> None:
        with self.connect() as database:
            rows = [(transaction.name, *row) for row in transaction.rows]
            database.executemany("INSERT INTO staged VALUES (?, ?, ?)", rows)
        transaction.rows = []

    def commit(self, transaction: Transaction) -> None:
        with self.connect() as database:  # one transaction of SQLite: all of this, or nothing
            if database.execute("SELECT 1 FROM committed WHERE name = ?", [transaction.name]).fetchone():
                return  # called again after a crash
            move = "INSERT INTO orders SELECT number, cents FROM staged WHERE name = ?"
            if database.execute(move, [transaction.name]).rowcount == 0:
                raise CommitError(
                    "Prepared rows must be there at commit", where=self.path, found=f"no {transaction.name}"
                )
            database.execute("DELETE FROM staged WHERE name = ?", [transaction.name])
            database.execute("INSERT INTO committed VALUES (?)", [transaction.name])

    def abort(self, transaction: Transaction) -> None:
        with self.connect() as database:
            database.execute("DELETE FROM staged WHERE name = ?", [transaction.name])


class FailsOnce(MapFunction[tuple[int, int], tuple[int, int]]):
    """An error in the middle of the stream. The marker file makes it happen once only."""

    def __init__(self, marker: str) -> None:
        self.marker = Path(marker)

    def map(self, value: tuple[int, int]) -> tuple[int, int]:
        if value[0] == COUNT // 2 and not self.marker.exists():
            self.marker.touch()
            raise RuntimeError("the example fails here, once")
        return value


def main() -> None:
    home = tempfile.mkdtemp(prefix="tidegate-sqlite-")
    database = f"{home}/orders.db"
    configuration = Configuration.from_dict(
        {
            "execution.checkpointing.interval": "500 ms",
            "execution.checkpointing.dir": f"{home}/checkpoints",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 3,
            "restart-strategy.fixed-delay.delay": "100 ms",
        }
    )
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(2)
    source = DataGeneratorSource(lambda number: (number, number * 7 % 1000), COUNT, records_per_second=2_000)
    order = Types.TUPLE([Types.LONG(), Types.LONG()])
    orders = env.from_source(source, WatermarkStrategy.no_watermarks(), "orders", order).uid("orders")
    orders.map(FailsOnce(f"{home}/failed"), output_type=order).add_sink(SqliteSink(database)).uid("sqlite")
    env.execute("orders into SQLite")
    report(database)


def report(database: str) -> None:
    with sqlite3.connect(database) as connection:
        rows, different = connection.execute("SELECT count(*), count(DISTINCT number) FROM orders").fetchone()
        staged = connection.execute("SELECT count(*) FROM staged").fetchone()[0]
        commits = connection.execute("SELECT count(*) FROM committed").fetchone()[0]
    print(f"{rows} rows, {different} different orders of {COUNT}, {commits} transactions, {staged} rows left behind")
    print(f"the database: {database}")


if __name__ == "__main__":
    main()
