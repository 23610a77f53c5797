"""The Redis sink on a real server: the contract, the guard, killed servers, and mistakes of users."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.databases import PASSWORD
from tests.servers.redis_servers import client_of, redis_server, url_of
from tests.servers.server import Server
from tidegate.base import faults
from tidegate.base.errors import (
    AccessError,
    ArgumentTypeError,
    CommitError,
    ConfigurationError,
    OutputLostError,
    ProgramError,
    RetryableCommitError,
    ServiceError,
)
from tidegate.connectors.redis import sink as redis_sink
from tidegate.connectors.redis.sink import RedisSink
from tidegate.operators.contracts.sink import CommitterContext, SinkGuarantee
from tidegate.testing.sink_contract import SinkContract
from tidegate.testing.sink_run import SinkRun


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server() as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with client_of(server) as made:
        made.flushall()
        yield made


class _OnRedis(SinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: Server) -> None:
        self.server = server

    def make_sink(self, directory: Path) -> RedisSink:
        client_of(self.server).flushall()
        return self.new_sink(url_of(self.server))

    def new_sink(self, url: str) -> RedisSink:
        raise NotImplementedError

    def leftovers(self, directory: Path) -> list[str]:
        return [str(path) for path in (directory / "staging" / "rows").rglob("*") if path.is_file()]

    def names(self) -> list[bytes]:
        return [name for name in client_of(self.server).scan_iter() if not name.startswith(b"tidegate:")]


class TestKeys(_OnRedis):
    def new_sink(self, url: str) -> RedisSink:
        return RedisSink.keys(url, lambda n: f"k{n}", lambda n: n)

    def visible(self, directory: Path) -> list[int]:
        return [int(client_of(self.server).get(name)) for name in self.names()]


class TestHashes(_OnRedis):
    def new_sink(self, url: str) -> RedisSink:
        return RedisSink.hashes(url, lambda n: f"h{n % 3}", lambda n: {n: n})

    def visible(self, directory: Path) -> list[int]:
        return [int(value) for name in self.names() for value in client_of(self.server).hgetall(name).values()]


class TestIncrements(_OnRedis):
    """A number that is counted twice is seen twice."""

    def new_sink(self, url: str) -> RedisSink:
        return RedisSink.increments(url, lambda n: n)

    def visible(self, directory: Path) -> list[int]:
        return [int(name) for name in self.names() for _ in range(int(client_of(self.server).get(name)))]


class TestIncrementsOfFields(_OnRedis):
    def new_sink(self, url: str) -> RedisSink:
        return RedisSink.increments(url, lambda n: "all", by=lambda n: 1, field=lambda n: n)

    def visible(self, directory: Path) -> list[int]:
        found = client_of(self.server).hgetall("all")
        return [int(name) for name, count in found.items() for _ in range(int(count))]


class TestIncrementsFromFiles(TestIncrements):
    """As if a round had more rows than fit into the checkpoint."""

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redis_sink, "INLINE", 0)
        monkeypatch.setattr(redis_sink, "PART", 2)


def test_an_empty_field_is_a_field_of_the_hash(server: Server, client: Any, tmp_path: Path) -> None:
    names = ["", "a"]
    sink = RedisSink.increments(url_of(server), lambda n: "clicks", field=lambda n: names[n % 2])
    SinkRun(sink, str(tmp_path / "s"), lambda n: n, 1).step(10, checkpoint=True)
    assert client.hgetall("clicks") == {b"": b"5", b"a": b"5"}


def test_a_checkpoint_of_a_former_version_with_increments_of_fields_is_committed(
    server: Server, client: Any, tmp_path: Path
) -> None:
    sink = RedisSink.increments(url_of(server), lambda n: "clicks", field=lambda n: f"f{n}")
    run = SinkRun(sink, str(tmp_path / "s"), lambda n: n, 1)
    run.accept(run.attempt(2, checkpoint=True), 2)
    run.complete()
    former = [{**each, "kind": "increments"} for each in run.pending]
    run.committer.commit(former)
    assert client.hgetall("clicks") == {b"f0": b"1", b"f1": b"1"}


def counting(server: Server, tmp_path: Path) -> SinkRun:
    return SinkRun(RedisSink.increments(url_of(server), lambda n: f"c{n % 3}"), str(tmp_path / "s"), lambda n: n)


def test_a_server_that_is_killed_at_the_commit_and_comes_back(tmp_path: Path) -> None:
    with redis_server() as own:
        run = counting(own, tmp_path)
        run.step(9, checkpoint=True)
        run.accept(run.attempt(9, checkpoint=True), 9)  # writers need no server
        run.complete()
        own.kill()
        with pytest.raises(RetryableCommitError, match="the Redis server does not take them now") as error:
            run.committer.commit(list(run.pending))
        assert PASSWORD not in str(error.value) and "retries the commit" in str(error.value)
        own.start()
        run.commit()
        own.kill()
        own.start()
        run.restore()  # commits again
        run.step(3, checkpoint=True)
        with client_of(own) as client:
            assert [int(client.get(f"c{n}")) for n in range(3)] == [7, 7, 7]


def test_no_value_goes_back_when_an_older_driver_wakes_up(server: Server, client: Any, tmp_path: Path) -> None:
    run = SinkRun(RedisSink.keys(url_of(server), lambda n: "k", lambda n: n), str(tmp_path / "s"), lambda n: n, 1)
    run.accept(run.attempt(5, checkpoint=True), 5)
    run.complete()
    late = list(run.pending)
    run.commit()
    run.step(5, checkpoint=True)
    assert client.get("k") == b"9"
    run.committer.commit(late)
    assert client.get("k") == b"9"


def test_a_key_of_another_type_is_named_and_nothing_is_counted_twice(
    server: Server, client: Any, tmp_path: Path
) -> None:
    client.set("c1", "no number")
    run = counting(server, tmp_path)
    run.parallelism = 1
    run.accept(run.attempt(9, checkpoint=True), 9)
    for _ in range(2):
        with pytest.raises(CommitError, match="key c1 holds no whole number"):
            run.committer.commit(list(run.pending))
    assert client.get("c0") is None
    client.delete("c1")
    run.commit()
    assert [int(client.get(f"c{n}")) for n in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("kind", ["hashes", "increments"])
def test_a_refused_part_is_not_skipped(
    server: Server, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """All parts of a round are sent in one pipeline: if the second is refused, the third must be refused too."""
    monkeypatch.setattr(redis_sink, "PART", 2)
    client.rpush("k3", "of another type")
    if kind == "hashes":
        sink = RedisSink.hashes(url_of(server), lambda n: f"k{n}", lambda n: {"n": 1})
    else:
        sink = RedisSink.increments(url_of(server), lambda n: f"k{n}", field=lambda n: "n")
    run = SinkRun(sink, str(tmp_path / "s"), lambda n: n, 1)
    run.accept(run.attempt(7, checkpoint=True), 7)
    run.complete()
    for _ in range(2):
        with pytest.raises(CommitError, match="WRONGTYPE"):
            run.committer.commit(list(run.pending))
    client.delete("k3")
    run.restore()
    assert [client.hget(f"k{n}", "n") for n in range(7)] == [b"1"] * 7


@pytest.mark.parametrize(
    ("value", "found"), [("1.5", "no whole number"), ("0x10", "no whole number"), (str(1 << 62), "at most 17 digits")]
)
def test_a_counter_that_cannot_be_raised_leaves_the_others_unchanged(
    server: Server, client: Any, tmp_path: Path, value: str, found: str
) -> None:
    client.set("c1", value)
    run = counting(server, tmp_path)
    run.parallelism = 1
    run.accept(run.attempt(9, checkpoint=True), 9)
    with pytest.raises(CommitError, match=found):
        run.committer.commit(list(run.pending))
    assert client.mget("c0", "c1", "c2") == [None, value.encode(), None]


def test_commit_with_missing_rows_that_were_not_written_fails(
    server: Server, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_sink, "INLINE", 0)
    run = counting(server, tmp_path)
    run.accept(run.attempt(9, checkpoint=True), 9)
    for file in (tmp_path / "s" / "rows").iterdir():
        file.unlink()
    with pytest.raises(OutputLostError, match="no version on the server that shows that they were written"):
        run.commit()


def test_at_once_is_seen_before_any_checkpoint(server: Server, client: Any, tmp_path: Path) -> None:
    sink = RedisSink.keys(url_of(server), lambda n: f"k{n}", lambda n: n * 2, at_once=True)
    assert sink.guarantee is SinkGuarantee.IDEMPOTENT
    assert sink.create_committer(CommitterContext("job", "sink", str(tmp_path))) is None
    maker = SinkRun(RedisSink.keys(url_of(server), str, str), str(tmp_path), lambda n: n)
    writer = sink.create_writer(maker.writer_context(0, None), [])
    writer.write_batch([1, 2], None)
    assert client.mget("k1", "k2") == [b"2", b"4"]
    assert writer.prepare_commit(False).committables == []
    hashes = RedisSink.hashes(url_of(server), lambda n: "h", lambda n: {"n": n}, at_once=True)
    hashes.create_writer(maker.writer_context(0, None), []).write_batch([1, 2], None)
    assert client.hgetall("h") == {b"n": b"2"}


def test_increments_are_never_written_at_once() -> None:
    with pytest.raises(ProgramError, match="a failure would count them twice"):
        RedisSink("redis://h", redis_sink.RedisKind.INCREMENTS, lambda n: (n, b"", 1), at_once=True)


def test_a_wrong_password_is_reported_before_the_start_and_not_shown(server: Server) -> None:
    with pytest.raises(AccessError, match="The Redis server refuses the user or the password of the sink") as error:
        RedisSink.keys(url_of(server, "another-secret"), str, str).validate()
    assert "another-secret" not in f"{error.value}{error.value!r}"
    sink = RedisSink.keys(url_of(server), str, str)
    sink.validate()
    assert PASSWORD not in f"{sink.server}{sink.server!r}"


def test_without_a_server_the_start_fails(tmp_path: Path) -> None:
    with redis_server() as own:
        own.kill()
        with pytest.raises(ServiceError, match="The Redis server of a sink does not answer"):
            RedisSink.keys(url_of(own), str, str).validate()


def test_an_invalid_url_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="The URL of a Redis sink is invalid"):
        RedisSink.keys("localhost:6379", str, str)


@pytest.mark.parametrize("value", [None, True, [1]])
def test_values_without_a_form_in_redis_are_refused(server: Server, tmp_path: Path, value: Any) -> None:
    run = SinkRun(RedisSink.keys(url_of(server), str, lambda n: value), str(tmp_path / "s"), lambda n: n)
    with pytest.raises(ArgumentTypeError, match="a text, bytes or a number as value"):
        run.attempt(1)
    counts = SinkRun(RedisSink.increments(url_of(server), str, by=lambda n: value), str(tmp_path / "s"), lambda n: n)
    with pytest.raises(ArgumentTypeError, match="takes whole numbers"):
        counts.attempt(1)


# -- what the server keeps ---------------------------------------------------------------------------------------------------


def test_a_server_without_durable_log_gives_a_warning_and_one_that_evicts_is_refused(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    RedisSink.keys(url_of(server), str, str).validate()
    assert "may lose confirmed writes" not in caplog.text
    with redis_server("--appendfsync", "everysec") as own, client_of(own) as client:
        sink = RedisSink.keys(url_of(own), str, str)
        sink.validate()
        assert "appendonly is yes, appendfsync is everysec" in caplog.text
        client.config_set("maxmemory", "50mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(ConfigurationError, match="may evict rows of the sink") as refused:
            sink.validate()
        assert "maxmemory 52428800, maxmemory-policy allkeys-lru" in str(refused.value)
        RedisSink.keys(url_of(own), str, str, at_once=True).validate()
        client.config_set("maxmemory-policy", "volatile-lru")
        sink.validate()


def test_a_server_that_does_not_report_its_settings_gives_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with redis_server("--rename-command", "CONFIG", "") as own:
        RedisSink.keys(url_of(own), str, str).validate()
        assert "does not report its settings" in caplog.text


def test_a_server_without_room_fails_the_commit_and_takes_it_later(tmp_path: Path) -> None:
    """A real server at its memory limit: no row of the part is written, and no row is counted twice."""
    with redis_server("--maxmemory", "3mb") as own, client_of(own) as client:
        sink = RedisSink.increments(url_of(own), lambda n: f"c{n}" if n else "c" * 4_000_000)
        run = SinkRun(sink, str(tmp_path / "s"), lambda n: n, 1)
        run.accept(run.attempt(5, checkpoint=True), 5)
        run.complete()
        with pytest.raises(RetryableCommitError, match="the Redis server does not take them now") as full:
            run.committer.commit(list(run.pending))
        assert "maxmemory" in str(full.value) and client.get("c1") is None
        client.config_set("maxmemory", "0")
        run.commit()
        run.restore()
        assert [int(client.get(f"c{n}")) for n in range(1, 5)] == [1, 1, 1, 1]


@pytest.mark.parametrize("point", ["K3.redis.before-commit", "K3.redis.committed"])
def test_the_server_is_killed_at_a_point_and_comes_back(tmp_path: Path, point: str) -> None:
    with redis_server() as own:
        run, killed = counting(own, tmp_path), list[str]()

        def hook(name: str, where: dict[str, Any]) -> None:
            if name == point and not killed:
                killed.append(name)
                own.kill()

        run.accept(run.attempt(9, checkpoint=True), 9)
        run.complete()
        faults.install(hook)
        try:
            with pytest.raises(RetryableCommitError):
                run.commit()
        finally:
            faults.install(None)
        own.start()
        run.commit()
        run.restore()
        with client_of(own) as client:
            assert killed and [int(client.get(f"c{n}")) for n in range(3)] == [3, 3, 3]


def test_the_server_is_killed_while_tasks_write_at_once(tmp_path: Path) -> None:
    """The round fails, and runs again when the server is back. Each value overwrites the former one."""
    with redis_server() as own:
        sink = RedisSink.keys(url_of(own), lambda n: f"k{n % 3}", lambda n: n, at_once=True)
        run = SinkRun(sink, str(tmp_path), lambda n: n, 1)
        run.step(6)
        own.kill()
        with pytest.raises(ServiceError, match="The Redis server of a sink does not answer"):
            run.attempt(6)
        own.start()
        run.step(6)
        with client_of(own) as client:
            assert client.mget("k0", "k1", "k2") == [b"9", b"10", b"11"]
