"""What can be wrong with a database, its tables and the rows: typed errors that name it, and nothing half-visible."""

from __future__ import annotations

import datetime
import decimal
import logging
from pathlib import Path
from typing import Any

import pymysql
import pytest
from psycopg import errors

from tests.servers import databases
from tests.servers.sql_cases import Target
from tidegate.base import faults
from tidegate.base.errors import (
    AccessError,
    ArgumentTypeError,
    ConfigurationError,
    OutputLostError,
    ProgramError,
    RowError,
    ServiceError,
)
from tidegate.common.types import Row
from tidegate.connectors.mysql.session import translated as of_mysql
from tidegate.connectors.postgresql.session import translated
from tidegate.connectors.sql.sink import SqlSink
from tidegate.datastream.connectors.postgresql import Table
from tidegate.operators.contracts.sink import CommitterContext, DeliveryGuarantee, WriterContext
from tidegate.testing.sink_run import SinkRun


def run_of(sink: SqlSink, directory: Path, values: list[Any]) -> SinkRun:
    sink.validate()
    return SinkRun(sink, str(directory / "staging"), values.__getitem__, 1)


def refused(sink: SqlSink, directory: Path, *values: Any) -> str:
    """The message for a round with these records; nothing stays behind."""
    run = run_of(sink, directory, list(values))
    with pytest.raises(RowError) as caught:
        run.attempt(len(values), checkpoint=True)
    run.committer.abort_lingering([], [])
    run.committer.close()
    return str(caught.value)


# -- rows ----------------------------------------------------------------------------------------------------------------


def test_a_row_that_violates_a_constraint_is_named_with_its_key(target: Target, tmp_path: Path) -> None:
    table = target.new_table("id bigint PRIMARY KEY, amount int NOT NULL, CONSTRAINT positive CHECK (amount > 0)")
    target.ask(f"INSERT INTO {table} VALUES (7, 1)")
    sink = target.sink(Table(table, ["id", "amount"]))
    doubled = refused(sink, tmp_path / "a", (1, 1), (7, 2))
    assert f"constraint of {table}" in doubled and "row id=7, amount=2" in doubled
    assert "_pkey" in doubled or "PRIMARY" in doubled
    negative = refused(sink, tmp_path / "b", (1, 1), (2, -5))
    assert "positive" in negative and "row id=2, amount=-5" in negative and "filter or correct" in negative
    empty = refused(sink, tmp_path / "c", (1, 1), (3, None))
    assert "amount" in empty and "null" in empty.lower() and "row id=3, amount=NULL" in empty
    assert target.rows(table) == [(7, 1)] and target.prepared() == []


def test_upserts_that_violate_a_constraint_are_named_with_their_key(target: Target, tmp_path: Path) -> None:
    known = target.new_table("name varchar(9) PRIMARY KEY")
    table = target.new_table(
        "id bigint PRIMARY KEY, amount int NOT NULL, owner varchar(9), CONSTRAINT positive CHECK (amount > 0), "
        f"CONSTRAINT owned FOREIGN KEY (owner) REFERENCES {known} (name)"
    )
    sink = target.sink(Table(table, ["amount", "id", "owner"], key=["id"]))
    for number, (row, name) in enumerate(
        [((-5, 2, None), "positive"), ((None, 2, None), "amount"), ((1, 2, "x'), \\"), "owned")]
    ):
        message = refused(sink, tmp_path / str(number), (1, 1, None), row)
        assert name in message and f"constraint of {table}" in message
        assert "row id=2, amount=" in message
    assert target.rows(table) == [] and target.prepared() == []


def test_a_value_of_the_wrong_type_is_named_with_column_and_key(target: Target, tmp_path: Path) -> None:
    table = target.new_table("id int PRIMARY KEY, amount int")
    sink = target.sink(Table(table, ["id", "amount"], key=["id"]))
    message = refused(sink, tmp_path / "a", (1, 1), (2, "many"))
    assert f"Column amount of {table} is int" in message and "id=2" in message and "str 'many'" in message
    large = refused(sink, tmp_path / "b", (1, 1), (2, 1 << 40), (3, 3))
    assert "does not fit" in large and f"row id=2, amount={1 << 40}" in large
    assert "has 2 fields: id, amount" in refused(sink, tmp_path / "c", (1, 2, 3))
    assert "no 'amount' in" in refused(sink, tmp_path / "d", {"id": 1})
    assert "is a tuple, a list, a Row or a dict" in refused(sink, tmp_path / "e", 5)
    assert target.rows(table) == []


