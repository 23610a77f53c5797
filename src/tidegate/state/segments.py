"""State files, format 1: blocks of entries ordered by key group, an index by group, a checksum for every byte.

``TGSTATE\\x01 | block... | index | trailer``. A block is the msgpack list ``[k, v, k, v, ...]`` (v nil: deleted) of about 1 MiB, of
one table. The index lists the blocks with their group ranges, so that a rescaled subtask reads only its own. The trailer
(32 bytes) has offset, length and checksum of the index, and the end mark.

Inside a group entries are in no order: sorting a segment costs more (0.55 us an entry) than it saves when the local
store is written (0.25 us). Bases and merged files are sorted.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import msgspec
import xxhash

from tidegate.common.errors import StateFormatError
from tidegate.common.files import FileHandle, Files, corrupt
from tidegate.state.layout import GROUP_BYTES
from tidegate.state.refs import KeyGroupRange, StateFile
from tidegate.state.store import Batch

FORMAT = 1
BLOCK_TARGET = 1 << 20
WHOLE_READ_LIMIT = 32 << 20
"""Smaller files are read at once and checked by their hash; larger ones block by block, in bounded memory."""

_MAGIC = b"TGSTATE"
_HEAD = _MAGIC + bytes([FORMAT])
_END = b"TGSTEND" + bytes([FORMAT])
_TRAILER = struct.Struct(">QQQ8s")
_pack = msgspec.msgpack.Encoder().encode
_unpack_flat = msgspec.msgpack.Decoder(list[bytes | None]).decode


class Block(msgspec.Struct, frozen=True, array_like=True):
    """An index entry. ``checksum`` is xxh3-64 of the block's bytes."""

    table: int
    first: int
    last: int
    offset: int
    length: int
    entries: int
    deletes: bool
    checksum: int


_unpack_index = msgspec.msgpack.Decoder(list[Block]).decode


