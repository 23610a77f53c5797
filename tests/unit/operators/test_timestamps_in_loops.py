"""An assigner of timestamps inside of a loop: the same times, watermarks and errors as for a batch, and JSON in part before it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.functions import CountRecords
from tests.simulation.executor import Simulated
from tidegate.common import Duration, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import ProcessFunction, ProcessWindowFunction
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.operators.loop import fast_json

LINES = [json.dumps({"kind": n % 3, "bid": {"id": n % 5, "time": 100 * n, "more": [n]}}) for n in range(300)]


@pytest.fixture(autouse=True)
def _fast_json() -> Iterator[None]:
    with fast_json.switched_on():  # as in a worker
        yield


class OfBid(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> Any:
        return value["time"]


class WithWindow(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, next(iter(elements)), context.window().start


class Times(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, ctx.timestamp()


def bids(env: Any, lines: list[str]) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(250)).with_timestamp_assigner(OfBid())
    parsed = env.from_collection(lines, Types.STRING()).map(json.loads).filter(lambda e: e["kind"] != 1)
    return parsed.map(lambda e: e["bid"]).assign_timestamps_and_watermarks(strategy)


def collected(stream: Any) -> list[Any]:
    with stream.execute_and_collect() as found:
        return sorted(found, key=repr)


@pytest.mark.parametrize("keys", [{}, {"tidegate.functions.inline": False}, {"tidegate.json.only-used-fields": False}])
def test_windows_after_an_assigner_in_a_loop(simulated: Simulated, keys: dict[str, Any]) -> None:
    windows = (
        bids(simulated(**{"parallelism.default": 1, "tidegate.chunk.records": 16, **keys}), LINES)
        .map(lambda b: b["id"], output_type=Types.LONG())
        .key_by(lambda number: number, key_type=Types.LONG())
        .window(TumblingEventTimeWindows.of(Time.seconds(1)))
        .aggregate(CountRecords(), WithWindow())
    )
    expected: dict[tuple[int, int], int] = {}
    for line in map(json.loads, LINES):
        if line["kind"] != 1:
            place = line["bid"]["id"], line["bid"]["time"] // 1000 * 1000
            expected[place] = expected.get(place, 0) + 1
    assert collected(windows) == sorted(((key, n, start) for (key, start), n in expected.items()), key=repr)


def test_readers_beside_the_assigner_keep_their_own_times(simulated: Simulated) -> None:
    class Doubled(TimestampAssigner):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return 2 * record_timestamp

    first = bids(simulated(**{"parallelism.default": 1}), LINES[:9]).map(lambda b: b["id"])
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Doubled())
    second = first.assign_timestamps_and_watermarks(strategy).process(Times())
    found = collected(second.union(first.process(Times())))
    times = [
        (json.loads(line)["bid"]["id"], json.loads(line)["bid"]["time"])
        for n, line in enumerate(LINES[:9])
        if n % 3 != 1
    ]
    assert found == sorted([*times, *((number, 2 * time) for number, time in times)], key=repr)


@pytest.mark.parametrize(
    ("time", "found"),
    [
        (2.9, None),
        (True, None),
        ("soon", "'soon' of type str"),
        (None, "None of type NoneType"),
        (1 << 63, "9223372036854775808 of type int"),
    ],
)
def test_times_that_are_no_numbers_of_64_bits_name_the_whole_record(
    simulated: Simulated, time: Any, found: str | None
) -> None:
    line = json.dumps({"kind": 0, "bid": {"id": 7, "time": time, "more": "whole"}})
    stream = bids(simulated(**{"parallelism.default": 1}), [LINES[0], line]).map(lambda b: b["id"]).process(Times())
    if found is None:
        assert collected(stream) == [(0, 0), (7, int(time))]
        return
    with pytest.raises(Exception, match="A timestamp assigner must return") as raised:
        collected(stream)
    assert f"{found}; record {{'id': 7, 'more': 'whole', 'time': " in str(raised.value)


def test_an_error_of_the_assigner_names_operator_line_and_record(simulated: Simulated) -> None:
    line = json.dumps({"kind": 0, "bid": {"id": 7, "more": "whole"}})
    with pytest.raises(Exception, match="KeyError: 'time'") as raised:
        collected(bids(simulated(**{"parallelism.default": 1}), [line]).map(lambda b: b["id"]))
    text = str(raised.value)
    assert "timestamp assigner of operator" in text and "in extract_timestamp" in text
    assert "record {'id': 7, 'more': 'whole'}" in text
