"""XXH3 (64 bits, seed 0) of the msgpack bytes of many ints at once: what ``xxhash`` gives for each, without a call for each.

msgpack takes 1, 2, 3, 5 or 9 bytes for an int: a first byte for its kind, then the number, big-endian. XXH3 has a formula for
1 to 3 bytes, one for 4 to 8 and one for 9 to 16; they are written here over columns, with the names of its specification.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_u = np.uint64

BLOCK = 8192
"""The columns of so many keys stay in the processor's cache from step to step."""

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
)


def _secret(start: int, size: int) -> np.uint64:
    first, second = (int.from_bytes(_SECRET[at : at + size], "little") for at in (start, start + size))
    return np.uint64(first ^ second)


_FLIP_SHORT, _FLIP_MIDDLE = _secret(0, 4), _secret(8, 8)
_FLIP_LOW, _FLIP_HIGH = _secret(24, 8), _secret(40, 8)
_PRIME64_2, _PRIME64_3 = np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
_PRIME_MX1, _PRIME_MX2 = np.uint64(0x165667919E3779F9), np.uint64(0x9FB21C651E98DF25)
_LOW_HALF = np.uint64(0xFFFFFFFF)


def xxh3_of_ints(keys: Ints) -> Words:
    """The hash of each key's msgpack bytes."""
    if len(keys) <= BLOCK:
        return _block(keys)
    return np.concatenate([_block(keys[start : start + BLOCK]) for start in range(0, len(keys), BLOCK)])


def _block(keys: Ints) -> Words:
    hashes = np.empty(len(keys), np.uint64)
    if not len(keys):
        return hashes
    lowest, greatest = int(keys.min()), int(keys.max())
    for kind in _KINDS:
        if kind.first <= lowest and greatest <= kind.last:
            return kind.hash(keys.view(np.uint64), kind.tag)
        if kind.first <= greatest and lowest <= kind.last:
            inside = np.flatnonzero((keys >= kind.first) & (keys <= kind.last))
            hashes[inside] = kind.hash(keys[inside].view(np.uint64), kind.tag)
    return hashes


# -- the formulas. Arithmetic is modulo 2**64, as in the specification --


def _one_byte(numbers: Words, tag: int) -> Words:
    return _short(numbers & _u(0xFF), numbers & _u(0xFF), numbers & _u(0xFF), 1)


def _two_bytes(numbers: Words, tag: int) -> Words:
    return _short(np.full_like(numbers, tag), numbers & _u(0xFF), numbers & _u(0xFF), 2)


def _three_bytes(numbers: Words, tag: int) -> Words:
    return _short(np.full_like(numbers, tag), numbers >> _u(8) & _u(0xFF), numbers & _u(0xFF), 3)


def _short(first: Words, middle: Words, last: Words, length: int) -> Words:
    """XXH3_len_1to3_64b."""
    mixed = (first << _u(16)) | (middle << _u(24)) | last
    mixed |= _u(length << 8)
    mixed ^= _FLIP_SHORT
    mixed ^= mixed >> _u(33)
    mixed *= _PRIME64_2
    mixed ^= mixed >> _u(29)
    mixed *= _PRIME64_3
    mixed ^= mixed >> _u(32)
    return mixed


def _five_bytes(numbers: Words, tag: int) -> Words:
    """XXH3_len_4to8_64b: of the first four bytes and the last four, which are the number."""
    last = numbers.astype(np.uint32).byteswap().astype(np.uint64)
    first = (last << _u(8)) | _u(tag)
    mixed = (first << _u(32)) + last
    mixed ^= _FLIP_MIDDLE
    mixed ^= _rotated(mixed, 49) ^ _rotated(mixed, 24)
    mixed *= _PRIME_MX2
    mixed ^= (mixed >> _u(35)) + _u(5)
    mixed *= _PRIME_MX2
    mixed ^= mixed >> _u(28)
    return mixed


def _nine_bytes(numbers: Words, tag: int) -> Words:
    """XXH3_len_9to16_64b: of the first eight bytes and the last eight, which are the number."""
    last = numbers.byteswap()
    low = ((last << _u(8)) | _u(tag)) ^ _FLIP_LOW
    high = last ^ _FLIP_HIGH
    mixed = low.byteswap() + high + _folded_product(low, high) + _u(9)
    mixed ^= mixed >> _u(37)
    mixed *= _PRIME_MX1
    mixed ^= mixed >> _u(32)
    return mixed


def _folded_product(left: Words, right: Words) -> Words:
    """The two halves of the product of 128 bits, one xor the other."""
    a, b = left & _LOW_HALF, left >> _u(32)
    c, d = right & _LOW_HALF, right >> _u(32)
    lowest, outer = a * c, a * d
    cross = (lowest >> _u(32)) + (outer & _LOW_HALF) + b * c  # at most 2**64 - 1
    upper = (outer >> _u(32)) + (cross >> _u(32)) + b * d
    upper ^= (cross << _u(32)) | (lowest & _LOW_HALF)
    return upper


def _rotated(words: Words, bits: int) -> Words:
    return (words << _u(bits)) | (words >> _u(64 - bits))


class _Kind(NamedTuple):
    """Numbers from ``first`` to ``last`` have this first byte."""

    first: int
    last: int
    tag: int
    hash: Callable[[Words, int], Words]


_KINDS = (
    _Kind(1 << 16, (1 << 32) - 1, 0xCE, _five_bytes),
    _Kind(1 << 8, (1 << 16) - 1, 0xCD, _three_bytes),
    _Kind(1 << 7, (1 << 8) - 1, 0xCC, _two_bytes),
    _Kind(-(1 << 5), (1 << 7) - 1, 0, _one_byte),  # the number itself
    _Kind(1 << 32, (1 << 63) - 1, 0xCF, _nine_bytes),
    _Kind(-(1 << 7), -(1 << 5) - 1, 0xD0, _two_bytes),
    _Kind(-(1 << 15), -(1 << 7) - 1, 0xD1, _three_bytes),
    _Kind(-(1 << 31), -(1 << 15) - 1, 0xD2, _five_bytes),
    _Kind(-(1 << 63), -(1 << 31) - 1, 0xD3, _nine_bytes),
)
