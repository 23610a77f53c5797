"""Functions over batches of columns, on the simulated engine."""

from __future__ import annotations

import datetime
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest

from tests.programs import program_of
from tests.simulation.executor import Simulated
from tidegate.base.errors import ConfigurationError, ProgramError, TidegateError
from tidegate.common import Duration, Row, Types, WatermarkStrategy
from tidegate.common.types import RowKind
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import BatchMapFunction, ProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSource
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.formats.parquet import ParquetColumnarRowInputFormat
from tidegate.graph.plan import build
from tidegate.operators.contracts import arrow_batch as arrow_batches
from tidegate.operators.contracts.arrow_batch import ArrowBatch, Layout
from tidegate.operators.contracts.batch import Batch, ColumnBatch
from tidegate.operators.loop.rewrites.explain import explain_functions

PANDAS = pytest.param(
    "pandas",
    marks=pytest.mark.skipif(
        find_spec("pandas") is None, reason="pyspark imports an installed pandas at each start, which takes a second"
    ),
)

ORDER = Types.ROW_NAMED(["item", "price"], [Types.STRING(), Types.LONG()])
PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


@pytest.fixture
def env(simulated: Simulated) -> StreamExecutionEnvironment:
    return simulated(seed=3, **{"execution.checkpointing.interval": "10 ms", "parallelism.default": 2})


def collected(stream: Any) -> list[Any]:
    with stream.execute_and_collect() as found:
        return list(found)


def numbers(env: StreamExecutionEnvironment, count: int = 1000) -> Any:
    source = NumberSequenceSource(0, count - 1)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    assert isinstance(batch, pa.RecordBatch)
    assert batch.schema.names == ["value"]
    return pa.RecordBatch.from_arrays([pc.multiply(batch["value"], 2)], ["value"])


