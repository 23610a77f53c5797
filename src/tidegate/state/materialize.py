"""Bring a local store to a list of state files, and merge files of the list (compaction).

**Stores.** This is the only place where stores are written. A store contains a prefix of some list; its tag says which.
If the list has the tag, the files after it are applied. With any other tag (another attempt's, another key-group range,
a killed rebuild) the store is wiped and all files are applied. Each transaction first compares the tag under the
store's write lock. So of several processes that bring up the same store, even late, killed or of an old attempt, each
moves it from one true tag to another, or does nothing.

**Compaction** chooses neighbours in a list of state files, and merges them. Files have tiers by size. Eight or more
neighbours of a tier and of lower tiers become one file, if the largest is at most half of the result. Then every
rewritten byte is in a file of at least twice the size, so it is written a logarithmic number of times. A round with
little data never pays for the size of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from heapq import merge
from itertools import groupby, islice, takewhile
from operator import eq, itemgetter
from typing import Any

from tidegate.base import faults
from tidegate.base.errors import StorageError
from tidegate.base.files import Files
from tidegate.base.hashing import new_token
from tidegate.state.layout import STATE
from tidegate.state.refs import KeyGroupRange, StateFile
from tidegate.state.segments import SegmentWriter, by_group, read
from tidegate.state.store import EntryBlock, LocalStore, Snapshot

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


ATTEMPTS = 10
BLOCKS_PER_TRANSACTION = 16
"""Bounds the memory of a rebuild: about 5 MiB of Python objects per block, and LMDB's dirty pages."""
ENTRIES_PER_BLOCK = 32768

_rebuilds = 0


def rebuilds() -> int:
    """Return how often this process has rebuilt a store from all its files, as when a subtask moves to a new host."""
    return _rebuilds


def bring_up(store: LocalStore, files: Files, refs: list[StateFile], groups: KeyGroupRange) -> Snapshot:
    """Bring the store to exactly this list and return a snapshot of it."""
    tags = tags_of(refs, groups)
    target = tags[-1]
    for _ in range(ATTEMPTS):
        snapshot = store.snapshot()
        if snapshot.tag == target:
            return snapshot
        snapshot.close()
        _advance(store, files, refs, tags, snapshot.tag, groups)
    raise StorageError(
        "Another job attempt keeps rewriting the local store.",
        where=f"key groups {groups.first}-{groups.last}",
        found=f"it was moved away from version {target} {ATTEMPTS} times",
        cure="stop the other job attempts on this host",
    )


def applied_to(held: list[StateFile], refs: list[StateFile], replaced: Collection[str], groups: KeyGroupRange) -> int:
    """Return how many files of a list the contents of ``held`` already have; the later files must be applied. 0: discard ``held``.

    ``replaced``: paths of files that merges removed from the list. The list continues ``held`` only if every held file is, or was,
    in the list. Else the list has another history, without one of these files (a segment that was not accepted).
    """
    accepted = {ref.path for ref in refs}.union(replaced)
    if not all(ref.path in accepted for ref in held):
        return 0
    tags, tag = tags_of(refs, groups), tags_of(held, groups)[-1]
    if tag in tags:
        return tags.index(tag)
    # A merge has removed this position. The files after the common prefix contain everything that ``held`` has beyond the prefix,
    # and later changes. A key in one of them gets its last value or its deletion: only a merge from the start of the list drops
    # deletions, and then there is no common prefix. A key in none of them has not changed since the prefix.
    return sum(1 for _ in takewhile(bool, map(eq, held, refs)))


def tags_of(refs: list[StateFile], groups: KeyGroupRange) -> list[str]:
    """Return the tag of a store for each prefix of a list, the empty prefix first: the version of every key group.

    Usually all groups have one version. After a rescale one list has files of several former subtasks. Then neither their versions
    nor their order define the contents of a prefix, but the version of each group does.
    """
    parts = [(groups, "")]
    tags = [_tag(parts)]
    for ref in refs:
        clip = ref.groups.intersect(groups)
        if clip is not None:
            parts = _overlaid(parts, clip, ref.upto)
        tags.append(_tag(parts))
    return tags


def _overlaid(
    parts: list[tuple[KeyGroupRange, str]], clip: KeyGroupRange, version: str
) -> list[tuple[KeyGroupRange, str]]:
    left = [
        (KeyGroupRange(part.first, min(part.last, clip.first - 1)), v) for part, v in parts if part.first < clip.first
    ]
    right = [
        (KeyGroupRange(max(part.first, clip.last + 1), part.last), v) for part, v in parts if part.last > clip.last
    ]
    return [*left, (clip, version), *right]


def _tag(parts: list[tuple[KeyGroupRange, str]]) -> str:
    runs = (list(run) for _, run in groupby(parts, key=itemgetter(1)))
    return "|".join(f"{run[0][0].first}-{run[-1][0].last}:{run[0][1]}" for run in runs)


def _advance(
    store: LocalStore, files: Files, refs: list[StateFile], tags: list[str], tag: str, groups: KeyGroupRange
) -> None:
    """Apply the missing files. Stop if another process has moved the tag; the caller then tries again."""
    if tag in tags:
        # The first of equal tags: applying a file again is harmless, skipping one is not.
        start = tags.index(tag)
    else:
        global _rebuilds
        _rebuilds += bool(refs)
        faults.point("T5.rebuild", groups=groups, found=tag)
        if not store.apply(tag, [], tags[0], wipe=True):
            return
        start, tag = 0, tags[0]
    pending = refs[start:]
    if len(pending) == 1:
        _apply(store, read(files, pending[0], groups), tag, tags[-1])
    elif pending:
        _apply(store, _merged(files, pending, groups), tag, tags[-1])


def _merged(files: Files, refs: list[StateFile], groups: KeyGroupRange) -> Iterator[EntryBlock]:
    """Merge several files: every key is written once, in the order of the store."""
    for table, parts in groupby(last_entries(files, refs, groups), key=itemgetter(0)):
        entries: dict[bytes, bytes | None] = {}
        for _, more in parts:
            entries = entries | more if entries else more
            if len(entries) >= ENTRIES_PER_BLOCK:
                yield _block(table, entries)
                entries = {}
        if entries:
            yield _block(table, entries)


def _block(table: int, entries: dict[bytes, bytes | None]) -> EntryBlock:
    return EntryBlock(table, sorted_flat(entries), deletes=None in entries.values())


def _apply(store: LocalStore, blocks: Iterator[EntryBlock], tag: str, next_tag: str) -> None:
    """Write in one transaction, or in several for much data: then under a tag that no list has, until the last one."""
    part = list(islice(blocks, BLOCKS_PER_TRANSACTION))
    while (ahead := next(blocks, None)) is not None:
        partial = f"|partial|{new_token()}"
        if not store.apply(tag, part, partial):
            return
        faults.point("T5.partly-rebuilt", tag=next_tag)
        part.clear()  # before more is read
        part += [ahead, *islice(blocks, BLOCKS_PER_TRANSACTION - 1)]
        tag = partial
    faults.point("T2.apply", tag=next_tag)
    store.apply(tag, part, next_tag)
