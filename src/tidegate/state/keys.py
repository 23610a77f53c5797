"""The identity of keys: one rule for routers, caches, stores and timers. **The bytes of a key decide**, as in PyFlink.

A declared key type defines the bytes (``key_types.py``); without one they are the key's own serialized form. So without a type
``1``, ``1.0`` and ``True`` are three keys, ``0.0`` and ``-0.0`` are two, and ``nan`` is one key whatever its bits, as in Java.

Inside the engine ``==`` and ``hash`` of a key *are* those of its bytes, so that every dict is right by construction:

- ints, texts, None and tuples of these (exactly these classes, at any depth) represent themselves. Two keys of one class are equal
  when their bytes are equal, and two keys of different classes are never equal;
- every other key is an ``EncodedKey``: its bytes. It compares as ``bytes`` does, in C. No user value is an ``EncodedKey`` (the
  user's ``bytes`` are encoded too), so the two kinds never mix.

A user function sees ``visible(key)``.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import pickletools
import struct
from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from tidegate.base.arguments import shown
from tidegate.base.errors import ArgumentTypeError
from tidegate.base.pickling import cure_of, load_stored, stored_allowed

SIMPLE_TYPES: frozenset[type] = frozenset({int, str, bytes, float, bool, type(None)})
"""Types that msgpack decodes exactly as they were. Only the exact types: a subclass would lose its class."""
PLAIN_TYPES: frozenset[type] = frozenset({int, str, type(None)})
"""Keys of these classes represent themselves."""

_SAME_BYTES = SIMPLE_TYPES - {float}
"""Equal values of these classes have equal bytes. Floats are excluded: a nan may have many."""
_NAN = float("nan")

_PICKLED = b"\xc1"  # msgpack never begins a value with it, so the encodings cannot be confused
_WIDE = b"\xc8"  # nor, here, with this: plain keys that msgpack cannot hold, pickled
_pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
_unpack: Callable[[bytes], Any] = msgspec.msgpack.Decoder().decode


class EncodedKey(bytes):
    """The bytes of a key that does not represent itself. It defines neither ``__eq__`` nor ``__hash__``: dicts stay in C."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(visible(self))


def identify(key: Any) -> Any:
    """Return the engine's form of a key without a declared type."""
    kind = type(key)
    if kind in PLAIN_TYPES or (kind is tuple and _consists_of(PLAIN_TYPES, key)):
        return key
    return EncodedKey(encode_key(key))


def visible(key: Any) -> Any:
    """Return the user's form of a key; a new object each time if the key is mutable."""
    return decode_key(key) if type(key) is EncodedKey else key


# -- bytes --


def encode_key(key: Any) -> bytes:
    """Return the bytes of a key, in the engine's form or not: the same in every process."""
    kind = type(key)
    if kind is EncodedKey:
        encoded: bytes = key
        return encoded
    if kind in _SAME_BYTES or (kind is tuple and _consists_of(_SAME_BYTES, key)):
        try:
            return _pack(key)
        except (OverflowError, UnicodeError):  # ints beyond 64 bits, lone surrogates
            if kind in PLAIN_TYPES or (kind is tuple and _consists_of(PLAIN_TYPES, key)):
                return _WIDE + _pickled(key)
    elif kind is float or (kind is tuple and _consists_of(SIMPLE_TYPES, key)):
        with contextlib.suppress(OverflowError, UnicodeError):
            return _pack(_with_one_nan(key))
    return _PICKLED + _pickled(key)


def encode_keys(keys: Collection[Any]) -> list[bytes]:
    """Encode many keys, without a Python call for each where their types allow."""
    kinds = set(map(type, keys))
    if kinds <= _SAME_BYTES:
        try:
            return pack_all(keys)
        except (OverflowError, UnicodeError):
            pass
    elif kinds == {EncodedKey}:
        return list(keys)
    return [encode_key(key) for key in keys]  # with map, a StopIteration of user code would end the list


def pack_all(keys: Iterable[Any]) -> list[bytes]:
    """``encode_key`` of keys that all are of simple types."""
    return list(map(_pack, keys))


def decode_key(data: bytes) -> Any:
    """Return the user's key."""
    if data[:1] in (_PICKLED, _WIDE):
        return load_stored(data[1:])
    key = _unpack(data)
    return _tuples(key) if type(key) is list else key


