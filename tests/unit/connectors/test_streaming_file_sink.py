"""StreamingFileSink writes what a FileSink writes, for ``add_sink``. Parts of PyFlink's file API have no effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.simulation.executor import Simulated
from tidegate.base.errors import ArgumentTypeError
from tidegate.common import Encoder, Row, Types
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import (
    BucketAssigner,
    FileSource,
    FileSplitAssignerProvider,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
    StreamingFileSink,
)
from tidegate.datastream.formats.csv import CsvBulkWriters, CsvSchema


@pytest.fixture
def env(simulated: Simulated) -> StreamExecutionEnvironment:
    return simulated(seed=3)


def lines(out: Path) -> list[str]:
    return sorted(line for path in out.iterdir() if path.name.startswith("p-") for line in path.read_text().split())


def described(builder: Any) -> StreamingFileSink:
    names = OutputFileConfig.builder().with_part_prefix("p").build()
    builder = builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
    built = (
        builder.with_output_file_config(names).with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy()).build()
    )
    assert isinstance(built, StreamingFileSink)
    return built


def test_rows_are_written_as_by_a_file_sink(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    sink = described(StreamingFileSink.for_row_format(str(tmp_path / "out"), Encoder.simple_string_encoder()))
    env.from_collection(["a", "b"], Types.STRING()).add_sink(sink)
    env.execute()
    assert lines(tmp_path / "out") == ["a", "b"]


def test_bulk_files_are_written_as_by_a_file_sink(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    schema = CsvSchema.builder().add_string_column("name").add_number_column("count").build()
    sink = described(StreamingFileSink.for_bulk_format(str(tmp_path / "out"), CsvBulkWriters.for_schema(schema)))
    rows = env.from_collection(
        [Row("a", 1), Row("b", 2)], Types.ROW_NAMED(["name", "count"], [Types.STRING(), Types.LONG()])
    )
    rows.add_sink(sink)
    env.execute()
    assert lines(tmp_path / "out") == ["a,1", "b,2"]


def test_a_split_assigner_is_reported_to_have_no_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path))
    builder.set_split_assigner(FileSplitAssignerProvider.locality_aware_split_assigner()).build()
    assert [record.getMessage() for record in caplog.records] == [
        "'FileSource.set_split_assigner' is accepted and has no effect: Spark decides where a subtask runs"
    ]
    with pytest.raises(ArgumentTypeError, match="a FileSplitAssignerProvider"):
        builder.set_split_assigner("near")  # type: ignore[arg-type]
