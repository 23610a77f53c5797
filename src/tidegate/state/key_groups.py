"""Key groups: the hash of a key, its group, which subtask owns which groups, and the routers of the sender.

The hash is for ever: checkpoints hold state by key group. It has two parts. Ints of 64 bits go through a finalizer that numpy
computes on a whole column (that of SplitMix64: every bit of the key reaches every bit of the hash); of every other key it is
XXH3 (64 bits, seed 0) of its bytes. ``tests/unit/state/test_key_groups.py`` has golden values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from tidegate.state.keys import encode_key, encode_keys, pack_all
from tidegate.state.refs import KeyGroupRange

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
_Group = TypeVar("_Group", int, Int64s)

ROUTER_LIMIT = 1_000_000
"""Above so many keys a router forgets them: a lookup is a convenience, not the truth."""
BLOCK = 8192
"""The columns of so many keys stay in the processor's cache from step to step."""

_MASK = (1 << 64) - 1
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key_hash(key: Any, encoded: bytes) -> int:
    """The hash of a key in the engine's form; ``encoded``: its bytes."""
    if type(key) is int and -1 << 63 <= key < 1 << 63:
        mixed = (key + _GAMMA) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * _FIRST) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * _SECOND) & _MASK
        return mixed ^ (mixed >> 31)
    return xxhash.xxh3_64_intdigest(encoded)


def hashes_of_ints(keys: Int64s) -> Hashes:
    """``key_hash`` of many ints at once."""
    if len(keys) <= BLOCK:
        return _hashes(keys)
    return np.concatenate([_hashes(keys[start : start + BLOCK]) for start in range(0, len(keys), BLOCK)])


def _hashes(keys: Int64s) -> Hashes:
    mixed = keys.astype(np.uint64)  # a copy, modulo 2**64, and so is all that follows
    mixed += np.uint64(_GAMMA)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(_FIRST)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_SECOND)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _groups(hashes: Hashes, max_parallelism: int) -> Int64s:
    """The group of a hash is its rest by the number of groups: this is the one place that says so."""
    if max_parallelism & (max_parallelism - 1):
        return (hashes % np.uint64(max_parallelism)).view(np.int64)
    return (hashes & np.uint64(max_parallelism - 1)).view(np.int64)


def group_of(key: Any, max_parallelism: int, encoded: bytes | None = None) -> int:
    """The group of a key in the engine's form, the same in every process and on every machine. ``encoded``: its bytes, if known."""
    return key_hash(key, encode_key(key) if encoded is None else encoded) % max_parallelism  # as in _groups


def groups_of_ints(keys: Int64s, max_parallelism: int) -> Int64s:
    """``group_of`` many int keys at once."""
    return _groups(hashes_of_ints(keys), max_parallelism)


def encode_and_group(keys: Collection[Any], max_parallelism: int) -> tuple[list[bytes], Int64s]:
    """The bytes of many keys, and their groups."""
    kinds = set(map(type, keys))
    if kinds == {int}:
        with contextlib.suppress(OverflowError):  # more than 63 bits
            numbers = np.fromiter(keys, np.int64, len(keys))
            return pack_all(keys), groups_of_ints(numbers, max_parallelism)
    encoded = encode_keys(keys)
    found = map(key_hash, keys, encoded) if int in kinds else map(xxhash.xxh3_64_intdigest, encoded)
    return encoded, _groups(np.fromiter(found, np.uint64, len(encoded)), max_parallelism)


def range_for(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The groups that ``subtask`` of ``parallelism`` owns. The ranges of all subtasks cover every group once."""
    first = (subtask * max_parallelism + parallelism - 1) // parallelism
    last = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(first, last)


def subtask_for(group: _Group, parallelism: int, max_parallelism: int) -> _Group:
    """The subtask that owns a group, or those of many; the inverse of ``range_for``."""
    return group * parallelism // max_parallelism


class IntRouter:
    """The subtasks of many int keys at once. Keys that lie close together are looked up in a table, which is made once."""

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
            around = (high - low) // 4 + 1  # the next batch may have a little more
            self._low = max(low - around, -1 << 63)
            self._table = self._computed(np.arange(self._low, min(high + around, (1 << 63) - 2) + 1))
            if high >= self._low + len(self._table):
                return self._computed(keys)
        return self._table[keys - self._low]

    def _computed(self, keys: Int64s) -> npt.NDArray[np.uint16]:
        groups = groups_of_ints(keys, self._max_parallelism)
        return subtask_for(groups, self._parallelism, self._max_parallelism).astype(np.uint16)


class KeyRouter(dict[Any, Any]):
    """Key in the engine's form -> the target of its subtask, remembered. The sender's loop reads ``route[key]`` for every record.

    ``targets[i]`` is whatever the sender wants back for subtask ``i`` (the append methods of its buffers, say).
    """

    __slots__ = ("_max_parallelism", "_targets")

    def __init__(self, targets: Sequence[Any], max_parallelism: int) -> None:
        super().__init__()
        self._targets = list(targets)
        self._max_parallelism = max_parallelism

    def __missing__(self, key: Any) -> Any:
        group = group_of(key, self._max_parallelism)
        target = self[key] = self._targets[subtask_for(group, len(self._targets), self._max_parallelism)]
        return target

    def trim(self) -> None:
        """Bound the memory: called once per chunk."""
        if len(self) > ROUTER_LIMIT:
            self.clear()
