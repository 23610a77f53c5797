"""Whole programs with declared types and formats, on the simulated engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet
import pytest

from tests.simulation.executor import Simulated
from tidegate.base.errors import TidegateError
from tidegate.common import Row, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, OutputTag, ProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink, FileSource
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.formats.avro import AvroBulkWriters, AvroInputFormat, AvroSchema, GenericRecordAvroTypeInfo
from tidegate.datastream.formats.parquet import ParquetBulkWriters, ParquetColumnarRowInputFormat
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor

NUMBER = Types.ROW_NAMED(["n", "text"], [Types.LONG(), Types.STRING()])
SCHEMA = AvroSchema.parse_string('{"type": "record", "name": "N", "fields": [{"name": "n", "type": "long"}]}')


@pytest.fixture
def env(simulated: Simulated) -> StreamExecutionEnvironment:
    return simulated(seed=3, **{"execution.checkpointing.interval": "10 ms", "parallelism.default": 2})


def numbers(env: StreamExecutionEnvironment, count: int = 2000) -> Any:
    return env.from_source(NumberSequenceSource(0, count - 1), WatermarkStrategy.no_watermarks(), "numbers")


def parts(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("part-*") if path.is_file()]


def test_parquet_out_and_in(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = FileSink.for_bulk_format(str(out), ParquetBulkWriters.for_row_type(NUMBER)).build()
    numbers(env).map(lambda n: Row(n, str(n)), NUMBER).sink_to(sink)
    env.execute()
    written = [n for path in parts(out) for n in pyarrow.parquet.read_table(path)["n"].to_pylist()]
    assert sorted(written) == list(range(2000))
    source = FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(NUMBER), str(out)).build()
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows")
    assert str(rows.get_type()) == str(NUMBER)
    with rows.map(
        lambda row: (row.n, row.text), Types.TUPLE([Types.LONG(), Types.STRING()])
    ).execute_and_collect() as found:  # type: ignore[union-attr]
        assert sorted(found) == [(n, str(n)) for n in range(2000)]


def test_columns_stay_columns(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"n": list(range(1000)), "text": ["x"] * 1000}), tmp_path / "file")
    file_format = ParquetColumnarRowInputFormat(NUMBER, as_tuples=True)
    source = FileSource.for_bulk_file_format(file_format, str(tmp_path / "file")).build()
    pairs = env.from_source(source, WatermarkStrategy.no_watermarks(), "pairs")
    sums = pairs.map(lambda pair: (pair[0] % 2, pair[0]), Types.TUPLE([Types.LONG(), Types.LONG()]))
    with sums.key_by(lambda pair: pair[0]).sum(1).execute_and_collect() as found:  # type: ignore[union-attr]
        assert max(found) == (1, 250000)


def test_avro_out_and_in(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = FileSink.for_bulk_format(str(out), AvroBulkWriters.for_generic_record(SCHEMA)).build()
    numbers(env).map(lambda n: {"n": n}, GenericRecordAvroTypeInfo(SCHEMA)).sink_to(sink)
    env.execute()
    written: list[Any] = []
    for path in parts(out):
        with path.open("rb") as file:
            written += list(fastavro.reader(file))
    assert sorted(record["n"] for record in written) == list(range(2000))
    with env.create_input(AvroInputFormat(str(out), SCHEMA)).map(lambda r: r["n"]).execute_and_collect() as found:  # type: ignore[union-attr]
        assert sorted(found) == list(range(2000))
    with pytest.raises(TypeError, match="create_input takes an AvroInputFormat"):
        env.create_input("file")


def failure(env: StreamExecutionEnvironment) -> str:
    with pytest.raises(TidegateError) as caught:
        env.execute()
    error: BaseException | None = caught.value
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__
    return "\n".join(texts)


def test_a_record_that_does_not_fit_the_file_names_operator_and_field(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    sink = FileSink.for_bulk_format(str(tmp_path / "out"), ParquetBulkWriters.for_row_type(NUMBER)).build()
    numbers(env, 5).map(lambda n: Row(n, n)).sink_to(sink).name("to Parquet")
    text = failure(env)
    assert "A record is not of its declared type: field text is declared as STRING" in text
    assert "operator 'to Parquet', Parquet writer" in text
    assert parts(tmp_path / "out") == []


def test_a_record_that_does_not_fit_the_declared_type_names_operator_and_line(env: StreamExecutionEnvironment) -> None:
    numbers(env, 5).map(lambda n: Row(n, n), NUMBER).name("bad").print()
    text = failure(env)
    assert "field text is declared as STRING" in text
    assert f"operator 'bad', added at {__file__}:" in text
    assert "int 0: a text is required" in text


@pytest.mark.parametrize("through", ["a shuffle", "a sink"])
@pytest.mark.parametrize(("bits", "declared"), [(16, Types.SHORT()), (64, Types.LONG())])
def test_integers_that_do_not_fit_are_refused_where_they_leave(
    env: StreamExecutionEnvironment, through: str, bits: int, declared: Any
) -> None:
    narrow = numbers(env, 5).map(lambda n: n + (1 << bits - 1), declared)
    (narrow.rebalance().map(lambda n: n) if through == "a shuffle" else narrow).print()
    text = failure(env)
    assert f"the record is declared as {declared.describe()}" in text
    assert f"it does not fit in {bits} bits" in text
    assert ("sent to operator 'Map'" if through == "a shuffle" else "operator 'Sink: Print to Std. Out'") in text


class Puts(KeyedProcessFunction):
    """Puts a number that its state cannot hold, as a value, an element, or a key of a map."""

    def __init__(self, kind: str, number: int, declared: Any) -> None:
        self.kind, self.number, self.declared = kind, number, declared

    def open(self, runtime_context: Any) -> None:
        declared, texts = self.declared, Types.STRING()
        self.value = runtime_context.get_state(ValueStateDescriptor("a value", declared))
        self.list = runtime_context.get_list_state(ListStateDescriptor("a list", declared))
        self.keys = runtime_context.get_map_state(MapStateDescriptor("a key", declared, texts))
        self.values = runtime_context.get_map_state(MapStateDescriptor("an entry", texts, declared))

    def process_element(self, value: Any, ctx: Any) -> Any:
        {
            "a value": lambda: self.value.update(self.number),
            "a list": lambda: self.list.add(self.number),
            "a key": lambda: self.keys.put(self.number, "x"),
            "an entry": lambda: self.values.put("x", self.number),
        }[self.kind]()
        return []


@pytest.mark.parametrize("kind", ["a value", "a list", "a key", "an entry"])
@pytest.mark.parametrize(
    ("declared", "number"), [(Types.LONG(), 1 << 63), (Types.LONG(), -(1 << 63) - 1), (Types.INT(), 1 << 31)]
)
def test_integers_that_do_not_fit_are_refused_in_state(
    env: StreamExecutionEnvironment, kind: str, declared: Any, number: int
) -> None:
    numbers(env, 5).key_by(lambda n: n).process(Puts(kind, number, declared)).name("puts").print()
    text = failure(env)
    assert ("is not of its" if kind == "a key" else "does not fit the") + " declared type" in text
    assert f"where: state '{kind}' of operator 'puts'" in text
    assert str(number) in text


class Split(ProcessFunction):
    tag = OutputTag("small", Types.TUPLE([Types.INT(), Types.DOUBLE()]))

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield self.tag, (value, value)
        yield value


def test_side_outputs_have_their_type(env: StreamExecutionEnvironment) -> None:
    side = numbers(env, 3).process(Split()).get_side_output(Split.tag)
    with side.map(repr).execute_and_collect() as found:  # type: ignore[union-attr]
        assert sorted(found) == ["(0, 0.0)", "(1, 1.0)", "(2, 2.0)"]
