"""Programs for the simulation, each with a plain Python model of what it must put out."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tests.simulation.observer import (
    Cause,
    Coverage,
    Output,
    Outside,
    OutsideTransactions,
    StateProbe,
    covers,
    file_pages,
    hidden_files,
    ledger_pages,
    staged_pages,
)
from tests.simulation.scenario import Place, Scenario
from tests.sinks import LedgerSink
from tests.sources import At, Pause, ScriptedSource
from tidegate.common.time import Duration
from tidegate.common.typeinfo import Types
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.connectors.files.bucket_assigners import BucketAssigner, RollingPolicy
from tidegate.connectors.files.sink import FileSink
from tidegate.connectors.functions.two_phase_commit import TwoPhaseCommitSink
from tidegate.graph.transformation import Input, OutputTag, Partitioning, Ship, Transformation
from tidegate.operators.contracts.sink import Sink
from tidegate.operators.contracts.specs import (
    FilterSpec,
    MapSpec,
    ProcessSpec,
    ReduceSpec,
    SinkSpec,
    SourceSpec,
    TimestampsSpec,
)
from tidegate.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

SIDE = OutputTag("side")
DISORDER_MS = 20
WINDOW_MS = 40
UID, SPLIT, POSITION, KEY, TIME, AMOUNT, CHECK = range(7)
"""Fields of an input record: the first three say where it came from and are unique."""


def record(uid: str, split: int, position: int, keys: int = 3) -> list[Any]:
    """Keys belong to one split, so the order of a key's records is the split's, whatever the schedule."""
    seed = zlib.crc32(f"{uid}/{split}/{position}".encode())
    timestamp = position * 15 + seed % DISORDER_MS
    fields = [uid, split, position, f"{uid}{split}{seed % keys}", timestamp, seed % 11]
    return [*fields, checksum(fields)]


def checksum(fields: list[Any]) -> int:
    return zlib.crc32(repr(fields).encode())


def verified(value: list[Any]) -> list[Any]:
    assert value[CHECK] == checksum(value[:CHECK]), f"damaged on the way: {value}"
    return value


def source_of(uid: str, splits: int, records: int, limit: int, pauses: dict[int, int] | None = None) -> ScriptedSource:
    scripts = []
    for split in range(splits):
        steps: list[Any] = []
        for position in range(records):
            if pauses and position in pauses:
                steps.append(Pause(pauses[position]))
            value = record(uid, split, len(steps))
            steps.append(At(value[TIME], value))
        if pauses and records in pauses:
            steps.append(Pause(pauses[records]))
        scripts.append(steps)
    source = ScriptedSource(*scripts)
    source.initial_limit = source.maximum_limit = limit
    return source


def inputs_of(source: ScriptedSource) -> list[list[Any]]:
    return [step.value for script in source.scripts for step in script if isinstance(step, At)]


def by_key(values: list[list[Any]]) -> dict[str, list[list[Any]]]:
    grouped = defaultdict(list)
    for value in values:
        grouped[value[KEY]].append(value)
    return grouped


def key_of(value: list[Any]) -> str:
    return value[KEY]


def cause_of(value: list[Any]) -> Cause | None:
    """Outputs of a single input begin with where it came from; those of timers begin with a word."""
    return None if value[0] == "timer" else (value[UID], value[SPLIT], value[POSITION])


def output_key(value: list[Any]) -> Any:
    return (value[0] == "timer", value[KEY] if value[0] != "timer" else value[1])


def output_order(value: list[Any]) -> Any:
    return value[POSITION] if value[0] != "timer" else value[2]


HASH = Partitioning(Ship.HASH, key_of, Types.STRING())
BOUNDED = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(DISORDER_MS))


class JsonLines:
    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode()


def file_sink(directory: str, policy: RollingPolicy) -> Sink:
    builder = FileSink.for_row_format(directory, JsonLines()).with_rolling_policy(policy)
    return builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()


def ledger_output(place: Place, name: str, expected: list[Any], **options: Any) -> Output:
    at = place.outside(name)
    return Output(name, expected, lambda: ledger_pages(at), lambda: staged_pages(at), cause_of, **options)


def file_output(place: Place, name: str, expected: list[Any], **options: Any) -> Output:
    at = place.outside(name)
    return Output(name, expected, lambda: file_pages(at), lambda: hidden_files(at), cause_of, **options)


def transaction_output(place: Place, name: str, expected: list[Any], **options: Any) -> Output:
    at = place.outside(name)

    def left() -> list[str]:
        outside = Outside.at(at)
        return [*outside.violations, *outside.open]

    return Output(name, expected, lambda: Outside.at(at).pages(), left, cause_of, **options)


ORDERED = {"key": output_key, "order": output_order}


# -- counts by key, event-time windows by timers, a side output ------------------------------------------------------------


class CountAndWindow:
    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.total = context.get_state(ValueStateDescriptor("total", None))
        self.windows = context.get_map_state(MapStateDescriptor("windows", Types.LONG(), Types.LONG()))
        self.watermark = context.get_state(ValueStateDescriptor("watermark", Types.LONG()))

    def process_element(self, value: list[Any], ctx: Any) -> Iterator[Any]:
        verified(value)
        watermark = ctx.timer_service().current_watermark()
        assert watermark >= (self.watermark.value() or watermark), "event time went back"
        self.watermark.update(watermark)
        count, total = (self.count.value() or 0) + 1, (self.total.value() or 0) + value[AMOUNT]
        self.count.update(count)
        self.total.update(total)
        end = window_end(value)
        self.windows.put(end, (self.windows.get(end) or 0) + value[AMOUNT])
        ctx.timer_service().register_event_time_timer(end)
        yield [*value[:TIME], count, total]
        if count % 3 == 0:
            yield SIDE, [*value[:TIME], "third", count]

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        amount = self.windows.get(timestamp)
        self.windows.remove(timestamp)
        yield ["timer", ctx.get_current_key(), timestamp, amount]


def window_end(value: list[Any]) -> int:
    return (value[TIME] // WINDOW_MS + 1) * WINDOW_MS


class KeyedCount(Scenario):
    name = "keyed_count"

    def __init__(self) -> None:
        self.source = source_of("s", splits=2, records=14, limit=4)
        self.main, self.side = [], []
        for key, values in by_key(inputs_of(self.source)).items():
            total = 0
            windows: dict[Any, int] = defaultdict(int)
            for count, value in enumerate(values, start=1):
                total += value[AMOUNT]
                windows[window_end(value)] += value[AMOUNT]
                self.main.append([*value[:TIME], count, total])
                if count % 3 == 0:
                    self.side.append([*value[:TIME], "third", count])
            self.main += [["timer", key, end, amount] for end, amount in windows.items()]

    def transformations(self, place: Place) -> list[Transformation]:
        policy = RollingPolicy.on_checkpoint_rolling_policy()
        return [
            Transformation(0, "source", SourceSpec(self.source, BOUNDED), uid="s"),
            Transformation(1, "count", ProcessSpec(CountAndWindow()), (Input(0, HASH),), uid="count"),
            Transformation(2, "main", SinkSpec(LedgerSink(place.outside("main"))), (Input(1),), uid="main"),
            Transformation(
                3, "side", SinkSpec(file_sink(place.outside("side"), policy)), (Input(1, tag="side"),), uid="side"
            ),
        ]

    def outputs(self, place: Place) -> list[Output]:
        return [
            ledger_output(place, "main", self.main, in_order=True, **ORDERED),
            file_output(place, "side", self.side, **ORDERED),
        ]

    def probe(self) -> StateProbe:
        return StateProbe("count", ValueStateDescriptor("count", Types.LONG()), self._counts)

    def _counts(self, coverage: Coverage) -> dict[Any, Any]:
        grouped = by_key(inputs_of(self.source)).items()
        return {
            key: sum(covers(coverage, c) for v in values if (c := cause_of(v)) is not None) or None
            for key, values in grouped
        }


# -- two sources, union, fan-out to two sinks -------------------------------------------------------------------------------


class TwoSources(Scenario):
    name = "two_sources"

    def __init__(self) -> None:
        self.one = source_of("a", splits=2, records=10, limit=4)
        self.other = source_of("b", splits=1, records=16, limit=3)
        self.expected = [value[:TIME] for value in [*inputs_of(self.one), *inputs_of(self.other)]]

    def transformations(self, place: Place) -> list[Transformation]:
        spread, transactions = Partitioning(Ship.REBALANCE), OutsideTransactions(place.outside("transactions"))
        return [
            Transformation(0, "a", SourceSpec(self.one), uid="a"),
            Transformation(1, "b", SourceSpec(self.other), uid="b", parallelism=1),
            Transformation(
                2, "check", MapSpec(lambda v: verified(v)[:TIME]), (Input(0, spread), Input(1, spread)), uid="check"
            ),
            Transformation(3, "ledger", SinkSpec(LedgerSink(place.outside("ledger"))), (Input(2),), uid="ledger"),
            Transformation(
                4,
                "transactions",
                SinkSpec(TwoPhaseCommitSink(transactions)),
                (Input(2, Partitioning(Ship.GLOBAL)),),
                uid="transactions",
                parallelism=1,
            ),
        ]

    def outputs(self, place: Place) -> list[Output]:
        return [
            ledger_output(place, "ledger", self.expected),
            transaction_output(place, "transactions", self.expected),
        ]


# -- list, map, reducing and aggregating state, with deletions; files that stay open over checkpoints -----------------------


class Average:
    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [accumulator[0] + value, accumulator[1] + 1]

    def get_result(self, accumulator: list[int]) -> int:
        return accumulator[0] // max(1, accumulator[1])

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return [a[0] + b[0], a[1] + b[1]]


class ManyStates:
    def open(self, context: Any) -> None:
        self.list = context.get_list_state(ListStateDescriptor("list", Types.LONG()))
        self.map = context.get_map_state(MapStateDescriptor("map", Types.LONG(), Types.LONG()))
        self.sum = context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()))
        self.mean = context.get_aggregating_state(AggregatingStateDescriptor("mean", Average(), None))

    def process_element(self, value: list[Any], ctx: Any) -> Iterator[Any]:
        amount = verified(value)[AMOUNT]
        self.list.add(amount)
        self.map.put(amount % 3, (self.map.get(amount % 3) or 0) + 1)
        self.sum.add(amount)
        self.mean.add(amount)
        listed, mapped = list(self.list.get()), sorted([key, count] for key, count in self.map.items())
        yield [*value[:TIME], listed, mapped, self.sum.get(), self.mean.get()]
        if len(listed) == 4:
            for state in (self.list, self.map, self.sum, self.mean):
                state.clear()


class States(Scenario):
    name = "states"

    def __init__(self) -> None:
        self.source = source_of("s", splits=3, records=12, limit=3)
        self.expected = []
        for values in by_key(inputs_of(self.source)).values():
            for start in range(0, len(values), 4):
                for end in range(start + 1, min(start + 4, len(values)) + 1):
                    self.expected.append(_state_row(values[start:end]))

    def transformations(self, place: Place) -> list[Transformation]:
        policy = RollingPolicy.default_rolling_policy(part_size=200)
        return [
            Transformation(0, "source", SourceSpec(self.source), uid="s"),
            Transformation(1, "states", ProcessSpec(ManyStates()), (Input(0, HASH),), uid="states"),
            Transformation(2, "files", SinkSpec(file_sink(place.outside("files"), policy)), (Input(1),), uid="files"),
        ]

    def outputs(self, place: Place) -> list[Output]:
        return [file_output(place, "files", self.expected, every_checkpoint=False, **ORDERED)]


def _state_row(values: list[list[Any]]) -> list[Any]:
    amounts = [value[AMOUNT] for value in values]
    counts = sorted([rest, sum(a % 3 == rest for a in amounts)] for rest in {a % 3 for a in amounts})
    return [*values[-1][:TIME], amounts, counts, sum(amounts), sum(amounts) // len(amounts)]


# -- processing-time timers --------------------------------------------------------------------------------------------------


class Delayed:
    """Every record comes out again, some processing time later."""

    def open(self, context: Any) -> None:
        self.waiting = context.get_list_state(ListStateDescriptor("waiting", None))

    def process_element(self, value: list[Any], ctx: Any) -> None:
        self.waiting.add(verified(value)[:TIME])
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 25)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        waiting = list(self.waiting.get())
        self.waiting.clear()
        yield from (["timer", value[KEY], value[POSITION]] for value in waiting)


class ProcessingTimers(Scenario):
    """A pause at the end lets all timers fire before the input is over."""

    name = "processing_timers"

    def __init__(self) -> None:
        self.source = source_of("s", splits=2, records=10, limit=4, pauses={3: 40, 6: 150, 10: 1000})
        self.expected = [["timer", value[KEY], value[POSITION]] for value in inputs_of(self.source)]

    def transformations(self, place: Place) -> list[Transformation]:
        transactions = OutsideTransactions(place.outside("transactions"))
        return [
            Transformation(0, "source", SourceSpec(self.source), uid="s"),
            Transformation(1, "delayed", ProcessSpec(Delayed()), (Input(0, HASH),), uid="delayed"),
            Transformation(2, "out", SinkSpec(TwoPhaseCommitSink(transactions)), (Input(1),), uid="out"),
        ]

    def outputs(self, place: Place) -> list[Output]:
        return [transaction_output(place, "transactions", self.expected, **ORDERED)]


# -- three levels: an assigner inside a chain, a rolling reduce, windows after a second shuffle ------------------------------


class WindowMaximum:
    """The greatest running total of a window of event time."""

    def open(self, context: Any) -> None:
        self.windows = context.get_map_state(MapStateDescriptor("windows", Types.LONG(), Types.LONG()))

    def process_element(self, value: list[Any], ctx: Any) -> None:
        end = window_end(value)
        self.windows.put(end, max(self.windows.get(end) or 0, value[AMOUNT]))
        ctx.timer_service().register_event_time_timer(end)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        greatest = self.windows.get(timestamp)
        self.windows.remove(timestamp)
        yield ["timer", ctx.get_current_key(), timestamp, greatest]


def running_total(total: list[Any], value: list[Any]) -> list[Any]:
    return [*value[:AMOUNT], total[AMOUNT] + value[AMOUNT], 0]


class ReducedWindows(Scenario):
    name = "reduced_windows"

    def __init__(self) -> None:
        self.source = source_of("s", splits=3, records=9, limit=6)
        self.expected = []
        for key, values in by_key([v for v in inputs_of(self.source) if v[AMOUNT] != 5]).items():
            total = 0
            windows: dict[Any, int] = defaultdict(int)
            for value in values:
                total += value[AMOUNT]
                windows[window_end(value)] = max(windows[window_end(value)], total)
            self.expected += [["timer", key, end, greatest] for end, greatest in windows.items()]

    def transformations(self, place: Place) -> list[Transformation]:
        marks = BOUNDED.with_timestamp_assigner(lambda value, _: value[TIME])
        return [
            Transformation(0, "source", SourceSpec(self.source), uid="s"),
            Transformation(1, "most", FilterSpec(lambda v: verified(v)[AMOUNT] != 5), (Input(0),), uid="most"),
            Transformation(2, "times", TimestampsSpec(marks), (Input(1),), uid="times"),
            Transformation(3, "totals", ReduceSpec(running_total), (Input(2, HASH),), uid="totals"),
            Transformation(4, "maximum", ProcessSpec(WindowMaximum()), (Input(3, HASH),), uid="maximum"),
            Transformation(5, "out", SinkSpec(LedgerSink(place.outside("out"))), (Input(4),), uid="out"),
        ]

    def outputs(self, place: Place) -> list[Output]:
        return [ledger_output(place, "out", self.expected, in_order=True, **ORDERED)]


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario for scenario in (KeyedCount(), TwoSources(), States(), ProcessingTimers(), ReducedWindows())
}
