"""A StopIteration of user code is an error like any other: it never ends an engine's loop silently."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.base.errors import UserCodeError
from tidegate.common import Encoder, Types
from tidegate.common.types import Row
from tidegate.connectors.values.data_generator import DataGeneratorSource
from tidegate.datastream.printing import java_text, row_text
from tidegate.operators.contracts.source import SplitInterval
from tidegate.state.keys import encode_keys


def stop(value: Any) -> Any:
    if value == 3:
        raise StopIteration
    return value


class Stops:
    def __str__(self) -> str:
        raise StopIteration

    def __reduce__(self) -> Any:
        raise StopIteration

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stops)

    def __hash__(self) -> int:
        return 1


class StoppingEncoder(Encoder):
    def encode(self, value: Any) -> bytes:
        return b"%d" % stop(value)


@pytest.mark.parametrize("function", [stop, lambda value: stop(value)])
def test_a_generator_function(function: Any) -> None:
    reader = DataGeneratorSource(function, 10).create_reader(0)
    with pytest.raises(UserCodeError, match=r"StopIteration:  \(index 3\)") as refused:
        list(reader.read(SplitInterval("0", 0, 0, 10, 0)))
    assert refused.value.where is not None and "in stop" in refused.value.where


def test_a_generator_function_that_stops_once() -> None:
    left = [1]

    def draw(index: int) -> int:
        if index == 3 and left:
            left.pop()
            raise StopIteration
        return index

    reader = DataGeneratorSource(draw, 10).create_reader(0)
    with pytest.raises(UserCodeError, match="StopIteration"):
        list(reader.read(SplitInterval("0", 0, 0, 10, 0)))


def test_an_encoder() -> None:
    with pytest.raises(StopIteration):
        StoppingEncoder().encode_batch([1, 2, 3, 4])


@pytest.mark.parametrize(
    "work",
    [
        lambda: row_text(Row(1, Stops(), 2)),
        lambda: java_text(Types.TUPLE([Types.INT(), Types.PICKLED_BYTE_ARRAY()]), (1, Stops())),
        lambda: encode_keys([(1,), Stops(), (2,)]),
    ],
    ids=["row", "tuple", "keys"],
)
def test_texts_and_keys_are_whole_or_not_at_all(work: Any) -> None:
    with pytest.raises(Exception) as refused:
        work()
    assert "StopIteration" in f"{refused.value!r} {refused.value.__cause__!r} {refused.value.__context__!r}"
