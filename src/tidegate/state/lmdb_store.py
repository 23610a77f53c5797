"""The local store on LMDB, shared by all Python workers of a host."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import lmdb
import xxhash

from tidegate.base.errors import ConfigurationError, StorageError
from tidegate.common.options import MAP_SIZE
from tidegate.state.layout import GROUP_BYTES, STATE, read_varint, timer_to_local, varint
from tidegate.state.store import EntryBlock, used_in_child

DEFAULT_MAP_SIZE: int = MAP_SIZE.default
"""Address space, not memory or disk: the file is sparse and grows with the state."""


class LmdbStore:
    """``LocalStore`` on LMDB. Not synced: commits of a killed process stay, and no store outlives the OS (local_dir).

    LMDB's keys have at most 511 bytes. A longer key is stored under its beginning and a hash, with the whole key before the value.
    Long keys of state entries have their own table, so that the common path never checks.
    """

    def __init__(self, path: str, map_size: int | None = None) -> None:
        self.path = path
        os.makedirs(path, exist_ok=True)
        size = map_size or DEFAULT_MAP_SIZE
        with _store_errors(path), _mapped(path, size):
            # writemap would save about 0.05 us per written entry, but a full disk would kill the process (SIGBUS)
            self._env = lmdb.open(
                path,
                map_size=size,
                max_dbs=4,
                max_readers=512,
                sync=False,
                metasync=False,
                meminit=False,
            )
            self._state = self._env.open_db(b"state")
            self._long = self._env.open_db(b"long")
            self._timers = self._env.open_db(b"timers")
            self._meta = self._env.open_db(b"meta")
        self.max_key: int = self._env.max_key_size()
        self._file_id = _file_id(path)

    @property
    def is_current(self) -> bool:
        """Whether the path still leads to the open file: another process may have removed and recreated it."""
        return _file_id(self.path) == self._file_id

    def close(self) -> None:
        self._env.close()

    def release(self, *, hurry: bool = False) -> None:
        """Do nothing: the store is shared."""

    def snapshot(self) -> LmdbSnapshot:
        with _store_errors(self.path):
            self._env.reader_check()  # the reader of a killed worker would prevent the reuse of old pages
            txn = self._env.begin(db=self._state)
            tag = txn.get(b"tag", b"", db=self._meta).decode()
        return LmdbSnapshot(txn, tag, self.max_key, self._state, self._long, self._timers)

    def apply(self, expected: str, blocks: Sequence[EntryBlock], tag: str, *, wipe: bool = False) -> bool:
        with _store_errors(self.path), self._env.begin(write=True) as txn:
            if txn.get(b"tag", b"", db=self._meta).decode() != expected:
                return False
            if wipe:
                for table in (self._state, self._long, self._timers):
                    txn.drop(table, delete=False)
            for block in blocks:
                if block.table == STATE:
                    self._apply_state(txn, block)
                else:
                    self._apply_timers(txn, block)
            txn.put(b"tag", tag.encode(), db=self._meta)
        return True

    def _apply_state(self, txn: Any, block: EntryBlock) -> None:
        flat = iter(block.flat)
        pairs = zip(flat, flat, strict=True)
        if not block.deletes:
            try:
                txn.cursor(self._state).putmulti(pairs)
                return
            except lmdb.BadValsizeError:
                flat = iter(block.flat)
                pairs = zip(flat, flat, strict=True)
        for key, value in pairs:
            self._apply_entry(txn, key, value)

    def _apply_entry(self, txn: Any, key: bytes, value: bytes | None) -> None:
        table = self._state
        if len(key) > self.max_key:
            table, key, value = self._long, _short(key, self.max_key), None if value is None else _with_key(key, value)
        if value is None:
            txn.delete(key, db=table)
        else:
            txn.put(key, value, db=table)

    def _apply_timers(self, txn: Any, block: EntryBlock) -> None:
        changes = dict(zip(map(timer_to_local, block.flat[::2]), block.flat[1::2], strict=True))
        # Segments are sorted by group, this table by time: writing neighbours is cheaper.
        for timer in sorted(changes):
            key, value = timer, b""
            if len(timer) > self.max_key:
                key, value = _short(timer, self.max_key), timer
            if changes[timer] is None:
                txn.delete(key, db=self._timers)
            else:
                txn.put(key, value, db=self._timers)


class LmdbSnapshot:
    """``Snapshot`` on a read transaction."""

    def __init__(self, txn: Any, tag: str, max_key: int, state: Any, long: Any, timers: Any) -> None:
        self.tag = tag
        self.max_key = max_key
        self.get: Callable[[bytes], bytes | None] = txn.get
        self._txn, self._state, self._long, self._timers = txn, state, long, timers
        self._has_long = txn.stat(long)["entries"] > 0

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return list(map(self.get, keys))

    def get_long(self, key: bytes) -> bytes | None:
        data = self._txn.get(_short(key, self.max_key), db=self._long)
        return None if data is None else _without_key(data)[1]

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        if len(prefix) <= self.max_key:
            cursor = self._txn.cursor(self._state)
            if cursor.set_range(prefix):
                for key, value in cursor.iternext():
                    if not key.startswith(prefix):
                        break
                    yield key, value
        if self._has_long:
            yield from self._scan_long(prefix)

    def _scan_long(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        start = prefix[: self.max_key - 16]
        cursor = self._txn.cursor(self._long)
        if cursor.set_range(start):
            for short, data in cursor.iternext():
                if not short.startswith(start):
                    break
                key, value = _without_key(data)
                if key.startswith(prefix):
                    yield key, value

    def group(self, group: int) -> list[Any]:
        flat: list[Any] = []
        for pair in self.scan(GROUP_BYTES[group]):
            flat += pair
        return flat

    def timers(self, after: bytes, limit: int) -> tuple[list[bytes], bytes]:
        found: list[bytes] = []
        cursor = self._txn.cursor(self._timers)
        if cursor.set_range(after):
            for key, whole in cursor.iternext():
                if key != after:
                    found.append(whole or key)
                    after = key
                    if len(found) == limit:
                        break
        return found, after

    def has_timer(self, key: bytes) -> bool:
        short = key if len(key) <= self.max_key else _short(key, self.max_key)
        return self._txn.get(short, db=self._timers) is not None

    def close(self) -> None:
        self._txn.abort()


_open_stores: dict[str, tuple[int, LmdbStore]] = {}
_open_lock = threading.Lock()


def open_lmdb(path: str, map_size: int | None = None) -> LmdbStore:
    """Return the store at a path. It stays open in this process: LMDB must not be opened twice. A forked child must not open it
    either: it would first close the parent's store, and with it the parent's readers in shared memory."""
    with _open_lock:
        pid, store = _open_stores.get(path, (0, None))
        if store is not None:
            if pid != os.getpid():
                raise used_in_child(path)
            if store.is_current:
                return store
            store.close()
        store = LmdbStore(path, map_size)
        _open_stores[path] = (os.getpid(), store)
        return store


def close_removed_stores() -> None:
    """Close stores of this process whose directory is gone: their jobs have ended. Never called while a round runs here."""
    with _open_lock:
        for path, (pid, store) in list(_open_stores.items()):
            if pid == os.getpid() and not store.is_current:
                store.close()
                del _open_stores[path]


def _file_id(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(os.path.join(path, "data.mdb"))
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _short(key: bytes, max_key: int) -> bytes:
    digest: bytes = xxhash.xxh3_128_digest(key)
    return key[: max_key - 16] + digest


def _with_key(key: bytes, value: bytes) -> bytes:
    return varint(len(key)) + key + value


def _without_key(data: bytes) -> tuple[bytes, bytes]:
    length, start = read_varint(data, 0)
    return data[start : start + length], data[start + length :]


@contextlib.contextmanager
def _mapped(path: str, size: int) -> Iterator[None]:
    """Explain a failed map: a map takes address space whatever it contains, and the process may have a limit."""
    try:
        yield
    except lmdb.MemoryError as error:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        bound = "no limit is set" if limit == resource.RLIM_INFINITY else f"{limit >> 20} mb is the limit (ulimit -v)"
        final = limit != resource.RLIM_INFINITY and size >= limit
        kind = ConfigurationError if final else StorageError  # a new worker may have more free address space
        raise kind(
            "The address space of the worker is too small for the map of a local store.",
            where=path,
            found=f"{error}: {MAP_SIZE.key} is {size >> 20} mb, and of address space {bound}",
            cure=f"raise the limit (ulimit -v unlimited), or set {MAP_SIZE.key} so that all keyed operators of a worker fit, or "
            "use state.backend.type: rocksdb",
        ) from error


@contextlib.contextmanager
def _store_errors(path: str) -> Iterator[None]:
    try:
        yield
    except lmdb.MapFullError as error:
        raise StorageError(
            "The state of a subtask exceeds the LMDB map size of its local store.",
            where=path,
            found=str(error),
            cure="raise tidegate.state.map-size, or the parallelism",
        ) from error
    except (lmdb.Error, OSError) as error:
        raise StorageError(
            "The local state store cannot be read or written.",
            where=path,
            found=f"{type(error).__name__}: {error}",
            cure="free disk space there, or delete the directory: it is rebuilt from the checkpoint files",
        ) from error
