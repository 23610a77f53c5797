"""The local store on RocksDB: state that need not fit in memory.

RocksDB allows one process per store. The worker that Spark chooses for a round opens the store at the first read and closes it
after the round (``release``), so workers follow each other. A worker that finds the store in use, by an attempt that should be
dead, does not wait: it takes the next directory, rebuilds the store there, and removes it after the round. Tags make that safe,
as for every store.

One column family: state entries under their canonical keys, whose first byte is below 0x80 (a key group), then timers and the
tag. There is no log: a write is in memory as a whole or not at all, and files contain writes in order. So a killed process leaves
the store at an earlier tag.

A child that user code forks may outlive the round and this process. It releases the lock at once and touches nothing else; RocksDB
cannot be used in it (``store.py``). In a child that executes another program everything is closed.

A round that finds many files merges them, and waits for the end of the merge. On its own RocksDB would start merging at every
opening, and a merge that takes longer than the round would be stopped and restarted each time. The wait has a bound. The next
round restarts a stopped merge and waits twice as long, so a long merge finishes eventually. Beyond the longest wait, files are
not merged, and reads look into more of them. A failed round does not wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import rocksdict

from tidegate.base.errors import InternalError, StateAccessError, StorageError
from tidegate.state.layout import GROUP_BYTES, STATE, timer_to_local
from tidegate.state.rocksdb_options import MOST_RUNS, RocksdbOptions
from tidegate.state.store import CURE, RULE, EntryBlock, keep_for_ever

logger = logging.getLogger(__name__)

_TIMER = b"\xfe"
_TAG = b"\xff"
_END_OF_STATE = b"\x80"
_ANY_LENGTH = 1 << 31
_MOST_OWNERS = 64
PAUSE_S = 0.002
PATIENCE = 500
"""This many pauses are a second."""
_WORTH_LOGGING_S = 1.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 30, 240
"""For merges, at the end of a round: less than half of the default timeout of a round, which is that of a checkpoint."""
_LEVELS = 7
_FEW_FILES = 32
_NEVER = 1 << 30
_NO_LOG: Any = rocksdict.WriteOptions()
_NO_LOG.disable_wal = True


class RocksdbStore:
    """``LocalStore`` on RocksDB, for one user at a time, who has all its snapshots."""

    max_key = _ANY_LENGTH

    def __init__(self, path: str, options: RocksdbOptions) -> None:
        self.path, self._options = path, options
        self._place: _OwnDirectory | None = None
        self._db: Any = None
        self._changed = self._merging = False
        self._views = 0
        _stores.add(self)

    def snapshot(self) -> RocksdbSnapshot:
        with self._errors():
            db = self._opened()
            snapshot = RocksdbSnapshot(db, self._closed_view)
        self._views += 1
        return snapshot

    def apply(self, expected: str, blocks: Sequence[EntryBlock], tag: str, *, wipe: bool = False) -> bool:
        if self._views:
            raise InternalError("The local store is written while a snapshot of it is open.", where=self.path)
        with self._errors():
            db = self._opened()
            if _tag_of(db) != expected:
                return False
            if wipe:
                db = self._emptied()
            write = rocksdict.WriteBatch(raw_mode=True)
            for block in blocks:
                _add(write, block)
            write.put(_TAG, tag.encode())
            self._changed = True
            db.write(write, _NO_LOG)
        return True

    def release(self, *, hurry: bool = False) -> None:
        place, db, self._place, self._db = self._place, self._db, None, None
        if place is None:
            return
        try:
            if db is not None:
                self._close(db, place, hurry)
        except Exception as error:  # the round is complete without it: the next user of the store finds an earlier tag
            logger.warning("the local store %s was not flushed completely: %s", self.path, error)
        finally:
            self._changed, self._merging, self._views = False, False, 0
            place.leave()

    def leave_to_parent(self) -> None:
        """Give up the store in a forked child."""
        place, db, self._place, self._db = self._place, self._db, None, None
        keep_for_ever(db)
        if place is not None:
            place.leave_to_parent()

    def _opened(self) -> Any:
        if self._db is None:
            _refuse_in_child(self.path)
            self._place = place = self._place or _OwnDirectory.take(self.path)
            self._db = _open(place.directory, self._options)
            if sorted_runs(self._db) >= MOST_RUNS:
                self._merge_files(self._db)
        return self._db

    def _emptied(self) -> Any:
        """Remove all files at once. After a kill in between, the next user finds no tag and rebuilds the store."""
        assert self._place is not None
        db, self._db, self._merging = self._db, None, False
        db.close()
        shutil.rmtree(self._place.directory)
        db = self._opened()
        self._merge_files(db)  # a rebuild writes many files
        return db

    def _merge_files(self, db: Any) -> None:
        """Start merging files in the background; ``_close`` waits for the end."""
        if not self._merging:
            db.set_options({"disable_auto_compactions": "false"})
            self._merging = True

    def _close(self, db: Any, place: _OwnDirectory, hurry: bool) -> None:
        try:
            if place.lasting:
                if self._changed:
                    db.flush()
                if self._merging and not hurry:
                    place.waited(_wait_for_merges(db, place.longest_wait()))
        finally:
            db.close()

    def _closed_view(self) -> None:
        self._views -= 1

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (StorageError, StateAccessError):
            raise
        except Exception as error:  # RocksDB's errors have no class of their own
            raise StorageError(
                "The rocksdb state backend cannot read or write its working directory.",
                where=self.path,
                found=f"{type(error).__name__}: {error}",
                cure="free space there, or choose another directory with state.backend.rocksdb.localdir; "
                "nothing is lost, local state is rebuilt from the checkpoint files",
            ) from error


class RocksdbSnapshot:
    """``Snapshot`` by exclusion: while it is open the store is not written."""

    max_key = _ANY_LENGTH

    def __init__(self, db: Any, closed: Callable[[], None]) -> None:
        self.tag = _tag_of(db)
        self.get: Callable[[bytes], bytes | None] = db.get
        self.get_long = self.get
        self._db, self._closed = db, closed

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._db.get(keys) if keys else []
        return found

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._db.items(from_key=prefix):
            if key >= _END_OF_STATE or not key.startswith(prefix):
                break
            yield key, value

    def group(self, group: int) -> list[Any]:
        flat: list[Any] = []
        for pair in self.scan(GROUP_BYTES[group]):
            flat += pair
        return flat

    def timers(self, after: bytes, limit: int) -> tuple[list[bytes], bytes]:
        start = _TIMER + after
        found: list[bytes] = []
        for key in self._db.keys(from_key=start):
            if len(found) == limit or not key.startswith(_TIMER):
                break
            if key != start:
                found.append(key[1:])
        return found, found[-1] if found else after

    def has_timer(self, key: bytes) -> bool:
        return self._db.get(_TIMER + key) is not None

    def close(self) -> None:
        if self._db is not None:
            self._db = None
            self._closed()


class _OwnDirectory:
    """A directory that only this store uses, by a lock that ends with the process."""

    def __init__(self, directory: str, lock: int, lasting: bool) -> None:
        self.directory, self._lock, self.lasting = directory, lock, lasting

    @staticmethod
    def take(path: str) -> _OwnDirectory:
        """Lock the first free directory."""
        os.makedirs(path, exist_ok=True)
        for number in range(_MOST_OWNERS):
            lock = os.open(os.path.join(path, f"{number}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            directory = os.path.join(path, str(number))
            if number:
                logger.warning("%s is in use by another attempt: state is rebuilt in %s", path, directory)
                shutil.rmtree(directory, ignore_errors=True)
            return _OwnDirectory(directory, lock, lasting=number == 0)
        raise StorageError(
            "Too many job attempts use the local store at the same time.",
            where=path,
            found=f"{_MOST_OWNERS} attempts",
            cure="stop the other job attempts on this host",
        )

    def longest_wait(self) -> float:
        """Return the longest wait for merges. It is stored next to the directory, because workers follow each other."""
        try:
            with open(f"{self.directory}.wait") as file:
                return float(file.read())
        except (OSError, ValueError):
            return _FIRST_WAIT_S

    def waited(self, enough: bool) -> None:
        path = f"{self.directory}.wait"
        if enough:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        longest = min(2 * self.longest_wait(), _LONGEST_WAIT_S)
        logger.warning(
            "merging files of the local store %s was stopped: the next round waits up to %d s",
            self.directory,
            longest,
        )
        with open(path, "w") as file:
            file.write(str(longest))

    def leave(self) -> None:
        if not self.lasting:
            shutil.rmtree(self.directory, ignore_errors=True)
        fcntl.flock(self._lock, fcntl.LOCK_UN)  # a child that native code has forked may have this file open too
        os.close(self._lock)

    def leave_to_parent(self) -> None:
        """Close the lock file in a forked child: an open copy would hold the lock as long as the child lives."""
        os.close(self._lock)


_stores: weakref.WeakSet[RocksdbStore] = weakref.WeakSet()
_opened_in: int | None = None
"""The process in which RocksDB started its threads."""


def _refuse_in_child(path: str) -> None:
    global _opened_in
    _opened_in = _opened_in or os.getpid()
    if _opened_in != os.getpid():
        found = (
            f"process {os.getpid()}, forked from process {_opened_in}, which has opened RocksDB: it would wait for ever"
        )
        raise StateAccessError(RULE, where=path, found=found, cure=CURE)


def _leave_all_to_parent() -> None:
    for store in list(_stores):
        store.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)


def open_rocksdb(path: str, options: RocksdbOptions) -> RocksdbStore:
    """Return a store at a path. It is opened by the first read or write."""
    return RocksdbStore(path, options)


def close_removed_stores() -> None:
    """Drop the caches of removed directories. The stores themselves are closed with the round."""
    for directory in [path for path in caches if not os.path.exists(path)]:
        del caches[directory]


def _open(directory: str, options: RocksdbOptions) -> Any:
    """Open a store, or rebuild one that cannot be opened: the checkpoint files contain everything."""
    native = native_options(directory, options)
    try:
        return _opened_with(directory, native)
    except Exception as error:
        if not os.path.exists(os.path.join(directory, "CURRENT")):
            raise
        logger.warning("the local store %s cannot be opened and is rebuilt: %s", directory, error)
        shutil.rmtree(directory)
        return _opened_with(directory, native)


def _opened_with(directory: str, native: Any) -> Any:
    # Name the column family: else an existing one is opened with the options that its files were made with. Those cannot contain
    # the block cache and the filter, so there would be neither.
    return rocksdict.Rdict(directory, native, column_families={"default": native})


def sorted_runs(db: Any) -> int:
    """Return how many files a read may have to look into: those of level 0, and one of each other level."""
    first, *others = (_count(db, f"rocksdb.num-files-at-level{level}") for level in range(_LEVELS))
    return first + sum(map(bool, others))


def _wait_for_merges(db: Any, longest_s: float) -> bool:
    """Wait until no merge runs and there are few files. Return False if merges still run after ``longest_s``. A merge that does not
    start, because the disk is full or for RocksDB's own reasons, is not waited for."""
    idle, begun = 0, time.monotonic()
    while idle < PATIENCE:
        if time.monotonic() - begun >= longest_s:
            return False
        if _count(db, "rocksdb.num-running-compactions"):
            idle = 0
        elif sorted_runs(db) < MOST_RUNS:
            break
        idle += 1
        time.sleep(PAUSE_S)
    waited = time.monotonic() - begun
    if waited > _WORTH_LOGGING_S:
        logger.info("the round waited %.1f s for files of the local store %s to be merged", waited, db.path())
    return True


