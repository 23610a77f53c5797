"""Sinks for users to extend: write-ahead with both kinds of confirmation, upserts, time-outs of transactions."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.errors import ArgumentTypeError, CommitError, OutputLostError, RetryableCommitError
from tidegate.base.hashing import new_token
from tidegate.connectors.functions.function_sink import UpsertSink
from tidegate.connectors.functions.two_phase_commit import (
    TwoPhaseCommitSink,
    TwoPhaseCommitSinkFunction,
    _TransactionCommitter,
)
from tidegate.connectors.functions.write_ahead import (
    CheckpointCommitter,
    DatabaseCheckpointCommitter,
    FileCheckpointCommitter,
    GenericWriteAheadSink,
)
from tidegate.operators.contracts.sink import CommitterContext, WriterContext
from tidegate.testing.sink_run import SinkRun
from tidegate.testing.write_ahead_contract import CheckpointCommitterContract, WriteAheadContract


class Journal(GenericWriteAheadSink):
    """Append to a file, without a memory of former writes. Fail while a file ``.refuses`` exists."""

    def __init__(self, path: Path, committer: CheckpointCommitter | None = None) -> None:
        super().__init__(committer)
        self.path = str(path)

    def send_values(self, values: list[Any], checkpoint_id: int, timestamp: int) -> bool:
        if Path(self.path + ".refuses").exists():
            return False
        with open(self.path, "a") as journal:
            journal.write("".join(f"{value}\n" for value in values))
        return True


def lines(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


class JournalContract(WriteAheadContract):
    seeds = 15

    def committer(self, directory: Path) -> CheckpointCommitter:
        return FileCheckpointCommitter()

    def make_sink(self, directory: Path) -> Journal:
        return Journal(directory / "journal", self.committer(directory))

    def visible(self, directory: Path) -> list[Any]:
        return lines(directory / "journal")


class TestFileConfirmations(JournalContract):
    pass


class TestDatabaseConfirmations(JournalContract):
    def committer(self, directory: Path) -> CheckpointCommitter:
        path = str(directory / "confirmations.db")
        return DatabaseCheckpointCommitter(lambda: sqlite3.connect(path, timeout=60), "?")


class TestFileCommitter(CheckpointCommitterContract):
    def make_committer(self, directory: Path) -> CheckpointCommitter:
        return FileCheckpointCommitter()


class TestDatabaseCommitter(CheckpointCommitterContract):
    def make_committer(self, directory: Path) -> CheckpointCommitter:
        path = str(directory / "confirmations.db")
        return DatabaseCheckpointCommitter(lambda: sqlite3.connect(path, timeout=60), "?")


def test_values_that_cannot_be_sent_are_retried(tmp_path: Path) -> None:
    sink = Journal(tmp_path / "journal")
    run = SinkRun(sink, str(tmp_path / "staging"), int)
    run.accept(run.attempt(4, checkpoint=True), 4)
    run.complete()
    refuses = tmp_path / "journal.refuses"
    refuses.touch()
    with pytest.raises(RetryableCommitError, match="send_values returned False"):
        run.commit()
    refuses.unlink()
    run.commit()
    assert sorted(lines(tmp_path / "journal")) == [0, 1, 2, 3]


def test_commit_with_missing_records_fails_and_names_the_file(tmp_path: Path) -> None:
    run = SinkRun(Journal(tmp_path / "journal"), str(tmp_path / "staging"), int, 1)
    run.accept(run.attempt(4, checkpoint=True), 4)
    run.complete()
    for path in tmp_path.glob("staging/write-ahead/*"):
        path.unlink()
    with pytest.raises(OutputLostError, match="damaged or missing"):
        run.commit()


# -- upserts -------------------------------------------------------------------------------------------------------------


class Newest(UpsertSink):
    def __init__(self, path: str) -> None:
        self.path = path

    def open(self) -> None:
        self.database = sqlite3.connect(self.path)
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS t (k INTEGER PRIMARY KEY, v TEXT, lease INTEGER, round INTEGER)"
        )

    def key_of(self, value: Any) -> Any:
        return value[0]

    def upsert(self, entries: dict[Any, Any], version: tuple[int, int]) -> None:
        with self.database:
            self.database.executemany(
                "INSERT INTO t VALUES (?, ?, ?, ?) ON CONFLICT (k) DO UPDATE SET v = excluded.v, lease = excluded.lease, "
                "round = excluded.round WHERE (lease, round) <= (excluded.lease, excluded.round)",
                [(key, value[1], *version) for key, value in entries.items()],
            )

    def close(self) -> None:
        self.database.close()


def test_the_last_value_of_a_key_counts_and_no_older_value_returns(tmp_path: Path) -> None:
    sink = Newest(str(tmp_path / "db"))

    def write(lease: int, round: int, *values: Any) -> None:
        writer = sink.create_writer(
            WriterContext("job", "sink", 0, 1, round, None, "a", 0, str(tmp_path), lease=lease), []
        )
        writer.write_batch(list(values), None)
        writer.prepare_commit(False)
        writer.close()

    write(1, 1, (1, "a"), (1, "b"), (2, "c"))
    write(1, 2, (1, "d"))
    write(1, 1, (1, "late"))
    write(2, 1, (2, "again"))
    with sqlite3.connect(tmp_path / "db") as database:
        assert database.execute("SELECT k, v FROM t ORDER BY k").fetchall() == [(1, "d"), (2, "again")]
    assert sink.create_committer(CommitterContext("job", "sink", str(tmp_path))) is None


# -- time-outs -----------------------------------------------------------------------------------------------------------


class Gone(TwoPhaseCommitSinkFunction):
    """The outside system has dropped everything."""

    def begin_transaction(self) -> Any:
        return "t1"

    def invoke(self, transaction: Any, value: Any, context: Any) -> None: ...

    def pre_commit(self, transaction: Any) -> None: ...

    def commit(self, transaction: Any) -> None:
        raise CommitError("a transaction must be there", found=f"{transaction} is gone")

    def abort(self, transaction: Any) -> None: ...


def recovered(function: TwoPhaseCommitSinkFunction, directory: Path, age_ms: int) -> None:
    context = WriterContext("job", "sink", 0, 1, 1, 1, new_token(), 1_000, str(directory))
    writer = TwoPhaseCommitSink(function).create_writer(context, [])
    writer.write_batch([1], None)
    made = writer.prepare_commit(False).committables
    committer = _TransactionCommitter(function, CommitterContext("job", "sink", str(directory)), lambda: 1_000 + age_ms)
    committer.recover(made)


def test_failures_after_the_time_out_are_ignored_only_if_enabled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CommitError, match="t1 is gone"):
        recovered(Gone().set_transaction_timeout(5_000), tmp_path, 9_000)
    told = Gone().set_transaction_timeout(5_000).ignore_failures_after_transaction_timeout()
    with pytest.raises(CommitError, match="t1 is gone"):
        recovered(told, tmp_path, 4_000)
    with caplog.at_level(logging.ERROR):
        recovered(told, tmp_path, 9_000)
    assert "its records are lost" in caplog.text and "t1" in caplog.text


def test_a_commit_that_comes_late_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Kept(Gone):
        def commit(self, transaction: Any) -> None: ...

    warning = Kept().set_transaction_timeout(5_000).enable_transaction_timeout_warnings(0.5)
    recovered(warning, tmp_path, 2_000)
    assert not caplog.text
    recovered(warning, tmp_path, 3_000)
    assert "has been open for 3000 ms; its time-out is 5000 ms" in caplog.text
    with pytest.raises(ArgumentTypeError, match="a number from 0 to 1"):
        Kept().enable_transaction_timeout_warnings(2)
