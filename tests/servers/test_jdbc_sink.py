"""The JDBC sink on real servers: the contract of upserts, types, batches, servers that go away, and what users get wrong."""

from __future__ import annotations

import datetime
import decimal
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from tests.servers.databases import PASSWORD
from tests.servers.sql_cases import Target
from tidegate.base import faults
from tidegate.base.errors import AccessError, ConfigurationError, RowError, ServiceError
from tidegate.common import Configuration, Types
from tidegate.common.types import Row
from tidegate.connectors.jdbc import sink as jdbc
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcExecutionOptions, JdbcSink
from tidegate.operators.contracts.sink import Sink, SinkWriter, WriterContext
from tidegate.testing.upsert_contract import UpsertContract

ROW = Types.ROW([Types.LONG(), Types.STRING()])


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jdbc, "_PAUSE_S", 0.01)


def connection(target: Target, password: str = PASSWORD, database: str | None = None) -> JdbcConnectionOptions:
    kind, name = ("postgresql", "postgres") if target.is_postgresql else ("mariadb", "tests")
    builder = JdbcConnectionOptions.JdbcConnectionOptionsBuilder()
    builder.with_url(f"jdbc:{kind}://127.0.0.1:{target.server.port}/{database or name}")
    return builder.with_user_name("tide").with_password(password).build()


def execution(size: int = 5000, retries: int = 3, interval_ms: int = 0) -> JdbcExecutionOptions:
    builder = JdbcExecutionOptions.builder().with_batch_size(size).with_max_retries(retries)
    return builder.with_batch_interval_ms(interval_ms).build()


def upsert(target: Target, table: str, key: str, value: str) -> str:
    """As a user writes it for the database."""
    if target.is_postgresql:
        return f"INSERT INTO {table} VALUES (?, ?) ON CONFLICT ({key}) DO UPDATE SET {value} = EXCLUDED.{value}"
    return f"INSERT INTO {table} VALUES (?, ?) ON DUPLICATE KEY UPDATE {value} = VALUES({value})"


def writer_of(sink: Sink) -> SinkWriter:
    return sink.create_writer(WriterContext("job", "sink", 0, 1, 0, None, "a", 0, "staging"), [])


def write(sink: Sink, *values: Any) -> None:
    writer = writer_of(sink)
    writer.write_batch(list(values), None)
    writer.prepare_commit(False)
    writer.close()


# -- the contract --------------------------------------------------------------------------------------------------------


class JdbcContract(UpsertContract):
    refuses_late_tasks = False
    seeds = 3
    server = "postgresql"

    @pytest.fixture(autouse=True)
    def _target(self, request: pytest.FixtureRequest) -> None:
        self.target, self.made = Target(request.getfixturevalue(self.server)), dict[Path, str]()

    def table(self, directory: Path) -> str:
        if directory not in self.made:
            self.made[directory] = self.target.new_table("k bigint PRIMARY KEY, n bigint")
        return self.made[directory]

    def make_sink(self, directory: Path) -> Sink:
        sql = upsert(self.target, self.table(directory), "k", "n")
        return JdbcSink.sink(sql, Types.ROW([Types.LONG(), Types.LONG()]), connection(self.target), execution(size=2))

    def value(self, key: int, number: int) -> Any:
        return Row(key, number)

    def visible(self, directory: Path) -> dict[int, int]:
        return dict(self.target.rows(self.table(directory)))  # type: ignore[arg-type]


class TestPostgreSql(JdbcContract):
    pass


class TestMariaDb(JdbcContract):
    server = "mariadb"


# -- statements and values -----------------------------------------------------------------------------------------------


def test_a_program_writes_upserts(target: Target, tmp_path: Path) -> None:
    table = target.new_table()
    settings = {"execution.target": "simulated", "execution.checkpointing.dir": str(tmp_path)}
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings))
    stream = env.from_collection([(n % 10, f"it's {n} ?") for n in range(50)], ROW)
    stream.add_sink(JdbcSink.sink(upsert(target, table, "id", "label"), ROW, connection(target), execution(size=7)))
    env.execute()
    assert target.rows(table) == [(n, f"it's {40 + n} ?") for n in range(10)]


