"""Small files become one, and a crash at any point loses and duplicates no record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.connectors.test_format_sinks import BulkContract, TestParquetSink
from tidegate.base.errors import ArgumentTypeError, ProgramError
from tidegate.common import Encoder
from tidegate.connectors.files.bucket_assigners import BucketAssigner, RollingPolicy
from tidegate.connectors.files.sink import FileSink
from tidegate.datastream.connectors.file_system import FileCompactor, FileCompactStrategy
from tidegate.testing.sink_contract import SinkContract
from tidegate.testing.sink_run import SinkRun


def strategy(*, size: int | None = None, checkpoints: int | None = None) -> FileCompactStrategy:
    builder = FileCompactStrategy.builder()
    if size is not None:
        builder.set_size_threshold(size)
    if checkpoints is not None:
        builder.enable_compaction_on_checkpoint(checkpoints)
    return builder.build()


def compacting(directory: Path, when: FileCompactStrategy, compactor: FileCompactor | None = None) -> FileSink:
    return (
        FileSink.for_row_format(str(directory / "out"), Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .enable_compact(when, compactor or FileCompactor.concat_file_compactor())
        .build()
    )


def texts(directory: Path) -> list[str]:
    files = [path for path in (directory / "out").rglob("*") if path.is_file() and not path.name.startswith(".")]
    return sorted(path.read_text() for path in files)


class TestCompactedRows(SinkContract):
    publishes_every_checkpoint = False

    def make_sink(self, directory: Path) -> FileSink:
        return compacting(directory, strategy(size=30, checkpoints=3))

    def visible(self, directory: Path) -> list[Any]:
        return [int(line) for text in texts(directory) for line in text.splitlines()]

    def leftovers(self, directory: Path) -> list[str]:
        return [str(path) for path in (directory / "out").rglob(".*") if path.is_file()]


class TestCompactedParquet(BulkContract):
    publishes_every_checkpoint = False
    factory = TestParquetSink.factory
    read_file = TestParquetSink.read_file

    def make_sink(self, directory: Path) -> FileSink:
        builder = FileSink.for_bulk_format(str(directory / "out"), type(self).factory)
        return builder.enable_compact(strategy(checkpoints=3), FileCompactor.concat_file_compactor(b"ignored")).build()


del TestParquetSink  # its tests run where it is written


def run_of(sink: FileSink, directory: Path) -> SinkRun:
    return SinkRun(sink, str(directory / "staging"), lambda n: n, parallelism=1)


def test_files_of_several_checkpoints_become_one(tmp_path: Path) -> None:
    run = run_of(compacting(tmp_path, strategy(checkpoints=3)), tmp_path)
    for _ in range(2):
        run.step(2, checkpoint=True)
        assert texts(tmp_path) == []
    run.step(2, checkpoint=True)
    assert texts(tmp_path) == ["0\n1\n2\n3\n4\n5\n"]
    run.step(1, checkpoint=True)
    run.finish()
    assert texts(tmp_path) == ["0\n1\n2\n3\n4\n5\n", "6\n"]


def test_by_size_with_a_delimiter_between_files(tmp_path: Path) -> None:
    sink = compacting(tmp_path, strategy(size=8), FileCompactor.concat_file_compactor(b"--\n"))
    run = run_of(sink, tmp_path)
    run.step(2, checkpoint=True)
    run.step(1)
    run.step(1, checkpoint=True)
    assert texts(tmp_path) == ["0\n1\n--\n2\n3\n"]
    run.finish()
    assert texts(tmp_path) == ["0\n1\n--\n2\n3\n"]


def test_identical_files_stay_files(tmp_path: Path) -> None:
    sink = compacting(tmp_path, strategy(size=1000), FileCompactor.identical_file_compactor())
    run = run_of(sink, tmp_path)
    run.step(1, checkpoint=True)
    run.step(1, checkpoint=True)
    assert texts(tmp_path) == ["0\n", "1\n"]


def test_mistakes() -> None:
    with pytest.raises(ProgramError, match="At least one of conditions to be configured"):
        FileCompactStrategy.builder().build()
    with pytest.raises(ProgramError, match="set_size_threshold takes a number above 0"):
        FileCompactStrategy.builder().set_size_threshold(0)
    builder = FileSink.for_row_format("/tmp/x", Encoder.simple_string_encoder())
    with pytest.raises(ArgumentTypeError, match=r"FileSink.enable_compact takes a strategy and a compactor"):
        builder.enable_compact(strategy(size=1), "concat")  # type: ignore[arg-type]
