"""The identity of keys: the bytes decide, in routers, caches, stores and timers, over rounds, restarts and rescales."""

from __future__ import annotations

import datetime
import decimal
import enum
import io
import math
import pickle
import shutil
import struct
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.state.state_subtask import MAX_PARALLELISM, Subtask
from tidegate.base.errors import ArgumentTypeError
from tidegate.common.time import Instant
from tidegate.common.typeinfo import Types
from tidegate.common.types import Row, RowKind
from tidegate.operators.flow.packing import KEYS
from tidegate.state.descriptors import MapStateDescriptor, ValueStateDescriptor
from tidegate.state.key_groups import KeyRouter, encode_and_group, group_of, range_for
from tidegate.state.keys import (
    UNDECLARED,
    EncodedKey,
    encode_key,
    encode_keys,
    form_of,
    identify,
    key_identity,
    visible,
)
from tidegate.state.refs import StateFile


class Level(enum.IntEnum):
    LOW = 1


class Color(enum.Enum):
    RED = 1


class Name(str):
    __slots__ = ()


@dataclass(frozen=True)
class Place:
    city: str
    note: str = field(default="", compare=False)


@dataclass
class Changing:
    number: int


TWO_HOURS = datetime.timezone(datetime.timedelta(hours=2))
EQUAL_TO_SOME_OTHER = [
    *(0, 0.0, -0.0, False, np.int8(0), decimal.Decimal(0), decimal.Decimal("0.0")),
    *(1, 1.0, True, Level.LOW, np.int64(1), np.int8(1), np.float32(1), decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    *(float("nan"), -float("nan"), float("inf"), 1 << 63, float(1 << 63), 1 << 70, float(1 << 70)),
    *("a", b"a", bytearray(b"a"), Name("a"), "", b"", None, "\ud800"),
    *((1,), (1.0,), (True,), (Level.LOW,), [1], ((1,),), ((1.0,),), (None, "a"), (1 << 70, "a"), ()),
    *(Color.RED, Place("a", "x"), Place("a", "y"), Changing(1), {"a": 1}, {"a": True}, Row(1), Row(1.0), Row(a=1)),
    datetime.datetime(2024, 1, 2, 3, tzinfo=datetime.UTC),
    datetime.datetime(2024, 1, 2, 5, tzinfo=TWO_HOURS),
    datetime.datetime(2024, 1, 2, 3),
    datetime.date(2024, 1, 2),
]
simple = st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=4), st.binary(max_size=4), st.none())
keys = st.one_of(
    st.sampled_from(EQUAL_TO_SOME_OTHER),
    simple,
    st.recursive(simple, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4),
    st.lists(simple, max_size=2),
    st.decimals(),
)


