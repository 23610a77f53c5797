"""The Delta sink: the contract on real tables, one commit for each checkpoint, and mistakes of users."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from pyarrow import table

from tests.unit.connectors.table_contract import ROW, TableContract, row
from tidegate.base import faults
from tidegate.base.errors import ConfigurationError, OutputLostError, RetryableCommitError
from tidegate.common import Types
from tidegate.connectors.tables.delta import DeltaSink
from tidegate.testing.sink_run import SinkRun

pytestmark = pytest.mark.slow  # an interpreter that has used deltalake was once seen to abort at its exit


def delta() -> Any:
    return importlib.import_module("deltalake")


def read(directory: Path) -> list[Any]:
    if not delta().DeltaTable.is_deltatable(str(directory / "table")):
        return []
    rows = delta().DeltaTable(str(directory / "table")).to_pyarrow_table().to_pylist()
    return [row(r["n"]) for r in rows if r["text"] == f"t{r['n']}"]


class TestDelta(TableContract):
    def make_sink(self, directory: Path) -> DeltaSink:
        return DeltaSink(str(directory / "table"), ROW)

    def visible(self, directory: Path) -> list[Any]:
        return [r.n for r in read(directory)]


def test_one_commit_for_each_checkpoint_with_its_id(tmp_path: Path) -> None:
    run = SinkRun(DeltaSink(str(tmp_path / "table"), ROW, partition_by=["text"]), str(tmp_path / "s"), row)
    for number in range(4):
        run.step(3, checkpoint=number % 2 == 1)
    made = delta().DeltaTable(str(tmp_path / "table"))
    mark = (tmp_path / "s" / "directory-mark").read_text()
    assert made.version() == 2, "the first version is the table without rows"
    assert made.transaction_version(f"tidegate:job:sink:{mark}") == 2
    assert made.metadata().partition_columns == ["text"]


@pytest.mark.parametrize("is_there", [False, True])
def test_two_drivers_commit_the_same_at_the_same_moment(tmp_path: Path, is_there: bool) -> None:
    """One driver was paused after it looked at the table, and wakes up when the other has committed."""
    run = SinkRun(DeltaSink(str(tmp_path / "table"), ROW), str(tmp_path / "s"), row)
    if is_there:
        run.step(4, checkpoint=True)
    run.accept(run.attempt(5, checkpoint=True), 5)
    run.complete()
    other, woken = run.new_committer(), list[str]()

    def hook(name: str, where: dict[str, Any]) -> None:
        if name == "K3.table.append" and not woken:
            woken.append(name)
            other.commit(list(run.pending))

    faults.install(hook)
    try:
        with pytest.raises(RetryableCommitError, match="Concurrent transaction failed"):
            run.committer.commit(list(run.pending))
    finally:
        faults.install(None)
    run.commit()
    assert woken and sorted(r.n for r in read(tmp_path)) == list(range(run.position))


def test_a_table_without_the_column_is_refused(tmp_path: Path) -> None:
    delta().write_deltalake(str(tmp_path / "table"), table({"n": [1]}))
    with pytest.raises(ConfigurationError, match=r"no column text of .*; it has n"):
        DeltaSink(str(tmp_path / "table"), ROW).validate()
    with pytest.raises(ConfigurationError, match=r"no column n of .*; n is "):
        DeltaSink(str(tmp_path / "table"), Types.ROW_NAMED(["n"], [Types.STRING()])).validate()
    DeltaSink(str(tmp_path / "table"), Types.ROW_NAMED(["n"], [Types.LONG()])).validate()
    DeltaSink(str(tmp_path / "none"), ROW).validate()


def test_partition_by_an_unknown_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no column day"):
        DeltaSink(str(tmp_path / "table"), ROW, partition_by=["day"])


def test_commit_with_missing_rows_fails_and_names_the_file(tmp_path: Path) -> None:
    run = SinkRun(DeltaSink(str(tmp_path / "table"), ROW), str(tmp_path / "s"), row)
    run.accept(run.attempt(2, checkpoint=True), 2)
    next((tmp_path / "s" / "batches").iterdir()).unlink()
    with pytest.raises(OutputLostError, match="the table does not contain the checkpoint"):
        run.commit()


def test_a_commit_that_fails_is_retried(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = SinkRun(DeltaSink(str(tmp_path / "file" / "table"), ROW), str(tmp_path / "s"), row)
    run.accept(run.attempt(2, checkpoint=True), 2)
    with pytest.raises(RetryableCommitError, match="The commit of a completed checkpoint to its Delta table failed"):
        run.commit()
