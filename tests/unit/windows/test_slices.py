"""Slices of windows, and groups of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.windows.window_jobs import WindowJob, cut, lives, timed
from tidegate.common import Time, Types
from tidegate.datastream import AggregateFunction, DataStream, ProcessWindowFunction
from tidegate.datastream.window import SlidingEventTimeWindows
from tidegate.operators.windows.slices import Group, Slices


def inside(slices: Slices, piece: Group | list[int]) -> list[int]:
    if isinstance(piece, Group):
        return [start for half in slices.halves(piece) for start in inside(slices, half)]
    return piece


@given(st.integers(1, 300), st.integers(1, 40), st.integers(-5, 5), st.integers(-20, 20))
def test_the_pieces_of_a_window_are_its_slices(size: int, slide: int, offset: int, number: int) -> None:
    slices, start = Slices(size, slide, offset % slide), number * slide + offset % slide
    found: list[int] = []
    time = start
    while time < start + min(size, slide) or (found and time < start + size):
        found.append(slices.around(time).start)
        time = slices.around(time).end
    assert slices.of_window(start) == found
    pieces = list(slices.pieces_of(start))
    assert [slice_ for piece in pieces for slice_ in inside(slices, piece)] == found
    for piece in pieces:
        if isinstance(piece, Group):
            assert all(piece in slices.groups_of(slice_) for slice_ in inside(slices, piece))


def test_a_window_of_many_slices_is_few_pieces_that_others_have_too() -> None:
    slices = Slices(60, 1, 0)
    pieces = [list(slices.pieces_of(start)) for start in range(-100, 100)]
    assert max(map(len, pieces)) <= 10
    groups = [piece for some in pieces for piece in some if isinstance(piece, Group)]
    assert len(set(groups)) * 2 < len(groups)


class Sum(AggregateFunction):
    """Keeps a list that it changes, in ``add`` and in ``merge``."""

    def create_accumulator(self) -> list[int]:
        return [0]

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        accumulator[0] += value[2]
        return accumulator

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        acc_a[0] += acc_b[0]
        return acc_a

    def get_result(self, accumulator: list[int]) -> int:
        return accumulator[0]


class Placed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        [total] = elements
        yield [key, context.window().start, total]


def build(stream: DataStream) -> DataStream:
    windows = stream.key_by(lambda r: r[0], Types.STRING()).window(
        SlidingEventTimeWindows.of(Time.milliseconds(40), Time.milliseconds(2))
    )
    return windows.aggregate(Sum(), Placed())


@pytest.mark.parametrize("parallelisms", [[1], [2, 3, 1]])
@pytest.mark.parametrize("limit", [3, 50])
def test_what_slices_come_to_is_right_through_rounds_and_lives(
    parallelisms: list[int], limit: int, tmp_path: Path
) -> None:
    records = [(f"k{n % 3}", n * 3 // 2, n) for n in range(120)]
    steps = timed(records) if len(parallelisms) == 1 else cut(timed(records), tmp_path, 40, 80)
    job = WindowJob(tmp_path, build, steps, limit=limit)
    found = lives(job, parallelisms) if len(parallelisms) > 1 else job.run(1)
    expected: dict[tuple[str, int], int] = {}
    for key, time, number in records:
        for start in range(time - time % 2, time - 40, -2):
            expected[key, start] = expected.get((key, start), 0) + number
    assert sorted(found) == sorted([key, start, total] for (key, start), total in expected.items())
