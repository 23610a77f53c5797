"""Spark at hand: a DataFrame and a Python DataSource as sources, each checkpoint as a DataFrame for any writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from tests.sources import Fail, ScriptedSource
from tidegate.base.errors import ArgumentTypeError, JobFailedError
from tidegate.common import Row, Types, WatermarkStrategy

CHECKPOINTING = {
    "execution.checkpointing.interval": "50 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 3,
    "restart-strategy.fixed-delay.delay": "1 ms",
}
PAIR = Types.ROW_NAMED(["n", "text"], [Types.LONG(), Types.STRING()])


@pytest.fixture
def session(spark: Any) -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def test_a_dataframe_is_a_bounded_source(make_env: Any, session: Any) -> None:
    frame = session.range(0, 5_000, 1, 3).selectExpr("id", "named_struct('half', id / 2) AS inner", "array(id) AS list")
    env = make_env(CHECKPOINTING)
    found = list(env.from_dataframe(frame).map(lambda row: (row.id, row["inner"].half, row[2])).execute_and_collect())
    assert sorted(found) == [(n, n / 2, [n]) for n in range(5_000)]
    with pytest.raises(ArgumentTypeError, match=r"(?s)a DataFrame is none.*use env.from_dataframe\(frame\)"):
        env.from_collection(frame)


def test_a_dataframe_that_is_another_each_time_is_computed_once(make_env: Any, session: Any, tmp_path: Path) -> None:
    frame = session.range(0, 2_000, 1, 4).selectExpr("id", "rand() AS chance")
    env = make_env({**CHECKPOINTING, "tidegate.round.max-records": 500})
    broken = Fail(str(tmp_path / "fail"))

    def once_broken(row: Row) -> tuple[int, float]:
        if row.id == 1_700 and broken.fires():
            raise ValueError("once")
        return row.id, row.chance

    found = list(env.from_dataframe(frame).map(once_broken).execute_and_collect())
    assert sorted(n for n, _ in found) == list(range(2_000)) and (tmp_path / "fail").exists()


def test_what_is_no_dataframe(make_env: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="from_dataframe takes a DataFrame"):
        make_env().from_dataframe([1, 2])
    with pytest.raises(ArgumentTypeError, match="takes a DataSource"):
        make_env().from_data_source([1, 2])


class Span(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class CountingReader(DataSourceStreamReader):
    """Ten numbers more each time somebody looks."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # type: ignore[override]
        return {"next": min(start["next"] + 10, 100)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Span]:
        middle = (start["next"] + end["next"]) // 2
        return [Span(start["next"], middle), Span(middle, end["next"])]

    def read(self, partition: Any) -> Any:
        return ((n, f"t{n}") for n in range(partition.start, partition.end))

    def commit(self, end: dict[str, int]) -> None:
        Path(self.directory, f"committed-{end['next']}").touch()


class Counting(DataSource):
    def schema(self) -> str:
        return "n INT, text STRING"

    def streamReader(self, schema: Any) -> CountingReader:
        assert schema.names == ["n", "text"]
        return CountingReader(self.options["directory"])


def test_a_stream_reader_with_its_offsets_in_the_checkpoint(make_env: Any, tmp_path: Path) -> None:
    broken = Fail(str(tmp_path / "fail"))

    def once_broken(row: Row) -> tuple[int, str]:
        if row.n == 57 and broken.fires():
            raise ValueError("once")
        return row.n, row.text

    stream = make_env(CHECKPOINTING).from_data_source(Counting({"directory": str(tmp_path)})).map(once_broken)
    found: list[Any] = []
    with stream.execute_and_collect() as values:
        while len(found) < 100:
            found.append(next(values))
    assert sorted(found) == [(n, f"t{n}") for n in range(100)]
    assert (tmp_path / "fail").exists() and list(tmp_path.glob("committed-*"))


def test_every_checkpoint_as_a_dataframe(make_env: Any, tmp_path: Path) -> None:
    env = make_env({**CHECKPOINTING, "tidegate.round.max-records": 50})
    broken = Fail(str(tmp_path / "fail"))
    source = ScriptedSource([*range(300), broken, *range(300, 600)])
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    rows = numbers.map(lambda n: Row(n=n, text=f"t{n}"), output_type=PAIR)

    def write(frame: Any, checkpoint_id: int) -> None:
        frame.write.mode("overwrite").parquet(f"{tmp_path}/out/checkpoint={checkpoint_id}")

    rows.for_each_checkpoint(write, idempotent=True)
    env.execute("frames")
    from pyspark.sql import SparkSession

    found = SparkSession.builder.getOrCreate().read.parquet(f"{tmp_path}/out").collect()
    assert sorted((row["n"], row["text"]) for row in found) == [(n, f"t{n}") for n in range(600)]
    assert (tmp_path / "fail").exists()


def test_a_writer_that_fails_is_reported_with_its_checkpoint(make_env: Any) -> None:
    env = make_env({"execution.checkpointing.interval": "50 ms"})

    def write(frame: Any, checkpoint_id: int) -> None:
        raise OSError("disk full")

    env.from_collection([1, 2], Types.LONG()).for_each_checkpoint(write)
    with pytest.raises(JobFailedError) as error:
        env.execute("fails")
    assert "for_each_checkpoint, checkpoint 1" in str(error.value) and "disk full" in str(error.value)
