"""A database server that has no room left, really: the round is declined with a typed error, nothing is seen, and later it goes on.

Not a full disk, which a test can have only where it may mount one: PostgreSQL may not write larger files (a limit of its process),
and MariaDB has a tablespace that does not grow.
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


def label(number: int, size: int) -> str:
    """Incompressible, from the third on: the first rows are small."""
    return random.Random(number).randbytes(size // 2).hex() if number > 2 else "small"


def new_run(target: Target, table: str, directory: Path, size: int = LARGE) -> SinkRun:
    sink = target.sink(Table(table, ["id", "label"]))
    sink.validate()
    return SinkRun(sink, str(directory / "staging"), lambda n: (n, label(n, size)), 1)


def ids(target: Target, table: str) -> list[int]:
    return sorted(n for (n,) in target.ask(f"SELECT id FROM {table}"))


def refused(target: Target, run: SinkRun, table: str, count: int = 30) -> None:
    """A checkpoint of small rows is there; the next has no room."""
    run.step(3, checkpoint=True)
    with pytest.raises(ServiceError, match="has no space left") as full:
        run.attempt(count, checkpoint=True)
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


def test_mariadb_has_no_room_in_its_tablespace(tmp_path: Path) -> None:
    """Rows of a part of a page: of larger ones the server itself dies (10.11), which another test has."""
    size, count = 3_000, 5_000
    small = {"innodb-data-file-path": "ibdata1:12M", "innodb-file-per-table": "0"}
    with databases.mariadb(**small) as server:
        target = Target(server)
        table = target.new_table("id bigint, label longtext")
        run = new_run(target, table, tmp_path, size)
        refused(target, run, table, count)
        run.committer.close()
        command = server._command
        server._command = lambda s: [part.replace(":12M", ":12M:autoextend") for part in command(s)]
        server.kill()
        server.start()
        run = new_run(target, table, tmp_path / "again", size)
        run.step(count, checkpoint=True)
        run.committer.close()
        assert ids(target, table) == sorted([0, 1, 2, *range(count)])
