"""TwoPhaseCommitSinkFunction against a small outside system with real transactions: files in a directory."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tidegate.base import faults
from tidegate.base.errors import CommitError, ProgramError, RetryableCommitError
from tidegate.base.hashing import new_token
from tidegate.connectors.functions.function_sink import SinkContext
from tidegate.connectors.functions.two_phase_commit import TwoPhaseCommitSink, TwoPhaseCommitSinkFunction
from tidegate.operators.contracts.sink import Sink
from tidegate.testing.sink_contract import SinkContract
from tidegate.testing.sink_run import Crash, SinkRun, crash_at


class Bank(TwoPhaseCommitSinkFunction):
    """Transactions are files: ``open``, ``prepared``, ``committed``, ``aborted``. Every call is recorded in ``calls``."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)

    def _path(self, state: str, transaction: str) -> Path:
        path = Path(self.directory) / state
        path.mkdir(parents=True, exist_ok=True)
        return path / transaction

    def _note(self, call: str) -> None:
        with open(Path(self.directory) / "calls", "a") as calls:
            calls.write(call + "\n")

    def begin_transaction(self) -> Any:
        name = new_token()
        self._path("open", name).touch()
        return {"name": name}

    def invoke(self, transaction: Any, value: Any, context: SinkContext) -> None:
        with open(self._path("open", transaction["name"]), "a") as rows:
            rows.write(json.dumps([value, context.timestamp()]) + "\n")

    def pre_commit(self, transaction: Any) -> None:
        os.rename(self._path("open", transaction["name"]), self._path("prepared", transaction["name"]))
        transaction["prepared"] = True

    def commit(self, transaction: Any) -> None:
        self._note("commit")
        self._finish(transaction)

    def _finish(self, transaction: Any) -> None:
        assert transaction["prepared"]
        if not self._path("committed", transaction["name"]).exists():
            if not self._path("prepared", transaction["name"]).exists():
                raise CommitError("a transaction must be there", found=f"transaction {transaction['name']} is gone")
            os.rename(self._path("prepared", transaction["name"]), self._path("committed", transaction["name"]))

    def abort(self, transaction: Any) -> None:
        self._note("abort")
        for state in ("open", "prepared", "committed"):  # a careless abort: must never get a committed transaction
            self._path(state, transaction["name"]).unlink(missing_ok=True)

    def recover_and_commit(self, transaction: Any) -> None:
        self._note("recover_and_commit")
        self._finish(transaction)

    def recover_and_abort(self, transaction: Any) -> None:
        self._note("recover_and_abort")
        self.abort(transaction)


def names(directory: Path, state: str) -> list[Path]:
    return sorted((directory / "bank" / state).glob("*"))


def calls(directory: Path) -> list[str]:
    path = directory / "bank" / "calls"
    return path.read_text().split() if path.exists() else []


def intents(directory: Path) -> list[str]:
    return sorted(p.name for p in (directory / "staging").rglob("*") if p.is_file())


def bank_run(directory: Path, parallelism: int = 1) -> SinkRun:
    return SinkRun(TwoPhaseCommitSink(Bank(directory / "bank")), str(directory / "staging"), lambda n: n, parallelism)


class TestContract(SinkContract):
    sweeps_attempts = False  # a crash between begin_transaction and its intent

    def make_sink(self, directory: Path) -> Sink:
        return TwoPhaseCommitSink(Bank(directory / "bank"))

    def visible(self, directory: Path) -> list[Any]:
        lines = [line for path in names(directory, "committed") for line in path.read_text().splitlines()]
        return [json.loads(line)[0] for line in lines]

    def leftovers(self, directory: Path) -> list[str]:
        unfinished = [path.name for state in ("open", "prepared") for path in names(directory, state)]
        return unfinished + intents(directory)


def test_a_subtask_without_records_begins_nothing(tmp_path: Path) -> None:
    run = bank_run(tmp_path, parallelism=3)
    run.step(1)
    assert len(names(tmp_path, "prepared")) == 1
    assert len(run.pending) == 1


def test_the_intent_is_named_by_round_subtask_and_attempt(tmp_path: Path) -> None:
    run = bank_run(tmp_path, parallelism=2)
    run.step(2)
    run.attempt(2)
    assert intents(tmp_path) == ["0000000000-0-a1", "0000000000-1-a2", "0000000001-0-a3", "0000000001-1-a4"]


def test_recovery_calls_recover_and_commit(tmp_path: Path) -> None:
    run = bank_run(tmp_path)
    run.step(2, checkpoint=True)
    assert calls(tmp_path) == ["commit"]
    run.step(2)
    run.restore()
    assert calls(tmp_path) == ["commit", "recover_and_commit", "recover_and_abort", "abort"]


