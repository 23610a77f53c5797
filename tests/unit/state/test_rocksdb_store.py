"""The store on RocksDB in detail: who owns it, what a kill leaves, its options."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.errors import ConfigurationError, InternalError, StorageError
from tidegate.common import options
from tidegate.state import rocksdb_store, stores
from tidegate.state.rocksdb_options import MOST_RUNS, OPTIONS, RocksdbOptions
from tidegate.state.rocksdb_store import RocksdbStore
from tidegate.testing.store_contract import read_all, state_batch

SMALL = RocksdbOptions(memory=1 << 20)
ENTRY = (b"\x00\x00a", b"1")


def store_at(path: Path, options: RocksdbOptions = SMALL) -> RocksdbStore:
    return RocksdbStore(str(path), options)


def tag_of(store: RocksdbStore) -> str:
    snapshot = store.snapshot()
    snapshot.close()
    return snapshot.tag


OTHER_PROCESS = """
import os, signal, sys
from tidegate.state.rocksdb_options import RocksdbOptions
from tidegate.state.rocksdb_store import RocksdbStore
from tidegate.testing.store_contract import state_batch
store = RocksdbStore(sys.argv[1], RocksdbOptions())
expected, tag, end = sys.argv[2:]
assert store.apply(expected, [state_batch((b"\\x00\\x00a", tag.encode()))], tag), store.snapshot().tag
if end == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
store.release()
"""


def other_process(path: Path, expected: str, tag: str, end: str) -> int:
    return subprocess.run([sys.executable, "-c", OTHER_PROCESS, str(path), expected, tag, end], check=False).returncode


def test_workers_follow_each_other(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert store.apply("", [state_batch(ENTRY)], "one")
    store.release()
    assert other_process(tmp_path, "one", "two", "released") == 0
    assert (tag_of(store), read_all(store.snapshot(), b"")) == ("two", {b"\x00\x00a": b"two"})


def test_a_killed_process_leaves_the_store_at_an_earlier_tag_and_no_lock(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert store.apply("", [state_batch(ENTRY)], "one")
    store.release()
    assert other_process(tmp_path, "one", "two", "killed") == -signal.SIGKILL
    assert (tag_of(store), read_all(store.snapshot(), b"")) == ("one", dict([ENTRY]))
    assert sorted(name for name in os.listdir(tmp_path) if name.isdigit()) == ["0"]


LEAVES_A_CHILD = """
import os, signal, sys
from tidegate.state.rocksdb_options import RocksdbOptions
from tidegate.state.rocksdb_store import RocksdbStore
from tidegate.testing.store_contract import state_batch
store = RocksdbStore(sys.argv[1], RocksdbOptions())
assert store.apply("", [state_batch((b"\\x00\\x00a", b"1"))], "one")
store._db.flush()
child = os.fork()
if child == 0:
    os.close(1)
    signal.pause()
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_child_of_a_killed_process_does_not_hold_the_store(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVES_A_CHILD, str(tmp_path)], stdout=subprocess.PIPE, check=False)
    child = int(done.stdout)
    try:
        os.kill(child, 0)  # it lives
        store = store_at(tmp_path)
        assert (tag_of(store), read_all(store.snapshot(), b"")) == ("one", dict([ENTRY]))
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("where", ["the same store", "another"])
def test_a_forked_child_is_refused_instead_of_waiting_for_ever(tmp_path: Path, where: str) -> None:
    store = store_at(tmp_path / "store")
    assert store.apply("", [state_batch(ENTRY)], "one")
    if where == "another":
        store.release()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - the child
        signal.alarm(60)  # the end of one that waits
        try:
            (store if where == "the same store" else store_at(tmp_path / "another")).snapshot()
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as told:
        text = told.read()
    assert os.waitpid(child, 0)[1] == 0
    assert text.startswith("StateAccessError: State or a timer is used outside of the process that runs the operator.")
    assert f"process {child}, forked from process {os.getpid()}, which has opened RocksDB" in text
    assert "multiprocessing.get_context('spawn')" in text
    assert (tag_of(store), read_all(store.snapshot(), b"")) == ("one", dict([ENTRY]))


