"""The state backends by name. A new backend is a module with a store and a line here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tidegate.base.errors import ConfigurationError
from tidegate.common.options import MAP_SIZE, STATE_BACKEND
from tidegate.state import lmdb_store
from tidegate.state.rocksdb_options import RocksdbOptions
from tidegate.state.store import LocalStore

OpenStore = Callable[[str], LocalStore]
"""Opens the store at a path, or returns the one that is already open in this process."""


class StoreOptions(NamedTuple):
    """``map_size``: the most bytes a hashmap store may grow to."""

    map_size: int = MAP_SIZE.default
    rocksdb: RocksdbOptions = RocksdbOptions()


DEFAULTS = StoreOptions()


class StoreKind(NamedTuple):
    """``open``: takes a path and the options. ``close_removed``: closes stores of this process whose directory is gone."""

    open: Callable[[str, StoreOptions], LocalStore]
    close_removed: Callable[[], None]


def _hashmap() -> StoreKind:
    return StoreKind(
        lambda path, options: lmdb_store.open_lmdb(path, options.map_size), lmdb_store.close_removed_stores
    )


def _rocksdb() -> StoreKind:
    try:
        from tidegate.state import rocksdb_store
    except ImportError as error:
        raise ConfigurationError(
            "The package rocksdict, which the rocksdb state backend needs, is not installed.",
            where="state.backend.type: rocksdb",
            found=str(error),
            cure="run: pip install 'tidegate[rocksdb]', on this host and on the workers; or set state.backend.type to hashmap",
        ) from error
    return StoreKind(
        lambda path, options: rocksdb_store.open_rocksdb(path, options.rocksdb), rocksdb_store.close_removed_stores
    )


STORES: dict[str, Callable[[], StoreKind]] = {"hashmap": _hashmap, "rocksdb": _rocksdb}
_loaded: dict[str, StoreKind] = {}
"""The backends that this process has used."""


def opener(backend: str = STATE_BACKEND.default, options: StoreOptions = DEFAULTS) -> OpenStore:
    """Return the function that opens the stores of a configured backend."""
    if backend not in STORES:
        raise ConfigurationError(
            "state.backend.type names an unknown state backend.",
            found=repr(backend),
            cure=f"use one of: {', '.join(sorted(STORES))}",
        )
    kind = _loaded.get(backend)
    if kind is None:
        kind = _loaded[backend] = STORES[backend]()
    return partial(_open, kind, options)


def _open(kind: StoreKind, options: StoreOptions, path: str) -> LocalStore:
    return kind.open(path, options)


def close_removed_stores() -> None:
    """Close stores of this process whose directory is gone: their jobs have ended. Never called while a round runs here."""
    for kind in _loaded.values():
        kind.close_removed()
