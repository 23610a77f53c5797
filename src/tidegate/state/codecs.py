"""Codecs: keys to deterministic bytes and back, values by their declared type, pickle where there is none."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable, Collection, Iterable
from typing import Any, Optional, Protocol

import cloudpickle
import msgspec

from tidegate.common.arguments import shown
from tidegate.common.errors import ArgumentTypeError, StateFormatError

SIMPLE_TYPES = frozenset({int, str, bytes, float, bool, type(None)})
"""What msgpack gives back exactly as it was; exact types only, for a subclass would lose its class."""

_PICKLED = b"\xc1"  # msgpack never begins a value with it, so the two encodings cannot be confused
_pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
_unpack: Callable[[bytes], Any] = msgspec.msgpack.Decoder().decode
_NIL = b"\xc0"


def encode_key(key: Any) -> bytes:
    """The bytes of a key: equal for equal keys of one type, in every process."""
    kind = type(key)
    if kind in SIMPLE_TYPES or (kind is tuple and _is_simple_tuple(key)):
        try:
            return _pack(key)
        except (OverflowError, UnicodeError):  # ints beyond 64 bits, lone surrogates
            pass
    return _pickle_key(key)


def pack_all(keys: Iterable[Any]) -> list[bytes]:
    """``encode_key`` of keys that all are of simple types."""
    return list(map(_pack, keys))


def encode_keys(keys: Collection[Any]) -> list[bytes]:
    """``encode_key`` of many, without a call of Python for each where their types allow."""
    if set(map(type, keys)) <= SIMPLE_TYPES:
        try:
            return pack_all(keys)
        except (OverflowError, UnicodeError):
            pass
    return [encode_key(key) for key in keys]  # with map, a StopIteration of user code would end it


def decode_key(data: bytes) -> Any:
    """The key again; arrays come back as tuples."""
    if data[:1] == _PICKLED:
        return pickle.loads(data[1:])
    key = _unpack(data)
    return _tuples(key) if type(key) is list else key


def decode_keys(many: list[bytes]) -> list[Any]:
    """``decode_key`` of many."""
    try:
        keys = _unpack_all(many)
    except msgspec.DecodeError:  # a pickled one among them
        return list(map(decode_key, many))
    return [_tuples(key) if type(key) is list else key for key in keys] if list in set(map(type, keys)) else keys


def _unpack_all(many: list[bytes]) -> list[Any]:
    """Values packed one by one make an array if the head of one is put before them: one call instead of one for each."""
    found: list[Any] = _unpack(b"\xdd" + len(many).to_bytes(4, "big") + b"".join(many))
    return found


def _is_simple_tuple(key: tuple[Any, ...]) -> bool:
    for part in key:
        kind = type(part)
        if kind not in SIMPLE_TYPES and not (kind is tuple and _is_simple_tuple(part)):
            return False
    return True


def _tuples(value: list[Any]) -> tuple[Any, ...]:
    return tuple(_tuples(part) if type(part) is list else part for part in value)


def _pickle_key(key: Any) -> bytes:
    _check_key(key)
    buffer = io.BytesIO(_PICKLED)
    buffer.seek(1)
    pickler = pickle.Pickler(buffer, protocol=5)
    pickler.fast = True  # no memo: whether two equal strings are one object must not show in the bytes
    try:
        pickler.dump(key)
    except Exception as error:
        raise _bad_key(key, f"it cannot be pickled: {error}", "use a text, number or tuple as key") from error
    return buffer.getvalue()


def _check_key(key: Any) -> None:
    try:
        hash(key)
    except TypeError as error:
        raise _bad_key(key, "it is not hashable", "turn it into a tuple in the key selector") from error
    if isinstance(key, frozenset):
        # its order of iteration, and so its bytes, depends on the process
        raise _bad_key(key, "a set has no stable order", "use tuple(sorted(...)) in the key selector")
    if isinstance(key, tuple):
        for part in key:
            _check_key(part)
    elif type(key) not in SIMPLE_TYPES and getattr(type(key), "__hash__", None) is object.__hash__:
        raise _bad_key(key, "its class compares by identity", "give it __eq__ and __hash__, or use a field as key")


def _bad_key(key: Any, reason: str, cure: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        "A key must be hashable, and equal keys must have equal bytes in every process.",
        found=f"{shown(key)}: {reason}",
        cure=cure,
    )


class TypeInfo(Protocol):
    """The part of common.typeinfo.TypeInformation that codecs need."""

    def to_schema(self) -> Any | None: ...

    def describe(self) -> str: ...


class Codec:
    """Turns values into bytes and back.

    ``encode`` and ``decode`` are plain callables, so that loops can bind them. ``immutable`` values cannot be changed in place:
    comparing by identity finds a change, and a value may outlive its round in a cache.
    """

    __slots__ = ("_allowed", "_validate", "decode", "describe", "encode", "immutable")

    def __init__(
        self,
        describe: str,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        *,
        allowed: frozenset[type] | None = None,
        validate: bool = False,
    ) -> None:
        self.describe = describe
        self.encode = encode
        self.decode = decode
        self.immutable = allowed is not None
        self._allowed = allowed
        self._validate = validate

    def encode_all(self, values: list[Any], absent: Any = None) -> list[bytes | None]:
        """Encode many; ``absent`` becomes None. What could not be read back is refused now: later it would poison a checkpoint."""
        encode = self.encode
        try:
            encoded: list[bytes | None]
            if self._allowed is not None:
                kinds = set(map(type, values))
                if not kinds - {type(absent)} <= self._allowed:
                    raise TypeError("another type than declared")
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
        """Decode many; None stays None."""
        if self.immutable:
            with contextlib.suppress(msgspec.DecodeError):
                return _unpack_all([_NIL if data is None else data for data in many])
        decode = self.decode
        return [None if data is None else decode(data) for data in many]

    def encode_checked(self, value: Any) -> bytes:
        """Encode one value with the checks of ``encode_all``."""
        if self._allowed is not None and type(value) not in self._allowed:
            raise TypeError("another type than declared")
        data = self.encode(value)
        if self._validate:
            self.decode(data)
        return data

    def _refusal(self, values: list[Any], absent: Any, error: Exception) -> StateFormatError:
        """The error for the first value that cannot be stored. Only now values are tried one by one: good ones pay nothing."""
        found = str(error)
        for value in values:
            try:
                _ = value is absent or self.encode_checked(value)
            except Exception as reason:
                found = f"{shown(value)}: {reason}"
                break
        return StateFormatError(
            f"A value must fit the declared type of its state, {self.describe}.",
            found=found,
            cure="declare a wider type: Types.BIG_INT() for ints over 64 bits, Types.PICKLED_BYTE_ARRAY() for any object",
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
        # a class of the user's __main__ or of a function: cloudpickle carries it along
        dumped: bytes = cloudpickle.dumps(value, protocol=5)
        return dumped


def pickle_codec() -> Codec:
    """For values without a type, or of a type that only Python knows."""
    return Codec("pickle", _pickle_value, pickle.loads)


def codec_for(type_info: TypeInfo | None) -> Codec:
    """The codec of a declared type; None, or a type without a schema, is pickled."""
    schema = None if type_info is None else type_info.to_schema()
    if type_info is None or schema is None:
        return pickle_codec()
    return _typed(schema, type_info.describe())


def list_codec_for(type_info: TypeInfo | None, *, with_expiry: bool = False) -> Codec:
    """The codec of a list of elements of a type; ``with_expiry``: of pairs (expiry, element)."""
    schema = None if type_info is None else type_info.to_schema()
    if type_info is None or schema is None:
        return pickle_codec()
    element: Any = Optional.__getitem__(schema)  # built at run time
    listed: Any = list[tuple[int, element]] if with_expiry else list[element]
    return Codec(type_info.describe(), _pack, msgspec.msgpack.Decoder(listed).decode, validate=True)


def expiring(codec: Codec) -> Codec:
    """The codec of pairs (value, expiry in ms): eight bytes of time before the value, so that a base can drop it unread."""

    def encode(pair: tuple[Any, int]) -> bytes:
        return pair[1].to_bytes(8, "big", signed=True) + codec.encode_checked(pair[0])

    def decode(data: bytes) -> tuple[Any, int]:
        return codec.decode(data[8:]), expiry_of(data)

    return Codec(codec.describe, encode, decode)


def expiry_of(data: bytes) -> int:
    """When a value encoded by an ``expiring`` codec expires."""
    return int.from_bytes(data[:8], "big", signed=True)


def _typed(schema: Any, describe: str) -> Codec:
    allowed = _PRIMITIVES.get(schema)
    if allowed is not None:
        return Codec(describe, _pack, _unpack, allowed=allowed)
    return Codec(describe, _pack, msgspec.msgpack.Decoder(schema).decode, validate=True)