def _count(db: Any, name: str) -> int:
    return int(db.property_value(name) or 0)


def _tag_of(db: Any) -> str:
    found: bytes = db.get(_TAG, b"")
    return found.decode()


def _add(write: Any, block: EntryBlock) -> None:
    keys, values = block.flat[::2], block.flat[1::2]
    if block.table != STATE:
        keys = [_TIMER + timer_to_local(key) for key in keys]
    put, delete = write.put, write.delete
    if not block.deletes:
        for key, value in zip(keys, values, strict=True):
            put(key, value)
        return
    for key, value in zip(keys, values, strict=True):
        if value is None:
            delete(key)
        else:
            put(key, value)


# -- RocksDB's own options -------------------------------------------------------------------------------------------

shared: dict[tuple[int, float], tuple[Any, Any]] = {}
caches: dict[str, Any] = {}
_lock = threading.Lock()


def native_options(directory: str, options: RocksdbOptions) -> Any:
    """Return RocksDB's own options. Caches outlive the open store, so the next round still finds what this round has read."""
    native = rocksdict.Options(raw_mode=True)
    native.create_if_missing(True)
    native.set_keep_log_file_num(1)
    native.set_stats_dump_period_sec(0)
    native.set_stats_persist_period_sec(0)
    native.set_max_background_jobs(options.background_threads)
    native.set_max_open_files(options.open_files)
    if _files_in(directory) <= _FEW_FILES:
        # The store is opened in every round: starting threads costs more than they save.
        native.set_max_file_opening_threads(1)
    native.set_write_buffer_size(options.write_buffer_size)
    native.set_max_write_buffer_number(options.write_buffer_count)
    native.set_min_write_buffer_number(options.buffers_to_merge)
    native.set_target_file_size_base(options.target_file_size)
    native.set_max_bytes_for_level_base(options.level_base_size)
    native.set_level_compaction_dynamic_level_bytes(options.dynamic_levels)
    native.set_compression_type(_COMPRESSION[options.compression]())
    native.set_disable_auto_compactions(True)
    # A round writes a bounded amount, and must not be delayed where merges cannot run, on a nearly full disk.
    native.set_level_zero_slowdown_writes_trigger(_NEVER)
    native.set_level_zero_stop_writes_trigger(_NEVER)
    native.set_soft_pending_compaction_bytes_limit(0)
    native.set_hard_pending_compaction_bytes_limit(0)
    native.set_compaction_style(_STYLES[options.compaction_style]())
    native.set_block_based_table_factory(_blocks(directory, options, native))
    return native


