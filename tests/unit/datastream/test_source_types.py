"""The type given to ``from_source`` is applied to every record, before the watermark strategy sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.simulation.executor import Simulated
from tidegate.base.errors import ArgumentTypeError, JobFailedError
from tidegate.common import Row, Types, WatermarkStrategy
from tidegate.common.typeinfo import TypeInformation
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.connectors.values.ranges import CollectionSource
from tidegate.datastream import ProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSource, StreamFormat
from tidegate.datastream.formats.parquet import ParquetColumnarRowInputFormat
from tidegate.graph.plan import ChainNode, Operator
from tidegate.graph.transformation import OutputTag
from tidegate.operators.contracts.batch import Batch, ColumnBatch
from tidegate.operators.contracts.source import Source
from tidegate.operators.contracts.specs import SourceSpec
from tidegate.operators.kinds.source import _Declared

PERSON = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.LONG()])
NONE = WatermarkStrategy.no_watermarks()


@pytest.fixture
def env(simulated: Simulated) -> StreamExecutionEnvironment:
    return simulated(
        seed=3,
        **{
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 3,
            "restart-strategy.fixed-delay.delay": "1 ms",
            "parallelism.default": 1,
        },
    )


def collected(env: StreamExecutionEnvironment, values: list[Any], info: TypeInformation) -> list[Any]:
    return list(env.from_source(CollectionSource(values), NONE, "people", info).execute_and_collect())


def test_rows_get_the_names_of_the_type(env: StreamExecutionEnvironment) -> None:
    found = collected(env, [("ada", 36), Row("bob", 7), {"age": 1, "name": "eve"}], PERSON)
    assert [(row.name, row.age, row["name"]) for row in found] == [
        ("ada", 36, "ada"),
        ("bob", 7, "bob"),
        ("eve", 1, "eve"),
    ]


def test_numbers_get_the_class_of_the_type(env: StreamExecutionEnvironment) -> None:
    assert list(map(repr, collected(env, [1, 2.5, True], Types.DOUBLE()))) == ["1.0", "2.5", "1.0"]


def test_text_declared_as_long_fails_and_names_operator_record_type_and_cure(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text("1\n2\n")
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path / "lines")).build()
    stream = env.from_source(source, NONE, "lines", Types.LONG())
    with pytest.raises(JobFailedError) as failed:
        list(stream.execute_and_collect())
    cause = failed.value.__cause__
    assert isinstance(cause, ArgumentTypeError)
    assert "A record is not of its declared type: the record is declared as LONG" in str(cause)
    assert cause.where is not None and cause.where.startswith("operator 'lines', added at ")
    assert cause.where.endswith("type_info Long")
    assert cause.found == "str '1': an integer is required; record '1'"
    assert cause.cure is not None and "convert in a map" in cause.cure


def test_field_that_does_not_fit_is_named_with_its_record(env: StreamExecutionEnvironment) -> None:
    with pytest.raises(JobFailedError) as failed:
        collected(env, [("ada", 36), ("bob", "old")], PERSON)
    cause = failed.value.__cause__
    assert isinstance(cause, ArgumentTypeError)
    assert cause.rule.endswith("field age is declared as LONG")
    assert cause.found == "str 'old': an integer is required; record ('bob', 'old')"


def test_timestamp_assigner_sees_the_converted_record(env: StreamExecutionEnvironment) -> None:
    class Age(TimestampAssigner):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return int(value.age)

    class Time(ProcessFunction):
        def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
            yield value.name, ctx.timestamp()

    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Age())
    stream = env.from_source(CollectionSource([("ada", 36)]), strategy, "people", PERSON)
    assert list(stream.process(Time()).execute_and_collect()) == [("ada", 36)]


def declared(info: TypeInformation, source: Source | None = None) -> _Declared:
    """What a source operator converts its batches with."""
    operator = Operator(
        1, "numbers", None, "hash", SourceSpec(source or CollectionSource([]), None, info), 1, 128, None
    )
    return _Declared(info, ChainNode(operator, (), ()))


@pytest.mark.parametrize(
    ("info", "values"),
    [
        (Types.LONG(), range(10, 20)),
        (Types.INT(), [1, 2, 3]),
        (Types.DOUBLE(), [1.0, 2.0]),
        (Types.STRING(), ["a", "b"]),
        (Types.TUPLE([Types.STRING(), Types.DOUBLE()]), [("a", 1.0)]),
        (Types.LONG(), ColumnBatch.of_scalars([1, 2])),
        (Types.TUPLE([Types.LONG(), Types.DOUBLE()]), ColumnBatch.of_tuples([1], [0.5])),
    ],
)
def test_batch_of_the_declared_type_is_handed_on_as_it_is(info: TypeInformation, values: Any) -> None:
    batch = values if isinstance(values, Batch) else Batch(values)
    assert declared(info)(batch) is batch


def test_batches_that_differ_are_converted(env: StreamExecutionEnvironment) -> None:
    assert list(map(repr, declared(Types.DOUBLE())(Batch(range(2))))) == ["0.0", "1.0"]
    assert declared(PERSON)(ColumnBatch.of_tuples(["ada"], [36])).rows() == [Row(name="ada", age=36)]
    assert list(declared(Types.LONG())(Batch(range(0)))) == []
    with pytest.raises(ArgumentTypeError, match="it does not fit in 8 bits"):
        declared(Types.BYTE())(Batch(range(200)))
    with pytest.raises(ArgumentTypeError, match="it does not fit in 32 bits"):
        declared(Types.INT())(ColumnBatch.of_scalars(np.array([1 << 40])))


class Tagging(CollectionSource):
    """A source with records for a side output among its own."""

    emits_tagged = True


def test_records_for_a_side_output_are_not_converted() -> None:
    bad = (OutputTag("bad"), b"\x00")
    assert declared(Types.DOUBLE(), Tagging([]))(Batch([1, bad])).rows() == [1.0, bad]


def test_type_that_the_source_gives_itself_needs_no_conversion(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    source = FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(PERSON), str(tmp_path)).build()
    other = Types.ROW_NAMED(["who", "age"], [Types.STRING(), Types.LONG()])
    for info, converted in [(PERSON, None), (None, None), (Types.PICKLED_BYTE_ARRAY(), None), (other, other)]:
        stream = env.from_source(source, NONE, "people", info)
        spec = env._transformation(stream._inputs[0].upstream).spec
        assert isinstance(spec, SourceSpec) and spec.declared is converted
        assert str(stream.get_type()) == str(info or PERSON)
