"""Stages that join two streams by key: interval join, window join, co-group. PyFlink has none of them: there they are left out."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tests.compat.random_programs.api import Time, base
from tests.compat.random_programs.stage import MODULUS, Stage, Surroundings, Timed, by_key, first, stage
from tests.compat.random_programs.window_stages import Assigner

_MOST_PAIRS = 20_000


def paired(left: int, right: int) -> int:
    return (3 * left + 5 * right) % MODULUS


class Joining(Stage):
    """``is_ambiguous`` also refuses inputs with more pairs than a test should make."""

    inputs: ClassVar[int] = 2

    def is_ambiguous(self, *streams: list[Timed]) -> bool:
        left, right = map(by_key, streams)
        return sum(len(group) * len(right[key]) for key, group in left.items()) > _MOST_PAIRS


class Pairs(base("datastream", "ProcessJoinFunction")):  # type: ignore[misc]
    """A pair with the times of both: even sums also twice."""

    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        value = (paired(left[1], right[1]) + ctx.get_left_timestamp() + 2 * ctx.get_right_timestamp()) % MODULUS
        yield left[0], value
        if value % 2 == 0:
            yield left[0], value


@stage
@dataclass(frozen=True)
class IntervalJoin(Joining):
    lower: int
    upper: int
    without_bounds: bool
    needs: ClassVar[tuple[tuple[str, str], ...]] = (("datastream", "ProcessJoinFunction"),)
    weight: ClassVar[int] = 3

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        lower = rng.choice([-500, -20, -1, 0, 10])
        return {"lower": lower, "upper": lower + rng.choice([2, 30, 700]), "without_bounds": rng.random() < 0.3}

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        others, lower, upper = by_key(streams[1]), self.lower + self.without_bounds, self.upper - self.without_bounds
        found = []
        for key, left, at in streams[0]:
            for _, right, then in others[key]:
                if lower <= then - at <= upper:
                    value = (paired(left, right) + at + 2 * then) % MODULUS
                    found += [(key, value, max(at, then))] * (2 - value % 2)
        return [found]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        left, right = (self.keyed(around, stream) for stream in streams)
        joined = left.interval_join(right).between(Time.milliseconds(self.lower), Time.milliseconds(self.upper))
        if self.without_bounds:
            joined = joined.lower_bound_exclusive().upper_bound_exclusive()
        return [joined.process(Pairs(), output_type=self.record_type(around))]


class Joined(base("datastream", "JoinFunction")):  # type: ignore[misc]
    def join(self, first: Any, second: Any) -> Any:
        return first[0], paired(first[1], second[1])


class OddlyJoined(base("datastream", "FlatJoinFunction")):  # type: ignore[misc]
    def join(self, first: Any, second: Any) -> Iterable[Any]:
        value = paired(first[1], second[1])
        return [(first[0], value)] if value % 2 else []


class Grouped(base("datastream", "CoGroupFunction")):  # type: ignore[misc]
    """Sums and counts of both sides: also where one of them has nothing."""

    def co_group(self, first: Iterable[Any], second: Iterable[Any]) -> Iterable[Any]:
        left, right = list(first), list(second)
        key = (left or right)[0][0]
        yield key, grouped([v for _, v in left], [v for _, v in right])


def grouped(left: list[int], right: list[int]) -> int:
    return (sum(left) + 3 * sum(right) + 7 * len(left) + 11 * len(right)) % MODULUS


@stage
@dataclass(frozen=True)
class WindowJoin(Joining):
    """``way``: join, flat (a function that gives several, or none), group (co-group)."""

    assigner: Assigner
    way: str
    needs: ClassVar[tuple[tuple[str, str], ...]] = (("datastream", "JoinFunction"), ("datastream", "CoGroupFunction"))
    weight: ClassVar[int] = 3

    @classmethod
    def parameters(cls, rng: random.Random) -> dict[str, Any]:
        assigner = Assigner.drawn(rng)
        if assigner.kind == "dynamic":  # it would be handed the stream's number with the record
            assigner = replace(assigner, kind="session")
        return {"assigner": assigner, "way": rng.choice(["join", "flat", "group"])}

    def is_ambiguous(self, *streams: list[Timed]) -> bool:
        both = by_key([*streams[0], *streams[1]]).values()
        return super().is_ambiguous(*streams) or any(self.assigner.touching(group) for group in both)

    def model(self, around: Surroundings, *streams: list[Timed]) -> list[list[Timed]]:
        sides: list[Any] = [(key, (side, value), time) for side in (0, 1) for key, value, time in streams[side]]
        found: list[Timed] = []
        for key, group in by_key(sides).items():
            windows: dict[Any, list[Any]] = dict(self.assigner.windows(group).items())
            for (_, end), both in windows.items():
                left, right = ([value for side, value in both if side == wanted] for wanted in (0, 1))
                found += [(key, value, end - 1) for value in self._results(left, right)]
        return [found]

    def _results(self, left: list[int], right: list[int]) -> list[int]:
        if self.way == "group":
            return [grouped(left, right)]
        pairs = [paired(one, other) for one in left for other in right]
        return pairs if self.way == "join" else [value for value in pairs if value % 2]

    def build(self, around: Surroundings, *streams: Any) -> list[Any]:
        left, right = streams
        two = left.co_group(right) if self.way == "group" else left.join(right)
        function = {"join": Joined, "flat": OddlyJoined, "group": Grouped}[self.way]()
        types = (around.key_type(),) if self.typed else ()
        windowed = two.where(first, *types).equal_to(first).window(self.assigner.build())
        return [windowed.apply(function, self.record_type(around))]
