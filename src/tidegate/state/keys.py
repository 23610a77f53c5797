"""The identity of keys, one rule for routers, caches, stores and timers, and the conversion to declared key types.

**The bytes of a key decide**, as in PyFlink. A declared key type defines the bytes; without one they are the key's own
serialized form. So without a type ``1``, ``1.0`` and ``True`` are three keys, ``0.0`` and ``-0.0`` are two, and ``nan``
is one key whatever its bits, as in Java.

Inside the engine ``==`` and ``hash`` of a key *are* those of its bytes, so that every dict is right by construction:

- ints, texts, None and tuples of these (exactly these classes, at any depth) represent themselves. Two keys of one
  class are equal when their bytes are equal, and two keys of different classes are never equal;
- every other key is an ``EncodedKey``: its bytes. It compares as ``bytes`` does, in C. No user value is an
  ``EncodedKey`` (the user's ``bytes`` are encoded too), so the two kinds never mix.

A user function sees ``visible(key)``.

A declared key type converts the results of a key selector by the rules of PyFlink's coders. A LONG takes any integer
value (True, 1.0, an IntEnum and numpy's ints are all the key 1), a DOUBLE any real value, a STRING only texts. Other
values fail there, and fail here.
"""

from __future__ import annotations

import contextlib
import decimal
import io
import pickle
import pickletools
import struct
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Any

import msgspec

from tidegate.base.arguments import shown
from tidegate.base.errors import ArgumentTypeError
from tidegate.base.pickling import cure_of, load_stored, stored_allowed
from tidegate.common import scalar_conversion as scalars
from tidegate.common.conversion import fields_of
from tidegate.common.typeinfo import (
    INTEGER_BITS,
    ElementTypeInfo,
    ExternalTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    is_bytes,
)
from tidegate.common.types import Row

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


def encode_form(key: Any) -> bytes:
    """``encode_key`` of a key in the engine's form: its parts need no look."""
    if key.__class__ is not EncodedKey:
        try:
            return _pack(key)
        except (OverflowError, UnicodeError):
            pass
    return encode_key(key)


def encode_keys(keys: Collection[Any]) -> list[bytes]:
    """Encode many keys, without a Python call for each where their types allow."""
    kinds = set(map(type, keys))
    if kinds == {tuple}:
        kinds = set(map(type, chain.from_iterable(keys)))
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
    kinds = set(map(type, keys))
    if kinds == {list} and PLAIN_TYPES.issuperset(map(type, chain.from_iterable(keys))):
        return list(map(tuple, keys))
    return keys if kinds <= PLAIN_TYPES else list(map(form_of, many))


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


Converter = Callable[[Any], Any]


class KeyIdentity:
    """Converts the keys of an edge, or of a map state, to the engine's form. Made once for each, used for every record.

    ``safe``: keys of exactly these classes are in the engine's form already; other keys go through ``identify``. A loop checks
    ``key.__class__ in safe`` first, so the common classes cost no call. ``fields``: tuples of exactly these classes are in this
    form too.
    """

    __slots__ = ("_bits", "describe", "fields", "identify", "safe")

    def __init__(
        self, describe: str, safe: frozenset[type], identify: Converter, fields: tuple[type, ...] = ()
    ) -> None:
        self.describe, self.safe, self.identify, self.fields = describe, safe, identify, fields
        self._bits = INTEGER_BITS.get(describe)

    def __call__(self, key: Any) -> Any:
        return key if type(key) in self.safe else self.identify(key)

    def check(self, key: Any) -> None:
        """Check a new key in the engine's form: an int may have more bits than its declared type, which PyFlink refuses too."""
        bits = self._bits
        if bits is not None and type(key) is int and -1 << bits - 1 <= key < 1 << bits - 1:
            return
        if type(key) in self.safe or self.fields:
            self.identify(key)

    def check_all(self, keys: Collection[Any]) -> None:
        """Check many keys. Only integers have a width."""
        bits = self._bits
        numbers = [key for key in keys if type(key) is int] if bits else []
        if bits and numbers and not (-1 << bits - 1 <= min(numbers) and max(numbers) < 1 << bits - 1):
            for number in numbers:
                self.check(number)


UNDECLARED = KeyIdentity("pickle", frozenset({int, str}), identify)


def key_identity(declared: Any) -> KeyIdentity:
    """Return the identity of keys of a declared type; ``UNDECLARED`` without a type, or if the type takes any object."""
    convert = _converter(declared)
    if declared is None or convert is None:
        return UNDECLARED
    describe = declared.describe()

    def identified(key: Any) -> Any:
        try:
            return identify(None if key is None else convert(key))
        except ArgumentTypeError:
            raise
        except Exception as error:
            raise ArgumentTypeError(
                f"The key is not of its declared type, {describe}.",
                found=f"{shown(key)}: {error}",
                cure="return keys of that type from the key selector, or declare the type of its keys as key_type",
            ) from error

    safe = _SAFE.get(describe, frozenset())
    kinds = [field.describe() for field in declared.get_field_types()] if type(declared) is TupleTypeInfo else []
    if not kinds or any(kind not in _SAFE for kind in kinds):
        return KeyIdentity(describe, safe, identified)
    fields = tuple(str if str in _SAFE[kind] else int for kind in kinds)
    return KeyIdentity(describe, safe, _of_plain_fields(kinds, identified), fields)