FINALIZED_CHILD = """
import os, sys
from tidegate.state.rocksdb_options import RocksdbOptions
from tidegate.state.rocksdb_store import RocksdbStore
from tidegate.testing.store_contract import read_all, state_batch
store = RocksdbStore(sys.argv[1], RocksdbOptions())
assert store.apply("", [state_batch((b"\\x00\\x00a", b"1"))], "one")  # in memory alone: closing it would write
child = os.fork()
if child == 0:
    import signal
    signal.alarm(60)
    sys.exit(0)  # the interpreter takes everything down
assert os.waitpid(child, 0)[1] == 0
assert store.apply("one", [state_batch((b"\\x00\\x00b", b"2"))], "two")
assert len(read_all(store.snapshot(), b"")) == 2
store.release()
"""


def test_a_child_that_ends_as_a_program_does_not_close_the_store(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", FINALIZED_CHILD, str(tmp_path)], check=False).returncode == 0
    assert tag_of(store_at(tmp_path)) == "two"


def test_who_finds_it_in_use_takes_another_and_leaves_nothing(tmp_path: Path) -> None:
    first, second = store_at(tmp_path), store_at(tmp_path)
    assert first.apply("", [state_batch(ENTRY)], "one")
    assert second.apply("", [state_batch((b"\x00\x00b", b"2"))], "two")
    assert (tag_of(first), tag_of(second)) == ("one", "two")
    second.release()
    assert not (tmp_path / "1").exists()
    assert tag_of(second) == ""  # the first has it still
    first.release()
    second.release()
    assert tag_of(second) == "one"


def test_a_store_is_not_written_while_it_is_read(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    store.snapshot()
    with pytest.raises(InternalError, match="is written while a snapshot of it is open"):
        store.apply("", [], "one")


def test_what_cannot_be_opened_is_made_anew(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert store.apply("", [state_batch(ENTRY)], "one")
    store.release()
    for file in (tmp_path / "0").glob("MANIFEST-*"):
        file.write_bytes(b"not a manifest")
    assert (tag_of(store), read_all(store.snapshot(), b"")) == ("", {})


def test_a_directory_that_cannot_be_written_is_reported_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError) as caught:
        store_at(tmp_path / "file" / "store").snapshot()
    text = str(caught.value)
    assert text.startswith("The rocksdb state backend cannot read or write its working directory.")
    assert f"where: {tmp_path / 'file' / 'store'}" in text
    assert "choose another directory with state.backend.rocksdb.localdir" in text


LIMITED = """
import resource, sys
from tidegate.base.errors import StorageError
from tidegate.state.rocksdb_options import RocksdbOptions
from tidegate.state.rocksdb_store import RocksdbStore
from tidegate.testing.store_contract import state_batch
store = RocksdbStore(sys.argv[1], RocksdbOptions(write_buffer_size=64 << 10, managed=False))
assert store.apply("", [], "one")
store.release()
resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))
try:
    tag = "one"
    for number in range(200):
        entries = ((b"\\x00\\x00%d-%d" % (number, n), __import__("os").urandom(1000)) for n in range(100))
        assert store.apply(tag, [state_batch(*entries)], f"t{number}")
        tag = f"t{number}"
except StorageError as error:
    print(error)
    store.release()
"""


def test_a_disk_that_takes_no_more_is_reported_and_costs_only_the_local_copy(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True, timeout=240
    )
    assert "The rocksdb state backend cannot read or write its working directory." in run.stdout
    assert "File too large" in run.stdout
    store = store_at(tmp_path)
    snapshot = store.snapshot()
    whole = {f"t{number}": (number + 1) * 100 for number in range(200)} | {"one": 0, "": 0}
    assert len(read_all(snapshot, b"")) == whole[snapshot.tag]


def test_a_state_of_many_times_the_cache_is_read_whole(tmp_path: Path) -> None:
    """Some 32 MiB behind a budget of one, which is kept to."""
    store = store_at(tmp_path)
    tag = ""
    value = os.urandom(1000)
    for number in range(32):
        entries = [(b"\x00\x01%02d-%04d" % (number, n), value[:-8] + b"%08d" % n) for n in range(1000)]
        assert store.apply(tag, [state_batch(*entries)], f"t{number}")
        tag = f"t{number}"
    store.release()
    snapshot = store.snapshot()
    for n in range(0, 1000, 7):
        keys = [b"\x00\x01%02d-%04d" % (number, n) for number in range(32)]
        assert snapshot.get_many(keys) == [value[:-8] + b"%08d" % n] * 32
    assert sum(1 for _ in snapshot.scan(b"\x00\x01")) == 32_000
    cache, _ = rocksdb_store.shared[SMALL.memory, SMALL.write_buffer_ratio]
    assert cache.get_usage() <= 2 * SMALL.memory


def directory_size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*.sst"))


def filled_size(path: Path, options: RocksdbOptions) -> int:
    store = store_at(path, options)
    entries = [(b"\x00\x01%06d" % n, b"the same text " * 10) for n in range(5_000)]
    assert store.apply("", [state_batch(*entries)], "one")
    store.release()
    return directory_size(path)


def test_compression_and_filters_show_in_the_files(tmp_path: Path) -> None:
    sizes = {
        name: filled_size(tmp_path / name, RocksdbOptions(compression=name, bloom_filter=False))
        for name in rocksdb_store._COMPRESSION
    }
    assert sizes["NO_COMPRESSION"] > 5 * max(sizes["SNAPPY_COMPRESSION"], sizes["LZ4_COMPRESSION"])
    assert sizes["ZSTD_COMPRESSION"] < sizes["NO_COMPRESSION"] / 5
    with_filter = filled_size(tmp_path / "filter", RocksdbOptions(compression="NO_COMPRESSION"))
    large_filter = filled_size(tmp_path / "large", RocksdbOptions(compression="NO_COMPRESSION", bloom_bits=40.0))
    assert sizes["NO_COMPRESSION"] < with_filter < large_filter


def opened(store: RocksdbStore) -> Any:
    """RocksDB's own object behind an open store."""
    store.snapshot().close()
    return store._db


def test_a_store_that_is_opened_again_has_the_cache_and_the_filter(tmp_path: Path) -> None:
    """Every round opens it again. What cannot be written into RocksDB's own file of options must be there all the same."""
    store = store_at(tmp_path, RocksdbOptions(memory=6 << 20))
    assert store.apply("", [state_batch(*((b"\x00\x01%06d" % n, os.urandom(100)) for n in range(10_000)))], "one")
    store.release()
    db = opened(store)
    assert db.property_value("rocksdb.block-cache-capacity") == str(6 << 20)
    before = int(db.property_value("rocksdb.block-cache-usage"))
    assert set(store.snapshot().get_many([b"\x00\x01%06d-" % n for n in range(0, 10_000, 20)])) == {None}
    read = int(db.property_value("rocksdb.block-cache-usage")) - before
    assert read < 200_000, "the filter has told, hardly a block of the million bytes was read"
    assert "filter_policy=bloomfilter" in max((tmp_path / "0").glob("OPTIONS-*")).read_text()
    store.release()


def test_other_options_reach_a_store_that_is_there(tmp_path: Path) -> None:
    native(RocksdbOptions(), tmp_path)
    assert "block_size=16384" in native(RocksdbOptions(block_size=16 << 10), tmp_path)


def rounds_with(store: RocksdbStore, rounds: range) -> Iterator[tuple[int, bool]]:
    """Of rounds that write a file each: the sorted runs it has found, and whether it has merged some."""
    for number in rounds:
        found = rocksdb_store.sorted_runs(opened(store))
        entries = ((b"\x00\x01%06d" % (number * 37 + n), b"%d" % number) for n in range(500))
        assert store.apply(tag_of(store), [state_batch(*entries)], f"t{number}")
        store.release()
        yield found, "compaction_started" in Path(store.path, "0", "LOG").read_text()  # that of this opening


def test_files_are_merged_by_a_round_that_finds_many_and_by_no_other(tmp_path: Path) -> None:
    """Whatever RocksDB would begin in every round would be broken off with it."""
    store = store_at(tmp_path)
    store.apply("", [], "first", wipe=True)
    store.release()
    few = list(rounds_with(store, range(MOST_RUNS - 1)))
    assert few == [(number, False) for number in range(1, MOST_RUNS)]
    found, merged = zip(*rounds_with(store, range(MOST_RUNS - 1, 5 * MOST_RUNS)), strict=True)
    assert merged[0]
    assert sum(merged) in range(3, 8)
    assert max(found) <= MOST_RUNS
    assert dict(read_all(store.snapshot(), b""))[b"\x00\x01%06d" % 0] == b"0"


def test_a_merge_that_does_not_begin_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocksdb_store, "PATIENCE", 2)
    monkeypatch.setattr(rocksdb_store, "sorted_runs", lambda db: MOST_RUNS)
    store = store_at(tmp_path)
    assert store.apply("", [state_batch(ENTRY)], "one")
    store.release()
    assert tag_of(store) == "one"


class Passing:
    """A clock that only waiting moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_merge_that_does_not_end_is_waited_for_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Twice as long each time, so that a long one ends at some time; whichever process has the store."""
    monkeypatch.setattr(rocksdb_store, "time", clock := Passing())
    monkeypatch.setattr(rocksdb_store, "PAUSE_S", 1.0)
    running = [1]
    real = rocksdb_store._count
    monkeypatch.setattr(rocksdb_store, "_count", lambda db, name: running[0] if "running" in name else real(db, name))

    def waited(*, hurry: bool = False) -> float:
        store = store_at(tmp_path)
        before = clock.now
        assert store.apply(tag_of(store), [state_batch(ENTRY)], f"at {before}", wipe=True)
        store.release(hurry=hurry)
        assert tag_of(store) == f"at {before}", "it is closed in order all the same"
        store.release(hurry=True)
        return clock.now - before

    assert [waited() for _ in range(5)] == [30, 60, 120, 240, 240]
    assert "was stopped: the next round waits up to 60 s" in caplog.text
    assert waited(hurry=True) == 0, "a round that has failed waits for none"
    running[0] = 0
    assert waited() == 0
    running[0] = 1
    assert waited() == 30, "the last one has ended"


def test_a_wipe_leaves_no_file(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    value = os.urandom(1000)
    assert store.apply("", [state_batch(*((b"\x00\x01%06d" % n, value + b"%d" % n) for n in range(2000)))], "one")
    store.release()
    before = directory_size(tmp_path)
    assert store.apply("one", [state_batch(ENTRY)], "two", wipe=True)
    store.release()
    assert directory_size(tmp_path) < before / 10
    assert (tag_of(store), read_all(store.snapshot(), b"")) == ("two", dict([ENTRY]))


@pytest.mark.parametrize("open_files", [-1, 100])
def test_killed_in_a_wipe_it_is_made_anew(tmp_path: Path, open_files: int) -> None:
    """Some files are gone, whichever: nothing of the others may be seen."""
    for kind in ("*.sst", "MANIFEST-*", "CURRENT"):
        store = store_at(tmp_path / kind[:3], RocksdbOptions(memory=1 << 20, open_files=open_files))
        for number in range(3):
            assert store.apply(f"t{number - 1}" if number else "", [state_batch(ENTRY)], f"t{number}")
            store.release()
        for file in sorted((tmp_path / kind[:3] / "0").glob(kind))[:1]:
            file.unlink()
        assert (tag_of(store), read_all(store.snapshot(), b"")) == ("", {})
        store.release()


def test_many_files_do_not_hold_up_who_writes(tmp_path: Path) -> None:
    """More than RocksDB would take before it stops writes (36), in one opening; the next one merges them."""
    store = store_at(tmp_path)
    before = ""
    for number in range(50):
        assert store.apply(before, [state_batch((b"\x00\x01%04d" % number, b"x"))], f"t{number}")
        before = f"t{number}"
        store._db.flush()
    assert rocksdb_store.sorted_runs(store._db) == 50
    store.release()
    assert store.apply(before, [state_batch(ENTRY)], "last")
    store.release()
    assert rocksdb_store.sorted_runs(opened(store)) < MOST_RUNS
    assert len(read_all(store.snapshot(), b"")) == 51


def native(options: RocksdbOptions, directory: Path) -> str:
    """What RocksDB has written down of the options it runs with."""
    store = store_at(directory, options)
    store.snapshot()
    store.release()
    return max((directory / "0").glob("OPTIONS-*")).read_text()


NEEDED: dict[str, dict[str, Any]] = {
    "buffers_to_merge": {"write_buffer_count": 4},
    "dynamic_levels": {"compaction_style": "LEVEL"},
}
"""Without these RocksDB takes the option back."""
CHANGED: dict[str, tuple[Any, str]] = {
    "partitioned_index": (True, "partition_filters=true"),
    "block_size": (16 << 10, "block_size=16384"),
    "write_buffer_size": (1 << 20, "write_buffer_size=1048576"),
    "write_buffer_count": (5, "max_write_buffer_number=5"),
    "buffers_to_merge": (2, "min_write_buffer_number_to_merge=2"),
    "metadata_block_size": (8 << 10, "metadata_block_size=8192"),
    "dynamic_levels": (True, "level_compaction_dynamic_level_bytes=true"),
    "compaction_style": ("LEVEL", "compaction_style=kCompactionStyleLevel"),
    "target_file_size": (1 << 20, "target_file_size_base=1048576"),
    "level_base_size": (3 << 20, "max_bytes_for_level_base=3145728"),
    "compression": ("LZ4_COMPRESSION", "compression=kLZ4Compression"),
    "background_threads": (7, "max_background_jobs=7"),
    "open_files": (100, "max_open_files=100"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_an_option_reaches_rocksdb(tmp_path: Path, name: str) -> None:
    value, text = CHANGED[name]
    needed = NEEDED.get(name, {})
    assert text not in native(RocksdbOptions(**needed), tmp_path / "default")
    assert text in native(RocksdbOptions(**needed, **{name: value}), tmp_path / "changed")


def test_memory_is_shared_or_of_each_store(tmp_path: Path) -> None:
    rocksdb_store.caches.clear()
    shared = RocksdbOptions(memory=3 << 20, write_buffer_ratio=0.25)
    for number in range(2):
        store = store_at(tmp_path / str(number), shared)
        store.snapshot()
        store.release()
    _, buffers = rocksdb_store.shared[3 << 20, 0.25]
    assert (buffers.get_buffer_size(), rocksdb_store.caches) == (3 << 18, {})
    own = store_at(tmp_path / "own", RocksdbOptions(managed=False, cache_size=1 << 20))
    own.snapshot()
    assert list(rocksdb_store.caches) == [str(tmp_path / "own" / "0")]
    own.release()
    rocksdb_store.close_removed_stores()
    assert len(rocksdb_store.caches) == 1
    os.rename(tmp_path / "own", tmp_path / "gone")
    rocksdb_store.close_removed_stores()
    assert rocksdb_store.caches == {}


def test_every_field_has_an_option_and_its_default() -> None:
    assert set(OPTIONS) == {field.name for field in fields(RocksdbOptions)}
    assert RocksdbOptions.of(lambda option: option.default) == RocksdbOptions()


def test_as_many_buffers_to_merge_as_there_are_is_refused() -> None:
    chosen = {options.ROCKSDB_BUFFERS_TO_MERGE.key: 2}
    with pytest.raises(ConfigurationError) as caught:
        RocksdbOptions.of(lambda option: chosen.get(option.key, option.default))
    text = str(caught.value)
    assert text.startswith("'state.backend.rocksdb.writebuffer.number-to-merge' must be less than")
    assert "found: 2 of 2" in text
    assert "cure: set 'state.backend.rocksdb.writebuffer.count' to 3 or more" in text


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("memory.fixed-per-slot", "1kb", "must be at least 1,048,576 bytes"),
        ("memory.write-buffer-ratio", "1.5", "must lie between 0 and 1, both excluded"),
        ("block.cache-size", "1kb", "must be at least 65,536 bytes"),
        ("block.blocksize", "1", "must lie between 512 and 67,108,864"),
        ("writebuffer.count", "1", "must lie between 2 and 64"),
        ("writebuffer.size", "1kb", "must be at least 65,536 bytes"),
        ("bloom-filter.bits-per-key", "0", "must lie between 1 and 100"),
        ("thread.num", "0", "must lie between 1 and 256"),
        ("files.open", "3", "must be -1 or at least 16"),
        ("compaction.style", "FIFO", "must be one of"),
        ("compression.per.level", "GZIP", "must be one of"),
    ],
)
def test_what_is_out_of_range_is_refused(key: str, value: str, rule: str) -> None:
    option = options.SPELLINGS[f"state.backend.rocksdb.{key}"]
    with pytest.raises(ConfigurationError) as caught:
        option.parse(value)
    assert str(caught.value).startswith(f"'state.backend.rocksdb.{key}' {rule}")


def test_without_the_package_the_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tidegate.state.rocksdb_store", None)
    monkeypatch.delattr("tidegate.state.rocksdb_store")
    monkeypatch.setattr(stores, "_loaded", {})
    with pytest.raises(ConfigurationError) as caught:
        stores.opener("rocksdb")
    assert str(caught.value).startswith(
        "The package rocksdict, which the rocksdb state backend needs, is not installed."
    )
    assert (
        "cure: run: pip install 'tidegate[rocksdb]', on this host and on the workers; or set state.backend.type to hashmap"
        in str(caught.value)
    )
