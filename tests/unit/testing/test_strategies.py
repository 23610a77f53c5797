"""The Hypothesis strategies for records with event times, and the pytest plugin."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.common import Time
from tidegate.datastream import OutputTag, ReduceFunction
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.testing import harness
from tidegate.testing.strategies import idle_gaps, in_order, late, out_of_order, records, skewed_keys, watermarks_of


def late_of(found: list[Any], bound: int) -> list[Any]:
    marks = watermarks_of(found, bound)
    return [one for one, before in zip(found[1:], marks, strict=False) if one.timestamp <= before]


@given(in_order(st.integers()))
def test_in_order(found: list[Any]) -> None:
    times = [record.timestamp for record in found]
    assert times == sorted(times)
    assert not late_of(found, 0) or len(set(times)) < len(times)


@given(out_of_order(st.integers(), 500))
def test_out_of_order_is_never_late(found: list[Any]) -> None:
    assert late_of(found, 500) == []


def test_late_records_occur() -> None:
    seen: list[int] = []

    @given(late(st.integers(), 500, 300, min_size=10))
    def look(found: list[Any]) -> None:
        seen.append(len(late_of(found, 500)))

    look()
    assert any(seen)
    assert not all(seen)


def test_gaps_and_skew_occur() -> None:
    steps: list[int] = []
    keys: list[str] = []

    @given(idle_gaps(st.integers(), 10_000, keys=skewed_keys("ab"), min_size=10))
    def look(found: list[Any]) -> None:
        times = [record.timestamp for record in found]
        steps.extend(b - a for a, b in pairwise(times))
        keys.extend(record.value[0] for record in found)

    look()
    assert max(steps) >= 10_000
    assert keys.count("a") > keys.count("b") > 0


class Sum(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1[0], value1[1] + value2[1]


@settings(max_examples=25)
@given(records(st.integers(0, 9), keys=skewed_keys(), out_of_orderness=50, lateness=200, most_step=40))
def test_every_record_is_in_a_window_or_late(found: list[Any]) -> None:
    tag = OutputTag("late")
    window = TumblingEventTimeWindows.of(Time.milliseconds(100))
    with harness(Sum(), key=lambda value: value[0], window=window, late_tag=tag, parallelism=2) as h:
        for record, watermark in zip(found, watermarks_of(found, 50), strict=True):
            h.process_element(*record)
            h.process_watermark(watermark)
        h.end_input()
        counted = sum(value for _, value in [*h.get_output(), *h.get_side_output(tag)])
    assert counted == sum(record.value[1] for record in found)


PLUGGED = """
from tidegate.datastream import MapFunction

class Double(MapFunction):
    def map(self, value):
        return 2 * value

def test_function(harness):
    h = harness(Double())
    h.process_element(2)
    assert h.get_output() == [4]

def test_program(mini_cluster):
    env = mini_cluster.environment(parallelism=1)
    assert mini_cluster.collect(env.from_collection([1, 2]).map(Double())) == [2, 4]
"""


def test_plugin_gives_fixtures_and_imports_tidegate_on_use(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(PLUGGED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    code = "import sys, tidegate.testing.pytest_plugin; print('tidegate.datastream' in sys.modules, 'hypothesis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
