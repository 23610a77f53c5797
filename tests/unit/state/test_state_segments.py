"""State files: round trips, clipping, corruption, the format itself."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.base.errors import CorruptFileError, StateFormatError, StorageError
from tidegate.base.files import Files
from tidegate.base.hashing import content_hash, new_token
from tidegate.state import segments
from tidegate.state.layout import GROUP_BYTES, STATE, TIMERS
from tidegate.state.refs import KeyGroupRange, StateFile
from tidegate.state.segments import SegmentWriter, by_group, read

ALL = KeyGroupRange(0, 15)
Tables = dict[int, dict[int, dict[bytes, bytes | None]]]


def write(files: Files, tables: Tables, groups: KeyGroupRange = ALL, *, compressed: bool = False) -> StateFile:
    with SegmentWriter(files, f"shared/{new_token()}", compressed=compressed) as writer:
        for table in sorted(tables):
            for group in sorted(tables[table]):
                pairs = tables[table][group].items()
                flat = [part for key, value in pairs for part in (GROUP_BYTES[group] + key, value)]
                writer.add(table, flat, deletes=None in flat)
        return writer.finish(version="v1", groups=groups)


def contents(
    files: Files, ref: StateFile, groups: KeyGroupRange | None = None
) -> list[tuple[int, bytes, bytes | None]]:
    found = []
    for batch in read(files, ref, groups):
        assert batch.deletes or None not in batch.flat
        found += [(batch.table, *pair) for pair in zip(batch.flat[::2], batch.flat[1::2], strict=True)]
    return found


def expected(tables: Tables, groups: KeyGroupRange) -> list[tuple[int, bytes, bytes | None]]:
    return [
        (table, GROUP_BYTES[group] + key, value)
        for table in sorted(tables)
        for group in sorted(tables[table])
        if group in groups
        for key, value in tables[table][group].items()
    ]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(str(tmp_path))


entries = st.dictionaries(st.binary(min_size=1, max_size=20), st.none() | st.binary(max_size=40), max_size=12)
tables = st.fixed_dictionaries(
    {STATE: st.dictionaries(st.integers(0, 15), entries), TIMERS: st.dictionaries(st.integers(0, 15), entries)}
)


@settings(max_examples=60, deadline=None)
@given(
    tables,
    st.tuples(st.integers(0, 15), st.integers(0, 15)),
    st.sampled_from([20, 100, 1 << 20]),
    st.booleans(),
    st.booleans(),
)
def test_entries_come_back_clipped(
    tmp_path_factory: Any, tables: Tables, clip: tuple[int, int], block: int, whole: bool, compressed: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "BLOCK_TARGET", block)
        patch.setattr(segments, "WHOLE_LIMIT", 1 << 20 if whole else 0)
        files = Files(str(tmp_path_factory.mktemp("files")))
        ref = write(files, tables, compressed=compressed)
        groups = KeyGroupRange(min(clip), max(clip))
        assert contents(files, ref) == expected(tables, ALL)
        assert contents(files, ref, groups) == expected(tables, groups)
        assert ref.entries == len(expected(tables, ALL))
        flat = [
            (place[0], *pair)
            for place, part in by_group(files, ref, groups)
            for pair in zip(part[::2], part[1::2], strict=True)
            if GROUP_BYTES[place[1]] == pair[0][:2]
        ]
        assert flat == expected(tables, groups)


def test_the_ranges_of_reference_and_reader_both_clip(files: Files) -> None:
    tables: Tables = {STATE: {group: {b"k": b"v"} for group in range(16)}}
    ref = write(files, tables, KeyGroupRange(4, 9))
    assert contents(files, ref) == expected(tables, KeyGroupRange(4, 9))
    assert contents(files, ref, KeyGroupRange(8, 15)) == expected(tables, KeyGroupRange(8, 9))
    assert contents(files, ref, KeyGroupRange(10, 15)) == []


def test_a_clipped_read_of_a_large_file_touches_only_its_blocks(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "BLOCK_TARGET", 2000)
    monkeypatch.setattr(segments, "WHOLE_LIMIT", 0)
    tables: Tables = {STATE: {group: {b"%d" % n: b"v" * 100 for n in range(50)} for group in range(16)}}
    writer_cut = 32  # small first blocks, else all would be one
    monkeypatch.setattr(SegmentWriter, "__init__", _cutting(SegmentWriter.__init__, writer_cut))
    ref = write(files, tables)
    lengths: list[int] = []
    original = Files.open_stream

    class Counted(io.BufferedReader):
        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            lengths.append(len(data))
            return data

    def opened(self: Files, path: str, expected: str = "") -> Any:
        return Counted(original(self, path, expected).detach())  # type: ignore[attr-defined]

    monkeypatch.setattr(Files, "open_stream", opened)
    assert contents(files, ref, KeyGroupRange(7, 7)) == expected(tables, KeyGroupRange(7, 7))
    assert sum(lengths) < ref.size / 5


def _cutting(init: Any, block_items: int) -> Any:
    def wrapped(self: SegmentWriter, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        self._block_items = block_items

    return wrapped


def test_a_file_of_another_root_is_read_there(tmp_path: Path) -> None:
    other = Files(str(tmp_path / "other"))
    tables: Tables = {STATE: {1: {b"k": b"v"}}}
    ref = write(other, tables)
    foreign = StateFile(ref.path, ref.size, ref.hash, ref.upto, ref.groups, ref.entries, str(tmp_path / "other"))
    assert contents(Files(str(tmp_path / "own")), foreign) == expected(tables, ALL)


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_every_flipped_byte_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, compressed: bool
) -> None:
    monkeypatch.setattr(segments, "WHOLE_LIMIT", limit)
    files = Files(str(tmp_path))
    tables: Tables = {STATE: {1: {b"key": b"value"}, 2: {b"gone": None}}, TIMERS: {3: {b"timer": b""}}}
    ref = write(files, tables, compressed=compressed)
    path = tmp_path / ref.path
    good = path.read_bytes()
    for position in range(len(good)):
        for flipped in (1, 3):  # the second makes one format the other
            path.write_bytes(good[:position] + bytes([good[position] ^ flipped]) + good[position + 1 :])
            with pytest.raises((CorruptFileError, StateFormatError)):
                contents(files, ref)
    path.write_bytes(good)
    assert len(contents(files, ref)) == 3


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_a_short_or_missing_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(segments, "WHOLE_LIMIT", limit)
    files = Files(str(tmp_path))
    ref = write(files, {STATE: {1: {b"key": b"value"}}})
    path = tmp_path / ref.path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match=r"A file on checkpoint storage is not what was written\.") as caught:
        contents(files, ref)
    assert str(path) in str(caught.value)
    path.unlink()
    with pytest.raises(CorruptFileError, match="no such file"):
        contents(files, ref)


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_a_good_file_in_the_place_of_another_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(segments, "WHOLE_LIMIT", limit)
    files = Files(str(tmp_path))
    one, other = (write(files, {STATE: {1: {b"key": value}}}) for value in (b"before", b"behind"))
    assert one.size == other.size
    (tmp_path / other.path).replace(tmp_path / one.path)
    with pytest.raises(CorruptFileError, match=f"expected .*xxh3-128 {one.hash}"):
        contents(files, one)


def test_a_newer_format_is_refused_by_name(files: Files, tmp_path: Path) -> None:
    ref = write(files, {STATE: {1: {b"key": b"value"}}})
    data = bytearray((tmp_path / ref.path).read_bytes())
    data[7] = 3
    handle = files.write("shared/newer", bytes(data))
    newer = StateFile(handle.path, handle.size, handle.hash, "v1", ALL)
    with pytest.raises(StateFormatError) as caught:
        contents(files, newer)
    assert "The state file is of a format that this version does not read." in str(caught.value)
    assert "found: format 3" in str(caught.value)


def test_compressed_files_are_smaller_and_have_blocks_of_the_same_entries(files: Files) -> None:
    tables: Tables = {STATE: {1: {b"%08d" % n: b"the same text " * 20 for n in range(20_000)}}}
    plain, compressed = (write(files, tables, compressed=how) for how in (False, True))
    assert compressed.size * 10 < plain.size
    assert compressed.entries == plain.entries
    counted = [[len(batch.flat) for batch in read(files, ref)] for ref in (plain, compressed)]
    assert counted[0] == counted[1], "as much in memory at once as without"
    assert len(counted[0]) > 3


def test_a_name_that_is_taken_is_an_error(files: Files) -> None:
    writer = SegmentWriter(files, "shared/one")
    writer.add(STATE, [GROUP_BYTES[1] + b"k", b"v"], deletes=False)
    writer.finish(version="v1", groups=ALL)
    with pytest.raises(StorageError):
        SegmentWriter(files, "shared/one").finish(version="v2", groups=ALL)


def test_an_error_leaves_no_file(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "WHOLE_LIMIT", 0)
    with SegmentWriter(files, "shared/one") as writer:
        for group in range(3):
            writer.add(STATE, [GROUP_BYTES[group] + b"k", b"v" * 100] * 20_000, deletes=False)
        assert [path for path in files.list() if path.endswith(".tmp")] == files.list() != []
    assert files.list() == [], "it was not finished"


def test_a_large_file_takes_little_memory(files: Files) -> None:
    """200 MB are written and read with a few blocks in memory."""
    value, groups, entries = b"v" * 10_000, 16, 1_250
    tracemalloc.start()
    with SegmentWriter(files, "shared/large") as writer:
        for group in range(groups):
            for number in range(0, entries, 50):
                keys = [GROUP_BYTES[group] + b"%08d" % at for at in range(number, number + 50)]
                writer.add(STATE, [part for key in keys for part in (key, value)], deletes=False)
        ref = writer.finish(version="v1", groups=ALL)
    assert ref.size > 200_000_000
    written = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    assert sum(len(batch.flat) // 2 for batch in read(files, ref)) == groups * entries
    done = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(written, done) < 30 << 20, f"{written >> 20} MiB to write, {done >> 20} MiB to read"
    assert (content_hash(files.read_bytes(ref.path)), files.size(ref.path)) == (ref.hash, ref.size)


FORMAT_1 = (
    "544753544154450194c40500016b6579c40576616c7565c4060002676f6e65c092c407000374696d6572c400929800010208"
    "1802c3cf650dc3edbeaab4de98010303200c01c2cfe8b171838816c346000000000000002c0000000000000023a6a758ec30"
    "899a8a54475354454e4401"
)


def test_files_of_format_1_stay_readable(files: Files) -> None:
    tables: Tables = {STATE: {1: {b"key": b"value"}, 2: {b"gone": None}}, TIMERS: {3: {b"timer": b""}}}
    handle = files.write("shared/old", bytes.fromhex(FORMAT_1))
    assert contents(files, StateFile(handle.path, handle.size, handle.hash, "v1", ALL)) == expected(tables, ALL)
    assert files.read_bytes(write(files, tables).path).hex() == FORMAT_1
