"""Typed records as text: what print and file sinks write is what Flink writes, whose values are Java's."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from tidegate.common import Encoder, Row, Types
from tidegate.common.serialization import LineEncoder
from tidegate.connectors.files.sink import FileSink
from tidegate.connectors.values.sinks import PrintSink
from tidegate.datastream.printing import as_written_by_flink, formatter, java_text

PAIR = Types.TUPLE([Types.STRING(), Types.DOUBLE()])


@pytest.mark.parametrize(
    ("info", "value", "text"),
    [
        (Types.BOOLEAN(), True, "true"),
        (Types.DOUBLE(), 1e7, "1.0E7"),
        (Types.DOUBLE(), 1e-3, "0.001"),
        (Types.DOUBLE(), 123456.75, "123456.75"),
        (Types.DOUBLE(), -2.5e10, "-2.5E10"),
        (Types.DOUBLE(), float("nan"), "NaN"),
        (Types.DOUBLE(), float("-inf"), "-Infinity"),
        (Types.FLOAT(), 0.10000000149011612, "0.1"),
        (Types.FLOAT(), 16777216.0, "1.6777216E7"),
        (Types.FLOAT(), 1e-3, "0.001"),
        (Types.FLOAT(), float("inf"), "Infinity"),
        (PAIR, ("a", 0.5), "(a,0.5)"),
        (Types.TUPLE([Types.FLOAT(), PAIR]), (0.30000001192092896, ("b", None)), "(0.3,(b,null))"),
        (Types.LIST(Types.STRING()), ["a", "b"], "[a, b]"),
        (Types.MAP(Types.STRING(), Types.BOOLEAN()), {"k": False, "l": True}, "{k=false, l=true}"),
        (Types.ROW([Types.STRING(), Types.INT()]), Row("a", None), "+I[a, null]"),
        (Types.SQL_TIMESTAMP(), datetime.datetime(2024, 2, 29, 1, 2, 3, 4000), "2024-02-29 01:02:03.004"),
        (Types.SQL_TIMESTAMP(), datetime.datetime(2024, 2, 29), "2024-02-29 00:00:00.0"),
    ],
    ids=str,
)
def test_java_writes_values_its_own_way(info: Any, value: Any, text: str) -> None:
    assert java_text(info, value) == text


def test_records_whose_text_is_the_same_are_not_touched() -> None:
    assert [formatter(info) for info in (Types.STRING(), Types.LONG(), Types.PICKLED_BYTE_ARRAY())] == [None] * 3


def test_a_file_sink_writes_javas_text_of_typed_records() -> None:
    sink = FileSink.for_row_format("/nowhere", Encoder.simple_string_encoder("UTF-16")).build()
    written = as_written_by_flink(sink, PAIR).settings.encoder
    assert written.encode(("ä", 1.0)).decode("UTF-16") == "(ä,1.0)\n"
    assert written.encode_batch([("a", 1.0), ("b", None)]).decode("UTF-16") == "(a,1.0)\n(b,null)\n"
    assert type(sink.settings.encoder) is LineEncoder, "the program's sink may be used for another stream"


def test_other_sinks_encoders_and_types_are_left_alone() -> None:
    class Own(LineEncoder):
        pass

    texts = FileSink.for_row_format("/nowhere", Encoder.simple_string_encoder()).build()
    own = FileSink.for_row_format("/nowhere", Own()).build()
    for sink, info in [(texts, Types.STRING()), (texts, Types.PICKLED_BYTE_ARRAY()), (own, PAIR), (PrintSink(), PAIR)]:
        assert as_written_by_flink(sink, info) is sink
