"""Window join and co-group, against a plain model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.unit.windows.window_jobs import WindowJob, cut, lives, timed
from tidegate.base.errors import ArgumentTypeError, ProgramError
from tidegate.common import Time, Types
from tidegate.datastream import DataStream
from tidegate.datastream.functions import CoGroupFunction, FlatJoinFunction, JoinFunction
from tidegate.datastream.window import TumblingEventTimeWindows

WINDOWS = TumblingEventTimeWindows.of(Time.milliseconds(10))


def records(seed: int) -> list[Any]:
    chance = random.Random(seed)
    return [(f"k{chance.randrange(3)}", n * 2, n) for n in range(40)]


class Pair(JoinFunction):
    def join(self, first: Any, second: Any) -> Any:
        return [first[0], first[2], second[2]]


class PairsOfEvenNumbers(FlatJoinFunction):
    def join(self, first: Any, second: Any) -> Any:
        if first[2] % 2 == 0:
            yield [first[0], first[2], second[2]]


class Both(CoGroupFunction):
    def co_group(self, first: Any, second: Any) -> Any:
        yield [sorted(f[2] for f in first), sorted(s[2] for s in second)]


def two_streams(stream: DataStream) -> tuple[DataStream, DataStream]:
    """Even and odd tens of the numbers."""
    return stream.filter(lambda r: r[2] % 3 != 0), stream.filter(lambda r: r[2] % 3 == 0)


def joined(how: str, function: Any) -> Any:
    def build(stream: DataStream) -> DataStream:
        first, second = two_streams(stream)
        both = first.join(second) if how == "join" else first.co_group(second)
        return both.where(lambda r: r[0], Types.STRING()).equal_to(lambda r: r[0]).window(WINDOWS).apply(function)

    return build


def model(found: list[Any]) -> dict[Any, tuple[list[Any], list[Any]]]:
    windows: dict[Any, tuple[list[Any], list[Any]]] = {}
    for key, time, number in found:
        sides = windows.setdefault((key, time // 10), ([], []))
        sides[number % 3 == 0].append(number)
    return windows


@pytest.mark.parametrize(
    "function",
    [Pair(), PairsOfEvenNumbers(), lambda a, b: [a[0], a[2], b[2]]],
    ids=["function", "flat function", "lambda"],
)
def test_a_join_gives_the_pairs_of_each_key_and_window(function: Any, tmp_path: Path) -> None:
    found = records(1)
    steps = cut(timed(found), tmp_path, 11, 25)
    results = lives(WindowJob(tmp_path, joined("join", function), steps, limit=3), (2, 3, 1))
    even = isinstance(function, FlatJoinFunction)
    assert sorted(results) == sorted(
        [key, a, b] for (key, _), (one, two) in model(found).items() for a in one for b in two if not even or a % 2 == 0
    )


def test_a_co_group_gives_the_records_of_both_also_where_one_has_none(tmp_path: Path) -> None:
    found = records(2)
    results = WindowJob(tmp_path, joined("co_group", Both()), timed(found)).run(2)
    expected = sorted([list(one), list(two)] for one, two in model(found).values())
    assert sorted(results) == expected
    assert any(not one or not two for one, two in expected)


def test_the_steps_of_a_join_come_in_their_order(tmp_path: Path) -> None:
    def build(stream: DataStream) -> DataStream:
        return stream.join(stream).window(WINDOWS).apply(Pair())

    with pytest.raises(ProgramError, match=r"where\(...\) and equal_to\(...\) come before window"):
        WindowJob(tmp_path, build, timed(records(1))).program(1)


def test_a_co_group_takes_a_co_group_function(tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError, match="apply takes a CoGroupFunction object"):
        WindowJob(tmp_path, joined("co_group", Pair()), timed(records(1))).program(1)
