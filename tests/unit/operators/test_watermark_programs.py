"""Event time in whole programs: the user's generators, progress within a round, sources that wait for each other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.simulation.executor import simulated_environment
from tests.sources import At, Fail, ScriptedSource
from tidegate.base.errors import ArgumentTypeError, JobFailedError, ProgramError
from tidegate.common import Duration, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import WatermarkGenerator, WatermarkOutput
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.datastream import (
    DataStream,
    KeyedProcessFunction,
    OutputTag,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.datastream.window import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from tidegate.testing.simulation.engine import Chances

HOUR = 3_600_000


FAULTY = Chances(die=0.1, zombie=0.1, rerun=0.1, lose_store=0.1)


def environment(directory: Path, **options: Any) -> StreamExecutionEnvironment:
    keys = {
        "execution.checkpointing.interval": "10 ms",
        "parallelism.default": 1,
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 1000,
        "restart-strategy.fixed-delay.delay": "1 ms",
        **options,
    }
    return simulated_environment(directory, seed=3, **keys)


class OnMarks(WatermarkGenerator):
    """A record that ends with "!" says how far event time has come; ``seen`` is the state."""

    def __init__(self) -> None:
        self.seen = 0

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        self.seen += 1
        if event[0] == "!":
            output.emit_watermark(event_timestamp + self.seen % 2)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        pass


class Lateness(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, ctx.timer_service().current_watermark()


def marked(records: int) -> list[Any]:
    """Records some of which come too late, seen from the marks between them."""
    draw = random.Random(7)
    moments = [max(0, n * 10 + draw.randrange(-40, 40)) for n in range(records)]
    return [("!" if draw.random() < 0.2 else "", moment, n) for n, moment in enumerate(moments)]


def lateness(directory: Path, where: str, **options: Any) -> list[Any]:
    env = environment(directory, **options)
    source = ScriptedSource([At(value[1], value) for value in marked(120)])
    strategy = WatermarkStrategy.for_generator(OnMarks)
    if where == "source":
        stream = env.from_source(source, strategy, "marked").set_parallelism(1)
    else:
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "marked").set_parallelism(1)
        stream = stream.assign_timestamps_and_watermarks(strategy).set_parallelism(1)
    return sorted(stream.key_by(lambda v: v[2] % 5).process(Lateness()).execute_and_collect())


def expected_lateness() -> list[Any]:
    """Flink's rule, in plain Python: a watermark stands exactly after the record whose ``on_event`` has emitted it."""
    out, watermark = [], -(1 << 63)
    for n, value in enumerate(marked(120)):
        out.append((value, watermark))
        if value[0] == "!":
            watermark = max(watermark, value[1] + (n + 1) % 2)
    return sorted(out)


@pytest.mark.parametrize("where", ["source", "assigner"])
@pytest.mark.parametrize("limit", [1, 7, 1000])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_watermark_stands_exactly_after_the_record_that_emitted_it(
    tmp_path: Path, where: str, limit: int, parallelism: int
) -> None:
    """However the input is cut into rounds, and in other subtasks too."""
    options = {"tidegate.round.max-records": limit, "parallelism.default": parallelism}
    assert lateness(tmp_path, where, **options) == expected_lateness()


class InThePast(KeyedProcessFunction):
    """Every record sets the same timer, after all watermarks."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(-1)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), ctx.timer_service().current_watermark()


def expected_firings() -> list[Any]:
    """Flink's rule, in plain Python: a timer in the past waits for the next watermark, and fires once."""
    out, watermark, waiting = [], -(1 << 63), set[int]()
    for n, value in enumerate(marked(120)):
        waiting.add(value[2] % 5)
        emitted = value[1] + (n + 1) % 2
        if value[0] == "!" and emitted > watermark:
            watermark = emitted
            out += [(key, watermark) for key in waiting]
            waiting.clear()
    return sorted([*out, *((key, (1 << 63) - 1) for key in waiting)])


@pytest.mark.parametrize("limit", [1, 7, 1000])
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("chances", [None, FAULTY], ids=["simulated", "faulty"])
def test_a_timer_in_the_past_fires_once_with_the_next_watermark(
    tmp_path: Path, limit: int, parallelism: int, chances: Chances | None
) -> None:
    """However the input is cut into rounds."""
    options = {"tidegate.round.max-records": limit, "parallelism.default": parallelism, "chances": chances}
    env = environment(tmp_path, **options)
    source = ScriptedSource([At(value[1], value) for value in marked(120)])
    stream = env.from_source(source, WatermarkStrategy.for_generator(OnMarks), "marked").set_parallelism(1)
    fired = stream.key_by(lambda v: v[2] % 5).process(InThePast()).execute_and_collect()
    assert sorted(fired) == expected_firings()


