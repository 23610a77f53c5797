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

from tidegate.common.errors import UserCodeError
from tidegate.common.typeinfo import BasicTypeInfo, PickledBytesTypeInfo, TupleTypeInfo
from tidegate.operators import column_batch
from tidegate.operators.column_batch import ColumnBatch
from tidegate.state.keys import SIMPLE_TYPES, EncodedKey, encode_keys, forms_of

_PICKLE = 0x80
"""The first byte of every pickle since protocol 2. A msgpack array never begins with it."""

# Where texts are declared, a Decimal or UUID must not pass for one.
_pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder(decimal_format="number", uuid_format="bytes").encode
_unpack: Callable[[bytes], list[Any]] = msgspec.msgpack.Decoder(list[Any]).decode
_FIELDS: dict[Any, Any] = {
    int: int | float | bool | None,
    float: int | float | bool | None,
    bool: int | float | bool | None,
    str: str | None,
}
"""Declared schema of a field -> what may come: a bool where an int is declared stays a bool."""


class Packer:
    """Packs and unpacks the values of an edge. Sender and receiver make it from the same declared type."""

    def __init__(self, declared: Any) -> None:
        self._declared = declared
        fields = _fields(declared)
        self._tuples: Callable[[bytes], list[Any]] | None
        self._tuples = None if fields is None else msgspec.msgpack.Decoder(list[Optional.__getitem__(fields)]).decode  # type: ignore[misc]
        self._packed = {tuple} if fields is not None else SIMPLE_TYPES

    def pack(self, values: list[Any]) -> bytes:
        """Raises whatever pickle raises for values that cannot be pickled."""
        if self._packed.issuperset(map(type, values)):
            try:
                return _pack(values)
            except (TypeError, ValueError, OverflowError):
                pass  # not as declared, or beyond msgpack: ints over 64 bits, lone surrogates
        return pickle.dumps(values, 5)

    def carries(self, schema: str, width: int) -> bool:
        """Whether a column batch is as declared, or anything may come: then it travels as it is."""
        declared = self._declared
        if declared is None or isinstance(declared, PickledBytesTypeInfo):
            return True
        fields = declared.get_field_types() if isinstance(declared, TupleTypeInfo) else [declared]
        if isinstance(declared, TupleTypeInfo) != bool(width):
            return False
        kinds = [field.to_schema() if isinstance(field, BasicTypeInfo) else None for field in fields]
        return column_batch.is_declared(schema, width, kinds)

    def unpack(self, data: bytes) -> list[Any] | ColumnBatch:
        if data[0] == column_batch.MARK:
            return column_batch.unpack(data)
        if data[0] == _PICKLE:
            values: list[Any] = pickle.loads(data)
            return values
        if self._tuples is None:
            return _unpack(data)
        try:
            return self._tuples(data)
        except msgspec.ValidationError as error:
            raise UserCodeError(
                "Records must be of the declared type",
                where=f"records declared as {self._declared}",
                found=str(error),
                cure="declare what the operator before emits with output_type=..., or declare nothing",
            ) from error

    def unpack_list(self, data: bytes) -> list[Any]:
        values = self.unpack(data)
        return values.rows() if isinstance(values, ColumnBatch) else values


def _fields(declared: Any) -> Any:
    """The schema of a tuple of numbers, texts and such tuples; else None."""
    if not isinstance(declared, TupleTypeInfo) or not declared.get_field_types():
        return None
    schemas = [_field(info) for info in declared.get_field_types()]
    return None if None in schemas else tuple[tuple(schemas)]  # type: ignore[misc]


def _field(info: Any) -> Any:
    if isinstance(info, BasicTypeInfo):
        return _FIELDS.get(info.to_schema())
    fields = _fields(info)
    return None if fields is None else Optional.__getitem__(fields)


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
