"""Text files: ranges that begin at any byte, discovery, errors."""

from __future__ import annotations

import gzip
import io
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.base.errors import ArgumentTypeError, ConfigurationError, CorruptFileError, ProgramError
from tidegate.common.time import Duration
from tidegate.connectors.files.file_format import FileFormat, StreamFormat, line_start
from tidegate.connectors.files.source import FileEnumeratorProvider, FileSource
from tidegate.connectors.formats.avro_schemas import AvroFormat, AvroSchema
from tidegate.connectors.formats.csv_files import CsvReaderFormat, CsvSchema
from tidegate.connectors.formats.parquet_files import ParquetColumnarRowInputFormat
from tidegate.operators.contracts.source import Boundedness, Source, SplitInterval
from tidegate.operators.contracts.specs import SourceNode, SourceSpec
from tidegate.runtime.planner import SourcePlanner
from tidegate.table.types import DataTypes
from tidegate.testing.source_contract import START_MS, SourceContract, read_all, read_interval

TEXT = StreamFormat.text_line_format()


def static(*paths: Path | str, split_size: int = 64 << 20) -> FileSource:
    builder = FileSource.for_record_stream_format(TEXT, *(str(path) for path in paths))
    return builder.process_static_file_set().with_split_size(split_size).build()


def monitoring(path: Path) -> FileSource:
    builder = FileSource.for_record_stream_format(TEXT, str(path))
    return builder.monitor_continuously(Duration.of_seconds(10)).build()


def java_lines(text: str) -> list[str]:
    """What java.io.BufferedReader.readLine returns, written the slow way."""
    lines, line, previous = [], "", ""
    for character in text:
        if character == "\n" and previous == "\r":
            pass
        elif character in "\r\n":
            lines.append(line)
            line = ""
        else:
            line += character
        previous = character
    return [*lines, line] if line else lines


class TestFilesContract(SourceContract):
    limits = (1, 7, 50, 10_000)

    def make_source(self, directory: Path) -> Source:
        for name, first in (("a.txt", 0), ("b.txt", 10), ("c/d.txt", 20)):
            path = directory / "in" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(f"line {n}" for n in range(first, first + 10)))
        return static(directory / "in", split_size=25)

    def expected(self) -> list[Any]:
        return [f"line {n}" for n in range(30)]


class TestMonitoringContract(TestFilesContract):
    def make_source(self, directory: Path) -> Source:
        super().make_source(directory)
        return monitoring(directory / "in")


@given(st.text("ab\r\né", max_size=60), st.lists(st.integers(0, 80), max_size=5))
def test_a_range_may_end_inside_a_line_as_in_java(text: str, cuts: list[int]) -> None:
    fs = fsspec.filesystem("memory")
    data = text.encode()
    fs.pipe_file("/lines.txt", data)
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    found = []
    for start, end in itertools.pairwise(bounds):
        source = static("memory:///lines.txt")
        (interval,) = source.create_enumerator(1, None).plan(1 << 20, START_MS).intervals
        path, size, _ = interval.start
        found += [line for lines in TEXT.read(path, size, start, end) for line in lines]
    assert found == java_lines(text)


@given(st.text("a\r\n", max_size=30), st.integers(0, 35))
def test_line_start_is_the_first_at_or_after_the_position(text: str, position: int) -> None:
    data = text.encode()
    ends = {0}
    for index, byte in enumerate(data):
        if byte == 10 or (byte == 13 and data[index + 1 : index + 2] != b"\n"):
            ends.add(index + 1)
    expected = min((end for end in ends if end >= position), default=len(data))
    assert line_start(io.BytesIO(data), position, len(data)) == min(expected, len(data))


def test_lines_longer_than_a_block(tmp_path: Path) -> None:
    lines = ["x" * 3_000_000, "y", "z" * 1_500_000]
    (tmp_path / "long.txt").write_text("\n".join(lines) + "\n")
    assert Counter(read_all(static(tmp_path, split_size=700_000), [(2, 400_000)]).values) == Counter(lines)


def test_batches_hold_some_thousand_lines(tmp_path: Path) -> None:
    (tmp_path / "many.txt").write_text("row\n" * 10_000)
    source = static(tmp_path)
    (interval,) = source.create_enumerator(1, None).plan(1 << 20, START_MS).intervals
    assert [len(batch) for batch in source.create_reader(0).read(interval)] == [8192, 1808]


