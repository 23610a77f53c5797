"""Keys that Python takes for one and that are several, or the other way round, in whole programs on the simulated engine."""

from __future__ import annotations

import decimal
import enum
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.executor import simulated_environment
from tidegate.base.errors import JobFailedError
from tidegate.common import Row, Types
from tidegate.common.typeinfo import TypeInformation
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor


class Level(enum.IntEnum):
    LOW = 1


class CountOfKey(KeyedProcessFunction):
    """At the end of the input the class and text of the key, and how many records it had."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(5)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        key = ctx.get_current_key()
        yield type(key).__name__, repr(key), self.count.value()


def environment(directory: Path) -> StreamExecutionEnvironment:
    keys: dict[str, Any] = {
        "execution.checkpointing.interval": "10 ms",
        "tidegate.chunk.records": 16,
        "parallelism.default": 3,
    }
    return simulated_environment(directory, **keys)


def test_without_a_type_keys_of_different_classes_are_different_keys(tmp_path: Path) -> None:
    keys = [
        1,
        1.0,
        True,
        Level.LOW,
        decimal.Decimal("1.0"),
        decimal.Decimal("1.00"),
        0.0,
        -0.0,
        float("nan"),
        [1],
        Row(1),
    ]
    stream = environment(tmp_path).from_collection(keys * 50).key_by(lambda key: key).process(CountOfKey())
    assert Counter(stream.execute_and_collect()) == Counter((type(key).__name__, repr(key), 50) for key in keys)


@pytest.mark.parametrize(
    ("key_type", "expected"),
    [
        (Types.LONG(), {("int", "1", 250), ("int", "2", 50)}),
        (Types.DOUBLE(), {("float", "1.0", 200), ("float", "1.5", 50), ("float", "2.0", 50)}),
        (Types.BOOLEAN(), {("bool", "True", 300)}),
    ],
    ids=["long", "double", "boolean"],
)
def test_with_a_type_the_type_decides(tmp_path: Path, key_type: Any, expected: set[Any]) -> None:
    stream = environment(tmp_path).from_collection([1, 1.0, True, Level.LOW, 1.5, 2] * 50)
    assert set(stream.key_by(lambda key: key, key_type).process(CountOfKey()).execute_and_collect()) == expected


def test_columns_of_ints_obey_the_declared_type(tmp_path: Path) -> None:
    """Arithmetic on whole batches sends columns of ints: not where other keys are declared."""
    numbers = environment(tmp_path).from_collection(list(range(1000)))
    stream = numbers.map(lambda v: v + 1).key_by(lambda v: v % 2, Types.DOUBLE()).process(CountOfKey())
    assert set(stream.execute_and_collect()) == {("float", "0.0", 500), ("float", "1.0", 500)}


def test_a_key_that_is_not_of_its_type_fails_and_says_so(tmp_path: Path) -> None:
    stream = environment(tmp_path).from_collection([1, "x"]).key_by(lambda v: v, Types.LONG()).process(CountOfKey())
    with pytest.raises(JobFailedError, match="The key is not of its declared type, LONG") as caught:
        list(stream.execute_and_collect())
    assert "partitioning of the output of operator" in str(caught.value)
    assert "str 'x': an integer is required" in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "key"),
    [(Types.BYTE(), 128), (Types.SHORT(), -(1 << 15) - 1), (Types.INT(), 1 << 31), (Types.LONG(), 1 << 63)],
)
@pytest.mark.parametrize("count", [1, 1000])
def test_a_key_with_more_bits_than_its_type_is_refused(declared: Any, key: int, count: int, tmp_path: Path) -> None:
    """One by one, and as a column."""
    numbers = environment(tmp_path).from_collection([0] * count)
    stream = numbers.map(lambda v: v + key).key_by(lambda v: v, declared).process(CountOfKey())
    with pytest.raises(JobFailedError, match=f"The key is not of its declared type, {declared.describe()}") as caught:
        list(stream.execute_and_collect())
    assert str(key) in str(caught.value)


@pytest.mark.parametrize("declared", [Types.INT(), Types.LONG()])
def test_a_key_of_all_the_bits_of_its_type_is_one(declared: Any, tmp_path: Path) -> None:
    most = (1 << 31 if declared == Types.INT() else 1 << 63) - 1
    stream = environment(tmp_path).from_collection([most, -most - 1] * 100).key_by(lambda v: v, declared)
    found = set(stream.process(CountOfKey()).execute_and_collect())
    assert found == {("int", str(most), 100), ("int", str(-most - 1), 100)}


def test_a_record_on_its_way_that_is_not_of_its_type_fails_and_says_so(tmp_path: Path) -> None:
    pairs = (
        environment(tmp_path).from_collection([1]).map(lambda v: [v, "a"], Types.TUPLE([Types.INT(), Types.STRING()]))
    )
    with pytest.raises(JobFailedError, match="A record is not of its declared type: the record is declared") as caught:
        list(pairs.key_by(lambda pair: pair[0]).map(repr).execute_and_collect())
    assert "sent to operator 'Map'" in str(caught.value)
    assert "picklable" not in str(caught.value)


@pytest.mark.parametrize("key_type", [None, Types.LONG()])
def test_collected_keyed_stream_gives_named_rows_in_the_order_of_the_stream(
    tmp_path: Path, key_type: TypeInformation | None
) -> None:
    pairs = [(n % 7, f"text {n}") for n in range(200)]
    stream = environment(tmp_path).from_collection(pairs, Types.TUPLE([Types.LONG(), Types.STRING()]))
    found = list(stream.key_by(lambda pair: pair[0], key_type).execute_and_collect())
    assert found == [Row(f0=pair[0], f1=pair) for pair in pairs]


def test_collected_keyed_stream_gives_keys_of_the_declared_type(tmp_path: Path) -> None:
    stream = environment(tmp_path).from_collection([1.5, True])
    first, second = stream.key_by(lambda key: key, Types.LONG()).execute_and_collect()
    assert (repr(first), repr(second)) == ("Row(f0=1, f1=1.5)", "Row(f0=1, f1=True)")