class SegmentWriter:
    """Collects entries group by group and writes one file."""

    def __init__(self) -> None:
        self.entries = 0
        self._parts: list[bytes] = [_HEAD]
        self._offset = len(_HEAD)
        self._blocks: list[Block] = []
        self._pending: list[Any] = []
        self._deletes = False
        self._table = -1
        self._cut_at = 16384  # list items, twice the entries; adapts to their size

    def add(self, table: int, flat: list[Any], *, deletes: bool) -> None:
        """Entries ``[k, v, k, v, ...]``. Tables come one after the other, and groups in order within a table.

        ``deletes``: there may be deletions among them; without any, stores are written faster.
        """
        if table != self._table:
            self._flush()
            self._table = table
        self._pending += flat
        self._deletes |= deletes
        while len(self._pending) >= self._cut_at:
            self._cut(self._cut_at)

    @property
    def empty(self) -> bool:
        return not self.entries and not self._pending

    def write(self, files: Files, path: str, *, version: str, groups: KeyGroupRange) -> StateFile:
        """Write the file; durable when this returns."""
        self._flush()
        index = _pack(self._blocks)
        trailer = _TRAILER.pack(self._offset, len(index), xxhash.xxh3_64_intdigest(index), _END)
        handle = files.write(path, b"".join((*self._parts, index, trailer)))
        return StateFile(handle.path, handle.size, handle.hash, version, groups, self.entries)

    def _flush(self) -> None:
        while self._pending:
            self._cut(self._cut_at)

    def _cut(self, count: int) -> None:
        flat = self._pending[:count]
        self._pending = self._pending[count:]
        data = _pack(flat)
        first, last = (int.from_bytes(key[:2], "big") for key in (flat[0], flat[-2]))
        entries, checksum = len(flat) // 2, xxhash.xxh3_64_intdigest(data)
        self._blocks.append(Block(self._table, first, last, self._offset, len(data), entries, self._deletes, checksum))
        self._parts.append(data)
        self._offset += len(data)
        self.entries += entries
        self._deletes &= bool(self._pending)
        self._cut_at = max(2, BLOCK_TARGET * entries // len(data) * 2)


def read(files: Files, ref: StateFile, groups: KeyGroupRange | None = None) -> Iterator[Batch]:
    """The entries of a file, clipped to ``ref.groups`` and ``groups``, in the order of the file, verified.

    A file with a ``root`` is read there.
    """
    clip = ref.groups if groups is None else ref.groups.intersect(groups)
    if clip is None:
        return
    source = Files(ref.root) if ref.root else files
    if ref.size <= WHOLE_READ_LIMIT:
        data: bytes | None = source.read(FileHandle(ref.path, ref.size, ref.hash))
    else:
        data = None
    for block in _index(source, ref, data):
        if block.first <= clip.last and clip.first <= block.last:
            flat = _block(source, ref, block, data)
            inside = clip.first <= block.first and block.last <= clip.last
            yield Batch(block.table, flat if inside else _clipped(flat, clip), block.deletes)


def _index(files: Files, ref: StateFile, data: bytes | None) -> list[Block]:
    if ref.size < len(_HEAD) + _TRAILER.size:
        raise corrupt(files.location(ref.path), "a state file", f"{ref.size} bytes")
    head = _part(files, ref, 0, len(_HEAD), data)
    if head[:-1] != _MAGIC:
        raise corrupt(files.location(ref.path), f"a state file beginning with {_MAGIC!r}", repr(head))
    if head[-1] != FORMAT:
        raise StateFormatError(
            f"This version reads state files of format {FORMAT}.",
            where=files.location(ref.path),
            found=f"format {head[-1]}",
            cure="use the version of Tidegate that wrote the checkpoint, or a newer one",
        )
    offset, length, checksum, end = _TRAILER.unpack(_part(files, ref, ref.size - _TRAILER.size, _TRAILER.size, data))
    if end != _END or offset + length + _TRAILER.size != ref.size:
        raise corrupt(files.location(ref.path), f"{ref.size} bytes ending with {_END!r}", f"the end {end!r}")
    index = _part(files, ref, offset, length, data)
    _verify(files, ref, "index", index, checksum)
    return _unpack_index(index)


def _block(files: Files, ref: StateFile, block: Block, data: bytes | None) -> list[Any]:
    part = _part(files, ref, block.offset, block.length, data)
    _verify(files, ref, f"block at {block.offset}", part, block.checksum)
    return _unpack_flat(part)


def _part(files: Files, ref: StateFile, offset: int, length: int, data: bytes | None) -> bytes:
    return files.read_range(ref.path, offset, length) if data is None else data[offset : offset + length]


def _verify(files: Files, ref: StateFile, what: str, data: bytes, checksum: int) -> None:
    found = xxhash.xxh3_64_intdigest(data)
    if found != checksum:
        raise corrupt(files.location(ref.path), f"{what} with xxh3-64 {checksum:016x}", f"{found:016x}")


def _clipped(flat: list[Any], clip: KeyGroupRange) -> list[Any]:
    keys = flat[::2]  # ordered by group, and that is all the search needs
    start = bisect_left(keys, GROUP_BYTES[clip.first])
    end = bisect_left(keys, _after(clip.last), start)
    return flat[2 * start : 2 * end]


def by_group(files: Files, ref: StateFile, groups: KeyGroupRange) -> Iterator[tuple[tuple[int, int], list[Any]]]:
    """The entries of a file as ``((table, group), flat)``, in order. A group may come in several parts."""
    for batch in read(files, ref, groups):
        keys = batch.flat[::2]
        start = 0
        while start < len(keys):
            group = int.from_bytes(keys[start][:2], "big")
            end = bisect_left(keys, _after(group), start)
            yield (batch.table, group), batch.flat[2 * start : 2 * end]
            start = end


def _after(group: int) -> bytes:
    return (group + 1).to_bytes(2, "big")  # the last group is 32767, so this never overflows