class ByPrice(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


class WithTime(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield value, ctx.timestamp()


def priced(env: StreamExecutionEnvironment, count: int = 100) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(0)).with_timestamp_assigner(ByPrice())
    records = [(f"item{n % 3}", n) for n in range(count)]
    return env.from_collection(records, PAIR).assign_timestamps_and_watermarks(strategy)


# -- map


def test_plain_values_are_the_column_value(env: StreamExecutionEnvironment) -> None:
    assert sorted(collected(numbers(env).map_batches(doubled))) == [2 * n for n in range(1000)]


def test_chained_batches_become_rows_only_at_the_end(
    env: StreamExecutionEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    rows = Layout.rows
    monkeypatch.setattr(arrow_batches.Layout, "rows", lambda self, b: made.append(b.num_rows) or rows(self, b))
    monkeypatch.setattr(arrow_batches.Layout, "_split", lambda self, found: _only_ranges(found))
    stream = numbers(env).map_batches(doubled).map_batches(doubled).filter_batches(lambda b: pc.less(b["value"], 40))
    assert sorted(collected(stream)) == [4 * n for n in range(10)]
    assert sum(made) == 10


def _only_ranges(rows: Any) -> list[Any]:
    assert isinstance(rows, range)
    return [list(rows)]


def test_rows_have_the_columns_of_their_fields(env: StreamExecutionEnvironment) -> None:
    orders = env.from_collection([Row("a", 1), Row("b", 2)], ORDER)
    raised = orders.map_batches(
        lambda b: pa.RecordBatch.from_pydict({"price": pc.add(b["price"], 10), "item": b["item"]})
    )
    found = collected(raised)
    assert sorted((row.item, row.price) for row in found) == [("a", 11), ("b", 12)]
    assert all(isinstance(row, Row) for row in found)


def test_tuples_have_numbered_columns_and_another_output_type(env: StreamExecutionEnvironment) -> None:
    pairs = env.from_collection([("a", 1), ("b", None)], PAIR)
    prices = pairs.map_batches(lambda b: pc.fill_null(b["f1"], 0), Types.DOUBLE())
    assert prices.get_type() == Types.DOUBLE()
    assert sorted(collected(prices)) == [0.0, 1.0]


def test_timestamps_stay_with_map_and_filter(env: StreamExecutionEnvironment) -> None:
    stream = priced(env).map_batches(lambda b: b.set_column(1, "f1", pc.negate(b["f1"])))
    stream = stream.filter_batches(lambda b: pc.equal(b["f0"], "item1")).process(WithTime())
    assert sorted(collected(stream)) == sorted(((f"item{n % 3}", -n), n) for n in range(100) if n % 3 == 1)


def test_flat_map_without_origins_has_no_timestamps(env: StreamExecutionEnvironment) -> None:
    stream = priced(env, 4).flat_map_batches(lambda b: pa.concat_tables([pa.table(b), pa.table(b)]))
    found = collected(stream.process(WithTime()))
    assert sorted(found) == sorted([((f"item{n % 3}", n), None) for n in range(4)] * 2)


def test_flat_map_with_origins_keeps_timestamps(env: StreamExecutionEnvironment) -> None:
    def twice(batch: pa.RecordBatch) -> Any:
        rows = [row for row in range(batch.num_rows) for _ in range(2)]
        return batch.take(pa.array(rows)), rows

    found = collected(priced(env, 4).flat_map_batches(twice).process(WithTime()))
    assert sorted(found) == sorted([((f"item{n % 3}", n), n) for n in range(4)] * 2)


def test_flat_map_with_invalid_origins_fails(env: StreamExecutionEnvironment) -> None:
    stream = priced(env, 4).flat_map_batches(lambda b: (b, [99] * b.num_rows))
    with pytest.raises(TidegateError, match="must be the number of an input record for each result"):
        collected(stream)


def test_flat_map_of_none_emits_nothing(env: StreamExecutionEnvironment) -> None:
    assert collected(numbers(env).flat_map_batches(lambda batch: None)) == []


def test_batch_size_is_the_most_records_of_a_call(env: StreamExecutionEnvironment) -> None:
    sizes = numbers(env, 100).map_batches(
        lambda b: pa.array([b.num_rows] * b.num_rows, pa.int64()), Types.LONG(), batch_size=7
    )
    found = collected(sizes)
    assert len(found) == 100
    assert set(found) <= set(range(1, 8))
    assert 7 in found


def test_numpy_gets_and_returns_a_dict_of_arrays(env: StreamExecutionEnvironment) -> None:
    pairs = env.from_collection([("a", 1), ("b", 2)], PAIR)
    stream = pairs.map_batches(lambda b: {"f1": b["f1"] * 2, "f0": b["f0"]}, batch_format="numpy")
    assert sorted(collected(stream)) == [("a", 2), ("b", 4)]
    plain = numbers(env, 10).filter_batches(lambda b: b["value"] % 2 == 0, batch_format="numpy")
    assert sorted(collected(plain)) == [0, 2, 4, 6, 8]


def test_numpy_columns_of_different_length_fail(env: StreamExecutionEnvironment) -> None:
    pairs = env.from_collection([("a", 1), ("b", 2)], PAIR).set_parallelism(1)
    stream = pairs.map_batches(lambda b: {"f0": b["f0"][:0], "f1": b["f1"]}, batch_format="numpy")
    with pytest.raises(TidegateError, match="columns of a batch must have the same length"):
        collected(stream)


@pytest.mark.parametrize("package", [PANDAS, "polars"])
def test_data_frames_go_in_and_out(env: StreamExecutionEnvironment, package: str) -> None:
    pairs = env.from_collection([("a", 1), ("b", 2), ("c", 3)], PAIR)

    def doubled_prices(frame: Any) -> Any:
        assert type(frame).__module__.startswith(package)
        if package == "pandas":
            return frame.assign(f1=frame["f1"] * 2)
        return frame.with_columns(frame["f1"] * 2)

    stream = pairs.map_batches(doubled_prices, batch_format=package)
    stream = stream.filter_batches(lambda frame: frame["f1"] > 2, batch_format=package)
    assert sorted(collected(stream)) == [("b", 4), ("c", 6)]
    values = pairs.map_batches(lambda frame: frame["f1"] + 1, Types.LONG(), batch_format=package)
    assert sorted(collected(values)) == [2, 3, 4]


@pytest.mark.parametrize("batch_format", ["arrow", "numpy", PANDAS, "polars"])
def test_values_that_a_function_only_passes_on_stay(env: StreamExecutionEnvironment, batch_format: str) -> None:
    names = ["short", "long", "texts", "flag", "day", "counts", "inner"]
    inner = Types.ROW_NAMED(["x"], [Types.LONG()])
    types = [Types.SHORT(), Types.LONG(), Types.LIST(Types.STRING()), Types.BOOLEAN(), Types.SQL_DATE()]
    row_type = Types.ROW_NAMED(names, [*types, Types.MAP(Types.STRING(), Types.LONG()), inner])
    day = datetime.date(1969, 12, 31)
    rows = [
        Row(1, 2**53, ["a", None], True, day, {"a": 1}, Row(x=3)),
        Row(*[None] * 7),
        Row(0, 0, [], False, day, {}, None),
    ]
    stream = env.from_collection(rows, row_type).map_batches(lambda batch: batch, batch_format=batch_format)
    assert sorted(map(repr, collected(stream))) == sorted(
        repr(Row(**dict(zip(names, row, strict=True)))) for row in rows
    )


def test_missing_package_is_named_with_its_command(
    env: StreamExecutionEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ConfigurationError, match=r'batch_format="polars" needs the package polars(.|\n)*pip install'):
        numbers(env).map_batches(lambda b: b, batch_format="polars")


# -- functions with a life cycle


class Scaled(BatchMapFunction):
    def open(self, runtime_context: Any) -> None:
        self._factor = 3
        self._name = runtime_context.get_task_name()
        self._seen = runtime_context.get_metrics_group().counter("seen")

    def map_batch(self, batch: pa.RecordBatch) -> pa.Array:
        self._seen.inc(batch.num_rows)
        return pc.multiply(batch["value"], self._factor)


class Callable_:
    def open(self, runtime_context: Any) -> None:
        self._factor = 5

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        return pc.multiply(batch["value"], self._factor)


@pytest.mark.parametrize(("function", "factor"), [(Scaled(), 3), (Callable_(), 5)])
def test_function_objects_are_opened(env: StreamExecutionEnvironment, function: Any, factor: int) -> None:
    assert sorted(collected(numbers(env, 50).map_batches(function))) == [factor * n for n in range(50)]


def test_batches_after_key_by_are_spread_by_key(env: StreamExecutionEnvironment) -> None:
    keyed = numbers(env, 50).map(lambda n: n, Types.LONG()).key_by(lambda n: n % 5, Types.LONG())
    assert sorted(collected(keyed.map_batches(doubled))) == [2 * n for n in range(50)]


def test_results_reach_a_keyed_edge(env: StreamExecutionEnvironment) -> None:
    pairs = numbers(env, 1000).map_batches(
        lambda b: pa.RecordBatch.from_arrays([pc.subtract(b["value"], 1), b["value"]], ["f0", "f1"]),
        Types.TUPLE([Types.LONG(), Types.LONG()]),
    )
    sums = pairs.key_by(lambda pair: pair[0] % 2, Types.LONG()).reduce(lambda a, b: (a[0], a[1] + b[1]))
    last = {pair[0] % 2: pair[1] for pair in sorted(collected(sums), key=lambda pair: pair[1])}
    assert last == {1: sum(range(0, 1000, 2)), 0: sum(range(1, 1000, 2))}


# -- errors


def test_other_number_of_rows_fails_and_names_operator_and_numbers(env: StreamExecutionEnvironment) -> None:
    stream = numbers(env, 8).set_parallelism(1).map_batches(lambda b: b.slice(1)).name("halve").set_parallelism(1)
    with pytest.raises(TidegateError) as caught:
        collected(stream)
    text = str(caught.value)
    assert "must return one record for each record of its batch" in text
    assert "8 rows in, 7 rows out" in text
    assert "operator 'halve', batch of 8 records" in text


def test_exception_names_operator_line_and_batch(env: StreamExecutionEnvironment) -> None:
    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("not today")

    with pytest.raises(TidegateError) as caught:
        collected(numbers(env, 8).map_batches(fails).name("broken"))
    text = str(caught.value)
    assert "operator 'broken', batch of" in text
    assert "test_batch_functions.py:" in text
    assert "ValueError: not today" in text


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (pa.array([1, 2, 1 << 40]), "row 2: 1099511627776 in a column of type int64"),
        (pa.array([1.0, 2.5, 3.0]), "row 1: 2.5 in a column of type double"),
        (pa.array([None, "x", "y"]), "row 1: 'x' in a column of type string"),
    ],
)
def test_column_that_does_not_fit_names_row_and_field(column: Any, found: str) -> None:
    layout = Layout(Types.ROW_NAMED(["n"], [Types.INT()]))
    with pytest.raises(TidegateError, match="field n is declared as Integer") as caught:
        layout.returned(pa.table({"n": column}))
    assert found in str(caught.value)


