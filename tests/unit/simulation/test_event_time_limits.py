"""Event time and the engine's limits: however small rounds, chunks and blocks are, no record is late that is not late in Flink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.functions import CountRecords
from tests.simulation.executor import simulated_environment
from tests.sources import At, ScriptedSource
from tidegate.common import Duration, Time, Types, WatermarkStrategy
from tidegate.connectors.files import file_format
from tidegate.connectors.files.source import FileSource
from tidegate.connectors.values import ranges
from tidegate.connectors.values.hybrid_source import HybridSource
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.datastream import (
    DataStream,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.connectors.file_system import StreamFormat
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.operators.contracts.source import Source

TEXT = StreamFormat.text_line_format()
WINDOW = 100
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_format, "BLOCK", 64)
    monkeypatch.setattr(file_format, "BATCH_SIZE", 7)
    monkeypatch.setattr(ranges, "BATCH_SIZE", 7)


def environment(directory: Path, parallelism: int, limit: int, **more: Any) -> StreamExecutionEnvironment:
    keys = {
        "execution.checkpointing.interval": "10 ms",
        "parallelism.default": parallelism,
        "tidegate.round.max-records": limit,
        "tidegate.chunk.records": 5,
        **more,
    }
    return simulated_environment(directory, **keys)


def write(directory: Path, *files: range) -> Path:
    """Files of timestamps, a line each, named in their order."""
    directory.mkdir()
    for number, times in enumerate(files):
        (directory / f"{number:02d}").write_text("".join(f"{time}\n" for time in times))
    return directory


def files_of(directory: Path) -> FileSource:
    return FileSource.for_record_stream_format(TEXT, str(directory)).build()


def time_of(value: Any, _: int) -> int:
    return int(value)


class Lateness(KeyedProcessFunction):
    """One for each record that a window of this size would take, ``late`` for the others."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        end = int(value) // WINDOW * WINDOW + WINDOW - 1
        yield "late" if end <= ctx.timer_service().current_watermark() else "in time"


def counted(stream: DataStream) -> Counter[str]:
    results = stream.key_by(lambda value: int(value) % 3).process(Lateness(), Types.STRING())
    return Counter(results.execute_and_collect())


def where(stream: Callable[[WatermarkStrategy], DataStream], place: str) -> DataStream:
    """The strategy of a source at the source, or after it."""
    strategy = MONOTONOUS.with_timestamp_assigner(time_of)
    if place == "source":
        return stream(strategy)
    return stream(WatermarkStrategy.no_watermarks()).assign_timestamps_and_watermarks(strategy)


IN_ORDER = [range(300), range(300, 340), range(340, 700), range(700, 710), range(710, 1000)]
"""One file after the other, of very different sizes."""