def _of_plain_fields(kinds: list[str], convert: Converter) -> Converter:
    """Return the identity of tuples whose fields are integers and texts, written out for these fields: a key that has the
    declared classes is its own form, and only another key is converted."""
    fields = [f"f{n}" for n in range(len(kinds))]
    checks = []
    for field, kind in zip(fields, kinds, strict=True):
        checks.append(f"{field}.__class__ is {'str' if str in _SAFE[kind] else 'int'}")
        if kind in INTEGER_BITS:
            half = 1 << INTEGER_BITS[kind] - 1
            checks.append(f"-{half} <= {field} < {half}")
    lines = [
        "def identify(key):",
        f"    if key.__class__ is tuple and len(key) == {len(fields)}:",
        f"        {', '.join(fields)}, = key",
        f"        if {' and '.join(checks)}:",
        "            return key",
        "    return convert(key)",
    ]
    names: dict[str, Any] = {"convert": convert}
    exec("\n".join(lines), names)
    identify: Converter = names["identify"]
    return identify


_SAFE: dict[str, frozenset[type]] = {
    **dict.fromkeys(("BYTE", "SHORT", "INT", "LONG", "BIG_INT"), frozenset({int})),
    **dict.fromkeys(("STRING", "CHAR"), frozenset({str})),
}


def _converter(info: Any) -> Converter | None:
    """Return the converter of values to the type; None if the type takes any object. It is never called with None."""
    if isinstance(info, ExternalTypeInfo):
        return _converter(info.type_info)
    if isinstance(info, RowTypeInfo):
        return _row(info)
    if isinstance(info, TupleTypeInfo):
        parts = [_part(field) for field in info.get_field_types()]
        return lambda value: tuple(part(item) for part, item in zip(parts, value, strict=True))
    if isinstance(info, TypeInformation) and is_bytes(info):
        return scalars.as_bytes
    if isinstance(info, ElementTypeInfo):
        element = _part(info.elem_type)
        return lambda value: [element(item) for item in value]
    if isinstance(info, MapTypeInfo):
        return _map(info)
    return _SCALARS.get(info.describe()) if isinstance(info, TypeInformation) else None


def _part(info: TypeInformation) -> Converter:
    """Return the converter of a part, which may be None."""
    convert = _converter(info)
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _row(info: RowTypeInfo) -> Converter:
    parts, names = [_part(field) for field in info.get_field_types()], info.get_field_names()

    def convert(value: Any) -> Row:
        values, kind = fields_of(value, names, "")
        made = Row.of_kind(kind, *(part(item) for part, item in zip(parts, values, strict=True)))
        made.set_field_names(names)
        return made

    return convert


def _map(info: MapTypeInfo) -> Converter:
    key_part, value_part = _part(info.key_type), _part(info.value_type)

    def convert(value: dict[Any, Any]) -> dict[Any, Any]:
        pairs = [(key_part(key), value_part(item)) for key, item in value.items()]
        return dict(sorted(pairs, key=lambda pair: encode_key(identify(pair[0]))))  # the order of a dict does not count

    return convert


def _double(value: Any) -> float:
    return _one_nan(scalars.as_double(value))


def _float(value: Any) -> float:
    return _one_nan(scalars.as_float(value))


def _one_nan(number: float) -> float:
    return number if number == number else float("nan")  # one of the many bit patterns of nan


def _decimal(value: Any) -> decimal.Decimal:
    """``1.0`` and ``1.00`` are two keys, as for Java's BigDecimal; a zero has no sign there."""
    number = scalars.as_decimal(value)
    if not number.is_finite():
        raise ValueError("a finite number is required")
    return number or number.copy_abs()


_SCALARS: dict[str, Converter] = {
    **{name: scalars.integer(bits) for name, bits in INTEGER_BITS.items()},
    "BIG_INT": scalars.integer(None),
    "BOOLEAN": scalars.as_boolean,
    "FLOAT": _float,
    "DOUBLE": _double,
    "STRING": scalars.as_text,
    "CHAR": scalars.as_text,
    "BIG_DEC": _decimal,
    "INSTANT": scalars.as_instant,
    **dict.fromkeys(("SQL_DATE", "LOCAL_DATE"), scalars.as_date),
    **dict.fromkeys(("SQL_TIME", "LOCAL_TIME"), scalars.as_time),
    **dict.fromkeys(("SQL_TIMESTAMP", "LOCAL_DATE_TIME"), scalars.as_timestamp),
}
"""Times keep their microseconds in keys: the bytes of a key never change."""