def test_numbers_do_not_become_texts() -> None:
    with pytest.raises(TidegateError, match="field value is declared as String"):
        Layout(Types.STRING()).returned(pa.table({"value": [1]}))


def test_record_of_another_type_names_row_and_field() -> None:
    with pytest.raises(TidegateError, match="field f1 is declared as Long") as caught:
        Layout(PAIR).batch_of(Batch([("a", 1), ("b", "two")]))
    assert "row 1: 'two' of type str" in str(caught.value)


def test_other_columns_fail_and_are_named() -> None:
    with pytest.raises(TidegateError, match="does not have the columns of its declared type: f0, f1") as caught:
        Layout(PAIR).returned(pa.table({"f0": ["a"], "price": [1]}))
    assert "columns f0, price" in str(caught.value)


def test_result_that_is_no_batch_fails() -> None:
    with pytest.raises(TidegateError, match=r"must return a pyarrow.RecordBatch or a pyarrow.Table"):
        Layout(PAIR).returned([("a", 1)])


def test_mask_of_another_length_fails(env: StreamExecutionEnvironment) -> None:
    with pytest.raises(TidegateError, match="one boolean for each record of its batch"):
        collected(numbers(env, 8).filter_batches(lambda b: [True]))


def test_missing_booleans_count_as_false(env: StreamExecutionEnvironment) -> None:
    pairs = env.from_collection([("a", 1), ("b", None), ("c", 3)], PAIR)
    assert sorted(collected(pairs.filter_batches(lambda b: pc.greater(b["f1"], 1)))) == [("c", 3)]
    listed = pairs.filter_batches(lambda b: [None if n is None else n > 1 for n in b["f1"].to_pylist()])
    assert sorted(collected(listed)) == [("c", 3)]