def test_text_that_is_too_long_is_refused_and_never_truncated(target: Target, tmp_path: Path) -> None:
    """An upsert of PostgreSQL casts what it is sent, and a cast to a length would cut."""
    for number, column in enumerate(("varchar(3)", "char(3)")):
        for key in ((), ("id",)):
            table = target.new_table(f"id int PRIMARY KEY, label {column}")
            sink = target.sink(Table(table, ["id", "label"], key))
            message = refused(sink, tmp_path / f"{number}{len(key)}", (1, "abc"), (2, "abcd"))
            assert "A value does not fit its column" in message and "row id=2, label=" in message and "abcd" in message
            assert target.rows(table) == []
            run = run_of(sink, tmp_path / f"fits{number}{len(key)}", [(1, "abc")])
            run.step(1, checkpoint=True)
            run.committer.close()
            assert target.rows(table) == [(1, "abc")]


def test_values_of_all_types_are_read_back_as_written(target: Target, tmp_path: Path) -> None:
    blob = "bytea" if target.is_postgresql else "blob"
    columns = "id int PRIMARY KEY, n bigint, f double precision, d decimal(9,2), t varchar(90)"
    columns += f", b {blob}, day date, at timestamp NULL"
    moment, day = datetime.datetime(2024, 2, 29, 23, 59, 58), datetime.date(1999, 12, 31)
    every = [
        (1, -(1 << 63), 0.1, decimal.Decimal("12.30"), "ä\\N\t\n\r\"'{},%s", b"\x00\xff'\\", day, moment),
        (2, None, None, None, None, None, None, None),
        (3, 0, -1e300, decimal.Decimal("-1.00"), "", b"", day, moment),
    ]
    names = ["id", "n", "f", "d", "t", "b", "day", "at"]
    for key in ((), ("id",)):
        table = target.new_table(columns)
        run = run_of(target.sink(Table(table, names, key)), tmp_path / table, list(every))
        run.step(3, checkpoint=True)
        run.committer.close()
        assert [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in target.rows(table)] == every


def test_records_are_tuples_rows_or_dicts_and_the_last_of_a_key_wins(target: Target, tmp_path: Path) -> None:
    table = target.new_table()
    values = [(1, "a"), Row(2, "b"), Row(label="c", id=3), {"id": 1, "label": "d"}, [2, "e"]]
    run = run_of(target.sink(Table(table, ["id", "label"], ["id"])), tmp_path, values)
    run.step(5, checkpoint=True)
    run.committer.close()
    assert target.rows(table) == [(1, "d"), (2, "e"), (3, "c")]


def test_text_that_postgresql_cannot_hold_is_named(postgresql: Any, tmp_path: Path) -> None:
    target = Target(postgresql)
    sink = target.sink(Table(target.new_table(), ["id", "label"]))
    assert "U+0000" in refused(sink, tmp_path, (1, "a"), (2, "b\x00c"))


# -- before the start ----------------------------------------------------------------------------------------------------


def test_tables_columns_and_keys_are_checked_before_the_start(target: Target) -> None:
    table = target.new_table()
    for wrong, words in [
        (Table("nowhere", ["id"]), "no such table"),
        (Table(table, ["id", "colour"]), "no column colour; there are id, label"),
        (Table(table, ["id", "label"], key=["label"]), "unique are: id"),
    ]:
        with pytest.raises(ConfigurationError, match=words):
            target.sink(wrong).validate()
    with pytest.raises(ConfigurationError, match="commits with checkpoints"):
        target.sink(Table(table, ["id"])).validate_checkpoints(None)
    target.sink(Table(table, ["id"]), delivery=DeliveryGuarantee.AT_LEAST_ONCE).validate_checkpoints(None)


