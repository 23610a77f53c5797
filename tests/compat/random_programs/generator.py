"""From a seed to a program: sources with random data, stages over them, and the model's result.

Which stages there are to draw from depends on the engine's API; the reproduction that a failure prints says which there were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.compat.random_programs import join_stages, joint_stages, keyed_stages, plain_stages, window_stages
from tests.compat.random_programs.api import Duration, TimestampAssigner, Types, WatermarkStrategy, base
from tests.compat.random_programs.stage import STAGES, Stage, Surroundings, Timed

assert all([join_stages, joint_stages, keyed_stages, plain_stages, window_stages]), "imported for their stages"


class Third(TimestampAssigner or object):  # type: ignore[misc]
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[2])


@dataclass(frozen=True)
class Source:
    """``records`` in the order of arrival: a record is at most ``disorder`` behind the latest before it, and the watermark waits
    that long, so nothing is late, in whatever subtasks its timestamps are assigned."""

    records: tuple[Timed, ...]
    disorder: int
    rebalanced: bool

    @staticmethod
    def drawn(rng: random.Random, around: Surroundings) -> Source:
        keys, end = rng.randint(1, 5), rng.choice([50, 1000, 5000])
        count = rng.choice([0, 1, 5, 20, 40, 60])
        disorder = rng.choice([0, 10, 300])
        times = sorted(rng.randint(0, end) for _ in range(count))
        arrival = sorted(times, key=lambda time: time + rng.randint(0, disorder))
        records = tuple((around.key(rng.randrange(keys)), rng.randrange(100), time) for time in arrival)
        return Source(records, disorder, rng.random() < 0.5)

    def build(self, env: Any, around: Surroundings) -> Any:
        row = Types.TUPLE([around.key_type(), Types.LONG(), Types.LONG()])
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(self.disorder))
        stream = env.from_collection(list(self.records), row)
        if self.rebalanced:
            stream = stream.rebalance()
        timed = stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(Third()))
        return timed.map(lambda r: (r[0], r[1]), output_type=around.record_type())


@dataclass(frozen=True)
class Step:
    """``inputs``: numbers of streams; sources come first, then the outputs of each step."""

    stage: Stage
    inputs: tuple[int, ...]


class Told(base("datastream", "ProcessFunction")):  # type: ignore[misc]
    """A record as text: which program and stream it is of, and its time."""

    def __init__(self, name: str, timed: bool) -> None:
        self.name, self.timed = name, timed

    def process_element(self, value: Any, ctx: Any) -> Iterator[str]:
        yield told(self.name, value[0], value[1], ctx.timestamp() if self.timed else None)


def told(name: str, key: Any, value: int, time: int | None) -> str:
    return f"{name}: {key!r} {value}" + ("" if time is None else f" at {time}")


@dataclass(frozen=True)
class RandomProgram:
    seed: int
    around: Surroundings
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [f"program {self.seed}, keys {self.around.keys.__name__}"]
        lines += [f"  {n}: {source}" for n, source in enumerate(self.sources)]
        number = len(self.sources)
        for step in self.steps:
            outputs = range(number, number := number + step.stage.outputs)
            lines.append(f"  {', '.join(map(str, outputs))}: {step.stage} of {', '.join(map(str, step.inputs))}")
        return "\n".join(lines)

    def leaves(self) -> list[tuple[int, bool]]:
        """Streams that nothing reads, and whether their records have times."""
        timed = [True] * len(self.sources) + [s.stage.keeps_time for s in self.steps for _ in range(s.stage.outputs)]
        read = {number for step in self.steps for number in step.inputs}
        return [(number, has_time) for number, has_time in enumerate(timed) if number not in read]

    def expected(self) -> list[str]:
        """By the model, sorted."""
        streams = [list(source.records) for source in self.sources]
        for step in self.steps:
            streams += step.stage.model(self.around, *(streams[number] for number in step.inputs))
        found = [
            told(f"{self.seed}.{leaf}", key, value, time if timed else None)
            for leaf, timed in self.leaves()
            for key, value, time in streams[leaf]
        ]
        return sorted(found)

    def build(self, env: Any, through: Callable[[Any], Any] = lambda stream: stream) -> list[Any]:
        """Its leaves as streams of text. ``through``: every source's records pass it, unchanged."""
        streams = [through(source.build(env, self.around)) for source in self.sources]
        for step in self.steps:
            streams += step.stage.build(self.around, *(streams[number] for number in step.inputs))
        told_as = [(streams[leaf], Told(f"{self.seed}.{leaf}", timed)) for leaf, timed in self.leaves()]
        return [stream.process(function, output_type=Types.STRING()) for stream, function in told_as]


def generate(seed: int, *, stages: Iterable[type[Stage]] | None = None) -> RandomProgram:
    """The program of a seed. ``stages``: to draw from; by default all that the engine's API has names for."""
    rng = random.Random(seed)
    around = Surroundings(rng.choice([int, str]))
    sources = [Source.drawn(rng, around) for _ in range(rng.choice([1, 1, 2]))]
    kinds = list(stages if stages is not None else (kind for kind in STAGES if kind.possible()))
    streams = [(list(source.records), True) for source in sources]
    steps: list[Step] = []
    for _ in range(rng.randint(1, 6)):
        step = _step(rng, kinds, streams)
        outputs = step.stage.model(around, *(streams[number][0] for number in step.inputs))
        streams += [(records, step.stage.keeps_time) for records in outputs]
        steps.append(step)
    return RandomProgram(seed, around, tuple(sources), tuple(steps))


_MOST = 3000
"""Records of a stream: a stage that reads more is drawn again."""


def _step(rng: random.Random, kinds: list[type[Stage]], streams: list[tuple[list[Timed], bool]]) -> Step:
    timed = [number for number, (records, has_time) in enumerate(streams) if has_time and len(records) < _MOST]
    while True:
        stage = rng.choices(kinds, [kind.weight for kind in kinds])[0].drawn(rng)
        inputs = tuple(rng.choice(timed[-4:]) for _ in range(stage.inputs))
        if not stage.is_ambiguous(*(streams[number][0] for number in inputs)):
            return Step(stage, inputs)
