"""Windows into which an assigner puts records, and their bytes, which are the namespace of a window's state and
timers."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import total_ordering
from io import BytesIO
from typing import TYPE_CHECKING, TypeVar

from tidegate.base.clock import MAX_WATERMARK
from tidegate.common.serializer import TypeSerializer
from tidegate.state import namespaces

if TYPE_CHECKING:
    from tidegate.operators.windows.assigner import MergingWindowAssigner

W = TypeVar("W")
_PAIR = struct.Struct(">qq")
_ONE = struct.Struct(">q")


class Window(ABC):
    """A set of records of one key that are processed together. Windows with the same bytes are the same window."""

    @abstractmethod
    def max_timestamp(self) -> int:
        """Return the last millisecond that belongs to the window. Results of the window have this timestamp."""


@total_ordering
class TimeWindow(Window):
    """A window from ``start`` up to ``end``, in milliseconds. ``end`` does not belong to the window."""

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def max_timestamp(self) -> int:
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Tell whether the windows overlap or touch: a record at the very end of a session extends the session."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that contains both windows."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """Return the start of the window that contains the time, if windows of this size start ``offset`` after
        multiples of the size."""
        return timestamp - (timestamp - offset) % window_size

    @staticmethod
    def merge_windows(windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback[TimeWindow]) -> None:
        """Hand every group of windows that overlap or touch to the callback, with the window that covers the group."""
        group: list[TimeWindow] = []
        cover: TimeWindow | None = None
        for window in sorted(windows):
            if cover is not None and cover.intersects(window):
                cover = cover.cover(window)
                group.append(window)
                continue
            if cover is not None and len(group) > 1:
                callback.merge(group, cover)
            cover, group = window, [window]
        if cover is not None and len(group) > 1:
            callback.merge(group, cover)

    def __eq__(self, other: object) -> bool:
        return type(other) is TimeWindow and self.start == other.start and self.end == other.end

    def __lt__(self, other: TimeWindow) -> bool:
        return (self.start, self.end) < (other.start, other.end)

    def __hash__(self) -> int:
        return hash((self.start, self.end))

    def __repr__(self) -> str:
        return f"TimeWindow(start={self.start}, end={self.end})"


class CountWindow(Window):
    """A window of a number of records of a key, numbered from 0."""

    __slots__ = ("id",)

    def __init__(self, id: int) -> None:
        self.id = id

    def max_timestamp(self) -> int:
        return MAX_WATERMARK

    def __eq__(self, other: object) -> bool:
        return type(other) is CountWindow and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"CountWindow(id={self.id})"


class GlobalWindow(Window):
    """A window of all records of a key."""

    __slots__ = ()

    @staticmethod
    def get() -> GlobalWindow:
        """Return the only global window."""
        return GlobalWindow()

    def max_timestamp(self) -> int:
        return MAX_WATERMARK

    def __eq__(self, other: object) -> bool:
        return type(other) is GlobalWindow

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "GlobalWindow"


class TimeWindowSerializer(TypeSerializer[TimeWindow]):
    """Serialize start and end, eight bytes each."""

    def serialize(self, element: TimeWindow, stream: BytesIO) -> None:
        """Write the window to the stream."""
        stream.write(_PAIR.pack(element.start, element.end))

    def deserialize(self, stream: BytesIO) -> TimeWindow:
        """Read a window from the stream."""
        return TimeWindow(*_PAIR.unpack(stream.read(_PAIR.size)))


class CountWindowSerializer(TypeSerializer[CountWindow]):
    """Serialize the window's number, in eight bytes."""

    def serialize(self, element: CountWindow, stream: BytesIO) -> None:
        """Write the window to the stream."""
        stream.write(_ONE.pack(element.id))

    def deserialize(self, stream: BytesIO) -> CountWindow:
        """Read a window from the stream."""
        return CountWindow(*_ONE.unpack(stream.read(_ONE.size)))


class GlobalWindowSerializer(TypeSerializer[GlobalWindow]):
    """Serialize as one byte, because a namespace is not empty."""

    def serialize(self, element: GlobalWindow, stream: BytesIO) -> None:
        """Write the window to the stream."""
        stream.write(b"\x00")

    def deserialize(self, stream: BytesIO) -> GlobalWindow:
        """Read a window from the stream."""
        stream.read(1)
        return GlobalWindow()


def bytes_of(window: W, serializer: TypeSerializer[W]) -> bytes:
    """Return the namespace of a window."""
    stream = BytesIO()
    serializer.serialize(window, stream)
    return stream.getvalue()


def interval_bytes(start: int, end: int) -> bytes:
    """Return the namespace of a ``TimeWindow``."""
    return _PAIR.pack(start, end)


def interval_of(namespace: bytes) -> tuple[int, int]:
    """Return start and end of the ``TimeWindow`` of a namespace."""
    start, end = _PAIR.unpack(namespace)
    return start, end


def kind_of(serializer: TypeSerializer[W]) -> str:
    """Return the text that describes the namespaces of windows in snapshots (``state/namespaces.py``)."""
    return _KINDS.get(type(serializer), namespaces.OTHER_WINDOWS)


_KINDS: dict[type, str] = {
    TimeWindowSerializer: namespaces.TIME_WINDOWS,
    CountWindowSerializer: namespaces.COUNT_WINDOWS,
    GlobalWindowSerializer: namespaces.GLOBAL_WINDOWS,
}