def _files_in(directory: str) -> int:
    return len(os.listdir(directory)) if os.path.isdir(directory) else 0


def _blocks(directory: str, options: RocksdbOptions, native: Any) -> Any:
    blocks: Any = rocksdict.BlockBasedOptions()
    blocks.set_block_size(options.block_size)
    blocks.set_metadata_block_size(options.metadata_block_size)
    if options.managed:
        cache, buffers = _shared_memory(options.memory, options.write_buffer_ratio)
        native.set_write_buffer_manager(buffers)
    else:
        cache = caches.setdefault(directory, rocksdict.Cache(options.cache_size))
    blocks.set_block_cache(cache)
    if options.bloom_filter:
        blocks.set_bloom_filter(options.bloom_bits, False)
    if options.partitioned_index:
        blocks.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
        blocks.set_partition_filters(True)
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_pin_top_level_index_and_filter(True)
    return blocks


def _shared_memory(size: int, write_ratio: float) -> tuple[Any, Any]:
    """Return block cache and write buffers with one budget: the buffers take their memory from the cache."""
    with _lock:
        if (size, write_ratio) not in shared:
            cache = rocksdict.Cache(size)
            buffers = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(
                int(size * write_ratio), False, cache
            )
            shared[size, write_ratio] = cache, buffers
        return shared[size, write_ratio]


_COMPRESSION = {
    "NO_COMPRESSION": rocksdict.DBCompressionType.none,
    "SNAPPY_COMPRESSION": rocksdict.DBCompressionType.snappy,
    "LZ4_COMPRESSION": rocksdict.DBCompressionType.lz4,
    "ZSTD_COMPRESSION": rocksdict.DBCompressionType.zstd,
}
_STYLES = {"LEVEL": rocksdict.DBCompactionStyle.level, "UNIVERSAL": rocksdict.DBCompactionStyle.universal}
