"""Column batches: what goes in comes out, in memory, packed, and through whole programs that begin with columns."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.column_source import ColumnSource, record
from tests.unit.operators.test_batch_programs import CountsAndTimers, alone, run
from tests.unit.operators.written_functions import exact
from tidegate.base.errors import StateFormatError, UserCodeError
from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import DataStream, KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.operators.contracts.batch import ColumnBatch, Schema, checked_column
from tidegate.operators.flow import outputs
from tidegate.operators.flow.packing import Packer, pack_columns, unpack_columns

COLUMNS = [
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-100, 100),
    st.floats(),
    st.booleans(),
    st.text(st.characters(codec=None)),
]
COUNT = 1500


def told(rows: list[Any]) -> list[str]:
    return [repr(exact(row)) for row in rows]


@given(st.data(), st.integers(0, 5), st.integers(1, 40))
def test_what_goes_in_comes_out(data: st.DataObject, width: int, count: int) -> None:
    kinds = [data.draw(st.sampled_from(COLUMNS)) for _ in range(max(width, 1))]
    fields = [data.draw(st.lists(kind, min_size=count, max_size=count)) for kind in kinds]
    rows = list(zip(*fields, strict=True)) if width else fields[0]
    batch = ColumnBatch.of_tuples(*fields) if width else ColumnBatch.of_scalars(fields[0])
    back = unpack_columns(pack_columns(batch.columns, batch.width))
    assert told(batch.rows()) == told(list(batch)) == told(back.rows()) == told(rows)
    assert told([back.row(n) for n in range(count)]) == told(rows) and len(back) == count
    assert back.schema == batch.schema and back.width == width


def test_an_empty_batch() -> None:
    batch = ColumnBatch.of_tuples(np.array([], dtype=np.int64), np.array([], dtype=np.float64), [])
    assert unpack_columns(pack_columns(batch.columns, batch.width)).rows() == []


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        (np.array([1, 2], dtype=np.int8), "i"),
        (np.array([1, 2], dtype=np.uint32), "i"),
        (np.array([1, 2], dtype=np.uint64), "i"),
        (np.array([1.5], dtype=np.float32), "f"),
        (np.array(["a", "b"]), "O"),
        ([True, False], "b"),
    ],
)
def test_columns_of_numpy_are_widened(values: Any, schema: str) -> None:
    batch = ColumnBatch.of_scalars(values)
    assert batch.schema == Schema(schema, 0) and batch.rows() == list(values)
    assert {type(row) for row in batch.rows()} <= {int, float, str, bool}


@pytest.mark.parametrize("values", [[1, "a"], [1, True], [None, "a"], [b"a"], [1 << 63], [1, 2.5], [np.int64(1)]])
def test_anything_else_is_refused(values: list[Any]) -> None:
    with pytest.raises(UserCodeError, match="values of one type"):
        checked_column(values)


def test_arrays_of_more_dimensions_are_refused() -> None:
    with pytest.raises(UserCodeError, match="A column must hold"):
        ColumnBatch.of_scalars(np.zeros((3, 2)))


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.float64, np.bool_, object])
def test_a_source_may_fill_its_arrays_again(kind: Any) -> None:
    array = np.array(["a", "b"] if kind is object else [0, 1], dtype=kind)
    scalars, tuples = ColumnBatch.of_scalars(array), ColumnBatch.of_tuples(array, array)
    before = scalars.rows(), tuples.rows()
    array[:] = array[::-1].copy()
    assert (scalars.rows(), tuples.rows()) == before


def test_columns_have_one_length() -> None:
    with pytest.raises(UserCodeError, match="of equal length"):
        ColumnBatch.of_tuples([1, 2], ["a"])


def test_another_version_is_not_read() -> None:
    packed = bytearray(pack_columns(ColumnBatch.of_scalars([1]).columns, 0))
    packed[1] += 1
    with pytest.raises(StateFormatError, match="version"):
        unpack_columns(bytes(packed))


@pytest.mark.parametrize(
    ("declared", "carried"),
    [
        (None, True),
        (Types.TUPLE([Types.LONG(), Types.DOUBLE(), Types.STRING(), Types.BOOLEAN()]), True),
        (Types.TUPLE([Types.LONG(), Types.LONG(), Types.STRING(), Types.BOOLEAN()]), False),
        (Types.TUPLE([Types.LONG(), Types.DOUBLE(), Types.STRING()]), False),
        (Types.STRING(), False),
    ],
)
def test_columns_travel_where_they_are_as_declared(declared: Any, carried: bool) -> None:
    batch = ColumnBatch.of_tuples([1], [1.5], ["a"], [True])
    assert Packer(declared).carries(batch) is carried


# -- programs that begin with columns ----------------------------------------------------------------------------------


class Last(KeyedProcessFunction):
    """How many records of the key, and what came last; reads fields of every type."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.DOUBLE()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        self.sum.update((self.sum.value() or 0.0) + value[1])
        yield ctx.get_current_key(), value[2], n, self.sum.value(), ctx.timestamp(), value[3]


