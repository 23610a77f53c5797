"""The Iceberg sink: the contract on real tables, one commit for each checkpoint, two drivers at once, and mistakes of users."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.connectors.table_contract import ROW, TableContract, row
from tidegate.base import faults, secrets
from tidegate.base.errors import ConfigurationError, OutputLostError, RetryableCommitError, ServiceError
from tidegate.common import Types
from tidegate.connectors.tables.iceberg import IcebergSink
from tidegate.testing.sink_run import SinkRun

NAME = "shop.orders"
PAGE = Path(__file__).parents[3] / "docs" / "iceberg.md"


def properties(directory: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}


def sink_in(directory: Path, row_type: Any = ROW, **options: Any) -> IcebergSink:
    return IcebergSink("lake", NAME, row_type, catalog_properties=properties(directory), **options)


def catalog_in(directory: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("lake", **properties(directory))


def make_table(directory: Path, schema: pa.Schema, **stored: str) -> None:
    catalog = catalog_in(directory)
    catalog.create_namespace("shop")
    catalog.create_table(NAME, schema, properties=stored)


def numbers_in(directory: Path) -> list[int]:
    catalog = catalog_in(directory)
    if not catalog.table_exists(NAME):
        return []
    rows = catalog.load_table(NAME).scan().to_arrow().to_pylist()
    return [r["n"] for r in rows if r["text"] == f"t{r['n']}"]


@pytest.mark.slow
class TestIceberg(TableContract):
    def make_sink(self, directory: Path) -> IcebergSink:
        return sink_in(directory)

    def visible(self, directory: Path) -> list[Any]:
        return numbers_in(directory)


def test_one_commit_for_each_checkpoint_with_its_id(tmp_path: Path) -> None:
    run = SinkRun(sink_in(tmp_path, partition_by=["text"]), str(tmp_path / "s"), row)
    for number in range(4):
        run.step(3, checkpoint=number % 2 == 1)
    made = catalog_in(tmp_path).load_table(NAME)
    mark = (tmp_path / "s" / "directory-mark").read_text()
    assert len(made.snapshots()) == 2
    assert made.properties[f"tidegate:job:sink:{mark}"] == "2"
    assert [(field.name, str(field.transform)) for field in made.spec().fields] == [("text", "identity")]
    assert sorted(numbers_in(tmp_path)) == list(range(run.position))


@pytest.mark.parametrize("is_there", [False, True])
def test_two_drivers_commit_the_same_at_the_same_moment(tmp_path: Path, is_there: bool) -> None:
    """One driver was paused after it looked at the table, and wakes up when the other has committed. The table sets retries."""
    make_table(tmp_path, pa.schema([("n", pa.int64()), ("text", pa.string())]), **{"commit.retry.num-retries": "9"})
    run = SinkRun(sink_in(tmp_path), str(tmp_path / "s"), row)
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
        with pytest.raises(RetryableCommitError, match=r"CommitFailedException: .*branch main"):
            run.committer.commit(list(run.pending))
    finally:
        faults.install(None)
    run.commit()
    assert woken and sorted(numbers_in(tmp_path)) == list(range(run.position))
    assert catalog_in(tmp_path).load_table(NAME).properties["commit.retry.num-retries"] == "9"


def test_two_drivers_make_the_table_at_the_same_moment(tmp_path: Path) -> None:
    first, second = sink_in(tmp_path), sink_in(tmp_path)
    assert first.table() is None and second.table() is None
    assert first.create_table().metadata == second.create_table().metadata


def test_a_table_that_does_not_take_the_rows_is_refused(tmp_path: Path) -> None:
    sink_in(tmp_path).validate()
    make_table(tmp_path, pa.schema([pa.field("n", pa.int64()), pa.field("id", pa.int64(), nullable=False)]))
    with pytest.raises(ConfigurationError, match=r"columns of an Iceberg sink do not match its table(.|\n)*text"):
        sink_in(tmp_path).validate()
    both = ["n", "id"]
    with pytest.raises(ConfigurationError, match=r"do not match its table(.|\n)*id: required long"):
        sink_in(tmp_path, Types.ROW_NAMED(both, [Types.LONG(), Types.LONG()])).validate()
    with pytest.raises(ConfigurationError, match=r"n: optional string"):
        sink_in(tmp_path, Types.ROW_NAMED(["n"], [Types.STRING()])).validate()


def test_narrower_columns_are_widened(tmp_path: Path) -> None:
    make_table(tmp_path, pa.schema([("n", pa.int64()), ("text", pa.string()), ("more", pa.string())]))
    narrow = sink_in(tmp_path, Types.ROW_NAMED(["n", "text"], [Types.SHORT(), Types.STRING()]))
    narrow.validate()
    SinkRun(narrow, str(tmp_path / "s"), row).step(3, checkpoint=True)
    assert sorted(numbers_in(tmp_path)) == [0, 1, 2]


def test_types_and_partitions_unknown_to_iceberg_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Iceberg has no type for a column of the sink"):
        sink_in(tmp_path, Types.ROW_NAMED(["n"], [Types.SQL_TIME()])).validate()
    lists = Types.ROW_NAMED(["n"], [Types.LIST(Types.LONG())])
    with pytest.raises(ConfigurationError, match="n is list<long>"):
        sink_in(tmp_path, lists, partition_by=["n"]).validate()
    with pytest.raises(ConfigurationError, match="no column day"):
        sink_in(tmp_path, partition_by=["day"])
    with pytest.raises(ConfigurationError, match="lacks its namespace"):
        IcebergSink("lake", "orders", ROW)


def test_an_unreachable_catalog_and_an_unknown_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="The catalog of an Iceberg sink does not answer"):
        sink_in(tmp_path / "none").validate()
    secret = "planted-secret-of-a-catalog"
    none = IcebergSink("lake", NAME, ROW, catalog_properties={"type": "none", "credential": secret})
    with pytest.raises(ConfigurationError, match="pyiceberg cannot load the catalog of an Iceberg sink") as caught:
        none.validate()
    assert secret not in str(caught.value)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.exceptions", None)
    with pytest.raises(ConfigurationError, match=r"needs the package pyiceberg(.|\n)*tidegate\[iceberg\]"):
        sink_in(tmp_path).validate()


def test_secrets_of_a_catalog_are_hidden() -> None:
    given = {
        "uri": "postgresql+psycopg://tide:in%2Fan-address@db/lake",
        "credential": "the-client:of-rest",
        "s3.secret-access-key": "of-the-store",
        "s3.access-key-id": "an-id-is-none",
        "token-refresh-enabled": "true",
        "auth": {"type": "basic", "basic": {"username": "tide", "password": "of-the-server"}},
    }
    IcebergSink("lake", NAME, ROW, catalog_properties=given)
    for hidden in ("in%2Fan-address", "in/an-address", "the-client:of-rest", "of-the-store", "of-the-server"):
        assert secrets.masked(f"<{hidden}>") == "<***>"
    assert secrets.masked("true of an-id-is-none") == "true of an-id-is-none"


def test_commit_with_missing_rows_fails_and_names_the_file(tmp_path: Path) -> None:
    run = SinkRun(sink_in(tmp_path), str(tmp_path / "s"), row)
    run.accept(run.attempt(2, checkpoint=True), 2)
    next((tmp_path / "s" / "batches").iterdir()).unlink()
    with pytest.raises(OutputLostError, match="the table does not contain the checkpoint"):
        run.commit()


def test_a_commit_that_fails_is_retried(tmp_path: Path) -> None:
    run = SinkRun(sink_in(tmp_path), str(tmp_path / "s"), row)
    run.accept(run.attempt(2, checkpoint=True), 2)
    (tmp_path / "warehouse").touch()  # a file where a directory has to be
    with pytest.raises(RetryableCommitError, match="The commit of a completed checkpoint to its Iceberg table failed"):
        run.commit()
    (tmp_path / "warehouse").unlink()
    run.commit()
    assert sorted(numbers_in(tmp_path)) == [0, 1]


def test_the_program_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").write_text(
        f"execution.target: simulated\nparallelism.default: 2\nexecution.checkpointing.dir: {tmp_path}/checkpoints\n"
    )
    monkeypatch.setenv("TIDEGATE_CONF_DIR", str(tmp_path))
    [program] = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert program.count("/srv/lake") == 2
    exec(compile(program.replace("/srv/lake", str(tmp_path)), str(PAGE), "exec"), {"__name__": "__main__"})
    made = catalog_in(tmp_path).load_table(NAME).scan().to_arrow().to_pylist()
    assert sorted(tuple(r.values()) for r in made) == [("monday", 1, 2.5), ("monday", 2, 0.9), ("tuesday", 3, 0.1)]