def test_values_of_every_type_arrive_as_they_were(target: Target) -> None:
    moment, binary = ("timestamp", "bytea") if target.is_postgresql else ("datetime(6)", "blob")
    table = target.new_table(
        "id bigint PRIMARY KEY, flag boolean, small smallint, real_ double precision, amount numeric(20, 4), "
        f"day date, hour time, moment {moment}, data {binary}, text_ varchar(50)"
    )
    types = [Types.LONG(), Types.BOOLEAN(), Types.SHORT(), Types.DOUBLE(), Types.BIG_DEC(), Types.SQL_DATE()]
    types += [Types.SQL_TIME(), Types.SQL_TIMESTAMP(), Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.STRING()]
    sink = JdbcSink.sink(f"INSERT INTO {table} VALUES ({', '.join('?' * 10)})", Types.ROW(types), connection(target))
    day = datetime.date(2024, 2, 29)
    full = (
        1,
        True,
        -7,
        1.5,
        decimal.Decimal("12345678901.2500"),
        day,
        datetime.time(23, 59, 58),
        datetime.datetime(2024, 2, 29, 12, 30, 0, 123000),
        b"\x00\xff'%s?",
        "percent % %s, \\ and \" and ' ? \n",
    )
    write(sink, Row(*full), Row(2, *[None] * 9))
    first, second = target.rows(table)
    expected = list(full)
    if not target.is_postgresql:
        expected[6] = datetime.timedelta(hours=23, minutes=59, seconds=58)
    assert list(first) == expected
    assert list(second) == [2, *[None] * 9]


def test_question_marks_and_percent_signs_of_the_statement_stay(target: Target) -> None:
    table = target.new_table("id bigint PRIMARY KEY, label varchar(200)")
    sql = f"INSERT INTO {table} /* why? 100% */ (id, label) VALUES (?, concat('100%? ', ?)) -- who?"
    write(JdbcSink.sink(sql, ROW, connection(target)), (1, "a"), (2, "b"))
    assert target.rows(table) == [(1, "100%? a"), (2, "100%? b")]


def test_values_whose_position_gives_no_type_have_the_declared_type(postgresql: Any) -> None:
    target = Target(postgresql)
    table = target.new_table("id bigint PRIMARY KEY, label varchar(200)")
    types = Types.ROW([Types.LONG(), Types.STRING(), Types.INT(), Types.SQL_DATE(), Types.BASIC_ARRAY(Types.LONG())])
    sql = f"INSERT INTO {table} VALUES (?, concat(?, ?, ?, ?))"
    day = datetime.date(2024, 2, 29)
    write(JdbcSink.sink(sql, types, connection(target)), (1, "a", 2, day, [3, 4]), (2, None, None, None, None))
    assert target.rows(table) == [(1, "a22024-02-29{3,4}"), (2, "")]


def test_a_value_in_the_update_part_of_an_upsert(target: Target) -> None:
    table = target.new_table("id bigint PRIMARY KEY, label varchar(200)")
    tail = "ON CONFLICT (id) DO UPDATE SET label = ?" if target.is_postgresql else "ON DUPLICATE KEY UPDATE label = ?"
    types = Types.ROW([Types.LONG(), Types.STRING(), Types.STRING()])
    sink = JdbcSink.sink(f"INSERT INTO {table} VALUES (?, ?) {tail}", types, connection(target))
    write(sink, (1, "new", "old"), (1, "new", "old"), (2, "new", "old"))
    assert target.rows(table) == [(1, "old"), (2, "new")]


def test_postgresqls_json_operator_and_arrays(postgresql: Any) -> None:
    target = Target(postgresql)
    table = target.new_table("id bigint PRIMARY KEY, tags jsonb, n int[]")
    target.ask(f"INSERT INTO {table} VALUES (1, '{{\"a\": 1}}', NULL), (2, '{{}}', NULL)")
    sql = f"UPDATE {table} SET n = ? WHERE tags ?? ?"
    write(
        JdbcSink.sink(sql, Types.ROW([Types.BASIC_ARRAY(Types.INT()), Types.STRING()]), connection(target)),
        ([1, 2], "a"),
    )
    assert [(row[0], row[2]) for row in target.rows(table)] == [(1, [1, 2]), (2, None)]