def serialized(key: Any) -> bytes:
    """What tells keys apart, by nothing but pickle; a nan is a nan."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, 4)
    pickler.fast = True
    pickler.dump(with_one_nan(key))
    return buffer.getvalue()


def with_one_nan(key: Any) -> Any:
    if type(key) in (tuple, list):
        return type(key)(map(with_one_nan, key))
    return math.nan if type(key) is float and math.isnan(key) else key


@given(keys, keys)
def test_forms_are_equal_when_the_bytes_are(left: Any, right: Any) -> None:
    one, other = identify(left), identify(right)
    assert (one == other) == (serialized(left) == serialized(right)) == (encode_key(one) == encode_key(other))
    assert (hash(one) == hash(other)) or one != other


@given(keys)
def test_a_key_keeps_its_form_and_comes_back_to_the_user_as_it_was(key: Any) -> None:
    form = identify(key)
    assert serialized(visible(form)) == serialized(key)
    for again in (form_of(encode_key(form)), identify(form) if type(form) is not EncodedKey else form):
        assert (again, type(again)) == (form, type(form))


@given(st.lists(keys, min_size=1, max_size=12))
def test_keys_travel_in_their_form(many: list[Any]) -> None:
    forms = list(map(identify, many))
    received = KEYS.unpack_list(KEYS.pack(forms))
    assert (received, list(map(type, received))) == (forms, list(map(type, forms)))
    encoded, groups = encode_and_group(forms, 128)
    assert encoded == [encode_key(form) for form in forms]
    assert groups.tolist() == [group_of(form, 128) for form in forms]


def test_what_the_documentation_says() -> None:
    assert len({identify(key) for key in (1, 1.0, True, Level.LOW, np.int64(1), decimal.Decimal(1))}) == 6
    assert len({identify(key) for key in (0.0, -0.0)}) == 2
    assert identify(float("nan")) == identify(math.nan)
    assert {key_identity(Types.LONG())(key) for key in (1, 1.0, True, Level.LOW, np.int64(1))} == {1}


class Job:
    """A keyed operator with its router, in rounds; the driver's part included. Counts, a map and a timer for every key."""

    def __init__(self, directory: Path, key_type: Any) -> None:
        self.directory, self.key_type = directory, key_type
        self.identity = key_identity(key_type)
        self.subtasks: list[Subtask] = []
        self.scale(1)

    def scale(self, parallelism: int) -> None:
        refs = [ref for subtask in self.subtasks for ref in subtask.accepted]
        self.subtasks = []
        for number in range(parallelism):
            groups = range_for(number, parallelism, MAX_PARALLELISM)
            clipped = [(ref, ref.groups.intersect(groups)) for ref in refs]
            own = [
                StateFile(ref.path, ref.size, ref.hash, ref.upto, part, ref.entries)
                for ref, part in clipped
                if part is not None
            ]
            self.subtasks.append(Subtask(self.directory, groups, own, key_type=self.key_type))
        self.router = KeyRouter(self.subtasks, MAX_PARALLELISM)

    def restart(self) -> None:
        self.router.clear()
        for subtask in self.subtasks:
            shutil.rmtree(subtask.local, ignore_errors=True)
            subtask.backend = subtask.new_backend()

    def round(self, chunk: list[Any]) -> None:
        for subtask in self.subtasks:
            subtask.begin()
        sent: dict[int, list[Any]] = {}
        for key in map(self.identity, chunk):
            sent.setdefault(self.subtasks.index(self.router[key]), []).append(key)
        for index, forms in sent.items():
            self._process(self.subtasks[index], KEYS.unpack_list(KEYS.pack(forms)))
        for subtask in self.subtasks:
            subtask.finish()

    def _process(self, subtask: Subtask, forms: list[Any]) -> None:
        backend = subtask.backend
        count = backend.state(ValueStateDescriptor("count", Types.LONG()))
        seen = backend.state(MapStateDescriptor("seen", None, None))
        backend.prefetch(forms)
        for form in forms:
            backend.context.key = form
            count.update((count.value() or 0) + 1)
            key = backend.context.visible_key
            seen.put(key, (seen.get(key) or 0) + 1)
            backend.event_timers.register(5)

    def result(self) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        for subtask in self.subtasks:
            backend = subtask.begin()
            count = backend.state(ValueStateDescriptor("count", Types.LONG()))
            seen = backend.state(MapStateDescriptor("seen", None, None))
            for _, form, namespace in backend.event_timers.due(5):
                backend.context.enter(form, namespace)
                [(key, number)] = seen.items()
                assert serialized(key) == serialized(visible(form))
                assert number == count.value()
                found[serialized(key)] += number
            backend.end()
        return found


steps = st.lists(st.one_of(st.lists(keys, max_size=8), st.integers(1, 4), st.just("restart")), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_a_key_is_the_same_in_router_caches_store_and_timers(history: list[Any]) -> None:
    expected = Counter(serialized(key) for step in history if isinstance(step, list) for key in step)
    assert _run(history, None) == expected


numbers = st.one_of(
    st.integers(-300, 300),
    st.booleans(),
    st.floats(-300, 300),
    st.sampled_from([Level.LOW, np.int8(1), np.int64(-3), np.float64(2.5), decimal.Decimal("1.9"), -0.0, 0.0]),
)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.one_of(st.lists(numbers, max_size=8), st.integers(1, 4), st.just("restart")), max_size=8),
    st.sampled_from([(Types.LONG(), int), (Types.DOUBLE(), float), (Types.BOOLEAN(), lambda v: bool(int(v)))]),
)
def test_keys_of_a_declared_type_are_the_same_everywhere(history: list[Any], declared: Any) -> None:
    key_type, convert = declared
    expected = Counter(serialized(convert(key)) for step in history if isinstance(step, list) for key in step)
    assert _run(history, key_type) == expected


