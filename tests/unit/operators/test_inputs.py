"""Channels: order, barriers, watermarks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tidegate.base.errors import RoundError, UserCodeError
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.watermarks import ChannelWatermarks, SplitWatermarks, Strategy
from tidegate.operators.flow.inputs import ChannelInput
from tidegate.operators.flow.rows import BARRIER, DATA, MIN_WATERMARK, Barrier, Generator, Row, Status


def data(number: int, sender: int = 0, watermark: int = 0) -> Row:
    return (1, 0, DATA, 7, sender, number, watermark, (b"", None, None))


def barrier(count: int, sender: int = 0, token: str = "t", finished: bool = False) -> Row:
    return (1, 0, BARRIER, 7, sender, count, 0, Barrier(token, False, finished, False))


def channels(n: int = 1) -> ChannelInput:
    return ChannelInput({(7, s): Status() for s in range(n)})


@pytest.mark.parametrize("seed", range(20))
def test_chunks_come_out_in_order_whatever_order_they_arrive_in(seed: int) -> None:
    rows = [data(n) for n in range(9)] + [barrier(9)]
    random.Random(seed).shuffle(rows)
    channel = channels()
    out = [ready for row in rows for ready in channel.ready(row)]
    assert [row[5] for row in out] == list(range(10))
    assert out[-1][2] == BARRIER
    channel.check_complete("chain")


@pytest.mark.parametrize("seed", range(20))
def test_channels_take_turns_by_their_watermarks(seed: int) -> None:
    """Whatever order rows come in: none is taken while a channel that is behind may still send, and each keeps its order."""
    draw = random.Random(seed)
    rows = [data(n, sender, 10 * n + draw.randrange(10)) for sender in range(3) for n in range(9)]
    rows += [barrier(9, sender) for sender in range(3)]
    draw.shuffle(rows)
    channel = channels(3)
    out = [ready for row in rows for ready in channel.ready(row)]
    channel.check_complete("chain")
    assert len(out) == len(rows)
    for sender in range(3):
        assert [row[5] for row in out if row[4] == sender] == list(range(10))
    reached = dict.fromkeys(range(3), MIN_WATERMARK)
    for row in out:
        assert reached[row[4]] == min(reached.values()), "it was not its turn"
        reached[row[4]] = row[6] if row[2] == DATA else 1 << 63


def test_without_watermarks_nothing_waits() -> None:
    channel = channels(3)
    assert [len(channel.ready(data(n, 2, MIN_WATERMARK))) for n in range(5)] == [1] * 5


def test_what_waits_for_its_turn_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.operators.flow.inputs._MOST_HELD", 100)
    channel = channels(2)
    chunk = (b"x" * 60, None, None)
    rows = [(1, 0, DATA, 7, 0, number, number, chunk) for number in range(10)]
    assert sum(len(channel.ready(row)) for row in rows) >= 8


def test_two_barriers_of_one_channel_fail_the_round() -> None:
    channel = channels()
    channel.ready(barrier(0, token="first"))
    with pytest.raises(RoundError, match="two attempts"):
        channel.ready(barrier(0, token="second"))


def test_a_repeated_chunk_fails_the_round() -> None:
    channel = channels()
    channel.ready(data(0))
    with pytest.raises(RoundError, match="two attempts"):
        channel.ready(data(0))


def test_a_missing_barrier_fails_the_round_and_names_the_channel() -> None:
    channel = channels(2)
    channel.ready(barrier(0, sender=0))
    with pytest.raises(RoundError, match=r"exactly one barrier[\s\S]*'my chain'[\s\S]*\(7, 1\)"):
        channel.check_complete("my chain")


def test_a_missing_chunk_fails_the_round() -> None:
    channel = channels()
    channel.ready(data(0))
    channel.ready(barrier(2))
    with pytest.raises(RoundError):
        channel.check_complete("chain")


def test_finished_only_when_every_sender_is() -> None:
    channel = channels(2)
    channel.ready(barrier(0, 0, finished=True))
    assert not channel.finished
    channel.ready(barrier(0, 1, finished=True))
    assert channel.finished


def test_the_watermark_is_the_least_of_the_active_channels_and_never_falls() -> None:
    marks = ChannelWatermarks({(7, 0): Status(10), (7, 1): Status(5)})
    assert marks.current() == 5
    marks.update(7, 1, 20, False)
    assert marks.current() == 10
    marks.update(7, 0, 10, True)
    assert marks.current() == 20
    marks.update(7, 0, 12, False)
    assert marks.current() == 20


class Bounded:
    kind, out_of_orderness_ms, idleness_ms, timestamp_assigner = "bounded", 3, 100, None


def test_split_watermarks_trail_by_the_bound_and_skip_idle_splits() -> None:
    marks = SplitWatermarks(Strategy(Bounded()), {"a": Generator(100, 0), "b": Generator(50, 0)})
    assert marks.status(MIN_WATERMARK, 10) == Status(50 - 3 - 1, False)
    batch = Batch([1, 2], [120, 110])
    [(marks.splits["a"], piece)] = marks.strategy.pieces(marks.splits["a"], batch, 150)
    assert piece is batch
    assert marks.status(46, 150) == Status(120 - 4, False)  # b is idle
    assert marks.status(116, 400) == Status(116, True)
    assert marks.next_look_ms(150) == 250


@pytest.mark.parametrize("awaited", [True, False])
def test_a_subtask_between_two_splits_is_idle_only_if_no_other_split_comes(awaited: bool) -> None:
    """Or after the time of idleness. What it knows of the split that has ended goes into the snapshot, with the others."""
    marks = SplitWatermarks(Strategy(Bounded()), {"a": Generator(100, 50)}, awaited=awaited)
    marks.finish("a")
    assert marks.status(96, 60) == Status(96, not awaited)
    if awaited:
        again = SplitWatermarks(Strategy(Bounded()), marks.splits, awaited=True)
        assert again.status(96, 149) == Status(96, False)
        assert again.next_look_ms(149) == 150
        assert again.status(96, 150) == Status(96, True)
        assert SplitWatermarks(Strategy(Bounded()), marks.splits).status(96, 60) == Status(96, True), "no more come"
    first = SplitWatermarks(Strategy(Bounded()), {}, awaited=awaited)
    first.await_first(60)
    assert first.status(MIN_WATERMARK, 60) == Status(MIN_WATERMARK, not awaited)
    assert first.status(96, 60) == Status(96, not awaited), "a rescale has given it a watermark and no split"
    marks.start("b", 200)
    assert list(marks.splits) == ["b"]
    assert marks.status(96, 200) == Status(96, False)


def test_even_channels_without_watermarks_take_turns_by_their_chunks() -> None:
    """Spark hands over one sender's rows after the other's: an assigner after them sees the streams side by side."""
    channel = ChannelInput({(7, s): Status() for s in range(2)}, even=True)
    rows = [row for s in range(2) for row in [*(data(n, s, MIN_WATERMARK) for n in range(3 + s)), barrier(3 + s, s)]]
    out = [(ready[4], ready[5]) for row in rows for ready in channel.ready(row)]
    assert out == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3), (1, 4)]


@pytest.mark.parametrize(
    "moments",
    [[None], [5, None], [5, "later"], [5, 1 << 63], [5, -(1 << 63) - 1], [True, 1 << 63], [5, float("nan")], [5, 1e19]],
)
def test_assigner_without_a_time_of_64_bits_is_named_with_operator_line_and_record(moments: list[Any]) -> None:
    class Assigning:
        kind, out_of_orderness_ms, idleness_ms = "monotonous", 0, None

        def timestamp_assigner(self, value: Any, former: int) -> Any:
            return moments[value]

    strategy = Strategy(Assigning())
    strategy.operator = "readings"
    values = list(range(len(moments)))
    for former in (None, [1] * len(values)):
        with pytest.raises(UserCodeError) as refused:
            strategy.timed(Batch(values, former))
        assert refused.value.rule.endswith("in milliseconds, an int of 64 bits")
        assert refused.value.found == f"{moments[-1]!r} of type {type(moments[-1]).__name__}; record {values[-1]}"
        where, cure = str(refused.value.where), str(refused.value.cure)
        assert where.startswith("timestamp assigner of operator 'readings', ") and f"{__file__}:" in where
        assert "in timestamp_assigner" in where and "int(seconds * 1000)" in cure


def test_times_at_the_ends_of_64_bits_numpy_ints_and_floats_become_ints() -> None:
    class Same:
        kind, out_of_orderness_ms, idleness_ms = "monotonous", 0, None

        def timestamp_assigner(self, value: Any, former: int) -> Any:
            return value

    batch = Strategy(Same()).timed(Batch([np.int64(5), True, 1.5, (1 << 63) - 1, -(1 << 63)]))
    assert [repr(time) for time in batch.time_list() or ()] == ["5", "1", "1", str((1 << 63) - 1), str(-(1 << 63))]
    assert Strategy(Same()).timed(Batch([])).times == []