def form_of(data: bytes) -> Any:
    """Return the engine's form of a key from its bytes: the result of ``identify`` when the key was written."""
    first = data[0]
    if first in _STAND_FOR_THEMSELVES:
        return _unpack(data)
    if first in _ARRAYS:
        key = _tuples(_unpack(data))
        return key if _consists_of(PLAIN_TYPES, key) else EncodedKey(data)
    return decode_key(data) if data[:1] == _WIDE else EncodedKey(data)


def forms_of(many: list[bytes]) -> list[Any]:
    """``form_of`` of many."""
    try:
        keys = unpack_all(many)
    except msgspec.DecodeError:  # a pickled one among them
        return list(map(form_of, many))
    return keys if PLAIN_TYPES.issuperset(map(type, keys)) else list(map(form_of, many))


def unpack_all(many: list[bytes]) -> list[Any]:
    """Decode many values in one call: with the head of an array before them, packed values form an array."""
    found: list[Any] = _unpack(b"\xdd" + len(many).to_bytes(4, "big") + b"".join(many))
    return found


_STAND_FOR_THEMSELVES = frozenset(
    (*range(0x80), *range(0xE0, 0x100), *range(0xCC, 0xD4), *range(0xA0, 0xC1), 0xD9, 0xDA, 0xDB)
)
"""First bytes of ints, texts and nil in msgpack."""
_ARRAYS = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))


def _consists_of(kinds: frozenset[type], key: tuple[Any, ...]) -> bool:
    for part in key:
        kind = type(part)
        if kind not in kinds and not (kind is tuple and _consists_of(kinds, part)):
            return False
    return True


def _with_one_nan(key: Any) -> Any:
    """Replace each nan in the key by Java's canonical nan."""
    if type(key) is tuple:
        return tuple(map(_with_one_nan, key))
    return _NAN if type(key) is float and key != key else key


def _tuples(value: list[Any]) -> tuple[Any, ...]:
    return tuple(_tuples(part) if type(part) is list else part for part in value)


# -- keys of other types --


class _KeyPickler(pickle.Pickler):
    """Refuses sets at any depth: their order, and so their bytes, depends on the process. Also finds a nan."""

    has_nan = False

    def persistent_id(self, value: Any) -> None:
        if value.__class__ is float:
            self.has_nan = self.has_nan or value != value
        elif isinstance(value, set | frozenset):
            raise _bad_key(value, "a set has no stable order", "use tuple(sorted(...)) in the key selector")


def _pickled(key: Any) -> bytes:
    if not stored_allowed():
        raise _bad_key(
            key, "it needs pickle, which tidegate.state.allow-pickle: false forbids", "use a text, number or tuple"
        )
    buffer = io.BytesIO()
    pickler = _KeyPickler(buffer, protocol=5)
    pickler.fast = True  # no memo: whether two equal strings are one object must not show in the bytes
    try:
        _refuse_identity(key)
        pickler.dump(key)
    except ArgumentTypeError:
        raise
    except Exception as error:
        cure = cure_of(error, "use a text, number or tuple as key")
        raise _bad_key(key, f"it cannot be pickled: {error}", cure) from error
    return _with_one_nan_in(buffer.getvalue()) if pickler.has_nan else buffer.getvalue()


def _with_one_nan_in(pickled: bytes) -> bytes:
    """Replace the bits of each nan in the pickle by Java's canonical nan."""
    made = bytearray(pickled)
    for opcode, value, position in pickletools.genops(pickled):
        if opcode.name == "BINFLOAT" and value != value and position is not None:
            made[position + 1 : position + 9] = struct.pack(">d", _NAN)
    return bytes(made)


def _refuse_identity(key: Any) -> None:
    """Refuse a class without ``__eq__``: two objects with the same bytes would be one key here and two for the user."""
    if isinstance(key, tuple | list):
        for part in key:
            _refuse_identity(part)
    elif type(key) not in SIMPLE_TYPES and getattr(type(key), "__hash__", None) is object.__hash__:
        raise _bad_key(key, "its class compares by identity", "give it __eq__ and __hash__, or use a field as key")


def _bad_key(key: Any, reason: str, cure: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        "The key has no stable bytes: equal keys could differ between processes.",
        found=f"{shown(key)}: {reason}",
        cure=cure,
    )