def source(env: StreamExecutionEnvironment, as_columns: bool) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    return alone(env.from_source(ColumnSource(COUNT, as_columns=as_columns), strategy, "records"))


PROGRAMS: dict[str, Any] = {
    "text key": lambda s: s.key_by(lambda r: r[2], Types.STRING()).process(Last()),
    "text key, undeclared": lambda s: s.key_by(lambda r: r[2]).process(Last()),
    "int key": lambda s: s.key_by(lambda r: r[0] % 5, Types.LONG()).process(Last()),
    "float key": lambda s: s.key_by(lambda r: r[1], Types.DOUBLE()).process(Last()),
    "float key, undeclared": lambda s: s.key_by(lambda r: r[1]).process(Last()),
    "bool key": lambda s: s.key_by(lambda r: r[3]).process(Last()),
    "computed bool": lambda s: s.key_by(lambda r: r[1] / 2 > 100.5).process(Last()),
    "filtered by a float": lambda s: (
        alone(s.filter(lambda r: 100.0 < r[1] < 500)).key_by(lambda r: r[2]).process(Last())
    ),
    "filtered by a bool": lambda s: alone(s.filter(lambda r: r[3])).key_by(lambda r: r[2]).process(Last()),
    "projected": lambda s: (
        alone(s.map(lambda r: (r[0] + 1, r[1] * 0.1 - r[0], r[2], not r[3]))).key_by(lambda r: r[2]).process(Last())
    ),
    "called in between": lambda s: (
        alone(s.map(lambda r: (*r[:2], r[2].upper(), r[3]))).key_by(lambda r: r[2]).process(Last())
    ),
    "scalars": lambda s: alone(s.map(lambda r: r[2])).key_by(lambda x: x).map(lambda x: (x, x)),
    "reduced": lambda s: s.key_by(lambda r: r[2]).reduce(lambda a, b: (b[0], a[1] + b[1], b[2], a[3])),
    "timers": lambda s: (
        alone(s.map(lambda r: (r[2], r[0]))).key_by(lambda r: r[0], Types.STRING()).process(CountsAndTimers())
    ),
    "no key": lambda s: s.map(lambda r: (r[2], r[0])),
    "declared": lambda s: (
        alone(s.map(lambda r: (r[2], r[0]), Types.TUPLE([Types.STRING(), Types.LONG()])))
        .key_by(lambda r: r[0], Types.STRING())
        .map(lambda r: r[::-1])
    ),
}
ON_COLUMNS = set(PROGRAMS) - {"called in between", "no key"}


def program(name: str, as_columns: bool, env: StreamExecutionEnvironment) -> DataStream:
    made: DataStream = PROGRAMS[name](source(env, as_columns))
    return made


@pytest.mark.parametrize("name", PROGRAMS)
def test_called_inlined_and_on_columns_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extended: list[int] = []
    before = outputs.EdgeOutput.extend

    def extend(self: Any, batch: ColumnBatch, *rest: Any) -> None:
        extended.append(len(batch))
        before(self, batch, *rest)

    monkeypatch.setattr(outputs.EdgeOutput, "extend", extend)
    results = []
    for as_columns, inline in ((False, False), (False, True), (True, False), (True, True)):
        extended.clear()
        with TemporaryDirectory() as directory:
            results.append(
                run(
                    partial(program, name, as_columns),
                    Path(directory),
                    **{"tidegate.functions.inline": inline},
                )
            )
    assert bool(extended) == (name in ON_COLUMNS)
    assert results[0] == results[1] == results[2] == results[3]
    assert len(results[0]) > 100


def test_an_assigner_sees_the_records() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda value, before: before + value[0]
    )

    def build(env: StreamExecutionEnvironment) -> DataStream:
        stream = alone(env.from_source(ColumnSource(COUNT), strategy, "records"))
        return stream.key_by(lambda r: r[2], Types.STRING()).process(Last())

    with TemporaryDirectory() as directory:
        found = run(build, Path(directory))
    assert {row[5][1] for row in found} == {2 * n for n in range(COUNT)}


def test_a_key_of_another_type_than_declared_names_the_record(tmp_path: Path) -> None:
    def build(env: StreamExecutionEnvironment) -> DataStream:
        return source(env, True).key_by(lambda r: r[2], Types.LONG()).process(Last())

    with pytest.raises(Exception, match="is not of its declared type, LONG"):
        run(build, tmp_path, **{"restart-strategy.type": "none"})


def test_the_source_hands_over_what_it_says() -> None:
    [batch] = (
        ColumnSource(10).create_reader(0).read(ColumnSource(10).create_enumerator(1, None).plan(10, 0).intervals[0])
    )
    assert isinstance(batch, ColumnBatch)
    assert list(batch) == list(map(record, range(10))) and batch.times == list(range(10))
