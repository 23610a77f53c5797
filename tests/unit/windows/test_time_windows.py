"""Tumbling, sliding and session windows by event time: results against a plain model, however the input is cut."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.windows.window_jobs import WindowJob, cut, lives, timed
from tidegate.common import Time, Types
from tidegate.datastream import AggregateFunction, DataStream, ProcessWindowFunction, WindowFunction
from tidegate.datastream.window import (
    EventTimeSessionWindows,
    EventTimeTrigger,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)

Records = list[tuple[Any, int, int]]
DISORDER = 15


def records(seed: int, count: int = 120, keys: int = 4, spread: int = 4) -> Records:
    """Each at most ``DISORDER`` behind the ones before it, so none is late."""
    chance = random.Random(seed)
    found: Records = []
    time = -50
    for number in range(count):
        time += chance.choice((0, 0, 1, spread, 10))
        found.append((f"key-{chance.randrange(keys)}", time - chance.randrange(DISORDER), number))
    return found


class Sums(AggregateFunction):
    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value[2], accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Unmerged(Sums):
    """As many write it: Flink never calls merge for these windows."""

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        raise NotImplementedError


class MutableSums(AggregateFunction):
    def create_accumulator(self) -> Any:
        return [0, 0]

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator[0] += value[2]
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        acc_a[0] += acc_b[0]
        acc_a[1] += acc_b[1]
        return acc_a


class Labelled(ProcessWindowFunction):
    """Key, start, end, numbers in their order."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        window = context.window()
        assert context.current_watermark() >= window.max_timestamp()
        yield [key, window.start, window.end, [e[2] for e in elements]]


class LabelledSum(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        (total,) = elements
        yield [key, context.window().start, context.window().end, list(total)]


class Applied(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Any) -> Any:
        return [[key, window.start, window.end, [e[2] for e in inputs]]]


def tumbling(size: int, offset: int) -> Callable[[int], list[tuple[int, int]]]:
    return sliding(size, size, offset)


def sliding(size: int, slide: int, offset: int) -> Callable[[int], list[tuple[int, int]]]:
    def windows(time: int) -> list[tuple[int, int]]:
        starts = range(-1000 + offset - (-1000 + offset) % slide + offset % slide - slide, 3000, slide)
        return [(start, start + size) for start in starts if start <= time < start + size]

    return windows


def by_window(found: Records, windows: Callable[[int], list[tuple[int, int]]]) -> dict[Any, list[int]]:
    """(key, start, end) -> numbers, in the order in which they came."""
    model: dict[Any, list[int]] = defaultdict(list)
    for key, time, number in found:
        for start, end in windows(time):
            model[key, start, end].append(number)
    return model


def by_session(found: Records, gap: int) -> dict[Any, list[int]]:
    model: dict[Any, list[int]] = {}
    for key in {key for key, _, _ in found}:
        mine = sorted((time, number) for k, time, number in found if k == key)
        session = [mine[0]]
        for entry in [*mine[1:], None]:
            if entry is not None and entry[0] <= session[-1][0] + gap:
                session.append(entry)
                continue
            numbers = sorted(number for _, number in session)
            model[key, session[0][0], session[-1][0] + gap] = numbers
            session = [entry] if entry is not None else []
    return model


CASES: dict[str, tuple[WindowAssigner[Any, Any], Any]] = {
    "tumbling": (TumblingEventTimeWindows.of(Time.milliseconds(20)), tumbling(20, 0)),
    "tumbling-offset": (TumblingEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(7)), tumbling(20, 7)),
    "tumbling-negative": (TumblingEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(-8)), tumbling(20, -8)),
    "sliding": (SlidingEventTimeWindows.of(Time.milliseconds(30), Time.milliseconds(10)), sliding(30, 10, 0)),
    "sliding-uneven": (SlidingEventTimeWindows.of(Time.milliseconds(25), Time.milliseconds(10)), sliding(25, 10, 0)),
    "sliding-offset": (
        SlidingEventTimeWindows.of(Time.milliseconds(25), Time.milliseconds(10), Time.milliseconds(-3)),
        sliding(25, 10, -3),
    ),
    "sliding-gaps": (SlidingEventTimeWindows.of(Time.milliseconds(10), Time.milliseconds(25)), sliding(10, 25, 0)),
    "session": (EventTimeSessionWindows.with_gap(Time.milliseconds(8)), 8),
}


def model_of(case: str, found: Records) -> dict[Any, list[int]]:
    _, shape = CASES[case]
    return by_session(found, shape) if isinstance(shape, int) else by_window(found, shape)


def key_of(record: Any) -> Any:
    return record[0]


def keyed(stream: DataStream, case: str) -> Any:
    return stream.key_by(key_of, Types.STRING()).window(CASES[case][0])


BUILDS: dict[str, Callable[[Any], DataStream]] = {
    "aggregate": lambda windows: windows.aggregate(Sums(), LabelledSum()),
    "aggregate-typed": lambda windows: windows.aggregate(
        Sums(), LabelledSum(), accumulator_type=Types.TUPLE([Types.LONG(), Types.LONG()])
    ),
    "aggregate-mutable": lambda windows: windows.aggregate(MutableSums(), LabelledSum()),
    "process": lambda windows: windows.process(Labelled()),
    "apply": lambda windows: windows.apply(Applied()),
    "general": lambda windows: windows.trigger(PurgingTrigger.of(EventTimeTrigger())).aggregate(Sums(), LabelledSum()),
    "late-allowed": lambda windows: windows.allowed_lateness(40).aggregate(Sums(), LabelledSum()),
}


def expected(case: str, build: str, found: Records) -> list[Any]:
    model = model_of(case, found)
    if build in ("process", "apply"):
        return sorted([*window, numbers] for window, numbers in model.items())
    return sorted([*window, [sum(numbers), len(numbers)]] for window, numbers in model.items())


def normal(results: list[Any], build: str) -> list[Any]:
    """Two splits may be mixed in any order, and merged sessions too."""
    return sorted([*r[:3], sorted(r[3]) if build in ("process", "apply") else r[3]] for r in results)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("case", CASES)
def test_windows_give_what_the_model_gives(case: str, build: str, tmp_path: Path) -> None:
    found = records(3, count=80)
    job = WindowJob(tmp_path, lambda s: BUILDS[build](keyed(s, case)), timed(found), disorder_ms=DISORDER)
    assert normal(job.run(2), build) == expected(case, build, found)


@pytest.mark.parametrize("build", ["aggregate-typed", "aggregate-mutable", "process", "general", "late-allowed"])
@pytest.mark.parametrize("case", ["tumbling", "sliding-uneven", "session"])
@pytest.mark.parametrize("limit", [1, 1000])
def test_results_do_not_depend_on_rounds_parallelism_restarts_and_rescales(
    case: str, build: str, limit: int, tmp_path: Path
) -> None:
    found = records(5, count=60)
    steps = cut(timed(found), tmp_path, 20, 30, 45) if limit == 1 else timed(found)
    job = WindowJob(
        tmp_path, lambda s: BUILDS[build](keyed(s, case)), steps, disorder_ms=DISORDER, limit=3 if limit == 1 else limit
    )
    results = lives(job, (2, 3, 1, 2)) if limit == 1 else job.run(3)
    assert normal(results, build) == expected(case, build, found)