def _run(history: list[Any], key_type: Any) -> Counter[bytes]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        job = Job(Path(directory), key_type)
        for step in history:
            if isinstance(step, list):
                job.round(step)
            elif isinstance(step, int):
                job.scale(step)
            else:
                job.restart()
        return job.result()


MOMENT = datetime.datetime(2024, 1, 2, 3, 4, 5, 678901)


@pytest.mark.parametrize(
    ("declared", "given", "key"),
    [
        *((Types.LONG(), value, 1) for value in (1, True, 1.0, 1.5, Level.LOW, np.int64(1), decimal.Decimal("1.5"))),
        *((Types.INT(), value, 1) for value in (np.int8(1), np.float64(1), np.bool_(True))),
        (Types.BIG_INT(), 1 << 70, 1 << 70),
        *((Types.BOOLEAN(), value, True) for value in (True, 1, 1.5, 5)),
        *((Types.BOOLEAN(), value, False) for value in (False, 0, 0.5)),
        *((Types.DOUBLE(), value, 1.0) for value in (1, True, 1.0, Level.LOW, np.float32(1), decimal.Decimal(1))),
        (Types.FLOAT(), 0.1, 0.10000000149011612),
        (Types.FLOAT(), 1e300, math.inf),
        (Types.STRING(), Name("a"), "a"),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), bytearray(b"a"), b"a"),
        (Types.BIG_DEC(), 1, decimal.Decimal(1)),
        (Types.BIG_DEC(), decimal.Decimal("1.50"), decimal.Decimal("1.50")),
        (Types.BIG_DEC(), decimal.Decimal("-0.0"), decimal.Decimal("0.0")),
        (Types.SQL_DATE(), MOMENT, MOMENT.date()),
        (Types.SQL_TIME(), MOMENT, MOMENT.time()),
        (Types.SQL_TIMESTAMP(), MOMENT.replace(tzinfo=TWO_HOURS), MOMENT),
        (Types.INSTANT(), Instant(1, 2), Instant(1, 2)),
        (Types.TUPLE([Types.LONG(), Types.STRING()]), [True, "a"], (1, "a")),
        (Types.TUPLE([Types.LONG(), Types.DOUBLE()]), (1, None), (1, None)),
        (Types.LIST(Types.LONG()), (True, 2.0), [1, 2]),
        (Types.MAP(Types.STRING(), Types.LONG()), {"b": True, "a": 2}, {"a": 2, "b": 1}),
        (Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()]), Row(b="x", a=True), Row(a=1, b="x")),
        (Types.ROW_NAMED(["a"], [Types.LONG()]), Row.of_kind(RowKind.DELETE, 1.0), Row.of_kind(RowKind.DELETE, a=1)),
        *((info, None, None) for info in (Types.LONG(), Types.STRING(), Types.TUPLE([Types.LONG()]))),
    ],
    ids=repr,
)
def test_a_declared_type_converts(declared: Any, given: Any, key: Any) -> None:
    form = key_identity(declared)(given)
    assert form == identify(key)
    assert serialized(visible(form)) == serialized(key)


