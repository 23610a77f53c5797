"""Lists of values, keys or timestamps as the bytes of a chunk. What goes in comes out; plain data takes a short way.

Records are mostly numbers, texts, or tuples of them, and msgpack packs a pair of ints three times as fast as pickle. But it
knows no tuples and no subclasses: numbers and texts are packed after a look at their exact types, tuples only where the program
declares what is in them, and everything else is pickled.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Optional

import msgspec

from tidegate.base.errors import ArgumentTypeError, UserCodeError
from tidegate.common.conversion import BatchConverter, Boundary, boundary
from tidegate.common.typeinfo import INTEGER_BITS, BasicTypeInfo, PickledBytesTypeInfo, TupleTypeInfo
from tidegate.operators.flow import column_batch
from tidegate.operators.flow.column_batch import ColumnBatch
from tidegate.state.keys import SIMPLE_TYPES, EncodedKey, encode_keys, forms_of

_PICKLE = 0x80
"""The first byte of every pickle since protocol 2. A msgpack array never begins with it."""

# Where texts are declared, a Decimal or UUID must not pass for one.
_pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder(decimal_format="number", uuid_format="bytes").encode
_unpack: Callable[[bytes], list[Any]] = msgspec.msgpack.Decoder(list[Any]).decode


class Packer:
    """Packs and unpacks the values of an edge. Sender and receiver make it from the same declared type.

    ``target``: who receives them, for messages.
    """

    def __init__(self, declared: Any, target: str = "") -> None:
        self._declared, self._target = declared, target
        schema = _schema(declared)
        self._typed: Callable[[bytes], list[Any]] | None
        self._typed = None if schema is None else msgspec.msgpack.Decoder(list[schema]).decode  # type: ignore[valid-type]
        self._packed = {tuple} if isinstance(declared, TupleTypeInfo) and schema is not None else SIMPLE_TYPES
        self._convert = boundary(declared)
        fields = declared.get_field_types() if isinstance(declared, TupleTypeInfo) else [declared]
        self._narrow = [(n, INTEGER_BITS[f.describe()] - 1) for n, f in enumerate(fields) if _is_narrow(f)]

    def pack(self, values: list[Any]) -> bytes:
        """Raises whatever pickle raises for values that cannot be pickled."""
        if self._packed.issuperset(map(type, values)):
            try:
                return _pack(values)
            except (TypeError, ValueError, OverflowError):
                pass  # not as declared, or beyond msgpack: ints over 64 bits, lone surrogates
        return pickle.dumps(values if self._convert is None else self._converted(values, self._convert), 5)

    def _converted(self, values: list[Any], convert: BatchConverter) -> list[Any]:
        try:
            return convert(values)
        except ArgumentTypeError as error:
            where = f"records declared as {self._declared}, sent to {self._target}"
            raise UserCodeError(error.rule, where=where, found=error.found, cure=_CURE) from error

    def carries(self, schema: str, width: int) -> bool:
        """Whether a column batch is as declared, or anything may come: then it travels as it is."""
        declared = self._declared
        if declared is None or isinstance(declared, PickledBytesTypeInfo):
            return True
        fields = declared.get_field_types() if isinstance(declared, TupleTypeInfo) else [declared]
        if isinstance(declared, TupleTypeInfo) != bool(width):
            return False
        kinds = [_PYTHON.get(field.describe()) for field in fields]
        return column_batch.is_declared(schema, width, kinds)

    def holds(self, batch: ColumnBatch) -> bool:
        """Whether a batch of the declared shape has no integer that its type cannot hold."""
        for field, bits in self._narrow:
            column = batch.columns[field]
            if len(column) and not (-1 << bits <= int(column.min()) and int(column.max()) < 1 << bits):
                return False
        return True

    def unpack(self, data: bytes) -> list[Any] | ColumnBatch:
        if data[0] == column_batch.MARK:
            return column_batch.unpack(data)
        if data[0] == _PICKLE:
            values: list[Any] = pickle.loads(data)
            return values
        if self._typed is None:
            return _unpack(data)
        try:
            return self._typed(data)
        except msgspec.ValidationError:  # of another class: a bool for an int, or of no class that fits
            values = _tuples_in(_unpack(data)) if self._packed == {tuple} else _unpack(data)
            return self._converted(values, Boundary(self._declared))

    def unpack_list(self, data: bytes) -> list[Any]:
        values = self.unpack(data)
        return values.rows() if isinstance(values, ColumnBatch) else values


def length_of(data: bytes) -> int:
    """The number of values or keys that were packed, in most cases without unpacking them."""
    first = data[0]
    if first == _ENCODED_KEYS[0]:
        return length_of(data[1:7])
    if first == column_batch.MARK:
        return column_batch.packed_length(data)
    if 0x90 <= first <= 0x9F:  # msgpack's arrays: of up to 15 items, of 16 and of 32 bits
        return first & 0x0F
    if first in (0xDC, 0xDD):
        return int.from_bytes(data[1 : 3 if first == 0xDC else 5], "big")
    return len(pickle.loads(data))


_PYTHON = {**dict.fromkeys(INTEGER_BITS, int), "DOUBLE": float, "BOOLEAN": bool, "STRING": str}
"""Declared types that columns can have."""
_PLAIN = frozenset(["BYTE", "SHORT", "INT", "LONG", "BOOLEAN", "DOUBLE", "FLOAT", "STRING"])
_CURE = "declare what the operator before emits with output_type=..., or declare nothing"


def _schema(declared: Any) -> Any:
    """The schema of numbers, texts and tuples of them, each of which may be None; None for any other type."""
    if isinstance(declared, BasicTypeInfo):
        return Optional.__getitem__(declared.to_schema()) if declared.describe() in _PLAIN else None
    if not isinstance(declared, TupleTypeInfo) or not declared.get_field_types():
        return None
    schemas = [_schema(info) for info in declared.get_field_types()]
    return None if None in schemas else Optional.__getitem__(tuple[tuple(schemas)])  # type: ignore[misc]


def _is_narrow(info: Any) -> bool:
    return isinstance(info, BasicTypeInfo) and INTEGER_BITS.get(info.describe(), 64) < 64


def _tuples_in(values: list[Any]) -> list[Any]:
    """Records that were tuples of numbers, texts and tuples, before msgpack made lists of them."""
    return [_as_tuple(value) for value in values]


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if type(value) is list else value


PLAIN = Packer(None)
"""For timestamps."""


class _KeyPacker:
    """The keys of a chunk, in the engine's form (``state/keys.py``), which they have again when they come out."""

    def pack(self, keys: list[Any]) -> bytes:
        if EncodedKey in set(map(type, keys)):
            return _ENCODED_KEYS + _pack(list(map(bytes, encode_keys(keys))))
        return PLAIN.pack(keys)

    def unpack_list(self, data: bytes) -> list[Any]:
        return forms_of(_unpack(data[1:])) if data[:1] == _ENCODED_KEYS else PLAIN.unpack_list(data)


_ENCODED_KEYS = b"\xc7"
"""The first byte of keys packed as bytes: neither of a msgpack array, nor of a pickle, nor of a column batch."""
KEYS = _KeyPacker()