def test_hidden_files_and_directories_are_ignored(tmp_path: Path) -> None:
    for name in ("seen", ".hidden", "_SUCCESS", "_temporary/x", "deep/er/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert sorted(read_all(static(tmp_path), [(1, 1000)]).values) == ["deep/er/file", "seen"]


def formats() -> list[FileFormat]:
    row_type = DataTypes.ROW([DataTypes.FIELD("n", DataTypes.BIGINT())])
    schema = AvroSchema.parse_string('{"type": "record", "name": "n", "fields": [{"name": "n", "type": "long"}]}')
    csv = CsvSchema.builder().add_number_column("n").disable_quote_char().build()
    return [
        TEXT,
        CsvReaderFormat.for_schema(csv),
        ParquetColumnarRowInputFormat(row_type),
        AvroFormat(schema),
    ]


@pytest.mark.parametrize("file_format", formats(), ids=lambda found: type(found).__name__)
def test_a_file_of_any_size_is_one_split_by_default(file_format: FileFormat, tmp_path: Path) -> None:
    """One subtask reads the file in order, over many rounds, also if the format could divide it."""
    size = 3 << 30
    for name in "ab":
        with open(tmp_path / name, "wb") as file:
            file.truncate(size)
    assert file_format.can_cut(str(tmp_path / "a"))
    enumerator = FileSource.for_record_stream_format(file_format, str(tmp_path)).build().create_enumerator(4, None)
    read: dict[str, list[SplitInterval]] = {}
    while not (plan := enumerator.plan(1 << 28, START_MS)).finished:
        for interval in plan.intervals:
            read.setdefault(interval.split, []).append(interval)
    assert [{interval.subtask for interval in of_file} for of_file in read.values()] == [{0}, {1}]
    for of_file in read.values():
        assert len(of_file) > 10
        assert [i.start[2] for i in of_file[1:]] == [i.end[2] for i in of_file[:-1]]


def test_parts_in_a_position_of_a_former_version_stay_parts(tmp_path: Path) -> None:
    """That version divided files by default. Files that are found after the restore are not divided."""
    for name in ("a", "b"):
        (tmp_path / name).write_text("12345\n" * 20)
    old = {
        "next": 3,
        "roots": [str(tmp_path)],
        "waiting": [[0, 0, "a", 120, 0, 50, 12], [1, 0, "a", 120, 50, 100, 50], [2, 0, "a", 120, 100, 120, 100]],
        "seen": [f"{tmp_path}/a"],
    }
    source = monitoring(tmp_path)
    plan = source.create_enumerator(2, old).plan(1 << 20, START_MS)
    assert [(i.split, i.subtask) for i in plan.intervals] == [
        (f"{tmp_path}/a:0", 0),
        (f"{tmp_path}/a:100", 0),
        (f"{tmp_path}/a:50", 1),
        (f"{tmp_path}/b:0", 1),
    ]
    assert sum(len(read_interval(source, i)) for i in plan.intervals) == 18 + 20


def test_a_subtask_with_files_in_its_queue_is_awaited(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text("1234\n")
    enumerator = static(tmp_path).create_enumerator(2, None)
    enumerator.plan(10, START_MS)
    assert enumerator.awaited == {0}
    enumerator.plan(1 << 20, START_MS)
    assert enumerator.awaited == frozenset()
    watching = monitoring(tmp_path).create_enumerator(4, None)
    assert watching.awaited == {0}, "it gets the first file"
    watching.plan(1 << 20, START_MS)
    assert watching.awaited == {0, 1, 2}, "the next file may go to any that has had one"


def test_a_large_file_is_read_by_several_subtasks_if_it_is_cut(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("0123456789\n" * 100)
    plan = static(tmp_path, split_size=550).create_enumerator(2, None).plan(1 << 20, START_MS)
    assert [(i.subtask, i.start[2], i.end[2], i.last) for i in plan.intervals] == [
        (0, 0, 550, True),
        (1, 550, 1100, True),
    ]
    builder = FileSource.for_record_stream_format(TEXT, str(tmp_path))
    assert builder.set_file_enumerator(FileEnumeratorProvider.default_splittable_file_enumerator()).build().split_size
    whole = builder.set_file_enumerator(FileEnumeratorProvider.default_non_splittable_file_enumerator()).build()
    assert len(whole.create_enumerator(2, None).plan(1 << 20, START_MS).intervals) == 1


def test_many_tiny_files_do_not_all_come_in_one_round(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number:02d}").write_text("x")
    plan = static(tmp_path).create_enumerator(1, None).plan(10 * 4096, START_MS)
    assert len(plan.intervals) == 10
    assert plan.backlog


@pytest.mark.parametrize("suffix", ["gz", "txt"])
def test_compressed_and_wide_files_are_read_whole(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data.{suffix}"
    path.write_bytes(gzip.compress(b"one\r\ntwo\nthree") if suffix == "gz" else "one\r\ntwo\nthree".encode("utf-16"))
    charset = StreamFormat.text_line_format("UTF-8" if suffix == "gz" else "UTF-16")
    source = FileSource.for_record_stream_format(charset, str(path)).build()
    reading = read_all(source, [(3, 1)])
    assert reading.values == ["one", "two", "three"]
    assert len(reading.intervals) == 1


def test_a_damaged_compressed_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n" * 1000)[:-12])
    with pytest.raises(CorruptFileError, match=r"data\.gz"):
        read_all(static(path), [(1, 1 << 20)])


class TestMonitoring:
    def values(self, source: Source, plan: Any) -> list[Any]:
        return [value for interval in plan.intervals for value in read_interval(source, interval)]

    def test_new_files_are_found_at_each_interval_and_only_once(self, tmp_path: Path) -> None:
        source = monitoring(tmp_path)
        assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
        (tmp_path / "first").write_text("1")
        enumerator = source.create_enumerator(2, None)
        plan = enumerator.plan(1000, START_MS)
        assert (self.values(source, plan), plan.wake_up_ms) == (["1"], START_MS + 10_000)
        (tmp_path / "second").write_text("2")
        assert enumerator.plan(1000, START_MS + 9_999).intervals == []
        assert self.values(source, enumerator.plan(1000, START_MS + 10_000)) == ["2"]
        assert not enumerator.plan(1000, START_MS + 50_000).finished

    def test_seen_files_are_remembered_over_a_restore(self, tmp_path: Path) -> None:
        source = monitoring(tmp_path)
        (tmp_path / "first").write_text("1")
        enumerator = source.create_enumerator(1, None)
        enumerator.plan(1000, START_MS)
        (tmp_path / "second").write_text("2")
        again = source.create_enumerator(3, enumerator.snapshot())
        assert self.values(source, again.plan(1000, START_MS)) == ["2"]

    def test_snapshots_do_not_change_afterwards(self, tmp_path: Path) -> None:
        source = monitoring(tmp_path)
        (tmp_path / "first").write_text("1")
        enumerator = source.create_enumerator(1, None)
        before = enumerator.snapshot()
        enumerator.plan(1000, START_MS)
        assert before == {"next": 0, "roots": [], "waiting": [], "seen": []}

    def test_what_is_appended_to_a_seen_file_is_not_read(self, tmp_path: Path) -> None:
        source = monitoring(tmp_path)
        (tmp_path / "first").write_text("1\n2")
        plan = source.create_enumerator(1, None).plan(1000, START_MS)
        (tmp_path / "first").write_text("1\n234\n5")
        assert self.values(source, plan) == ["1", "2"]


class TestThousandsOfSmallFiles:
    """A file costs an opening, whatever its size. Openings size the rounds, and waiting files cost little."""

    def many(self, directory: Path, number: int = 3_000) -> FileSource:
        for name in range(number):
            (directory / f"part-{name:05}.txt").write_text(f"{name}\n")
        return static(directory)

    def test_rounds_grow_by_openings_not_by_bytes(self, tmp_path: Path) -> None:
        """Larger rounds, and not the smallest, follow a round that reads a thousand files in a tenth of its time."""
        operator = SourceNode(1, "files", None, "hash", SourceSpec(self.many(tmp_path)), 2, 128, None)
        planner, rounds = SourcePlanner([operator], 1_000, {}), []
        while not planner.finished:
            rounds.append(len(planner.plan(START_MS)[1].intervals))
            planner.accept(rounds[-1] / 10_000)  # a tenth of a millisecond for each file
        assert sum(rounds) == 3_000
        assert len(rounds) <= 3, rounds

    def test_positions_stay_small(self, tmp_path: Path) -> None:
        enumerator = self.many(tmp_path).create_enumerator(2, None)
        size = len(json.dumps(enumerator.snapshot()))
        assert size < 3_000 * 40, f"{size / 3_000:.0f} bytes a file that waits"

    def test_a_restored_position_continues_in_order_at_any_parallelism(self, tmp_path: Path) -> None:
        source = self.many(tmp_path, 50)
        enumerator = source.create_enumerator(3, None)
        first = enumerator.plan(20 * 4096, START_MS)
        again = source.create_enumerator(2, json.loads(json.dumps(enumerator.snapshot())))
        assert again.snapshot()["next"] == 50
        rest = again.plan(1 << 30, START_MS)
        assert rest.finished
        read = [value for plan in (first, rest) for i in plan.intervals for value in read_interval(source, i)]
        assert sorted(map(int, read)) == list(range(50))

    def test_a_position_of_the_first_version_restores(self, tmp_path: Path) -> None:
        path = tmp_path / "data.txt"
        path.write_text("1\n2\n3\n4\n")
        old = {"next": 2, "splits": [[0, str(path), 8, 0, 4, 2], [1, str(path), 8, 4, 8, 4]], "seen": []}
        source = static(path)
        plan = source.create_enumerator(1, old).plan(1 << 20, START_MS)
        assert [value for i in plan.intervals for value in read_interval(source, i)] == ["2", "3", "4"]
        assert [i.split for i in plan.intervals] == [f"{path}:0", f"{path}:4"]


def test_a_file_that_shrank_or_vanished_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("12345\n")
    source = static(path)
    (interval,) = source.create_enumerator(1, None).plan(1000, START_MS).intervals
    path.write_text("123")
    with pytest.raises(CorruptFileError, match=r"data\.txt[\s\S]*3 bytes, expected 6"):
        read_interval(source, interval)
    path.unlink()
    with pytest.raises(CorruptFileError, match=r"data\.txt[\s\S]*no such file"):
        read_interval(source, interval)


def test_error_of_invalid_text_names_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"good\r\nal\xffso\r\n")
    with pytest.raises(CorruptFileError, match=r"bad\.txt[\s\S]*byte 8: invalid start byte"):
        read_all(static(path), [(1, 1000)])


def test_other_charsets_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("caffè\nperché".encode("latin-1"))
    latin = StreamFormat.text_line_format("ISO-8859-1")
    assert read_all(FileSource.for_record_stream_format(latin, str(path)).build(), [(1, 3)]).values == [
        "caffè",
        "perché",
    ]


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no file or directory .*missing"):
        static(tmp_path / "missing").create_enumerator(1, None)
    with pytest.raises(ConfigurationError, match="UTF-99"):
        StreamFormat.text_line_format("UTF-99")
    with pytest.raises(ProgramError, match="A file source has no path"):
        FileSource.for_record_stream_format(TEXT)
    builder = FileSource.for_record_stream_format(TEXT, str(tmp_path))
    with pytest.raises(ProgramError, match="discovery interval of a file source is not above zero"):
        builder.monitor_continuously(Duration.of_seconds(0))
    with pytest.raises(ArgumentTypeError, match=r"FileSource\.monitor_continuously takes"):
        builder.monitor_continuously("10 s")
    for size in (0, 1, 15):
        with pytest.raises(ProgramError, match="split size of a file source is below 16 bytes"):
            builder.with_split_size(size)


def test_files_of_other_file_systems() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/source-test/a/one.txt", b"1\n2\n")
    fs.pipe_file("/source-test/_b/two.txt", b"3\n")
    fs.pipe_file("/source-test/c.txt", b"4")
    reading = read_all(static("memory:///source-test"), [(2, 3)])
    assert sorted(reading.values) == ["1", "2", "4"]
    fs.rm("/source-test", recursive=True)