def test_invalid_arguments_of_a_sink_are_refused(target: Target) -> None:
    table = Table("a", ["id"])
    with pytest.raises(ProgramError, match="or to several tables that to_rows chooses from"):
        target.sink(table, Table("b", ["id"]))
    with pytest.raises(ProgramError, match=r"add \['key'\] to the columns"):
        Table("a", ["id"], key=["key"])
    with pytest.raises(ArgumentTypeError, match="a list of names"):
        Table("a", "id")
    with pytest.raises(ArgumentTypeError, match="EXACTLY_ONCE or AT_LEAST_ONCE"):
        target.sink(table, delivery=DeliveryGuarantee.NONE)
    with pytest.raises(ConfigurationError, match="it may hold a password"):
        target.sink(table, url="::postgresql//x:planted@@ y=")


def test_too_few_prepared_transactions_on_the_server_are_refused() -> None:
    with databases.postgresql(max_prepared_transactions="3") as server:
        target = Target(server)
        sink = target.sink(Table(target.new_table(), ["id", "label"]))
        sink.validate_parallelism(1)
        with pytest.raises(ConfigurationError, match="max_prepared_transactions is 3, the sink needs 4"):
            sink.validate_parallelism(2)


def test_missing_server_and_wrong_password_fail_without_showing_secrets(
    target: Target, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    table = Table(target.new_table(), ["id", "label"])
    wrong = target.url.replace(databases.PASSWORD, "planted-wrong")
    with pytest.raises(AccessError) as refused:
        target.sink(table, url=wrong).validate()
    with pytest.raises(ConfigurationError, match="The database of the sink does not exist"):
        target.sink(table, url=f"{target.url.rpartition('/')[0]}/nowhere").validate()
    closed = target.url.replace(str(target.server.port), "1")
    with pytest.raises(ServiceError, match="The database does not answer") as down:
        target.sink(table, url=closed).validate()
    shown = [str(refused.value), repr(refused.value), str(down.value), caplog.text, repr(target.sink(table).database)]
    assert not any(secret in text for text in shown for secret in ("planted-wrong", databases.PASSWORD))
    assert "as tide" in shown[0]


# -- the server acts -----------------------------------------------------------------------------------------------------


def test_commit_of_a_rolled_back_transaction_fails_and_names_it(target: Target, tmp_path: Path) -> None:
    table = target.new_table()
    run = run_of(target.sink(Table(table, ["id", "label"])), tmp_path, [(1, "a")])
    run.accept(run.attempt(1, checkpoint=True), 1)
    run.complete()
    target.end_prepared()
    with pytest.raises(OutputLostError, match="rolled back a transaction that a completed checkpoint holds") as caught:
        run.commit()
    assert "of 1 row" in str(caught.value) and not caught.value.restart_helps
    run.committer.close()


def test_session_that_the_server_ends_declines_the_round_and_leaves_nothing(target: Target, tmp_path: Path) -> None:
    """By an administrator, or a limit of the server's: the round is declined, nothing is seen, and the next one has it all."""
    table = target.new_table()
    run = run_of(target.sink(Table(table, ["id", "label"])), tmp_path, [(1, "a"), (2, "b")])
    ended: list[str] = []

    def end_sessions(point: str, _: dict[str, Any]) -> None:
        if point == "K1.sql.written" and not ended:
            ended.append(point)
            target.end_other_sessions()

    faults.install(end_sessions)
    try:
        with pytest.raises(ServiceError, match="The database does not answer") as caught:
            run.attempt(2, checkpoint=True)
    finally:
        faults.install(None)
    assert ended and caught.value.restart_helps and databases.PASSWORD not in str(caught.value)
    assert target.rows(table) == [] and target.prepared() == []
    run.step(2, checkpoint=True)
    run.committer.close()
    assert target.rows(table) == [(1, "a"), (2, "b")]


def test_rollback_by_mariadb_is_a_service_error_that_a_restart_helps() -> None:
    """In a deadlock, at its time limit: the statement after it is told so."""
    problem = of_mysql(pymysql.err.OperationalError(1402, "XA_RBROLLBACK: Transaction branch was rolled back"), "there")
    assert type(problem) is ServiceError and problem.restart_helps
    assert "before its checkpoint was complete" in str(problem) and "XA_RBROLLBACK" in str(problem)


def test_a_lock_that_is_not_given_has_a_clear_message(target: Target, tmp_path: Path) -> None:
    table = target.new_table()
    sink = target.sink(Table(table, ["id", "label"], ["id"]), lock_timeout_ms=1_000)
    run = run_of(sink, tmp_path, [(1, "a"), (1, "b")])
    first = run.attempt(1, checkpoint=True)
    with pytest.raises(ServiceError, match="waited longer than lock_timeout_ms") as caught:
        run.attempt(1, checkpoint=True)  # the same key, while the first is prepared
    assert "key_by that key" in str(caught.value)
    assert not target.is_postgresql or "prepared transactions: tidegate-job-sink-" in str(caught.value)
    run.discard(first)
    run.committer.close()
    assert target.prepared() == []


def test_full_disk_is_a_service_error_that_a_restart_helps() -> None:
    """A restart can help when there is room again; the round is declined."""
    full = errors.DiskFull("could not extend file: No space left on device")
    problem = translated(full, "there")
    assert type(problem) is ServiceError and "no space left" in str(problem) and problem.restart_helps
    there = of_mysql(pymysql.err.OperationalError(1114, "The table 't' is full"), "there")
    assert type(there) is ServiceError and "no space left" in str(there) and there.restart_helps


# -- tasks that are late -------------------------------------------------------------------------------------------------


def contexts(directory: Path, lease: int) -> tuple[CommitterContext, WriterContext]:
    staging = str(directory / "staging")
    return (
        CommitterContext("job", "sink", staging, lease=lease),
        WriterContext("job", "sink", 0, 1, 1, 1, f"attempt-{lease}", 0, staging, lease=lease),
    )


def test_writer_of_an_earlier_attempt_is_ended_or_refused(target: Target, tmp_path: Path) -> None:
    """It holds locks, and nobody would look for what it prepares."""
    table = target.new_table()
    sink = target.sink(Table(table, ["id", "label"], ["id"]))
    sink.validate()
    old, before = contexts(tmp_path, 1)
    new, _ = contexts(tmp_path, 2)
    sink.create_committer(old).abort_lingering([], [])
    busy, late = sink.create_writer(before, []), sink.create_writer(before, [])
    busy.write_batch([(1, "old")], None)
    committer = sink.create_committer(new)
    committer.abort_lingering([], [])
    with pytest.raises(Exception, match=r"database does not answer|replaced attempt may not write"):
        busy.prepare_commit(False)
    with pytest.raises(Exception, match="replaced attempt may not write"):
        late.write_batch([(1, "old")], None)
    for writer in (busy, late):
        writer.abort()
        writer.close()
    committer.close()
    assert target.rows(table) == [] and target.prepared() == []


def test_upsert_of_a_late_task_never_restores_an_old_value(target: Target, tmp_path: Path) -> None:
    table = target.new_table()
    sink = target.sink(Table(table, ["id", "label"], ["id"]), delivery=DeliveryGuarantee.AT_LEAST_ONCE)
    sink.validate()
    committer_context, first = contexts(tmp_path, 1)
    committer = sink.create_committer(committer_context)
    committer.abort_lingering([], [])
    second = WriterContext("job", "sink", 0, 1, 2, 2, "later", 0, first.staging, lease=1)
    for context, label in ((first, "old"), (second, "new")):
        writer = sink.create_writer(context, [])
        writer.write_batch([(1, label)], None)
        assert writer.prepare_commit(False).committables == []
        writer.close()
    zombie = sink.create_writer(first, [])
    with pytest.raises(Exception, match="replaced attempt may not write"):
        zombie.write_batch([(1, "old")], None)
    zombie.abort()
    committer.close()
    assert target.rows(table) == [(1, "new")]