LATE = OutputTag("late")
ASSIGNERS = {
    "tumbling": TumblingEventTimeWindows.of(Time.milliseconds(30)),
    "sliding": SlidingEventTimeWindows.of(Time.milliseconds(40), Time.milliseconds(15)),
    "sessions": EventTimeSessionWindows.with_gap(Time.milliseconds(18)),
}


class Numbers(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        numbers = sorted(element[2] for element in elements)
        yield "window", key, repr(context.window()), numbers, context.current_watermark()


def windowed(directory: Path, assigner: str, limit: int, parallelism: int) -> list[Any]:
    env = environment(directory, **{"tidegate.round.max-records": limit, "parallelism.default": parallelism})
    source = ScriptedSource([At(value[1], value) for value in marked(120)])
    stream = env.from_source(source, WatermarkStrategy.for_generator(OnMarks), "marked").set_parallelism(1)
    windows = stream.key_by(lambda v: v[2] % 5).window(ASSIGNERS[assigner]).allowed_lateness(25)
    fired = windows.side_output_late_data(LATE).process(Numbers())
    late = fired.get_side_output(LATE).map(lambda v: ("late", *v))
    return sorted(map(repr, fired.union(late).execute_and_collect()))


@pytest.mark.parametrize("assigner", ASSIGNERS)
def test_which_records_are_late_for_a_window_does_not_depend_on_rounds(tmp_path: Path, assigner: str) -> None:
    one_by_one = windowed(tmp_path / "one", assigner, 1, 1)
    assert any("late" in result for result in one_by_one)
    assert windowed(tmp_path / "all", assigner, 1000, 3) == one_by_one


@pytest.mark.parametrize("where", ["source", "assigner"])
def test_the_generators_state_survives_failures(tmp_path: Path, where: str) -> None:
    options = {"tidegate.round.max-records": 5, "parallelism.default": 2, "chances": FAULTY}
    assert lateness(tmp_path, where, **options) == expected_lateness()


class Periodic(WatermarkGenerator):
    """Flink's example: the greatest timestamp, now and then."""

    def __init__(self) -> None:
        self.greatest = 0

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        self.greatest = max(self.greatest, event_timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self.greatest - 1)


class Timers(KeyedProcessFunction):
    """One timer an hour; counts how many are open at most, in the driver's process."""

    open_timers: ClassVar[set[tuple[Any, int]]] = set()
    most: ClassVar[int] = 0

    def process_element(self, value: Any, ctx: Any) -> Any:
        end = ctx.timestamp() // HOUR * HOUR + HOUR - 1
        ctx.timer_service().register_event_time_timer(end)
        Timers.open_timers.add((ctx.get_current_key(), end))
        Timers.most = max(Timers.most, len(Timers.open_timers))
        if ctx.timestamp() <= ctx.timer_service().current_watermark():
            yield "late", value

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        Timers.open_timers.discard((ctx.get_current_key(), timestamp))
        yield ctx.get_current_key(), timestamp


@pytest.mark.parametrize(
    "strategy", [WatermarkStrategy.for_monotonous_timestamps(), WatermarkStrategy.for_generator(Periodic)]
)
@pytest.mark.parametrize("splits", [1, 3])
def test_a_backfill_of_1000_hours_in_one_round_keeps_few_timers_open(
    tmp_path: Path, strategy: WatermarkStrategy, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two source subtasks, each with some splits over the whole time; the rows reach the keyed subtask in a random order."""
    monkeypatch.setattr(Timers, "__module__", __name__)  # by reference: the class counts in this process
    monkeypatch.setattr(Timers, "open_timers", set())
    monkeypatch.setattr(Timers, "most", 0)
    scripts = [[At(hour * HOUR + s, (s, hour)) for hour in range(1000)] for s in range(2 * splits)]
    source = ScriptedSource(*scripts)
    source.initial_limit = 10**6
    env = environment(tmp_path, **{"tidegate.chunk.records": 20})
    stream = env.from_source(source, strategy, "backfill").set_parallelism(2)
    result = sorted(stream.key_by(lambda v: v[0] % 2).process(Timers()).execute_and_collect())
    assert result == sorted((key, hour * HOUR + HOUR - 1) for key in (0, 1) for hour in range(1000))
    assert Timers.most < 200, "event time stood still within the round"
    assert not Timers.open_timers


@pytest.mark.parametrize("interleaves", [True, False])
def test_splits_of_one_round_wait_for_each_other(
    tmp_path: Path, interleaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a reader can only read them one after the other: no record is late that its own split does not make late."""
    from tests import sources

    monkeypatch.setattr(sources._ScriptReader, "interleaves", interleaves)
    scripts = [[At(n, (s, n)) for n in range(50)] for s in range(4)]
    env = environment(tmp_path, **{"tidegate.round.max-records": 1000})
    stream = env.from_source(ScriptedSource(*scripts), WatermarkStrategy.for_monotonous_timestamps(), "s")
    found = list(stream.key_by(lambda v: v[0]).process(Lateness()).execute_and_collect())
    assert len(found) == 200 and all(watermark < value[1] for value, watermark in found)


# -- idleness and the interval ---------------------------------------------------------------------------------------------


class Sleepy(Periodic):
    """Splits of even number say of themselves that they are idle."""

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        super().on_event(event, event_timestamp, output)
        if event[0] == 0:
            output.mark_idle()

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        if self.greatest > 5:
            super().on_periodic_emit(output)


def test_a_split_that_is_marked_as_idle_holds_nobody_back(tmp_path: Path) -> None:
    scripts = [[At(1, (0, 1))], [At(n, (1, n)) for n in range(100)]]
    env = environment(tmp_path, **{"tidegate.round.max-records": 10})
    stream = env.from_source(ScriptedSource(*scripts, ends=False), WatermarkStrategy.for_generator(Sleepy), "s")
    collected: Any = stream.key_by(lambda v: 0).process(Lateness()).execute_and_collect()
    with collected as found:
        marks = [watermark for _, (value, watermark) in zip(range(101), found, strict=False) if value[0] == 1]
    assert marks[-1] > 50


def test_without_an_interval_only_on_event_emits(tmp_path: Path) -> None:
    scripts = [[At(n, ("!" if n == 30 else "", n, n)) for n in range(60)]]
    for strategy, expected in (
        (WatermarkStrategy.for_generator(Periodic), {-(1 << 63)}),
        (WatermarkStrategy.for_monotonous_timestamps(), {-(1 << 63)}),
        (WatermarkStrategy.for_generator(OnMarks), {-(1 << 63), 31}),
    ):
        options = {"pipeline.auto-watermark-interval": 0, "tidegate.round.max-records": 10}
        stream = environment(tmp_path, **options).from_source(ScriptedSource(*scripts), strategy, "s")
        assert {mark for _, mark in stream.key_by(lambda v: 0).process(Lateness()).execute_and_collect()} == expected


class Clocked(WatermarkGenerator):
    """Event time continues though no record comes: it counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        pass

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        self.asked += 1
        output.emit_watermark(self.asked)


class Rings(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(10)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield timestamp


def test_generators_are_asked_while_no_record_comes(tmp_path: Path) -> None:
    env = environment(tmp_path, **{"pipeline.auto-watermark-interval": 1})
    stream = env.from_source(ScriptedSource([At(0, 0)], ends=False), WatermarkStrategy.for_generator(Clocked), "s")
    collected: Any = stream.key_by(lambda v: 0).process(Rings()).execute_and_collect()
    with collected as found:
        assert next(found) == 10


# -- alignment -------------------------------------------------------------------------------------------------------------


class Leads(KeyedProcessFunction):
    """How far the fast source is ahead of the slow one, at each of its records."""

    def open(self, runtime_context: Any) -> None:
        self.slow = runtime_context.get_state(ValueStateDescriptor("slow", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value[0] == "slow":
            self.slow.update(value[1])
        else:
            yield value[1] - (self.slow.value() or 0)


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("holds", [True, False])
def test_aligned_sources_stay_together(
    tmp_path: Path, parallelism: int, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.connectors.values.ranges import RangeEnumerator

    monkeypatch.setattr(RangeEnumerator, "can_hold", holds)

    def leads(directory: Path, aligned: bool) -> list[int]:
        env = environment(directory, **{"tidegate.round.max-records": 200})
        strategy = WatermarkStrategy.for_monotonous_timestamps()
        if aligned:
            interval = Duration.of_millis(1)
            strategy = strategy.with_watermark_alignment("group", Duration.of_millis(2_000), interval)
        slow = env.from_source(
            NumberSequenceSource(0, 3_999), strategy.with_timestamp_assigner(lambda v, t: v * 5), "slow"
        ).map(lambda v: ("slow", v * 5))
        fast = env.from_source(
            NumberSequenceSource(0, 3_999), strategy.with_timestamp_assigner(lambda v, t: v * 50), "fast"
        ).map(lambda v: ("fast", v * 50))
        sources = [slow, fast]
        united = sources[0].union(sources[1])
        return list(united.key_by(lambda v: 0).process(Leads()).execute_and_collect())

    apart, together = leads(tmp_path / "apart", False), leads(tmp_path / "together", True)
    assert len(apart) == len(together) == 4_000
    while_both_run = [lead for lead in together if lead < 100_000]
    assert max(apart[:350]) > 15_000
    assert max(while_both_run[:350]) < 15_000


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: WatermarkStrategy.no_watermarks().with_watermark_alignment("g", Duration.of_millis(0)),
            ProgramError,
            "with_watermark_alignment takes at least 1 ms",
        ),
        (
            lambda: WatermarkStrategy.no_watermarks().with_watermark_alignment("", Duration.of_millis(1)),
            ArgumentTypeError,
            "takes the name of a group",
        ),
        (
            lambda: WatermarkStrategy.for_generator(Periodic()),  # type: ignore[arg-type]
            ArgumentTypeError,
            "every split needs an object of its own",
        ),  # type: ignore[arg-type]
        (lambda: WatermarkStrategy.for_generator(lambda context: Periodic()), ArgumentTypeError, "without arguments"),  # type: ignore[misc,arg-type]
        (lambda: WatermarkStrategy.for_generator(3), ArgumentTypeError, "what makes a WatermarkGenerator"),  # type: ignore[arg-type]
    ],
)
def test_strategies_that_cannot_be_are_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


# -- generators that go wrong ----------------------------------------------------------------------------------------------


class Fractional(Periodic):
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        output.emit_watermark(event_timestamp / 2)  # type: ignore[arg-type]


class TooLarge(Periodic):
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        output.emit_watermark(1 << 63)


class Raises(Periodic):
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        if event == 3:
            raise KeyError("no such thing")


class Unpicklable(Periodic):
    def __init__(self) -> None:
        super().__init__()
        self.lock = (lambda: 1 for _ in ())


@pytest.mark.parametrize(
    ("generator", "messages"),
    [
        (
            Fractional,
            ["emit_watermark needs event time in milliseconds, an int", "0.0 of type float", "operator 'numbers'"],
        ),
        (TooLarge, ["an int of 64 bits", f"{1 << 63} of type int", "operator 'numbers'"]),
        (Raises, ["KeyError: 'no such thing'; record 3", "on_event", "operator 'numbers'", f"{__file__}:"]),
        (Unpicklable, ["attributes of a watermark generator", "Unpicklable of operator 'numbers'"]),
        (lambda: 3, ["for_generator must return a WatermarkGenerator", "3 of type int"]),
    ],
)
def test_a_generator_that_goes_wrong_is_named(tmp_path: Path, generator: Any, messages: list[str]) -> None:
    env = environment(tmp_path, **{"restart-strategy.type": "none", "tidegate.round.max-records": 5})
    strategy = WatermarkStrategy.for_generator(generator).with_timestamp_assigner(lambda v, t: v)
    with pytest.raises(JobFailedError) as failed:
        list(env.from_source(NumberSequenceSource(0, 9), strategy, "numbers").execute_and_collect())
    for message in messages:
        assert message in str(failed.value.__cause__)


def test_a_restart_continues_with_the_generator_of_the_checkpoint(tmp_path: Path) -> None:
    """Lateness after a restore is that of a run without the failure."""
    values = marked(120)[:60]
    steps: list[Any] = [At(value[1], value) for value in values]
    steps.insert(40, Fail(str(tmp_path / "fails")))
    env = environment(tmp_path, **{"tidegate.round.max-records": 4})
    stream: DataStream = env.from_source(ScriptedSource(steps), WatermarkStrategy.for_generator(OnMarks), "marked")
    found = sorted(stream.key_by(lambda v: v[2] % 5).process(Lateness()).execute_and_collect())
    assert (tmp_path / "fails").exists()
    assert found == [each for each in expected_lateness() if each[0][2] < 60]
