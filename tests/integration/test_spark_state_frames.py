"""State of snapshots as DataFrames, read by Spark's tasks."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import pytest

from tests.unit.snapshots.snapshot_jobs import RECORDS, every_kind, kept, own_states, read_so_far, run, windows
from tidegate.base.errors import SnapshotError
from tidegate.common import Types
from tidegate.common.time import Instant
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.snapshots.difference import difference
from tidegate.state_reader import SavepointReader
from tidegate.state_writer import SavepointWriter


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    from pyspark.sql import SparkSession

    return SparkSession(spark)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> SavepointReader:
    return kept(every_kind, tmp_path_factory.mktemp("kept"), parallelism=3)


def test_every_kind_is_typed_and_has_what_python_reads(session: Any, reader: SavepointReader) -> None:
    expected = {
        "count": "struct<key:string,namespace:string,value:bigint>",
        "pickled": "struct<key:string,namespace:string,value:string>",
        "items": "struct<key:string,namespace:string,value:array<bigint>>",
        "seen": "struct<key:string,namespace:string,map_key:bigint,value:string>",
        "sum": "struct<key:string,namespace:string,value:bigint>",
        "mean": "struct<key:string,namespace:string,value:struct<f0:bigint,f1:bigint>>",
        "short-lived": "struct<key:string,namespace:string,value:bigint,expires_ms:bigint>",
        "short-lived items": "struct<key:string,namespace:string,value:array<bigint>,expires_ms:bigint>",
    }
    for state, schema in expected.items():
        frame = reader.dataframe(session, "every kind", state)
        assert frame.schema.simpleString() == schema
        found = {(row["key"], row["map_key"] if state == "seen" else None): row["value"] for row in frame.collect()}
        rows = reader.read("every kind", state)
        shown = repr if state == "pickled" else lambda value: value
        assert found == {(row.key, row.map_key): shown(row.value) for row in rows}


def test_it_is_read_by_several_tasks(session: Any, reader: SavepointReader, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.spark import frames

    monkeypatch.setattr(frames, "BYTES_PER_TASK", 500)
    frame = reader.dataframe(session, "every kind", "seen")
    assert frame.rdd.getNumPartitions() > 6
    assert frame.count() == sum(1 for _ in reader.read("every kind", "seen"))


def test_timers_windows_and_states_of_operators(session: Any, reader: SavepointReader, tmp_path: Path) -> None:
    timers = reader.timers_dataframe(session, "every kind").collect()
    assert {(row["key"], row["domain"]) for row in timers} == {
        *((f"k{n}", "event") for n in range(5)),
        ("k0", "processing"),
    }
    windowed = kept(windows, tmp_path / "windows", parallelism=2)
    frame = windowed.dataframe(session, "tumbling", "window-contents")
    assert frame.schema.simpleString() == "struct<key:bigint,namespace:struct<start:bigint,end:bigint>,value:bigint>"
    assert {(row["namespace"]["end"] - row["namespace"]["start"]) for row in frame.collect()} <= {100}
    own = kept(own_states, tmp_path / "own", parallelism=2)
    last = read_so_far(own)[-1]
    rules = own.dataframe(session, "rules", "rules").collect()
    assert {row["map_key"]: row["value"] for row in rules} == {f"rule {x % 3}": x for x in range(last - 2, last + 1)}
    assert own.dataframe(session, "highest", "latest").agg({"value": "max"}).collect()[0][0] == last


def test_types_that_are_named_count_for_what_is_pickled(session: Any, reader: SavepointReader) -> None:
    named = Types.MAP(Types.STRING(), Types.LONG())
    frame = reader.dataframe(session, "every kind", "pickled", value_type=named)
    assert frame.schema["value"].dataType.simpleString() == "map<string,bigint>"
    assert {row["key"]: row["value"] for row in frame.collect()} == {
        row.key: row.value for row in reader.read("every kind", "pickled")
    }


def test_types_of_spark(session: Any) -> None:
    from tidegate.spark.frames import spark_type

    moment = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456)
    rows = [
        (Types.BIG_INT(), 10**30, decimal.Decimal(10**30)),
        (Types.BIG_DEC(), decimal.Decimal("1.5"), decimal.Decimal("1.5")),
        (Types.SQL_DATE(), moment.date(), moment.date()),
        (Types.SQL_TIME(), moment.time(), "07:08:09.123456"),
        (Types.SQL_TIMESTAMP(), moment, moment),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"\x00\xff", bytearray(b"\x00\xff")),
        (Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()]), (1, None), (1, None)),
        (Types.LIST(Types.DOUBLE()), [1, None], [1.0, None]),
    ]
    for info, value, expected in rows:
        kind, convert = spark_type(info)
        frame = session.createDataFrame([(convert(value),)], f"value {kind.simpleString()}", verifySchema=False)
        assert frame.collect()[0][0] == expected, info
    kind, convert = spark_type(Types.INSTANT())
    assert convert(Instant(1, 5_000)) == datetime.datetime(1970, 1, 1, 0, 0, 1, 5, datetime.UTC)


def test_a_dataframe_becomes_state_and_a_job_continues_from_it(session: Any, tmp_path: Path) -> None:
    frame = session.createDataFrame([(f"k{n % 7}", 1000 * (n % 7)) for n in range(70)], "key string, value long")
    count = ValueStateDescriptor("count", Types.LONG())
    writer = SavepointWriter.new().with_keyed_state("every kind", count, frame.repartition(4), key_type=Types.STRING())
    path = writer.write(str(tmp_path / "new"))
    new = SavepointReader(path)
    assert {row.key: row.value for row in new.read("every kind", "count")} == {f"k{n}": 1000 * n for n in range(7)}
    assert new.operator("every kind").files > 1, "tasks have written it"
    counts = dict(run(every_kind, tmp_path / "jobs", restore=path, parallelism=2))
    assert counts == {f"k{n}": RECORDS // 5 + 1000 * n for n in range(5)}


def test_read_change_write_with_dataframes(session: Any, reader: SavepointReader, tmp_path: Path) -> None:
    writer = SavepointWriter.from_existing(reader.address)
    for state in reader.operator("every kind").states:
        if state.name != "pickled":  # a text in the DataFrame
            writer.with_keyed_state("every kind", state.name, reader.dataframe(session, "every kind", state.name))
    new = SavepointReader(writer.write(str(tmp_path / "same")))
    assert not [change for change in difference(reader, new) if change.is_change]
    frame = reader.dataframe(session, "every kind", "count").selectExpr("key", "namespace", "value + 5 as value")
    writer = SavepointWriter.from_existing(reader.address).with_keyed_state("every kind", "count", frame)
    counts = dict(run(every_kind, tmp_path / "jobs", restore=writer.write(str(tmp_path / "changed"))))
    assert counts == {f"k{n}": RECORDS // 5 + 5 for n in range(5)}


def test_a_dataframe_with_other_columns_is_refused(session: Any, tmp_path: Path) -> None:
    frame = session.createDataFrame([("a", 1)], "k string, v long")
    writer = SavepointWriter.new().with_keyed_state("x", ValueStateDescriptor("count", Types.LONG()), frame)
    with pytest.raises(SnapshotError) as refused:
        writer.write(str(tmp_path / "new"))
    assert (refused.value.found, refused.value.cure) == ("columns k, v", "name its columns key, value")
