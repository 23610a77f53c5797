"""Messages and lines as batches whose reader decides between rows and columns: both are the same records."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.base.errors import StateFormatError, UserCodeError
from tidegate.common import Types
from tidegate.connectors.formats.json_rows import JsonRows
from tidegate.connectors.kafka.cluster import TopicPartition
from tidegate.connectors.kafka.serialization import ValueOnly
from tidegate.datastream.formats.csv import CsvRowDeserializationSchema
from tidegate.datastream.formats.json import JsonRowDeserializationSchema
from tidegate.operators.contracts import arrow_batch
from tidegate.operators.contracts.arrow_batch import ArrowBatch, DecodedBatch, pack_arrow
from tidegate.operators.flow.packing import Packer, length_of

NESTED = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()])
ROW = Types.ROW_NAMED(
    ["text", "long", "short", "double", "flag", "inner", "texts", "counts"],
    [
        Types.STRING(),
        Types.LONG(),
        Types.SHORT(),
        Types.DOUBLE(),
        Types.BOOLEAN(),
        NESTED,
        Types.LIST(Types.STRING()),
        Types.MAP(Types.STRING(), Types.LONG()),
    ],
)
LONGS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(max_size=5)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "text": st.none() | TEXTS,
            "long": st.none() | LONGS,
            "short": st.none() | st.integers(-(2**15), 2**15 - 1),
            "double": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "flag": st.none() | st.booleans(),
            "inner": st.none() | st.fixed_dictionaries({}, optional={"a": st.none() | LONGS, "b": TEXTS}),
            "texts": st.none() | st.lists(st.none() | TEXTS, max_size=3),
            "counts": st.none() | st.dictionaries(TEXTS, LONGS, max_size=3),
            "unknown": TEXTS,
        },
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=200, deadline=None)
@given(RECORDS, st.booleans())
def test_rows_and_columns_of_json_messages_are_the_same_records(records: list[dict[str, Any]], ascii: bool) -> None:
    messages = [json.dumps(record, ensure_ascii=ascii).encode() for record in records]
    parser = JsonRows(ROW)
    wanted = [parser.row(message) for message in messages]
    batch = parser.batch(messages)
    assert isinstance(batch, DecodedBatch)
    assert repr(batch.rows()) == repr(wanted)
    columns: Any = parser.batch(messages)
    assert repr(columns.layout.rows(columns.arrow)) == repr(wanted)
    packer = Packer(ROW)
    assert packer.carries(columns)
    packed = pack_arrow(columns.arrow, columns.layout)
    assert length_of(packed) == len(messages)
    assert repr(packer.unpack((packed, None, None)).rows()) == repr(wanted)
    assert repr(packer.unpack_list(packed)) == repr(wanted)


@settings(max_examples=100, deadline=None)
@given(RECORDS, st.data())
def test_parts_and_choices_of_both_forms_are_the_same(records: list[dict[str, Any]], data: Any) -> None:
    messages = [json.dumps(record).encode() for record in records]
    parser = JsonRows(ROW)
    times = list(range(len(messages)))
    start = data.draw(st.integers(0, len(messages)))
    end = data.draw(st.integers(start, len(messages)))
    chosen = data.draw(st.lists(st.sampled_from(times))) if times else []
    for as_columns in (False, True):
        batch: Any = parser.batch(messages)
        batch = batch.with_times(times)
        if as_columns:
            _ = batch.arrow
        part, some = batch.part(start, end), batch.take(np.array(chosen, np.int64))
        assert (repr(part.rows()), part.time_list()) == (
            repr([parser.row(m) for m in messages[start:end]]),
            times[start:end],
        )
        assert (repr(some.rows()), some.time_list()) == (repr([parser.row(messages[n]) for n in chosen]), chosen)
        for number in range(len(ROW.get_field_names())):
            values = [row[number] for row in batch.rows()]
            column = batch.column(number)
            assert column is None or repr(column.tolist()) == repr(values)


class Message:
    def __init__(self, value: bytes | None, timestamp: int) -> None:
        self.value, self.timestamp = value, timestamp


PAIR = Types.ROW_NAMED(["item", "price"], [Types.STRING(), Types.LONG()])
SCHEMAS: dict[str, tuple[Any, list[bytes | None]]] = {
    "json": (
        JsonRowDeserializationSchema.builder().type_info(PAIR).build(),
        [b'{"item": "a", "price": 1}', None, '{"item": "猫"}'.encode(), b'{"price": "7", "item": null}'],
    ),
    "csv": (CsvRowDeserializationSchema.Builder(PAIR).build(), [b"a,1", None, "猫,2".encode(), b'"x,y",3']),
}


@pytest.mark.parametrize("kind", SCHEMAS)
@pytest.mark.parametrize("count", [3, 4])
def test_values_of_kafka_stay_undecided_with_their_times(kind: str, count: int) -> None:
    schema, values = SCHEMAS[kind]
    messages = [Message(value, 10 * n) for n, value in enumerate(values[:count])]
    batch = ValueOnly(schema).batch(TopicPartition("t", 0), messages)
    lenient = kind == "json" and count == 4  # a number in a text is parsed message by message
    assert isinstance(batch, DecodedBatch) is not lenient
    assert repr(batch.rows()) == repr([schema.deserialize(value) for value in values[:count] if value is not None])
    assert batch.time_list() == [0, 20, 30][: count - 1]


def test_schema_that_overrides_deserialize_is_called_for_each_message() -> None:
    class Doubled(JsonRowDeserializationSchema):
        def deserialize(self, message: bytes) -> Any:
            row = super().deserialize(message)
            return row.item * 2

    schema = Doubled(JsonRows(PAIR), PAIR)
    batch = ValueOnly(schema).batch(TopicPartition("t", 0), [Message(b'{"item": "a"}', 1)])
    assert (batch.rows(), batch.time_list()) == (["aa"], [1])


def test_without_pyarrow_formats_give_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.connectors.formats.json_rows.has_arrow", lambda: False)
    found = JsonRows(PAIR).batch([b'{"item": "a", "price": 1}'])
    assert repr(found) == "[Row(item='a', price=1)]"


def test_chunk_of_another_version_is_refused() -> None:
    batch: Any = JsonRows(PAIR).batch([b'{"item": "a", "price": 1}'])
    packed = bytearray(pack_arrow(batch.arrow, batch.layout))
    packed[1] = 9
    with pytest.raises(Exception, match="another version of Tidegate"):
        Packer(PAIR).unpack((bytes(packed), None, None))


def test_batches_of_another_type_are_not_carried_as_columns() -> None:
    renamed = Types.ROW_NAMED(["price", "item"], [Types.STRING(), Types.LONG()])
    batch: Any = JsonRows(PAIR).batch([b'{"item": "a", "price": 1}'])
    assert Packer(PAIR).carries(batch)
    assert not Packer(renamed).carries(batch)
    assert not Packer(None).carries(batch)
    assert isinstance(batch, ArrowBatch)
    assert arrow_batch.joined([batch.arrow, batch.arrow]).num_rows == 2


# -- messages of any bytes: what becomes of one does not depend on the others of its batch

CUTS = [
    b"\xff",
    b"\xed\xa0\x80",
    b"\x00",
    b"\t",
    b"\r",
    b"\n",
    b"\x0c",
    "\u2028".encode(),
    b'"',
    b",",
    b"\\",
    b"{",
    b"0",
]
JSON_VALUES = [
    "1",
    "-0",
    "1.0",
    "1e999",
    "9223372036854775808",
    "null",
    "true",
    '"7"',
    '"\\ud800"',
    '"猫"',
    "NaN",
    "01",
]
CSV_LINES = ["a,1", "猫,-2", '"x,y",3', "a,1.5", 'a"b,1', "a, 1 ", "", ",", "a,1,2", "#a,1", "a" * 140_000 + ",1"]


@st.composite
def messages_of(draw: st.DrawFn, kind: str) -> bytes:
    if kind == "json":
        names = draw(st.lists(st.sampled_from(["item", "price", "other"]), max_size=4))
        text = ",".join(f'"{name}":{draw(st.sampled_from(JSON_VALUES))}' for name in names)
        message = f"{{{text}}}".encode()
    else:
        message = draw(st.sampled_from(CSV_LINES)).encode()
    if draw(st.integers(0, 2)) == 0:
        at = draw(st.integers(0, len(message)))
        message = message[:at] + draw(st.sampled_from(CUTS)) + message[at + draw(st.integers(0, 1)) :]
    return message


def outcome(parse: Any) -> str:
    try:
        return repr(parse())
    except UserCodeError as error:
        return str(error)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(["json", "csv"]), st.booleans())
def test_any_message_gives_among_others_what_it_gives_alone(data: Any, kind: str, lenient: bool) -> None:
    schema: Any
    if kind == "json":
        builder = JsonRowDeserializationSchema.builder().type_info(PAIR)
        schema = (builder.ignore_parse_errors() if lenient else builder).build()
    else:
        schema = CsvRowDeserializationSchema.Builder(PAIR).set_ignore_parse_errors(lenient).build()
    messages = data.draw(st.lists(messages_of(kind), min_size=1, max_size=4))
    alone = outcome(lambda: [schema.deserialize(message) for message in messages])
    assert outcome(lambda: schema.deserialize_batch(messages)) == alone
    assert outcome(lambda: list(schema.deserialize_as_batch(messages))) == alone

    def as_columns() -> Any:
        batch = schema.deserialize_as_batch(messages)
        return batch.layout.rows(batch.arrow) if isinstance(batch, DecodedBatch) else batch

    assert outcome(as_columns) == alone


@pytest.mark.parametrize(
    "other",
    [
        Types.ROW_NAMED(["item", "price"], [Types.STRING(), Types.DOUBLE()]),
        Types.ROW_NAMED(["item", "price"], [Types.STRING(), Types.INT()]),
        Types.ROW_NAMED(["price", "item"], [Types.LONG(), Types.STRING()]),
        Types.ROW_NAMED(["item", "cost"], [Types.STRING(), Types.LONG()]),
        Types.ROW_NAMED(["item"], [Types.STRING()]),
        Types.ROW_NAMED(["item", "price", "more"], [Types.STRING(), Types.LONG(), Types.LONG()]),
        Types.TUPLE([Types.STRING(), Types.LONG()]),
        None,
    ],
)
def test_chunk_that_waited_in_a_checkpoint_of_a_program_with_another_type_is_refused(other: Any) -> None:
    batch: Any = JsonRows(PAIR).batch([b'{"item": "a", "price": 1}'])
    packed = pack_arrow(batch.arrow, batch.layout)
    assert repr(Packer(PAIR, "sums").unpack((packed, None, None)).rows()) == "[Row(item='a', price=1)]"
    with pytest.raises(StateFormatError, match="the program declares another type for them") as error:
        Packer(other, "sums").unpack((packed, None, None))
    assert "records sent to sums" in str(error.value)
