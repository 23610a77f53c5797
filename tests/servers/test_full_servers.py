"""Disks without room, really: a typed error, nothing is half-visible, and it continues when there is room.

The disks are mounted for the tests. Where that is not allowed one is left: PostgreSQL may not write larger files (a limit of its
process), and MariaDB has a tablespace that does not grow.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import RedisError

from tests.servers import databases
from tests.servers.redis_servers import client_of, redis_server, url_of
from tests.servers.small_disk import SmallDisk, small_disk
from tests.servers.sql_cases import Target
from tests.servers.test_sql_crashes import commit_until_done
from tests.sources import ScriptedSource
from tidegate.base.clock import ManualClock
from tidegate.base.errors import CheckpointError, RetryableCommitError, ServiceError
from tidegate.base.files import Files
from tidegate.checkpoint.history import CheckpointStatus, read_history
from tidegate.common import Encoder
from tidegate.connectors.files.bucket_assigners import RollingPolicy
from tidegate.connectors.files.file_format import SINK
from tidegate.connectors.files.sink import FileSink
from tidegate.connectors.redis.sink import RedisSink
from tidegate.datastream.connectors.postgresql import Table
from tidegate.graph.transformation import Input, Program, Transformation
from tidegate.operators.contracts.specs import SinkSpec, SourceSpec
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine
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


# -- disks that are full ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_the_disk_of_a_database_is_full(tmp_path: Path, kind: str) -> None:
    """The round is declined; what it had written is rolled back. A server may give up itself: then it is started again."""
    settings = {"wal_init_zero": "off", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    if kind == "mariadb":
        settings = {"innodb-log-file-size": "8M", "skip-log-bin": "1"}
    with small_disk(400) as disk, disk.holds(getattr(databases, kind)(**settings)) as server:
        target = Target(server)
        table = target.new_table("id bigint, label " + ("text" if kind == "postgresql" else "longtext"))
        run = new_run(target, table, tmp_path)
        run.step(3, checkpoint=True)
        disk.fill(leave=4 << 20)
        with pytest.raises(ServiceError) as full:
            run.attempt(60, checkpoint=True)
        assert full.value.restart_helps and databases.PASSWORD not in str(full.value)
        disk.make_room()
        server.kill()
        server.start()
        run.committer.abort_lingering([], [])
        assert ids(target, table) == [0, 1, 2] and target.prepared() == []
        run.step(60, checkpoint=True)
        run.committer.close()
        assert ids(target, table) == list(range(63)) and target.prepared() == []


def written_until_refused(client: Any) -> None:
    for _ in range(1_000):
        client.set("other", "x" * 500_000)


@pytest.mark.parametrize("flush", ["always", "everysec"])
def test_the_disk_of_redis_is_full(tmp_path: Path, flush: str) -> None:
    """The commit is tried again, and counts once, whether the server has ended itself (always) or only refuses."""
    with small_disk(8) as disk, disk.holds(redis_server("--appendfsync", flush)) as server:
        sink = RedisSink.increments(url_of(server), lambda n: f"c{n % 3}" + "x" * 2_000_000)
        run = SinkRun(sink, str(tmp_path / "s"), lambda n: n, 1)
        disk.fill(leave=1 << 20)
        run.accept(run.attempt(9, checkpoint=True), 9)
        run.complete()
        if flush == "everysec":  # it takes some before it knows
            with pytest.raises(RedisError, match="MISCONF"):
                written_until_refused(client_of(server))
        with pytest.raises(RetryableCommitError, match="the Redis server does not take them now"):
            run.committer.commit(list(run.pending))
        disk.make_room()
        if flush == "always":
            server.kill()
            server.start()
        commit_until_done(run)
        run.restore()
        with client_of(server) as client:
            counts = [int(client.get(name)) for name in client.scan_iter("c*")]
        assert counts == [3, 3, 3]


class _Filling(SimulatedEngine):
    """The disk is full from one round on, and has room again some rounds later."""

    def __init__(self, disk: SmallDisk, look: Callable[[], None]) -> None:
        super().__init__(1)
        self._disk, self._look, self.rounds = disk, look, 0
        self.clock = ManualClock()

    def run(self, plan: RoundPlan) -> list[Ack]:
        self.rounds += 1
        self.clock.advance(1_000)
        if self.rounds == 4:
            self._disk.fill(leave=1 << 14)
        if self.rounds == 8:
            self._disk.make_room()
        self._look()
        return super().run(plan)


@pytest.mark.parametrize("policy", ["checkpoints", "long"])
def test_the_disk_of_a_file_sink_is_full(tmp_path: Path, policy: str) -> None:
    """Checkpoints fail as long as it is, and the job continues: every look finds whole files, and the end all records once."""
    rolling = RollingPolicy.on_checkpoint_rolling_policy() if policy == "checkpoints" else RollingPolicy()
    with small_disk(4) as disk:
        out = disk.directory / "out"
        builder = FileSink.for_row_format(str(out), Encoder.simple_string_encoder()).with_success_markers()
        sink = builder.with_bucket_assigner(lambda text: "b").with_rolling_policy(rolling).build()
        seen = list[int]()

        def visible() -> list[str]:
            return [line for path in out.rglob("part-*") for line in path.read_text().splitlines(keepends=True)]

        def look() -> None:
            assert all(len(line) == 10_001 for line in visible()), "a part of a record is visible"
            seen.append(len(visible()))

        source = ScriptedSource([f"{n:03d}" + "x" * 9_997 for n in range(100)])
        source.initial_limit = source.maximum_limit = 5
        reading = Transformation(1, "source", SourceSpec(source), uid="source")
        writing = Transformation(2, "sink", SinkSpec(sink), (Input(1),), uid="sink", parallelism=2)
        settings = {
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            "execution.checkpointing.interval": 500,
            "execution.checkpointing.tolerable-failed-checkpoints": 100,
            "tidegate.job-id": "full",
            "tidegate.state.map-size": 1 << 20,
            "restart-strategy.type": "none",
        }
        engine = _Filling(disk, look)
        program = Program("full", (reading, writing), settings)
        JobMaster(program, engine, clock=engine.clock, local_root=str(tmp_path / "local")).run()
        look()
        history = read_history(Files(str(tmp_path / "checkpoints" / "full")))
        failed = [entry for entry in history if entry.status is CheckpointStatus.FAILED]
        assert failed and all("No space left" in entry.message for entry in failed)
        assert seen == sorted(seen), "what was visible has gone"
        assert sorted(int(line[:3]) for line in visible()) == list(range(100))
        assert (out / "b" / "_SUCCESS").exists() and not list(out.rglob(".*"))


def test_full_disk_is_reported_with_sink_path_cause_and_cure(tmp_path: Path) -> None:
    with small_disk(4) as disk:
        out = disk.directory / "out"
        sink = FileSink.for_row_format(str(out), Encoder.simple_string_encoder()).build()
        source = ScriptedSource([f"{n:03d}" + "x" * 99_997 for n in range(10)])
        reading = Transformation(1, "source", SourceSpec(source), uid="source")
        writing = Transformation(2, "daily files", SinkSpec(sink), (Input(1),), uid="sink")
        settings = {
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            "execution.checkpointing.interval": 10,
            "restart-strategy.type": "none",
        }
        disk.fill(leave=1 << 14)
        program = Program("full", (reading, writing), settings)
        with pytest.raises(CheckpointError) as caught:
            JobMaster(program, SimulatedEngine(seed=1), local_root=str(tmp_path / "local")).run()
    told = str(caught.value)
    assert f"sink FileSink 'sink': StorageError: {SINK[0].upper()}{SINK[1:]} cannot " in told
    assert f"where: {out}/" in told and "found: ENOSPC: No space left on device" in told
    assert "cure: free some space, or choose another directory" in told
    assert "contextlib" not in told
