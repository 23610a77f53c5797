"""The canonical layout of store keys: the same bytes in segment files and, except for timers, in the local store.

State entry: ``group(2) | len(name)(1) | name | len(namespace)(1) | namespace | len(key)(varint) | key | map key``.
Timer: ``group(2) | domain(1) | time(8) | len(namespace)(1) | namespace | key``; its value is empty. Numbers are big-endian; a
time is shifted by 2**63, so that bytes sort like times. Local stores keep timers as ``domain | time | group | ...``: one
seek finds the earliest of a subtask.
"""

from __future__ import annotations

from tidegate.base.errors import ArgumentTypeError, InternalError, StateFormatError
from tidegate.state.refs import KeyGroupRange

STATE, TIMERS = 0, 1
"""The two tables of a segment file."""

EVENT, PROCESSING = 0, 1
"""The two domains of timers."""

TIME_SHIFT = 1 << 63
LONGEST_NAMESPACE = 255
GROUP_BYTES = [group.to_bytes(2, "big") for group in range(1 << 15)]


def varint(number: int) -> bytes:
    """Encode a length, seven bits per byte, low bits first. No varint begins another one, so a prefix may contain it."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return the number at an offset, and the offset after it."""
    number = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, offset


class _Lengths(dict[int, bytes]):
    """Length -> its varint. A lookup instead of a call for every record that misses the cache."""

    def __missing__(self, number: int) -> bytes:
        encoded = varint(number)
        if number < 4096:
            self[number] = encoded
        return encoded


LENGTHS = _Lengths()


def state_head(name: str) -> bytes:
    """Return the bytes between the group and the key's length, without a namespace."""
    encoded = name.encode()
    if not 0 < len(encoded) < 256:
        raise ArgumentTypeError(
            "The state name is empty or longer than 255 bytes.",
            found=f"{len(encoded)} bytes: {name[:60]!r}",
            cure="choose a shorter name",
        )
    return bytes([len(encoded)]) + encoded + b"\x00"


def namespace_bytes(namespace: bytes) -> bytes:
    """Return a namespace in the layout: its length, then its bytes. Without a namespace it is one byte."""
    if len(namespace) > LONGEST_NAMESPACE:
        raise InternalError("A namespace is longer than 255 bytes.", found=f"{len(namespace)} bytes")
    return bytes((len(namespace),)) + namespace


def state_prefixes(name: str, groups: KeyGroupRange, max_parallelism: int) -> list[bytes | None]:
    """For each key group the bytes before the key's length, without a namespace; None for the groups of other subtasks."""
    head = state_head(name)
    return [GROUP_BYTES[group] + head if group in groups else None for group in range(max_parallelism)]


def split_entry(key: bytes) -> tuple[bytes, bytes]:
    """Namespace and key bytes of a stored entry of a state that is no map."""
    start = 3 + key[2] + 1
    end = start + key[start - 1]
    return key[start:end], key[read_varint(key, end)[1] :]


def state_name(key: bytes) -> str:
    """Return the state a stored entry belongs to."""
    return key[3 : 3 + key[2]].decode()


def time_bytes(time: int) -> bytes:
    """Return a time that sorts as bytes like the number."""
    try:
        return (time + TIME_SHIFT).to_bytes(8, "big")
    except OverflowError as error:
        raise StateFormatError(
            "The time of a timer does not fit in 64 bits.", found=str(time), cure="use milliseconds since the epoch"
        ) from error


def timer_key(group: int, domain: int, time: bytes, namespace: bytes, key: bytes) -> bytes:
    """Return the canonical key of a timer."""
    return GROUP_BYTES[group] + (b"\x01" if domain else b"\x00") + time + namespace_bytes(namespace) + key


def timer_to_local(key: bytes) -> bytes:
    """Canonical to local order."""
    return key[2:11] + key[:2] + key[11:]


def timer_from_local(key: bytes) -> bytes:
    """Local to canonical order."""
    return key[9:11] + key[:9] + key[11:]


def split_local_timer(key: bytes) -> tuple[int, bytes, bytes]:
    """Time, namespace and key bytes of a timer in local order."""
    key_start = 12 + key[11]
    return int.from_bytes(key[1:9], "big") - TIME_SHIFT, key[12:key_start], key[key_start:]
