"""Data that is nested deeper than Python recurses: wherever it has to be pickled, the error says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.executor import Simulated
from tidegate.base.errors import TidegateError
from tidegate.common import Types
from tidegate.datastream import DataStream, KeyedProcessFunction
from tidegate.datastream.state import ValueStateDescriptor

DEPTH = 20_000


def nested(_: Any) -> list[Any]:
    value: list[Any] = []
    for _ in range(DEPTH):
        value = [value]
    return value


class Keeps(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.kept = runtime_context.get_state(ValueStateDescriptor("kept", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.kept.update(nested(value))
        yield value


def one(_: Any) -> int:
    return 1


@pytest.mark.parametrize(
    ("program", "rule"),
    [
        (lambda numbers: numbers.map(nested).rebalance().map(one), "Records that travel to another subtask"),
        (lambda numbers: numbers.map(nested), "A collected record cannot be pickled"),
        (lambda numbers: numbers.key_by(one).process(Keeps()), "The value does not fit the declared type of its state"),
        (lambda numbers: numbers.key_by(nested).process(Keeps()), "The key has no stable bytes"),
        (
            lambda numbers: numbers.get_execution_environment().from_collection([nested(1)]),
            "An operator cannot be pickled",
        ),
    ],
)
def test_data_nested_too_deeply_fails_with_a_cure(
    simulated: Simulated, program: Callable[[DataStream], DataStream], rule: str
) -> None:
    env = simulated(**{"parallelism.default": 2})
    with pytest.raises(TidegateError) as failed:
        list(program(env.from_collection([1])).execute_and_collect())
    text = str(failed.value)
    assert rule in text and "cure: nest the data less deeply" in text
