"""Stages with windows: every assigner of event time, every kind of function, keyed and of whole streams; count windows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.compat.random_programs.api import OutputTag, Time, Types, base, named
from tests.compat.random_programs.stage import MODULUS, Stage, Surroundings, Timed, by_key, stage

NEEDS = (("datastream.window", "TumblingEventTimeWindows"), ("datastream", "ProcessWindowFunction"))
Span = tuple[int, int]
"""Start and end of a window."""


def window(name: str) -> Any:
    return named("datastream.window", name)


class Gap(base("datastream.window", "SessionWindowTimeGapExtractor")):  # type: ignore[misc]
    def __init__(self, most: int) -> None:
        self.most = most

    def extract(self, element: Any) -> int:
        return gap(element[1], self.most)


def gap(value: int, most: int) -> int:
    return 1 + value % most


class LikeEventTime(base("datastream.window", "Trigger")):  # type: ignore[misc]
    """A trigger of a user that does what the one of event time does."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> Any:
        ctx.register_event_time_timer(window.max_timestamp())
        return result("CONTINUE")

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> Any:
        return result("CONTINUE")

    def on_event_time(self, time: int, window: Any, ctx: Any) -> Any:
        return result("FIRE" if time == window.max_timestamp() else "CONTINUE")

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.register_event_time_timer(window.max_timestamp())

    def can_merge(self) -> bool:
        return True

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())


def result(name: str) -> Any:
    return window("TriggerResult")[name]


# -- functions. Each gives for a window the same: its key, and a number of what is in it.


def digest(values: Iterable[int]) -> int:
    found = list(values)
    return (sum(found) * 31 + len(found)) % MODULUS


def placed(number: int, start: int, end: int) -> int:
    return (number * 7 + start + 3 * end) % MODULUS


class Digest(base("datastream", "AggregateFunction")):  # type: ignore[misc]
    def create_accumulator(self) -> Any:
        return (None, 0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return value[0], accumulator[1] + value[1], accumulator[2] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0], (accumulator[1] * 31 + accumulator[2]) % MODULUS

    def merge(self, a: Any, b: Any) -> Any:
        return a[0] if a[0] is not None else b[0], a[1] + b[1], a[2] + b[2]


class Processed(base("datastream", "ProcessWindowFunction")):  # type: ignore[misc]
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        span = context.window()
        yield key, placed(digest(value for _, value in elements), span.start, span.end)


class Finished(base("datastream", "ProcessWindowFunction")):  # type: ignore[misc]
    """After an aggregation: there is one element."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        [element] = elements
        yield key, placed(element[1], context.window().start, context.window().end)


class Applied(base("datastream", "WindowFunction")):  # type: ignore[misc]
    def apply(self, key: Any, window: Any, inputs: Any) -> Iterator[Any]:
        yield key, placed(digest(value for _, value in inputs), window.start, window.end)


class ProcessedAll(base("datastream.functions", "ProcessAllWindowFunction")):  # type: ignore[misc]
    def __init__(self, key: Any) -> None:
        self.key = key

    def process(self, context: Any, elements: Any) -> Iterator[Any]:
        span = context.window()
        yield self.key, placed(digest(value for _, value in elements), span.start, span.end)


def add_records(a: Any, b: Any) -> Any:
    return a[0], a[1] + b[1]


# -- assigners


@dataclass(frozen=True)
class Assigner:
    """``kind``: tumbling, sliding, session, dynamic. ``size``: or gap; ``slide``: of sliding ones; ``offset``: of the first two."""

    kind: str
    size: int
    slide: int
    offset: int

    @staticmethod
    def drawn(rng: random.Random) -> Assigner:
        size = rng.choice([1, 5, 40, 333])
        slide = rng.choice([n for n in (1, 2, 20, 40, 111, 333) if size >= n and size / n <= 20])
        return Assigner(rng.choice(["tumbling", "sliding", "session", "dynamic"]), size, slide, rng.randrange(slide))

    def build(self) -> Any:
        ms = Time.milliseconds
        if self.kind == "tumbling":
            return window("TumblingEventTimeWindows").of(ms(self.size), ms(self.offset))
        if self.kind == "sliding":
            return window("SlidingEventTimeWindows").of(ms(self.size), ms(self.slide), ms(self.offset))
        if self.kind == "session":
            return window("EventTimeSessionWindows").with_gap(ms(self.size))
        return window("EventTimeSessionWindows").with_dynamic_gap(Gap(self.size))

    def windows(self, records: list[Timed]) -> dict[Span, list[int]]:
        """The values in each window of one key."""
        if self.kind in ("session", "dynamic"):
            return self._sessions(records)
        slide = self.size if self.kind == "tumbling" else self.slide
        found: dict[Span, list[int]] = {}
        for _, value, time in records:
            last = time - (time - self.offset) % slide
            for start in range(last, time - self.size, -slide):
                found.setdefault((start, start + self.size), []).append(value)
        return found

    def _sessions(self, records: list[Timed]) -> dict[Span, list[int]]:
        found: list[tuple[Span, list[int]]] = []
        for _, value, time in sorted(records, key=lambda record: record[2]):
            end = time + self._gap(value)
            if found and time <= found[-1][0][1]:
                (start, before), values = found.pop()
                found.append(((start, max(before, end)), [*values, value]))
            else:
                found.append(((time, end), [value]))
        return dict(found)

    def _gap(self, value: int) -> int:
        return gap(value, self.size) if self.kind == "dynamic" else self.size

    def touching(self, records: list[Timed]) -> bool:
        """Sessions of which one begins where the other ends are one if both are there before the first one's end has passed."""
        if self.kind in ("tumbling", "sliding"):
            return False
        ends = {time + self._gap(value) for _, value, time in records}
        return any(time in ends for _, _, time in records)