def test_rows_of_a_changelog_fail() -> None:
    row = Row.of_kind(RowKind.DELETE, "a", 1)
    with pytest.raises(TidegateError, match="only rows of the kind INSERT"):
        Layout(ORDER).batch_of(Batch([row]))


def test_stream_without_a_type_fails_when_the_program_is_built() -> None:
    env = StreamExecutionEnvironment()
    with pytest.raises(ProgramError, match="map_batches needs a declared type"):
        env.from_collection([1, 2]).map_batches(doubled)


def test_unknown_format_and_size_fail_when_the_program_is_built() -> None:
    stream = StreamExecutionEnvironment().from_collection([1], Types.LONG())
    with pytest.raises(TidegateError, match="batch_format of map_batches"):
        stream.map_batches(doubled, batch_format="excel")
    with pytest.raises(ProgramError, match="batch_size of map_batches is less than 1"):
        stream.map_batches(doubled, batch_size=0)


# -- batches


VALUES: list[tuple[Any, list[Any]]] = [
    (Types.LONG(), [1, -5, None]),
    (Types.STRING(), ["a", "", None]),
    (Types.BOOLEAN(), [True, None, False]),
    (PAIR, [("a", 1), (None, None)]),
    (Types.LIST(Types.LONG()), [[1, 2], [], None]),
    (Types.MAP(Types.STRING(), Types.LONG()), [{"a": 1}, {}]),
    (Types.TUPLE([Types.TUPLE([Types.LONG()]), Types.DOUBLE()]), [((1,), 0.5), (None, None)]),
    (ORDER, [Row(item="a", price=1), Row(item=None, price=None)]),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), [b"ab", b""]),
]


