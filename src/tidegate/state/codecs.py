"""Codecs: values of a state to bytes and back, by their declared type, or pickled without one. For keys see ``keys.py``."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from typing import Any, Optional, Protocol

import cloudpickle
import msgspec

from tidegate.base.arguments import shown
from tidegate.base.errors import StateFormatError
from tidegate.base.pickling import cure_of, stored_loader
from tidegate.common.object_types import Check, decoder, exactly
from tidegate.common.typeinfo import INTEGER_BITS
from tidegate.state.keys import unpack_all

_pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
_unpack: Callable[[bytes], Any] = msgspec.msgpack.Decoder().decode
_NIL = b"\xc0"
PICKLE = "pickle"
"""Describes values without a declared type."""


class TypeInfo(Protocol):
    """The part of common.typeinfo.TypeInformation that codecs need."""

    def to_schema(self) -> Any | None: ...

    def describe(self) -> str: ...


class Codec:
    """Turns values into bytes and back.

    ``encode`` and ``decode`` are plain callables, so that loops can bind them. ``immutable`` values cannot be changed in place:
    comparing by identity finds a change, and a value may outlive its round in a cache.
    """

    __slots__ = ("_allowed", "_bits", "_validate", "decode", "describe", "encode", "immutable")

    def __init__(
        self,
        describe: str,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        *,
        allowed: frozenset[type] | None = None,
        validate: bool = False,
        bits: int | None = None,
    ) -> None:
        self.describe = describe
        self.encode = encode
        self.decode = decode
        self.immutable = allowed is not None
        self._allowed = allowed
        self._validate = validate
        self._bits = bits

    def encode_all(self, values: list[Any], absent: Any = None) -> list[bytes | None]:
        """Encode many values; ``absent`` becomes None. Refuse a value that could not be read back: it would poison a checkpoint."""
        encode = self.encode
        try:
            encoded: list[bytes | None]
            if self._allowed is not None:
                kinds = set(map(type, values))
                if not kinds - {type(absent)} <= self._allowed:
                    raise TypeError("another type than declared")
                if self._bits is not None:
                    numbers = values if kinds == {int} else [v for v in values if v is not absent and v is not None]
                    self._check_width(numbers)
                if type(absent) not in kinds:
                    return list(map(encode, values))
            encoded = [None if value is absent else encode(value) for value in values]
            if self._validate:
                decode = self.decode
                for data in encoded:
                    if data is not None:
                        decode(data)
        except Exception as error:
            raise self._refusal(values, absent, error) from error
        return encoded

    def decode_all(self, many: list[bytes | None]) -> list[Any]:
        """Decode many values; None stays None."""
        if self.immutable:
            with contextlib.suppress(msgspec.DecodeError):
                return unpack_all([_NIL if data is None else data for data in many])
        decode = self.decode
        return [None if data is None else decode(data) for data in many]

    def encode_checked(self, value: Any) -> bytes:
        """Encode one value with the checks of ``encode_all``."""
        if self._allowed is not None and type(value) not in self._allowed:
            raise TypeError("another type than declared")
        if self._bits is not None and value is not None:
            self._check_width([value])
        data = self.encode(value)
        if self._validate:
            self.decode(data)
        return data

    def _check_width(self, values: list[int]) -> None:
        assert self._bits is not None
        limit = 1 << self._bits - 1
        if values and not (-limit <= min(values) and max(values) < limit):
            raise OverflowError(f"it does not fit in {self._bits} bits")

    def _refusal(self, values: list[Any], absent: Any, error: Exception) -> StateFormatError:
        """Return the error for the first value that cannot be stored. Only now are values tried one by one: good ones pay
        nothing."""
        found, why = str(error), error
        for value in values:
            try:
                _ = value is absent or self.encode_checked(value)
            except Exception as reason:
                found, why = f"{shown(value)}: {reason}", reason
                break
        return StateFormatError(
            f"The value does not fit the declared type of its state, {self.describe}.",
            found=found,
            cure=cure_of(
                why,
                "declare a wider type: Types.BIG_INT() for ints over 64 bits, Types.PICKLED_BYTE_ARRAY() for any object",
            ),
        )


_NONE = type(None)
_PRIMITIVES: dict[Any, frozenset[type]] = {
    int: frozenset({int, bool, _NONE}),
    float: frozenset({float, int, bool, _NONE}),
    str: frozenset({str, _NONE}),
    bytes: frozenset({bytes, _NONE}),
    bool: frozenset({bool, _NONE}),
}


def _pickle_value(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError):
        # a class of the main program or of a function: cloudpickle stores the class too
        dumped: bytes = cloudpickle.dumps(value, protocol=5)
        return dumped


def pickle_codec() -> Codec:
    """Return the codec of values without a type, or of a type that only Python knows."""
    return Codec(PICKLE, _pickle_value, stored_loader())


def codec_for(type_info: TypeInfo | None) -> Codec:
    """Return the codec of a declared type; None, or a type without a schema, is pickled."""
    schema = None if type_info is None else type_info.to_schema()
    if type_info is None or schema is None:
        return pickle_codec()
    return _typed(schema, type_info.describe(), exactly(type_info))


def list_codec_for(type_info: TypeInfo | None, *, with_expiry: bool = False) -> Codec:
    """Return the codec of a list of elements of a type; ``with_expiry``: of pairs (expiry, element)."""
    schema = None if type_info is None else type_info.to_schema()
    if type_info is None or schema is None:
        return pickle_codec()
    element: Any = Optional.__getitem__(schema)  # built at run time
    listed: Any = list[tuple[int, element]] if with_expiry else list[element]
    encode, check = _pack, exactly(type_info)
    if check is not None:
        encode = _checked(
            (lambda pairs: all(check(v) for _, v in pairs)) if with_expiry else lambda vs: all(map(check, vs))
        )
    return Codec(type_info.describe(), encode, decoder(listed), validate=True)


def expiring(codec: Codec) -> Codec:
    """Return the codec of pairs (value, expiry in ms): eight bytes of time precede the value, so that a base can drop it unread."""

    def encode(pair: tuple[Any, int]) -> bytes:
        return pair[1].to_bytes(8, "big", signed=True) + codec.encode_checked(pair[0])

    def decode(data: bytes) -> tuple[Any, int]:
        return codec.decode(data[8:]), expiry_of(data)

    return Codec(codec.describe, encode, decode)


def expiry_of(data: bytes) -> int:
    """Return when a value of an ``expiring`` codec expires."""
    return int.from_bytes(data[:8], "big", signed=True)


def _checked(check: Check) -> Callable[[Any], bytes]:
    def encode(value: Any) -> bytes:
        if not check(value):
            raise TypeError("an object of another class than declared, or a time with a zone, would come back changed")
        return _pack(value)

    return encode


def _typed(schema: Any, describe: str, check: Check | None) -> Codec:
    bits = INTEGER_BITS.get(describe)
    allowed = _PRIMITIVES.get(int if bits else schema)
    if allowed is not None:  # msgpack's integers go up to 2**64
        return Codec(describe, _pack, _unpack, allowed=allowed, bits=bits)
    encode = _pack if check is None else _checked(check)
    return Codec(describe, encode, decoder(schema), validate=True)
