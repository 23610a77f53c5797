"""A database server that has no room left, really: the round is declined with a typed error, nothing is seen, and later it goes on.

Not a full disk, which a test can have only where it may mount one: PostgreSQL may not write larger files (a limit of its process).
"""

from __future__ import annotations

import random
from pathlib import Path

import databases
import pytest
from sql_cases import Target

from tidegate.common.errors import ServiceError
from tidegate.datastream.connectors.postgresql import Table
from tidegate.testing.sink_run import SinkRun

LARGE = 1 << 20


def label(number: int) -> str:
    """Incompressible, from the third on: the first rows are small."""
    return random.Random(number).randbytes(LARGE // 2).hex() if number > 2 else "small"


def new_run(target: Target, table: str, directory: Path) -> SinkRun:
    sink = target.sink(Table(table, ["id", "label"]))
    sink.validate()
    return SinkRun(sink, str(directory / "staging"), lambda n: (n, label(n)), 1)


def ids(target: Target, table: str) -> list[int]:
    return sorted(n for (n,) in target.ask(f"SELECT id FROM {table}"))


def refused(target: Target, run: SinkRun, table: str) -> None:
    """A checkpoint of small rows is there; the next has no room."""
    run.step(3, checkpoint=True)
    with pytest.raises(ServiceError, match="has no space left") as full:
        run.attempt(30, checkpoint=True)
    assert full.value.restart_helps and databases.PASSWORD not in str(full.value)
    run.committer.abort_lingering([], [])
    assert ids(target, table) == [0, 1, 2] and target.prepared() == []


def test_postgresql_may_write_no_more(tmp_path: Path) -> None:
    with databases.postgresql() as server:
        target = Target(server)
        table = target.new_table("id bigint, label text")
        run = new_run(target, table, tmp_path)
        run.committer.close()
        command = server._command
        limit = f'ulimit -f {(17 << 20) // 512} && exec "$@"'  # a segment of its log has 16 MiB
        server._command = lambda s: ["sh", "-c", limit, "sh", *command(s)]
        server.kill()
        server.start()
        refused(target, run, table)
        run.committer.close()
        server._command = command
        server.kill()
        server.start()
        run = new_run(target, table, tmp_path / "again")
        run.step(30, checkpoint=True)
        run.committer.close()
        assert ids(target, table) == sorted([0, 1, 2, *range(30)])