@pytest.mark.parametrize(("info", "values"), VALUES, ids=lambda value: str(value)[:30])
def test_records_survive_columns(info: Any, values: list[Any]) -> None:
    layout = Layout(info)
    assert layout.rows(layout.batch_of(Batch(values))) == values
    assert layout.rows(layout.batch_of(Batch([]))) == []


def test_parts_and_times_of_an_arrow_batch() -> None:
    layout = Layout(PAIR)
    batch = ArrowBatch(layout.batch_of(Batch([("a", 1), ("b", 2), ("c", 3)])), layout, [7, 8, 9])
    part = batch.part(1, 3)
    assert (len(part), list(part), part.time_list()) == (2, [("b", 2), ("c", 3)], [8, 9])
    assert batch.part(0, 3) is batch
    columns = part.as_columns()
    assert isinstance(columns, ColumnBatch)
    assert columns.rows() == [("b", 2), ("c", 3)]
    assert columns.time_list() == [8, 9]


def test_columns_with_missing_values_stay_arrow() -> None:
    layout = Layout(PAIR)
    batch = ArrowBatch(layout.batch_of(Batch([("a", None)])), layout)
    assert batch.as_columns() is batch


# -- sources and explanations


def parquet(env: StreamExecutionEnvironment, directory: Path, as_tuples: bool) -> Any:
    pyarrow.parquet.write_table(
        pa.table({"item": [f"i{n % 7}" for n in range(5000)], "price": list(range(5000))}), directory / "file"
    )
    file_format = ParquetColumnarRowInputFormat(ORDER, as_tuples=as_tuples)
    source = FileSource.for_bulk_file_format(file_format, str(directory / "file")).build()
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "orders")


@pytest.mark.parametrize("as_tuples", [False, True])
def test_parquet_columns_reach_the_function_without_rows(
    env: StreamExecutionEnvironment, tmp_path: Path, as_tuples: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    rows = Layout.rows
    monkeypatch.setattr(arrow_batches.Layout, "rows", lambda self, b: made.append(b.num_rows) or rows(self, b))
    price = "f1" if as_tuples else "price"
    stream = parquet(env, tmp_path, as_tuples).filter_batches(lambda b: pc.greater_equal(b[price], 4990))
    assert sorted(row[1] for row in collected(stream)) == list(range(4990, 5000))
    assert sum(made) == 10


def test_explain_says_where_the_chain_stays_columnar() -> None:
    env = StreamExecutionEnvironment()
    numbers(env).map_batches(doubled).filter_batches(lambda b: b["value"]).map(lambda n: n, Types.LONG()).map_batches(
        doubled
    ).print()
    found = explain_functions(build(program_of(env, "job"), 1, None, {}))
    text = "; ".join(one.reason for one in found if one.how == "called on batches")
    assert "as columns from 'numbers', for each batch that the source gives as columns" in text
    assert "as columns from 'map_batches'" in text
    assert "not as columns: 'Map' gives its records one by one" in text
