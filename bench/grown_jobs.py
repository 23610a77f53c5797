"""Programs whose length is a number: chains of operators, and shuffles one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tidegate_jobs import PAIR, Count

from tidegate.common import Types, WatermarkStrategy
from tidegate.connectors.values.sinks import DiscardingSink
from tidegate.datastream import ProcessFunction, StreamExecutionEnvironment

Program = Callable[[StreamExecutionEnvironment, Any, int], None]


class Pass(ProcessFunction):
    """Hand a pair on, with one step of arithmetic that a batch cannot take as a whole."""

    def process_element(self, value: tuple[int, int], ctx: Any) -> Iterator[tuple[int, int]]:
        key, number = value
        if number >= 0:
            yield key, number + 1


def chain(length: int) -> Program:
    def program(env: StreamExecutionEnvironment, source: Any, keys: int) -> None:
        pairs = _pairs(env, source, keys)
        for _ in range(length):
            pairs = pairs.process(Pass(), PAIR)
        pairs.sink_to(DiscardingSink())

    return program


def shuffles(number: int) -> Program:
    def program(env: StreamExecutionEnvironment, source: Any, keys: int) -> None:
        pairs = _pairs(env, source, keys)
        for _ in range(number):
            pairs = pairs.key_by(lambda pair: pair[0], Types.LONG()).process(Count(), PAIR)
            pairs = pairs.map(lambda pair: ((pair[0] * 7 + pair[1]) % keys, pair[1]), PAIR)
        pairs.sink_to(DiscardingSink())

    return program


def _pairs(env: StreamExecutionEnvironment, source: Any, keys: int) -> Any:
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    return numbers.map(lambda x: ((x * 2654435761) % keys, x), PAIR)


GROWN: dict[str, Program] = {
    **{f"chain-{length}": chain(length) for length in (1, 2, 5, 10, 20, 50)},
    **{f"shuffles-{number}": shuffles(number) for number in (1, 2, 4, 8)},
}