@pytest.mark.parametrize(
    ("declared", "given", "reason"),
    [
        *((Types.LONG(), value, "an integer is required") for value in ("1", b"1")),
        (Types.LONG(), math.nan, "cannot convert float NaN to integer"),
        (Types.LONG(), float(1 << 63), "it does not fit in 64 bits"),
        (Types.BYTE(), 200.0, "it does not fit in 8 bits"),
        (Types.DOUBLE(), "1", "a number is required"),
        *((Types.STRING(), value, "a text is required") for value in (1, True, b"a")),
        (Types.BIG_DEC(), decimal.Decimal("nan"), "a finite number is required"),
        (Types.SQL_DATE(), 1, "a datetime.date is required"),
        (Types.TUPLE([Types.LONG()]), (1, 2), "zip()"),
        (Types.TUPLE([Types.LONG()]), ("1",), "an integer is required"),
    ],
    ids=repr,
)
def test_what_is_not_of_the_declared_type_is_refused(declared: Any, given: Any, reason: str) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        key_identity(declared)(given)
    text = str(caught.value)
    assert text.startswith(
        f"The key is not of its declared type, {declared.describe()}.\n  found: {type(given).__name__} "
    )
    assert reason in text
    assert "cure: return keys of that type from the key selector, or declare the type of its keys as key_type" in text


def test_nans_of_a_declared_type_are_one_key_whatever_their_bits() -> None:
    identity = key_identity(Types.DOUBLE())
    assert identity(math.nan) == identity(-math.nan) == identity(np.float32("nan"))
    assert identity(0.0) != identity(-0.0)


OTHER_NAN = struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]


@dataclass(frozen=True)
class Measure:
    value: float
    unit: str


@pytest.mark.parametrize(
    "made",
    [
        lambda number: number,
        lambda number: (1, number, ("a", number)),
        lambda number: (1 << 70, number),
        lambda number: ("\ud800", number),
        lambda number: [number, "a"],
        lambda number: Row(a=number, b=[number]),
        lambda number: Measure(number, "m"),
    ],
)
def test_nans_without_a_declared_type_are_one_key_whatever_their_bits(made: Any) -> None:
    other = made(OTHER_NAN)
    assert identify(other) == identify(made(-math.nan)) == identify(made(math.nan))
    assert encode_keys([other, 1.5]) == [encode_key(made(math.nan)), encode_key(1.5)]
    assert repr(visible(identify(other))) == repr(made(math.nan))


def test_bytes_in_a_key_that_look_like_a_nan_stay() -> None:
    lookalike = b"G" + struct.pack(">d", OTHER_NAN)
    assert visible(identify([lookalike, OTHER_NAN]))[0] == lookalike


def test_any_object_is_no_declared_type() -> None:
    assert key_identity(None) is key_identity(Types.PICKLED_BYTE_ARRAY()) is UNDECLARED
    assert (UNDECLARED.describe, key_identity(Types.LONG()).describe) == ("pickle", "LONG")


def test_the_common_classes_of_a_declared_type_need_no_call() -> None:
    safe = {info.describe(): key_identity(info).safe for info in (Types.LONG(), Types.STRING(), Types.DOUBLE())}
    assert safe == {"LONG": {int}, "STRING": {str}, "DOUBLE": set()}
    assert UNDECLARED.safe == {int, str}


_PARTS = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.integers(-5, 5), st.floats(), st.text(max_size=3)
)
_FIELDS = {"LONG": Types.LONG, "INT": Types.INT, "BIG_INT": Types.BIG_INT, "STRING": Types.STRING}


@given(st.lists(st.tuples(st.sampled_from(sorted(_FIELDS)), _PARTS), min_size=1, max_size=3), st.booleans())
def test_tuple_of_plain_fields_is_identified_field_by_field(fields: list[tuple[str, Any]], is_list: bool) -> None:
    """The identity of such tuples is written out for their fields: it must agree with the identities of the fields."""
    parts = [part for _, part in fields]
    kinds: list[Any] = [_FIELDS[name]() for name, _ in fields]
    identity = key_identity(Types.TUPLE(kinds)).identify
    try:
        expected = tuple(
            None if part is None else key_identity(kind).identify(part) for kind, part in zip(kinds, parts, strict=True)
        )
        for kind, part in zip(kinds, expected, strict=True):
            key_identity(kind).check(part)
    except ArgumentTypeError:
        with pytest.raises(ArgumentTypeError, match="not of its declared type"):
            identity(parts if is_list else tuple(parts))
    else:
        found = identity(parts if is_list else tuple(parts))
        assert visible(found) == expected
        assert [type(part) for part in visible(found)] == [type(part) for part in expected]