@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize("limit", [50, 5000, 1 << 20])
@pytest.mark.parametrize("place", ["source", "behind"])
def test_windows_over_files_in_time_order_take_every_record(
    tmp_path: Path, parallelism: int, limit: int, place: str
) -> None:
    env = environment(tmp_path, parallelism, limit)
    source = files_of(write(tmp_path / "in", *IN_ORDER))
    stream = where(lambda strategy: env.from_source(source, strategy, "files", Types.STRING()), place)
    windows = stream.key_by(lambda value: int(value) % 3).window(TumblingEventTimeWindows.of(Time.milliseconds(WINDOW)))
    found = sorted(windows.aggregate(CountRecords()).execute_and_collect())
    expected = Counter((time // WINDOW, time % 3) for times in IN_ORDER for time in times)
    assert found == sorted(expected.values())
    assert sum(found) == 1000


@pytest.mark.parametrize("place", ["source", "behind"])
@pytest.mark.parametrize("limit", [50, 5000, 1 << 20])
def test_files_of_the_same_time_are_read_side_by_side(tmp_path: Path, limit: int, place: str) -> None:
    """As many as there are subtasks. Cut into parts, a subtask would read the begin of one file after the middle of another."""
    env = environment(tmp_path, 2, limit)
    source = files_of(write(tmp_path / "in", range(600), range(600)))
    stream = where(lambda strategy: env.from_source(source, strategy, "files", Types.STRING()), place)
    assert counted(stream) == {"in time": 1200}


def test_files_that_are_cut_lose_records_as_their_page_says(tmp_path: Path) -> None:
    """So the test above can fail."""
    env = environment(tmp_path, 2, 50)
    write(tmp_path / "in", range(600), range(600))
    cut = FileSource.for_record_stream_format(TEXT, str(tmp_path / "in")).with_split_size(1600).build()
    stream = where(lambda strategy: env.from_source(cut, strategy, "files", Types.STRING()), "source")
    assert counted(stream)["late"] > 100


@pytest.mark.parametrize("limit", [50, 5000])
def test_a_second_file_with_earlier_times_is_late_as_far_as_the_first_has_come(tmp_path: Path, limit: int) -> None:
    """Flink's rule: a split has a generator of its own, and the watermark of the subtask never falls."""
    env = environment(tmp_path, 1, limit)
    source = files_of(write(tmp_path / "in", range(500), range(250, 800)))
    stream = where(lambda strategy: env.from_source(source, strategy, "files", Types.STRING()), "source")
    late = [time for time in range(250, 800) if time // WINDOW * WINDOW + WINDOW - 1 <= 499 - 1]
    assert counted(stream) == {"in time": 1050 - len(late), "late": len(late)}


def ahead(env: StreamExecutionEnvironment) -> DataStream:
    """Another stream that is far ahead from the first round on."""
    scripted = ScriptedSource([At(100_000 + n, 100_000 + n) for n in range(400)])
    return env.from_source(scripted, MONOTONOUS, "ahead").set_parallelism(1)


def with_another(env: StreamExecutionEnvironment, source: Source) -> Counter[str]:
    stream = env.from_source(source, MONOTONOUS.with_timestamp_assigner(time_of), "late ones", Types.STRING())
    return counted(stream.map(int, Types.LONG()).union(ahead(env)))


@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize("limit", [20, 5000])
def test_between_two_files_a_subtask_is_not_idle(tmp_path: Path, parallelism: int, limit: int) -> None:
    """Each file fills a round. A stream that is ahead does not move event time past the next one."""
    source = files_of(write(tmp_path / "in", *(range(n, n + 20) for n in range(0, 400, 20))))
    assert with_another(environment(tmp_path, parallelism, limit), source) == {"in time": 800}


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_between_two_sources_of_a_hybrid_source_no_subtask_is_idle(tmp_path: Path, parallelism: int) -> None:
    first = files_of(write(tmp_path / "in", range(200)))
    source = HybridSource.builder(first).add_source(NumberSequenceSource(200, 399)).build()
    env = environment(tmp_path, parallelism, 50)
    stream = env.from_source(source, MONOTONOUS.with_timestamp_assigner(time_of), "late ones")
    assert counted(stream.map(int, Types.LONG()).union(ahead(env))) == {"in time": 800}


@pytest.mark.parametrize("limit", [2, 50])
def test_a_limit_below_the_number_of_splits_lets_no_split_be_overtaken(tmp_path: Path, limit: int) -> None:
    env = environment(tmp_path, 4, limit)
    numbers = NumberSequenceSource(0, 199)
    stream = env.from_source(numbers, MONOTONOUS.with_timestamp_assigner(time_of), "numbers", Types.LONG())
    assert counted(stream) == {"in time": 200}


@pytest.mark.parametrize("limit", [50, 100_000])
def test_an_assigner_downstream_of_a_source_sees_its_splits_side_by_side(tmp_path: Path, limit: int) -> None:
    """Two partitions in one subtask. Read one after the other, all of the second one would be late."""
    env = environment(tmp_path, 1, limit)
    scripted = ScriptedSource([At(n, n) for n in range(600)], [At(n, n) for n in range(600)])
    stream = env.from_source(scripted, WatermarkStrategy.no_watermarks(), "partitions")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(50))
    assert counted(stream.assign_timestamps_and_watermarks(strategy)) == {"in time": 1200}


@pytest.mark.parametrize("limit", [50, 100_000])
def test_an_assigner_downstream_of_a_union_sees_its_streams_side_by_side(tmp_path: Path, limit: int) -> None:
    env = environment(tmp_path, 2, limit)
    sources = [ScriptedSource([At(n, n) for n in range(600)]) for _ in range(2)]
    first, second = (
        env.from_source(source, WatermarkStrategy.no_watermarks(), f"s{n}").set_parallelism(1)
        for n, source in enumerate(sources)
    )
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(50))
    stream = first.union(second).assign_timestamps_and_watermarks(strategy)
    assert counted(stream) == {"in time": 1200}


def test_before_the_first_file_and_between_files_a_watching_source_holds_back_event_time(tmp_path: Path) -> None:
    """The other stream has ended its first records long before a file comes. Files come while the job runs."""
    (tmp_path / "in").mkdir()
    env = environment(tmp_path, 1, 1000)
    files = FileSource.for_record_stream_format(TEXT, str(tmp_path / "in")).monitor_continuously(Duration.of_millis(1))
    stream = env.from_source(files.build(), MONOTONOUS.with_timestamp_assigner(time_of), "watched", Types.STRING())
    ahead_of = ScriptedSource([At(100_000 + n, 100_000 + n) for n in range(40)], ends=False)
    both = stream.map(int, Types.LONG()).union(env.from_source(ahead_of, MONOTONOUS, "ahead"))
    results: Any = both.key_by(lambda value: value % 3).process(Lateness(), Types.STRING()).execute_and_collect()
    with results as found:
        seen = [next(found) for _ in range(40)]
        for number, times in enumerate([range(50), range(50, 100)]):
            (tmp_path / "aside").write_text("".join(f"{time}\n" for time in times))
            (tmp_path / "aside").rename(tmp_path / "in" / str(number))
            seen += [next(found) for _ in range(50)]
    assert seen == ["in time"] * 140