def test_updates_and_deletes(target: Target) -> None:
    table = target.new_table()
    target.ask(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')")
    only = Types.ROW([Types.LONG()])
    write(JdbcSink.sink(f"DELETE FROM {table} WHERE id = ?", only, connection(target)), (1,))
    swapped = Types.ROW([Types.STRING(), Types.LONG()])
    write(JdbcSink.sink(f"UPDATE {table} SET label = ? WHERE id = ?", swapped, connection(target)), ("c", 2))
    assert target.rows(table) == [(2, "c")]


# -- batches -------------------------------------------------------------------------------------------------------------


def test_full_batches_are_visible_before_the_round_ends_and_the_rest_with_it(target: Target) -> None:
    table = target.new_table()
    writer = writer_of(JdbcSink.sink(f"INSERT INTO {table} VALUES (?, ?)", ROW, connection(target), execution(size=4)))
    writer.write_batch([(n, "x") for n in range(10)], None)
    assert len(target.rows(table)) == 8
    writer.prepare_commit(False)
    writer.close()
    assert len(target.rows(table)) == 10


def test_rows_that_have_waited_for_the_interval_are_sent(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    table, now = target.new_table(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    options = execution(interval_ms=500)
    writer = writer_of(JdbcSink.sink(f"INSERT INTO {table} VALUES (?, ?)", ROW, connection(target), options))
    writer.write_batch([(1, "x")], None)
    now[0] += 0.4
    writer.write_batch([(2, "x")], None)
    assert target.rows(table) == []
    now[0] += 0.2
    writer.write_batch([(3, "x")], None)
    assert len(target.rows(table)) == 3
    writer.close()


# -- servers that go away ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["postgresql", "mariadb"])
def own_target(request: pytest.FixtureRequest, own_targets: dict[str, Target]) -> Target:
    return own_targets[request.param]


def test_a_batch_is_sent_again_after_the_server_was_restarted(
    own_target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    table, target = own_target.new_table(), own_target
    writer = writer_of(JdbcSink.sink(f"INSERT INTO {table} VALUES (?, ?)", ROW, connection(target), execution(size=2)))
    writer.write_batch([(1, "a"), (2, "b")], None)
    target.server.kill()
    target.server.start()
    with caplog.at_level(logging.WARNING):
        writer.write_batch([(3, "c"), (4, "d")], None)
    writer.prepare_commit(False)
    writer.close()
    assert target.rows(table) == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    assert "a batch of 2 rows is sent again (1 of 3 retries)" in caplog.text and PASSWORD not in caplog.text


def test_a_batch_fails_when_its_retries_are_used_up(own_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    target = own_target
    table = target.new_table()
    sink = JdbcSink.sink(f"INSERT INTO {table} VALUES (?, ?)", ROW, connection(target), execution(size=1, retries=2))
    object.__setattr__(sink.database, "patience_ms", 0)
    writer, tried = writer_of(sink), list[int]()
    writer.write_batch([(1, "a")], None)
    target.server.kill()
    monkeypatch.setattr(type(sink), "connect", _counted(type(sink).connect, tried))
    with pytest.raises(ServiceError, match="The database does not answer") as error:
        writer.write_batch([(2, "b")], None)
    assert len(tried) == 2 and PASSWORD not in str(error.value)
    target.server.start()
    assert target.rows(table) == [(1, "a")]


def _counted(connect: Any, tried: list[int]) -> Any:
    def counting(self: Any, *, patient: bool = True) -> Any:
        tried.append(1)
        return connect(self, patient=patient)

    return counting


def test_a_session_that_is_ended_by_the_server_loses_nothing(target: Target) -> None:
    table = target.new_table()
    sink = JdbcSink.sink(f"INSERT INTO {table} VALUES (?, ?)", ROW, connection(target), execution(size=1))
    writer, ended = writer_of(sink), list[str]()

    def hook(name: str, where: dict[str, Any]) -> None:
        if name == "K1.jdbc.batch" and len(ended) == 1:
            target.end_other_sessions()
        if name == "K1.jdbc.batch":
            ended.append(name)

    faults.install(hook)
    try:
        writer.write_batch([(1, "a"), (2, "b"), (3, "c")], None)
        writer.prepare_commit(False)
    finally:
        faults.install(None)
        writer.close()
    assert len(ended) == 4, "three batches, one of them twice"
    assert target.rows(table) == [(1, "a"), (2, "b"), (3, "c")]


# -- what users get wrong ------------------------------------------------------------------------------------------------


def test_a_row_that_the_table_refuses_is_named_and_nothing_of_its_batch_stays(target: Target) -> None:
    table = target.new_table("id bigint PRIMARY KEY, label varchar(3) NOT NULL")
    for bad in ((7, None), (7, "too long"), (1, "dup")):
        sink = JdbcSink.sink(f"INSERT INTO {table} VALUES (?, ?)", ROW, connection(target))
        with pytest.raises(RowError) as error:
            write(sink, (1, "a"), (2, "b"), bad, (3, "c"))
        assert f"row {bad!r}" in str(error.value) and not error.value.restart_helps
        assert PASSWORD not in str(error.value)
        assert target.rows(table) == []


def test_the_statement_and_the_access_are_checked_before_the_start(target: Target) -> None:
    table = target.new_table()
    good = f"INSERT INTO {table} VALUES (?, ?)"
    JdbcSink.sink(good, ROW, connection(target)).validate()
    with pytest.raises(ConfigurationError, match="nowhere"):
        JdbcSink.sink("INSERT INTO nowhere VALUES (?, ?)", ROW, connection(target)).validate()
    with pytest.raises(ConfigurationError, match="refuses a statement"):
        JdbcSink.sink(f"INSERT INTOO {table} VALUES (?, ?)", ROW, connection(target)).validate()
    with pytest.raises(AccessError) as error:
        JdbcSink.sink(good, ROW, connection(target, password="wrong-planted")).validate()
    assert "wrong-planted" not in str(error.value)
    with pytest.raises(ConfigurationError, match="database of the sink does not exist"):
        JdbcSink.sink(good, ROW, connection(target, database="nowhere")).validate()
