"""What the namespaces of a keyed operator's state stand for, for who reads a snapshot without the program."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

TIME_WINDOWS, COUNT_WINDOWS, GLOBAL_WINDOWS, OTHER_WINDOWS, SLICES = "time", "count", "global", "other", "slices"
"""``KeyedPart.windows``: the kind of windows whose bytes are namespaces. ``SLICES`` has size, slide and offset behind it."""

_PAIR, _ONE = struct.Struct(">qq"), struct.Struct(">q")


class Window(NamedTuple):
    """The window, or slice of windows, that an entry belongs to. Without an end where the snapshot does not tell it."""

    start: int
    end: int | None


def slices(size: int, slide: int, offset: int) -> str:
    """The kind of sliced windows."""
    return f"{SLICES} {size} {slide} {offset}"


def read_namespace(windows: str, data: bytes) -> Any:
    """A ``Window``, the number of a count window, ``"global"``; bytes where only the program knows; None without a namespace."""
    kind, *numbers = windows.split() or [""]
    if len(data) == _PAIR.size and kind in (TIME_WINDOWS, SLICES, ""):  # early snapshots do not tell the kind
        return Window(*_PAIR.unpack(data))
    if kind == SLICES and len(data) == _ONE.size:
        start = _ONE.unpack(data)[0]
        return Window(start, _end_of_slice(start, *map(int, numbers)) if numbers else None)
    if kind == COUNT_WINDOWS and len(data) == _ONE.size:
        return _ONE.unpack(data)[0]
    if data == b"\x00" and kind in (GLOBAL_WINDOWS, ""):
        return "global"
    return data or None


def write_namespace(windows: str, namespace: Any) -> bytes:
    """The other way."""
    if namespace is None:
        return b""
    if isinstance(namespace, bytes):
        return namespace
    kind = windows.split()[:1]
    if isinstance(namespace, int):
        return _ONE.pack(namespace)
    if namespace == "global":
        return b"\x00"
    start, end = namespace
    return _ONE.pack(start) if kind == [SLICES] else _PAIR.pack(start, end)


def _end_of_slice(start: int, size: int, slide: int, offset: int) -> int:
    """The next moment at which a window begins or ends."""
    return start + min(slide - (start - first) % slide for first in (offset, offset + size))
