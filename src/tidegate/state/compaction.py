"""Compaction: which neighbours in a list of state files to merge, and the merge itself.

Files have tiers by size. Eight or more neighbours of a tier and of lower tiers become one file, if the largest is at most half of
the result. Then every rewritten byte is in a file of at least twice the size, so it is written a logarithmic number of times. A
round with little data never pays for the size of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any

from tidegate.base.files import Files
from tidegate.state.layout import STATE
from tidegate.state.refs import KeyGroupRange, StateFile
from tidegate.state.segments import SegmentWriter, by_group

FAN_IN = 8
SMALLEST_TIER = 64 << 10
LONGEST_LIST = 64
"""An adverse order of sizes could leave more files; then the cheapest neighbours are merged, whatever their sizes."""

Expired = Callable[[bytes, bytes], bool]
"""Whether a base may drop an entry (canonical key, value)."""


def plan(files: list[StateFile]) -> tuple[int, int] | None:
    """Return the run ``files[start:end]`` to merge now; None if there is nothing to merge."""
    tiers = [_tier(file.size) for file in files]
    for tier in sorted(set(tiers)):
        for start, end in _runs(tiers, tier):
            if end - start >= FAN_IN and _pays(files[start:end]):
                return start, end
    if len(files) > LONGEST_LIST:
        return _cheapest(files)
    return None


def _tier(size: int) -> int:
    tier = 0
    while size > SMALLEST_TIER:
        size //= FAN_IN
        tier += 1
    return tier


def _runs(tiers: list[int], tier: int) -> Iterator[tuple[int, int]]:
    """Yield the longest runs of files up to a tier."""
    position = 0
    for inside, run in groupby(tiers, key=lambda found: found <= tier):
        length = len(list(run))
        if inside:
            yield position, position + length
        position += length


def _pays(run: list[StateFile]) -> bool:
    total = sum(file.size for file in run)
    return total <= 2 * SMALLEST_TIER or total >= 2 * max(file.size for file in run)


def _cheapest(files: list[StateFile]) -> tuple[int, int]:
    costs = [sum(file.size for file in files[start : start + FAN_IN]) for start in range(len(files) - FAN_IN + 1)]
    start = costs.index(min(costs))
    return start, start + FAN_IN


def merge_files(
    writer: SegmentWriter,
    files: Files,
    run: list[StateFile],
    groups: KeyGroupRange,
    *,
    drop_deletions: bool,
    expired: Expired,
) -> None:
    """Add the entries of a run to a file; later entries win. Memory: one key group of the run, and some blocks.

    ``drop_deletions``: there are no files before the run, so deletions and expired entries are dropped.
    """
    for table, entries in last_entries(files, run, groups):
        if drop_deletions:
            kept = ((key, value) for key, value in entries.items() if value is not None)
            entries = {key: value for key, value in kept if table != STATE or not expired(key, value)}
        writer.add(table, sorted_flat(entries), deletes=not drop_deletions)


def last_entries(
    files: Files, run: list[StateFile], groups: KeyGroupRange
) -> Iterator[tuple[int, dict[bytes, bytes | None]]]:
    """Yield the last entry of every key in a run of files, table by table and group by group."""
    sources = (_numbered(files, ref, groups, number) for number, ref in enumerate(run))
    for (table, _group), parts in groupby(merge(*sources, key=itemgetter(0, 1)), key=itemgetter(0)):
        entries: dict[bytes, bytes | None] = {}
        for _, _, flat in parts:
            entries.update(zip(flat[::2], flat[1::2], strict=True))
        yield table, entries


def sorted_flat(entries: dict[bytes, bytes | None]) -> list[Any]:
    """Return ``[k, v, k, v, ...]`` in the order of the keys."""
    flat: list[Any] = [None] * (2 * len(entries))
    flat[::2] = keys = sorted(entries)
    flat[1::2] = map(entries.__getitem__, keys)
    return flat


def _numbered(
    files: Files, ref: StateFile, groups: KeyGroupRange, number: int
) -> Iterator[tuple[tuple[int, int], int, list[Any]]]:
    for place, flat in by_group(files, ref, groups):
        yield place, number, flat
