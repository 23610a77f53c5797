"""Key groups: the hash of a key, its group, which subtask owns which groups, and the routers of the sender.

The hash can never change: checkpoints store state by key group. It is XXH3 (64 bits, seed 0): for an int within 64 bits over its
eight bytes (two's complement, little-endian), for every other key over the key's bytes. Over eight bytes XXH3 is only a finalizer:
rotations, two multiplications, shifts. So numpy computes it for a column, and C for a single key, four times as fast as any
finalizer in Python. ``tests/unit/state/test_key_groups.py`` has golden values.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from tidegate.state.keys import encode_form, encode_keys, pack_all
from tidegate.state.refs import KeyGroupRange

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
_Group = TypeVar("_Group", int, Int64s)

ROUTER_LIMIT = 1_000_000
"""Above this many keys a router forgets them: the table is only a cache."""
BLOCK = 8192
"""Columns of this many keys stay in the processor's cache from step to step."""

_xxh3 = xxhash.xxh3_64_intdigest
_eight_bytes = struct.Struct("<q").pack
_FLIP, _MX2 = np.uint64(0xC73AB174C5ECD5A2), np.uint64(0x9FB21C651E98DF25)
"""XXH3's constants for four to eight bytes."""


def key_hash(key: Any, encoded: bytes) -> int:
    """Return the hash of a key in the engine's form; ``encoded``: its bytes."""
    if type(key) is int:
        try:
            return _xxh3(_eight_bytes(key))
        except struct.error:  # beyond 64 bits
            pass
    return _xxh3(encoded)


def hashes_of_ints(keys: Int64s) -> Hashes:
    """``key_hash`` of many ints at once."""
    if len(keys) <= BLOCK:
        return _hashes(keys)
    return np.concatenate([_hashes(keys[start : start + BLOCK]) for start in range(0, len(keys), BLOCK)])


def _hashes(keys: Int64s) -> Hashes:
    # All arithmetic is modulo 2**64. Eight bytes are read as two halves, the first one on top.
    mixed = _rotated(keys.astype(np.uint64), 32)
    mixed ^= _FLIP
    mixed ^= _rotated(mixed, 49) ^ _rotated(mixed, 24)
    mixed *= _MX2
    mixed ^= (mixed >> np.uint64(35)) + np.uint64(8)
    mixed *= _MX2
    mixed ^= mixed >> np.uint64(28)
    return mixed


def _rotated(words: Hashes, bits: int) -> Hashes:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _groups(hashes: Hashes, max_parallelism: int) -> Int64s:
    """Return the groups of hashes: the remainders by the number of groups. Only this place and ``group_of`` define it."""
    if max_parallelism & (max_parallelism - 1):
        return (hashes % np.uint64(max_parallelism)).view(np.int64)
    return (hashes & np.uint64(max_parallelism - 1)).view(np.int64)


def group_of(key: Any, max_parallelism: int, encoded: bytes | None = None) -> int:
    """Return the group of a key in the engine's form, the same in every process and on every machine. ``encoded``: its bytes, if
    known."""
    if key.__class__ is int:
        try:
            return _xxh3(_eight_bytes(key)) % max_parallelism  # as in _groups
        except struct.error:  # beyond 64 bits
            pass
    return _xxh3(encode_form(key) if encoded is None else encoded) % max_parallelism


def groups_of_ints(keys: Int64s, max_parallelism: int) -> Int64s:
    """``group_of`` many int keys at once."""
    return _groups(hashes_of_ints(keys), max_parallelism)


def encode_and_group(keys: Collection[Any], max_parallelism: int) -> tuple[list[bytes], Int64s]:
    """Return the bytes of many keys, and their groups."""
    kinds = set(map(type, keys))
    if kinds == {int}:
        with contextlib.suppress(OverflowError):  # more than 63 bits
            numbers = np.fromiter(keys, np.int64, len(keys))
            return pack_all(keys), groups_of_ints(numbers, max_parallelism)
    encoded = encode_keys(keys)
    found = map(key_hash, keys, encoded) if int in kinds else map(_xxh3, encoded)
    return encoded, _groups(np.fromiter(found, np.uint64, len(encoded)), max_parallelism)


def range_for(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """Return the groups that ``subtask`` of ``parallelism`` owns. The ranges of all subtasks cover every group once."""
    first = (subtask * max_parallelism + parallelism - 1) // parallelism
    last = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(first, last)


def subtask_for(group: _Group, parallelism: int, max_parallelism: int) -> _Group:
    """Return the subtask that owns a group, or those of many; the inverse of ``range_for``."""
    return group * parallelism // max_parallelism


def owners(groups: KeyGroupRange, parallelism: int, max_parallelism: int) -> range:
    """Return the subtasks that own one of these groups."""
    first, last = (
        subtask_for(groups.first, parallelism, max_parallelism),
        subtask_for(groups.last, parallelism, max_parallelism),
    )
    return range(first, min(last + 1, parallelism))


class IntRouter:
    """Finds the subtasks of many int keys at once. Keys that are close together are looked up in a table, made once."""

    _WIDEST, _MOST_TABLES = 1 << 20, 8

    def __init__(self, parallelism: int, max_parallelism: int) -> None:
        self._parallelism, self._max_parallelism = parallelism, max_parallelism
        self._table: npt.NDArray[np.uint16] = np.empty(0, np.uint16)
        self._low = self._tables = 0

    def subtasks(self, keys: Int64s) -> npt.NDArray[np.uint16]:
        low, high = int(keys.min()), int(keys.max())
        if low < self._low or high >= self._low + len(self._table):
            if high - low >= self._WIDEST or self._tables == self._MOST_TABLES:
                return self._computed(keys)
            self._tables += 1
            around = (high - low) // 4 + 1  # the next keys may lie a little outside
            self._low = max(low - around, -1 << 63)
            self._table = self._computed(np.arange(self._low, min(high + around, (1 << 63) - 2) + 1))
            if high >= self._low + len(self._table):
                return self._computed(keys)
        return self._table[keys - self._low]

    def _computed(self, keys: Int64s) -> npt.NDArray[np.uint16]:
        groups = groups_of_ints(keys, self._max_parallelism)
        return subtask_for(groups, self._parallelism, self._max_parallelism).astype(np.uint16)


class KeyRouter(dict[Any, Any]):
    """Key in the engine's form -> the target of its subtask, cached. The sender's loop reads ``route[key]`` for every record.

    ``targets[i]`` is the sender's value for subtask ``i`` (the append method of a buffer, say). ``check`` is called with each new
    key and raises if the key is invalid.
    """

    __slots__ = ("_check", "_max_parallelism", "_of_group")

    def __init__(
        self, targets: Sequence[Any], max_parallelism: int, check: Callable[[Any], None] = lambda key: None
    ) -> None:
        super().__init__()
        subtasks = (subtask_for(group, len(targets), max_parallelism) for group in range(max_parallelism))
        self._of_group = [targets[subtask] for subtask in subtasks]
        self._max_parallelism, self._check = max_parallelism, check

    def __missing__(self, key: Any) -> Any:
        self._check(key)
        target = self[key] = self._of_group[group_of(key, self._max_parallelism)]
        return target

    def trim(self) -> None:
        """Bound the memory. Called once per chunk."""
        if len(self) > ROUTER_LIMIT:
            self.clear()
