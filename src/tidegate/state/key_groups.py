"""Key groups: the stable hash of a key, which subtask owns which groups, and the router of the sender's loop."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from tidegate.state.codecs import encode_key, encode_keys, pack_all
from tidegate.state.refs import KeyGroupRange
from tidegate.state.xxh3 import xxh3_of_ints

ROUTER_LIMIT = 1_000_000
"""Above so many keys a router forgets them: a lookup is a convenience, not the truth."""


def key_group(key_bytes: bytes, max_parallelism: int) -> int:
    """The group of an encoded key: the same in every process and on every machine."""
    return xxhash.xxh3_64_intdigest(key_bytes) % max_parallelism


def groups_of_ints(keys: npt.NDArray[np.int64], max_parallelism: int) -> npt.NDArray[np.int64]:
    """The groups of many int keys at once: of each the ``key_group`` of its ``encode_key``."""
    hashes = xxh3_of_ints(keys)
    if max_parallelism & (max_parallelism - 1):
        hashes %= np.uint64(max_parallelism)
    else:
        hashes &= np.uint64(max_parallelism - 1)
    return hashes.view(np.int64)


def encode_and_group(keys: Collection[Any], max_parallelism: int) -> tuple[list[bytes], npt.NDArray[np.uint16]]:
    """``encode_key`` of many, and their groups."""
    if set(map(type, keys)) == {int}:
        with contextlib.suppress(OverflowError):  # more than 63 bits
            numbers = np.fromiter(keys, np.int64, len(keys))
            return pack_all(keys), groups_of_ints(numbers, max_parallelism).astype(np.uint16)
    encoded = encode_keys(keys)
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, encoded), np.uint64, len(encoded))
    return encoded, (hashes % np.uint64(max_parallelism)).astype(np.uint16)


def range_for(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The groups that ``subtask`` of ``parallelism`` owns. The ranges of all subtasks cover every group once."""
    first = (subtask * max_parallelism + parallelism - 1) // parallelism
    last = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(first, last)


def subtask_for(group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns a group; the inverse of ``range_for``."""
    return group * parallelism // max_parallelism


class IntRouter:
    """The subtasks of many int keys at once. Keys that lie close together are looked up in a table, which is made once."""

    _WIDEST, _MOST_TABLES = 1 << 20, 8

    def __init__(self, parallelism: int, max_parallelism: int) -> None:
        self._parallelism, self._max_parallelism = parallelism, max_parallelism
        self._table: npt.NDArray[np.uint16] = np.empty(0, np.uint16)
        self._low = self._tables = 0

    def subtasks(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
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

    def _computed(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
        groups = groups_of_ints(keys, self._max_parallelism)
        return (groups * self._parallelism // self._max_parallelism).astype(np.uint16)


class KeyRouter(dict[Any, Any]):
    """Key -> the target of its subtask, remembered. The sender's loop reads ``route[key]`` for every record.

    ``targets[i]`` is whatever the sender wants back for subtask ``i`` (the append methods of its buffers, say).
    Equal keys must be of one type in a stream: 1, 1.0 and True are one dict key but three state keys.
    """

    __slots__ = ("_max_parallelism", "_parallelism", "_targets")

    def __init__(self, targets: Sequence[Any], max_parallelism: int) -> None:
        super().__init__()
        self._targets = list(targets)
        self._parallelism = len(self._targets)
        self._max_parallelism = max_parallelism

    def __missing__(self, key: Any) -> Any:
        group = xxhash.xxh3_64_intdigest(encode_key(key)) % self._max_parallelism
        target = self[key] = self._targets[group * self._parallelism // self._max_parallelism]
        return target

    def trim(self) -> None:
        """Bound the memory: called once per chunk."""
        if len(self) > ROUTER_LIMIT:
            self.clear()