def test_transactions_of_zombies_are_aborted_by_their_intents(tmp_path: Path) -> None:
    run = bank_run(tmp_path, parallelism=2)
    run.step(2, checkpoint=True)
    writer = TwoPhaseCommitSink(Bank(tmp_path / "bank")).create_writer(run.writer_context(1, None), [])
    writer.write_batch([7], None)  # a zombie: alive, and its output is not wanted
    assert len(names(tmp_path, "open")) == 1
    run.restore(parallelism=1)
    assert names(tmp_path, "open") == []
    assert intents(tmp_path) == []


def test_killed_between_commit_and_the_end_of_its_intent(tmp_path: Path) -> None:
    run = bank_run(tmp_path)
    run.accept(run.attempt(3, checkpoint=True), 3)
    run.complete()
    crash_at(0, "K3.two-phase.committed")
    try:
        with pytest.raises(Crash):
            run.commit()
    finally:
        faults.install(None)
    assert len(intents(tmp_path)) == 1
    run.restore()
    assert len(names(tmp_path, "committed")) == 1, "a committed transaction is not aborted because its intent was left"
    assert intents(tmp_path) == []


def test_killed_while_lingering_transactions_are_aborted(tmp_path: Path) -> None:
    for point in ("K2.two-phase.before-abort", "K2.two-phase.aborted"):
        directory = tmp_path / point
        run = bank_run(directory, parallelism=2)
        run.step(2)
        crash_at(0, point)
        try:
            with pytest.raises(Crash):
                run.restore()
        finally:
            faults.install(None)
        run.restore()
        assert names(directory, "prepared") == []
        assert intents(directory) == []


def test_an_error_of_commit_is_retryable_and_done_ones_are_skipped(tmp_path: Path) -> None:
    class Flaky(Bank):
        failures = 1

        def commit(self, transaction: Any) -> None:
            if len(names(tmp_path, "committed")) == 1 and self.failures:
                self.failures -= 1
                raise ConnectionError("server is away")
            super().commit(transaction)

    run = SinkRun(TwoPhaseCommitSink(Flaky(tmp_path / "bank")), str(tmp_path / "staging"), lambda n: n, 3)
    run.accept(run.attempt(3, checkpoint=True), 3)
    with pytest.raises(RetryableCommitError, match=r"transaction .*name[\s\S]*ConnectionError: server is away"):
        run.commit()
    run.commit()
    assert calls(tmp_path) == ["commit"] * 3
    assert intents(tmp_path) == []


def test_commit_of_a_lost_transaction_fails_the_job(tmp_path: Path) -> None:
    run = bank_run(tmp_path)
    run.accept(run.attempt(1, checkpoint=True), 1)
    (path,) = names(tmp_path, "prepared")
    path.unlink()
    with pytest.raises(CommitError, match=f"transaction {path.name} is gone"):
        run.commit()


def test_an_intent_that_cannot_be_removed_keeps_the_commit_open(tmp_path: Path) -> None:
    run = bank_run(tmp_path)
    run.accept(run.attempt(1, checkpoint=True), 1)

    def disk_trouble(name: str, where: dict[str, Any]) -> None:
        if name == "storage.delete":
            raise OSError(5, "Input/output error")

    faults.install(disk_trouble)
    try:
        with pytest.raises(RetryableCommitError, match="Input/output error"):
            run.commit()
    finally:
        faults.install(None)
    run.commit()
    assert intents(tmp_path) == []


def test_a_failed_attempt_aborts_its_transaction(tmp_path: Path) -> None:
    run = bank_run(tmp_path)
    run.failed_attempt(2)
    assert names(tmp_path, "open") == []
    assert intents(tmp_path) == []


def test_timestamps_reach_the_function(tmp_path: Path) -> None:
    run = bank_run(tmp_path)
    writer = TwoPhaseCommitSink(Bank(tmp_path / "bank")).create_writer(run.writer_context(0, None), [])
    writer.write_batch(["a", "b"], [5, 6])
    (path,) = names(tmp_path, "open")
    assert [json.loads(line) for line in path.read_text().splitlines()] == [["a", 5], ["b", 6]]


def test_a_handle_that_does_not_pickle_is_refused(tmp_path: Path) -> None:
    class Locked(Bank):
        def begin_transaction(self) -> Any:
            return threading.Lock()

    run = SinkRun(TwoPhaseCommitSink(Locked(tmp_path / "bank")), str(tmp_path / "staging"), lambda n: n)
    with pytest.raises(ProgramError, match="A transaction handle cannot be pickled"):
        run.attempt(1)
