"""State files: blocks of entries ordered by key group, an index by group, a checksum for every byte.

``TGSTATE | format | block... | index | trailer``. A block is the msgpack list ``[k, v, k, v, ...]`` (v nil: deleted) of about
1 MiB, of one table. The index lists the blocks with their group ranges, so that a rescaled subtask reads only its own. The trailer
(32 bytes) has offset, length and checksum of the index, and the end mark. Format 2 is format 1 with deflated blocks (zlib), for
``execution.checkpointing.snapshot-compression``; a list may have files of both.

Inside a group, entries have no order: sorting a segment costs more (0.55 us per entry) than it saves when the local store is
written (0.25 us). Bases and merged files are sorted.

Files are written and read as streams, with a few blocks in memory, whatever the size of the file.
"""

from __future__ import annotations

import struct
import tempfile
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from io import BytesIO
from typing import Any, BinaryIO, Self

import msgspec
import xxhash

from tidegate.base.errors import NewerFormatError, StorageError
from tidegate.base.files import FileHandle, Files, FileWriter, expected_content, read_verified
from tidegate.base.hashing import hash_text, is_strong, shown_hash
from tidegate.state.layout import GROUP_BYTES, STATE
from tidegate.state.refs import KeyGroupRange, StateFile
from tidegate.state.store import EntryBlock

PLAIN, COMPRESSED = 1, 2
"""Formats."""
BLOCK_TARGET = 1 << 20
WHOLE_LIMIT = 8 << 20
"""Smaller files are written and read at once, and checked by their hash. Larger files are streams: blocks have checksums, and a
reader of all blocks checks the hash too."""

