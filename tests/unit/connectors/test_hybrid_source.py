"""Sources that are read one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sources import At, ScriptedSource
from tests.unit.simulation.api_scenario import run
from tidegate.base.errors import ArgumentTypeError, ProgramError, RestoreError
from tidegate.common import Types
from tidegate.common.time import Time
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.connectors.files.source import FileSource
from tidegate.connectors.sockets.source import SocketSource
from tidegate.connectors.values.data_generator import DataGeneratorSource
from tidegate.connectors.values.hybrid_source import HybridSource
from tidegate.connectors.values.ranges import CollectionSource, NumberSequenceSource
from tidegate.datastream import ReduceFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import StreamFormat
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.operators.contracts.source import Boundedness, Source, SplitEnumerator
from tidegate.testing.source_contract import START_MS, SourceContract, read_all


def history_then_numbers(directory: Path) -> HybridSource:
    for name in ("a", "b", "c"):
        (directory / name).write_text("".join(f"{name}{n}\n" for n in range(9)))
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(directory)).build()
    return (
        HybridSource.builder(files)
        .add_source(NumberSequenceSource(0, 30))
        .add_source(CollectionSource(["end"]))
        .build()
    )


class TestHybridContract(SourceContract):
    def make_source(self, directory: Path) -> Source:
        return history_then_numbers(directory)

    def expected(self) -> list[Any]:
        return [*(f"{name}{n}" for name in "abc" for n in range(9)), *range(31), "end"]


STEPS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 20)), min_size=1, max_size=8)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), STEPS)
def test_every_source_is_read_to_its_end_before_the_next_begins(
    lengths: list[int], steps: list[tuple[int, int]]
) -> None:
    builder = HybridSource.builder(NumberSequenceSource(0, lengths[0] - 1))
    for number, length in enumerate(lengths[1:], 1):
        builder.add_source(NumberSequenceSource(100 * number, 100 * number + length - 1))
    reading = read_all(builder.build(), steps)
    assert sorted(reading.values) == [100 * n + i for n, length in enumerate(lengths) for i in range(length)]
    order = [int(interval.split.partition(":")[0]) for interval in reading.intervals]
    assert order == sorted(order)
    assert reading.finished


def gone_back(source: Source, enumerator: SplitEnumerator, position: Any) -> SplitEnumerator:
    """Return to the position, as the planner does when a round is discarded."""
    return enumerator if enumerator.rewind(position) else source.create_enumerator(1, position)


def test_a_discarded_round_begins_again_on_both_sides_of_the_change(tmp_path: Path) -> None:
    files = [
        FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path / n)).build() for n in "ab"
    ]
    for name in "ab":
        (tmp_path / name).write_text(f"{name}\n")
    source = HybridSource.builder(files[0]).add_source(files[1]).build()
    enumerator = source.create_enumerator(1, None)
    before = enumerator.snapshot()
    first = enumerator.plan(100, START_MS)
    assert first.backlog
    assert not first.finished
    enumerator = gone_back(source, enumerator, before)
    assert enumerator.plan(100, START_MS) == first
    between = enumerator.snapshot()
    assert between == [1, None]
    second = enumerator.plan(100, START_MS)
    assert second.finished
    assert gone_back(source, enumerator, between).plan(100, START_MS) == second


class Later(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return (value1[0], value1[1] + value2[1])


@pytest.mark.parametrize("seed", range(6))
def test_windows_continue_from_one_source_to_the_next_through_crashes_and_rescales(seed: int, tmp_path: Path) -> None:
    """The window from 20 to 30 has records of both sources."""

    def scripted(times: range) -> ScriptedSource:
        source = ScriptedSource([At(time, (f"k{time % 3}", time)) for time in times])
        source.initial_limit = source.maximum_limit = 3 + seed
        return source

    def build(env: StreamExecutionEnvironment) -> Any:
        source = HybridSource.builder(scripted(range(25))).add_source(scripted(range(25, 60))).build()
        stream = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "both")
        windows = stream.key_by(lambda r: r[0], Types.STRING()).window(
            TumblingEventTimeWindows.of(Time.milliseconds(10))
        )
        return windows.reduce(Later())

    sums: dict[tuple[str, int], int] = {}
    for time in range(60):
        key = (f"k{time % 3}", time // 10)
        sums[key] = sums.get(key, 0) + time
    expected = [(key, total) for (key, _), total in sums.items()]
    run(build, expected, str(tmp_path), seed, parallelism=[(1,), (2, 1), (1, 3, 2)][seed % 3])


def test_guarantee_is_that_of_the_weakest_source() -> None:
    bounded = NumberSequenceSource(0, 1)
    assert HybridSource.builder(bounded).add_source(bounded).build().boundedness is Boundedness.BOUNDED
    socket = SocketSource("localhost", 1)
    hybrid = HybridSource.builder(bounded).add_source(socket).build()
    assert (hybrid.boundedness, hybrid.can_replay, hybrid.can_stop) == (
        Boundedness.CONTINUOUS_UNBOUNDED,
        False,
        False,
    )
    assert hybrid.to_raise == socket.to_raise


def test_mistakes_are_named() -> None:
    endless, bounded = DataGeneratorSource(str, 2**63 - 1), NumberSequenceSource(0, 1)
    endless.boundedness = Boundedness.CONTINUOUS_UNBOUNDED
    with pytest.raises(ProgramError, match=r"is never read(.|\n)*NumberSequenceSource after an unbounded Data"):
        HybridSource.builder(endless).add_source(bounded)
    with pytest.raises(ArgumentTypeError, match=r"HybridSource.add_source takes a source"):
        HybridSource.builder(bounded).add_source([1, 2])  # type: ignore[arg-type]
    with pytest.raises(RestoreError, match=r"1 source, and source 2 was being read"):
        HybridSource.builder(bounded).build().create_enumerator(1, [1, None])
