"""F-strings and timestamps of whole batches: what Python gives for each record, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.executor import simulated_environment
from tests.unit.operators.test_arithmetic import INTS, LOW, check, in_columns
from tests.unit.operators.written_functions import written
from tidegate.common import WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import KeyedProcessFunction
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.operators.contracts.batch import Batch, ColumnBatch
from tidegate.operators.loop import rewrites
from tidegate.operators.loop.rewrites import fields
from tidegate.operators.loop.rewrites.arithmetic import check_arithmetic
from tidegate.operators.loop.rewrites.bodies import body_of
from tidegate.operators.loop.rewrites.rewrite import Refused

PIECES = st.sampled_from(
    ["{r[0]}", "{r[1]}", "{r[0] % 7}", "{r[1] // 3:05d}", "{r[0]:>8}", "{5}", "{{", "'", "\\\\", "key-", "ü"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=5), st.lists(st.tuples(INTS, INTS), min_size=1, max_size=6))
def test_an_f_string_gives_what_python_gives_or_nothing(pieces: list[str], batch: list[tuple[int, int]]) -> None:
    text = "".join(pieces)
    done = check(written(f'lambda r: (f"{text}", r[1])'), batch)
    assert done or "{r[" not in text or LOW in (n for record in batch for n in record)  # LOW % 7 is left to Python


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ("f'{x}'", [1.5, -0.0, float("inf"), 1e300, 0.1]),
        ("f'{x:.2f}|{x:e}'", [1.5, -0.0, 2.0]),
        ("f'<{x}>'", ["a", "", "{x}", "ü"]),
        ("f'{x == 2} {x > 1:d}'", [1, 2, 3]),
        ("str(x)", [1, -7, 1 << 62]),
        ("str(x)", [0.5, 1e16]),
        ("int(x) % 5", [1, -7, 1 << 62]),
    ],
)
def test_every_kind_of_column_can_be_put_into_a_text(text: str, batch: list[Any]) -> None:
    assert check(written(f"lambda x: ({text}, x)"), batch)


@pytest.mark.parametrize("text", ["f'{x:zz}'", "f'{x:,q}'", "str(t)", "f'{t}'", "int(1.5)", "f'text'"])
def test_what_does_not_fit_is_left_to_the_loop(text: str) -> None:
    assert in_columns(written(f"lambda x: ({text}, x)", t=(1, 2)), [1, 2, 3]) is None


def test_a_name_of_the_users_own_is_not_the_builtin() -> None:
    mine = written("lambda x: (str(x), int(x))", {"str": lambda x: x, "int": lambda x: "?"})
    assert in_columns(mine, [1, 2]) is None
    assert in_columns(written("lambda x: (str(x), x)", str=lambda x: x), [1, 2]) is None


@pytest.mark.parametrize("text", ["x + 'a'", "f'{x!r}'", "f'{x:{x}}'", "float(x)", "str(x, x)"])
def test_more_than_that_is_refused_or_left_to_the_loop(text: str) -> None:
    function = written(f"lambda x: {text}")
    try:
        check_arithmetic(body_of(function))
    except Refused:
        return
    assert in_columns(function, [1, 2, 3]) is None


def test_texts_of_a_narrow_range_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "_tables", {})
    function = written("lambda x: (f'key-{x % 5}', x)")
    batch = [*range(-20, 20)]
    found = [in_columns(function, batch) for _ in range(8)]
    assert all(one == [function(x) for x in batch] for one in found)
    first, again = found[-2], found[-1]
    assert first is not None and again is not None and first[3][0] is again[3][0]
    for width in range(1, 40):  # ranges that come and go
        check(written(f"lambda x: (f'{{x % {width}}}', x)"), batch)
    assert len(fields._tables) <= fields._MOST_TABLES


# -- timestamps ---------------------------------------------------------------------------------------------------------


class Hundredth(TimestampAssigner):
    def __init__(self, offset: Any) -> None:
        self.offset = offset

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value * 100 + self.offset)


def column_of(extract: Any) -> Any:
    return rewrites.prepare([extract]).column_of(extract)


def test_timestamps_of_a_batch_are_a_column() -> None:
    way = column_of(Hundredth(7).extract_timestamp)
    assert way(Batch(range(100)), -1).tolist() == [7 + 100 * n for n in range(100)]
    assert way(ColumnBatch.of_scalars(np.arange(64)), -1).dtype == np.int64


@pytest.mark.parametrize("values", [range(63), ["a"] * 64, [1.5] * 64, [(1, 2)] * 64, [1 << 62] * 64])
def test_timestamps_of_other_batches_are_left_to_the_assigner(values: Any) -> None:
    assert column_of(Hundredth(7).extract_timestamp)(Batch(values), -1) is None


def test_what_is_no_arithmetic_has_no_column() -> None:
    assert column_of(lambda value, before: print(value)) is None
    assert column_of(Hundredth("text").extract_timestamp)(Batch(range(100)), -1) is None


class Former(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value * 0 + record_timestamp


class Told(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value, ctx.timestamp()


@pytest.mark.parametrize("assigner", [Hundredth(3), Former()])
@pytest.mark.parametrize("at_source", [True, False])
def test_programs_see_the_same_times_with_columns_and_without(assigner: Any, at_source: bool, tmp_path: Path) -> None:
    def times(inline: str) -> list[Any]:
        keys: dict[str, Any] = {"tidegate.functions.inline": inline, "parallelism.default": 2}
        env = simulated_environment(tmp_path / inline, **keys)
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner)
        numbers = env.from_source(
            NumberSequenceSource(0, 399), strategy if at_source else WatermarkStrategy.no_watermarks(), "numbers"
        )
        timed = numbers if at_source else numbers.assign_timestamps_and_watermarks(strategy)
        keyed = timed.map(lambda x: (f"k{x % 3}", x)).key_by(lambda pair: pair[0])
        return sorted(keyed.process(Told()).execute_and_collect())

    with_columns = times("true")
    assert len(with_columns) == 400 and with_columns == times("false")
