"""Rows that become timers of a keyed operator, in state files that no job has written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.base.arguments import shown
from tidegate.base.errors import StateFormatError
from tidegate.base.files import Files
from tidegate.snapshots import entries
from tidegate.snapshots.entries import TimerRow, write_groups
from tidegate.state.key_groups import encode_and_group
from tidegate.state.key_types import key_identity
from tidegate.state.layout import EVENT, PROCESSING, TIMERS, time_bytes, timer_key
from tidegate.state.namespaces import write_namespace
from tidegate.state.refs import KeyGroupRange, StateFile

_DOMAINS = {"event": EVENT, "processing": PROCESSING}

Place = tuple[int, bytes, bytes]
"""Domain, time, namespace."""


class TimerWriter:
    """Rows: ``TimerRow``, or ``(key, time in milliseconds)`` for an event-time timer. The same twice is one timer."""

    def __init__(self, root: str, operator: str, key_type: Any, max_parallelism: int, windows: str = "") -> None:
        """``windows``: the kind of namespaces."""
        self._root, self._operator, self._max_parallelism = root, operator, max_parallelism
        self._identity, self._windows = key_identity(key_type), windows

    def write(self, rows: Iterable[Any]) -> Iterator[StateFile]:
        keys: list[Any] = []
        places: list[Place] = []
        for row in rows:
            key, place = self._encoded(row)
            keys.append(key)
            places.append(place)
            if len(keys) >= entries.ENTRIES_PER_FILE:
                yield self._file(keys, places)
                keys, places = [], []
        if keys:
            yield self._file(keys, places)

    def _encoded(self, row: Any) -> tuple[Any, Place]:
        try:
            timer = row if isinstance(row, TimerRow) else TimerRow(*_pair(row), "event")
            if type(timer.time_ms) is not int:
                raise TypeError("a time is a whole number of milliseconds")
            namespace = write_namespace(self._windows, timer.namespace)
            return self._identity(timer.key), (_DOMAINS[timer.domain], time_bytes(timer.time_ms), namespace)
        except Exception as error:
            raise StateFormatError(
                "Rows that become timers are (key, time in milliseconds), or TimerRow with 'event' or 'processing'.",
                where=f"timers of {self._operator}",
                found=f"{shown(row)}: {getattr(error, 'found', None) or error}",
                cure="give keys of the operator's key type and times as whole numbers",
            ) from error

    def _file(self, keys: list[Any], places: list[Place]) -> StateFile:
        encoded, groups = encode_and_group(keys, self._max_parallelism)
        by_group: dict[int, dict[bytes, bytes | None]] = {}
        for (domain, time, namespace), key, group in zip(places, encoded, groups.tolist(), strict=True):
            by_group.setdefault(group, {})[timer_key(group, domain, time, namespace, key)] = b""
        parts = ((TIMERS, by_group[group]) for group in sorted(by_group))
        return write_groups(Files(self._root), parts, KeyGroupRange(0, self._max_parallelism - 1))


def _pair(row: Any) -> tuple[Any, Any]:
    fields = tuple(row) if isinstance(row, tuple | list) else ()
    if len(fields) != 2:
        raise ValueError("not (key, time)")
    return fields