FUNCTIONS = ("reduce", "aggregate", "process", "apply", "reduce+process", "aggregate+process")
TRIGGERS = ("default", "default", "event", "purging", "custom")


@stage
@dataclass(frozen=True)
class Windows(Stage):
    assigner: Assigner
    function: str
    trigger: str
    lateness: int
    late_output: bool
    needs: ClassVar[tuple[tuple[str, str], ...]] = NEEDS
    weight: ClassVar[int] = 6

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {
            "assigner": Assigner.drawn(rng),
            "function": rng.choice(FUNCTIONS),
            "trigger": rng.choice(TRIGGERS),
            "lateness": rng.choice([0, 0, 10, 100_000]),
            "late_output": rng.random() < 0.2,
        }

    def is_ambiguous(self, *streams: list[Timed]) -> bool:
        return any(self.assigner.touching(group) for group in by_key(streams[0]).values())

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        found = []
        for key, group in by_key(streams[0]).items():
            for (start, end), values in self.assigner.windows(group).items():
                found.append((key, self._result(values, start, end), end - 1))
        return [found]

    def _result(self, values: list[int], start: int, end: int) -> int:
        if self.function.startswith("reduce"):
            total = sum(values)
            return placed(total, start, end) if "+" in self.function else total % MODULUS
        return digest(values) if self.function == "aggregate" else placed(digest(values), start, end)

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        windowed = self._triggered(self.keyed(around, streams[0]).window(self.assigner.build()))
        if self.lateness:
            windowed = windowed.allowed_lateness(self.lateness)
        if self.late_output:
            tag = OutputTag("late", around.record_type() if self.typed else Types.PICKLED_BYTE_ARRAY())
            windowed = windowed.side_output_late_data(tag)
        given = self.record_type(around)
        methods = {
            "reduce": lambda: windowed.reduce(add_records),
            "aggregate": lambda: windowed.aggregate(Digest(), output_type=given),
            "process": lambda: windowed.process(Processed(), given),
            "apply": lambda: windowed.apply(Applied(), given),
            "reduce+process": lambda: windowed.reduce(add_records, Finished(), output_type=given),
            "aggregate+process": lambda: windowed.aggregate(Digest(), Finished(), output_type=given),
        }
        made = methods[self.function]()
        # the sum of a window without a function after it is not reduced to the modulus
        return [made.map(lambda r: (r[0], r[1] % MODULUS), output_type=given)]

    def _triggered(self, windowed: Any) -> Any:
        if self.trigger == "event":
            return windowed.trigger(window("EventTimeTrigger").create())
        if self.trigger == "purging":
            return windowed.trigger(window("PurgingTrigger").of(window("EventTimeTrigger").create()))
        return windowed.trigger(LikeEventTime()) if self.trigger == "custom" else windowed


@stage
@dataclass(frozen=True)
class WindowsOfAll(Stage):
    assigner: Assigner
    needs: ClassVar[tuple[tuple[str, str], ...]] = (*NEEDS, ("datastream.functions", "ProcessAllWindowFunction"))

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {"assigner": Assigner.drawn(rng)}

    def is_ambiguous(self, *streams: list[Timed]) -> bool:
        return self.assigner.touching(streams[0])

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        windows = self.assigner.windows(streams[0]).items()
        return [[(around.key(0), placed(digest(values), start, end), end - 1) for (start, end), values in windows]]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        function = ProcessedAll(around.key(0))
        return [streams[0].window_all(self.assigner.build()).process(function, self.record_type(around))]


class Counted(base("datastream", "ProcessWindowFunction")):  # type: ignore[misc]
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield key, len(list(elements))


@stage
@dataclass(frozen=True)
class CountWindows(Stage):
    """Which records share a window depends on their order, how many windows are full does not."""

    size: int
    slide: int
    needs: ClassVar[tuple[tuple[str, str], ...]] = NEEDS
    keeps_time: ClassVar[bool] = False

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        return {"size": rng.randint(1, 6), "slide": rng.choice([0, 0, 1, 2, 3])}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        found: list[Timed] = []
        for key, group in by_key(streams[0]).items():
            step = self.slide or self.size
            full = range(0, len(group) - self.size + 1, step)
            found += [(key, self.size, 0) for _ in full]
        return [found]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        keyed = self.keyed(around, streams[0])
        windowed = keyed.count_window(self.size, self.slide) if self.slide else keyed.count_window(self.size)
        return [windowed.process(Counted(), self.record_type(around))]
