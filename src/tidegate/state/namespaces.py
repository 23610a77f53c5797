"""The meaning of the namespaces of keyed state, for readers of a snapshot without the program."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

TIME_WINDOWS, COUNT_WINDOWS, GLOBAL_WINDOWS, OTHER_WINDOWS, SLICES = "time", "count", "global", "other", "slices"
"""``KeyedPart.windows``: the kind of windows whose bytes are namespaces. Size, slide and offset follow ``SLICES``."""

_PAIR, _ONE = struct.Struct(">qq"), struct.Struct(">q")


class Window(NamedTuple):
    """The window, or slice of windows, of an entry. ``end`` is None where the snapshot does not contain it."""

    start: int
    end: int | None


def slices(size: int, slide: int, offset: int) -> str:
    """Return the kind of sliced windows."""
    return f"{SLICES} {size} {slide} {offset}"


def read_namespace(windows: str, data: bytes) -> Any:
    """Return a ``Window``, the number of a count window or ``"global"``; bytes of an unknown kind; None without a namespace."""
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
    """Return the bytes of a namespace: the inverse of ``read_namespace``."""
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
    """Return the next moment at which a window begins or ends."""
    return start + min(slide - (start - first) % slide for first in (offset, offset + size))