_MAGIC = b"TGSTATE"
_HEAD_BYTES = len(_MAGIC) + 1
_END_MARK = b"TGSTEND"
_QUICK = 1
"""The level of zlib. On a base of numbers and texts it was 2.7 times as fast as the default level, with no larger file."""
_TRAILER = struct.Struct(">QQQ8s")
_SAMPLE = 128
_SHOWN = 32
"""Entries of a block from which the shares of states are estimated."""
TIMERS_NAME = b"(timers)"
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
    """Writes entries, added group by group, to one file. Use it in a ``with``: an error leaves no file.

    Most segments are small: then one call writes the whole file at the end.
    """

    def __init__(self, files: Files, path: str, *, compressed: bool = False) -> None:
        self.entries = 0
        self._files, self._path = files, path
        self._format = COMPRESSED if compressed else PLAIN
        self._stream: FileWriter | None = None
        self._parts: list[bytes] = [_MAGIC + bytes([self._format])]
        self._offset = _HEAD_BYTES
        self._written = 0
        self._blocks: list[Block] = []
        self._pending: list[Any] = []
        self._deletes = False
        self._table = -1
        self._block_items = 16384  # list items, twice the entries; adapts to their size
        self._sampled = False
        self.shares: dict[bytes, float] = {}
        """About how many bytes belong to which state, by its name, and to timers: by a few entries of each block."""

    def add(self, table: int, flat: list[Any], *, deletes: bool) -> None:
        """Add entries ``[k, v, k, v, ...]``, one table after the other, with groups in order within a table.

        ``deletes``: there may be deletions among them. Without deletions, stores are written faster.
        """
        if table != self._table:
            self._flush()
            self._table = table
        self._pending += flat
        self._deletes |= deletes
        # One sample of a file: it often has many groups with few entries each
        if not self._sampled and len(self._pending) >= _SAMPLE:
            self._sampled = True
            self._block_items = min(self._block_items, _items_per_block(self._pending[:_SAMPLE]))
        if len(self._pending) >= self._block_items:
            self._make_blocks(self._block_items)

    @property
    def empty(self) -> bool:
        return not self.entries and not self._pending

    def finish(self, *, version: str, groups: KeyGroupRange) -> StateFile:
        """Write the remaining entries and make the file durable."""
        self._flush()
        index = _pack(self._blocks)
        trailer = _TRAILER.pack(self._offset, len(index), xxhash.xxh3_64_intdigest(index), _end(self._format))
        self._parts += (index, trailer)
        if self._stream is None:
            handle = self._files.write(self._path, b"".join(self._parts))
        else:
            self._pour(self._stream)
            handle = self._stream.close()
        return StateFile(handle.path, handle.size, handle.hash, version, groups, self.entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.discard()

    def _pour(self, stream: FileWriter) -> None:
        for part in self._parts:
            stream.write(part)
        self._parts.clear()
        self._written = self._offset

    def _flush(self) -> None:
        self._make_blocks(1)

    def _make_blocks(self, least: int) -> None:
        """Make blocks of the pending items while there are at least ``least``."""
        pending, start = self._pending, 0
        while len(pending) - start >= least:
            end = min(start + self._block_items, len(pending))
            self._block(pending[start:end], rest=end < len(pending))
            start = end
            least = least if least == 1 else self._block_items
        if start:
            self._pending = pending[start:]

    def _block(self, flat: list[Any], rest: bool) -> None:
        packed = _pack(flat)
        data = zlib.compress(packed, _QUICK) if self._format == COMPRESSED else packed
        first, last = (int.from_bytes(key[:2], "big") for key in (flat[0], flat[-2]))
        entries, checksum = len(flat) // 2, xxhash.xxh3_64_intdigest(data)
        self._blocks.append(Block(self._table, first, last, self._offset, len(data), entries, self._deletes, checksum))
        self._parts.append(data)
        self._share(flat, len(data))
        self._offset += len(data)
        if self._offset - self._written >= WHOLE_LIMIT:
            self._stream = self._stream or self._files.create_stream(self._path)
            self._pour(self._stream)
        self.entries += entries
        self._deletes &= rest
        self._block_items = max(2, BLOCK_TARGET * entries // len(packed) * 2)

    def _share(self, flat: list[Any], size: int) -> None:
        """Estimate which states the bytes of a block belong to. The step is odd in entries: names that alternate are all seen."""
        if self._table != STATE:
            self.shares[TIMERS_NAME] = self.shares.get(TIMERS_NAME, 0.0) + size
            return
        step = max(1, len(flat) // (2 * _SHOWN) | 1)
        found: dict[bytes, int] = {}
        for place in range(0, len(flat), 2 * step):
            key, value = flat[place], flat[place + 1]
            name = key[3 : 3 + key[2]] if len(key) > 3 else b""  # as ``layout.state_name``; decoded once a file
            found[name] = found.get(name, 0) + len(key) + (len(value) if value is not None else 0)
        every = max(1, sum(found.values()))
        for name, part in found.items():
            self.shares[name] = self.shares.get(name, 0.0) + size * part / every


def _items_per_block(sample: list[Any]) -> int:
    size = sum(len(item) for item in sample if item is not None)
    return max(2, BLOCK_TARGET * (len(sample) // 2) // max(size, 1) * 2)


def read(files: Files, ref: StateFile, groups: KeyGroupRange | None = None) -> Iterator[EntryBlock]:
    """Yield the verified entries of a file in its order, clipped to ``ref.groups`` and ``groups``.

    A file with a ``root`` is read there.
    """
    clip = ref.groups if groups is None else ref.groups.intersect(groups)
    if clip is None:
        return
    source = Files(ref.root) if ref.root else files
    with _opened(source, ref) as stream:
        part = _part_reader(source, ref, stream)
        index, compressed = _index(source, ref, part)
        mine = [block for block in index if block.first <= clip.last and clip.first <= block.last]
        # A file that was read at once, or has a strong hash, has been compared with its hash already.
        checked = ref.size <= WHOLE_LIMIT or is_strong(ref.hash)
        whole = xxhash.xxh3_128(part(0, _HEAD_BYTES)) if mine == index and not checked else None
        for block in mine:
            data = _block(source, ref, block, part)
            if whole is not None:
                whole.update(data)
            flat = _unpack_flat(zlib.decompress(data) if compressed else data)
            inside = clip.first <= block.first and block.last <= clip.last
            yield EntryBlock(block.table, flat if inside else _clipped(flat, clip), block.deletes)
        if whole is not None:
            end = _end_of(index)
            _verify_whole(source, ref, whole, part(end, ref.size - end))


_Part = Callable[[int, int], bytes]
"""Reads a part of the file: offset and length."""


def _opened(files: Files, ref: StateFile) -> BinaryIO | nullcontext[BinaryIO]:
    if ref.size <= WHOLE_LIMIT:
        return nullcontext(BytesIO(files.read(FileHandle(ref.path, ref.size, ref.hash))))
    if is_strong(ref.hash):
        return _verified(files, ref)
    return files.open_stream(ref.path, expected_content(ref.size, ref.hash))


def _verified(files: Files, ref: StateFile) -> BinaryIO:
    """Return a private copy of a file, compared with its hash before any entry is read.

    Checksums of blocks can be forged, and readers unpickle entries immediately. With the copy nobody can replace the file between
    the comparison and the reading.
    """
    copy = tempfile.TemporaryFile(prefix="tidegate-")  # noqa: SIM115 (the reader closes it)
    try:
        read_verified(files, ref.path, size=ref.size, hash=ref.hash, take=copy.write)
    except BaseException:
        copy.close()
        raise
    return copy


def _part_reader(files: Files, ref: StateFile, stream: BinaryIO) -> _Part:
    def part(offset: int, length: int) -> bytes:
        try:
            stream.seek(offset)
            data = stream.read(length)
        except OSError as error:
            where, found = files.location(ref.path), f"{type(error).__name__}: {error}"
            raise StorageError("The state file cannot be read.", where=where, found=found) from error
        if len(data) != length:
            expected = f"{length} bytes at {offset}"
            raise files.damaged(ref.path, expected, f"{len(data)} bytes there")
        return data

    return part


def _end(version: int) -> bytes:
    return _END_MARK + bytes([version])


def _index(files: Files, ref: StateFile, part: _Part) -> tuple[list[Block], bool]:
    """Return the index, and whether blocks are compressed."""
    if ref.size < _HEAD_BYTES + _TRAILER.size:
        raise files.damaged(ref.path, "a state file", f"{ref.size} bytes")
    head = part(0, _HEAD_BYTES)
    if head[:-1] != _MAGIC:
        raise files.damaged(ref.path, f"a state file beginning with {_MAGIC!r}", repr(head))
    version = head[-1]
    if version not in (PLAIN, COMPRESSED):
        raise NewerFormatError(
            "The state file is of a format that this version does not read.",
            where=files.location(ref.path),
            found=f"format {version}; this version reads {PLAIN} and {COMPRESSED}",
            cure="use the version of Tidegate that wrote the checkpoint, or a newer one",
        )
    offset, length, checksum, end = _TRAILER.unpack(part(ref.size - _TRAILER.size, _TRAILER.size))
    if end != _end(version) or offset + length + _TRAILER.size != ref.size:
        raise files.damaged(ref.path, f"{ref.size} bytes ending with {_end(version)!r}", f"the end {end!r}")
    index = part(offset, length)
    _verify(files, ref, "index", index, checksum)
    return _unpack_index(index), version == COMPRESSED


def _block(files: Files, ref: StateFile, block: Block, part: _Part) -> bytes:
    data = part(block.offset, block.length)
    _verify(files, ref, f"block at {block.offset}", data, block.checksum)
    return data


def _end_of(index: list[Block]) -> int:
    return index[-1].offset + index[-1].length if index else _HEAD_BYTES


def _verify_whole(files: Files, ref: StateFile, before: Any, rest: bytes) -> None:
    """Compare the hash of the whole file: checksums inside cannot tell that another valid file has replaced this one."""
    before.update(rest)
    if hash_text(before) != ref.hash:
        raise files.damaged(ref.path, shown_hash(ref.hash), shown_hash(hash_text(before)))


def _verify(files: Files, ref: StateFile, what: str, data: bytes, checksum: int) -> None:
    found = xxhash.xxh3_64_intdigest(data)
    if found != checksum:
        raise files.damaged(ref.path, f"{what} with xxh3-64 {checksum:016x}", f"{found:016x}")


def _clipped(flat: list[Any], clip: KeyGroupRange) -> list[Any]:
    keys = flat[::2]  # ordered by group, which is enough for the search
    start = bisect_left(keys, GROUP_BYTES[clip.first])
    end = bisect_left(keys, _after(clip.last), start)
    return flat[2 * start : 2 * end]


def by_group(files: Files, ref: StateFile, groups: KeyGroupRange) -> Iterator[tuple[tuple[int, int], list[Any]]]:
    """Yield the entries of a file as ``((table, group), flat)``, in order. A group may have several parts."""
    for block in read(files, ref, groups):
        keys = block.flat[::2]
        start = 0
        while start < len(keys):
            group = int.from_bytes(keys[start][:2], "big")
            end = bisect_left(keys, _after(group), start)
            yield (block.table, group), block.flat[2 * start : 2 * end]
            start = end


def _after(group: int) -> bytes:
    return (group + 1).to_bytes(2, "big")  # the last group is 32767, so this never overflows
