"""The state backends by name: one line for each. A new one is a module with a store and a line here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tidegate.common.errors import ConfigurationError
from tidegate.common.options import STATE_BACKEND
from tidegate.state import lmdb_store
from tidegate.state.store import LocalStore

OpenStore = Callable[[str], LocalStore]
"""Opens the store at a path, or gives the one that is open in this process already."""


class StoreKind(NamedTuple):
    """``open``: takes a path and the most bytes it may grow to (None: the kind's own bound). ``close_removed``: lets go of stores
    of this process whose directory is gone."""

    open: Callable[[str, int | None], LocalStore]
    close_removed: Callable[[], None]


STORES: dict[str, StoreKind] = {
    "hashmap": StoreKind(lmdb_store.open_lmdb, lmdb_store.close_removed_stores),
}


def opener(backend: str = STATE_BACKEND.default, map_size: int | None = None) -> OpenStore:
    """What opens the stores of a configured backend."""
    kind = STORES.get(backend)
    if kind is None:
        raise ConfigurationError(
            "state.backend.type names a state backend there is.",
            found=repr(backend),
            cure=f"use one of: {', '.join(sorted(STORES))}",
        )
    return partial(_open, kind, map_size)


def _open(kind: StoreKind, map_size: int | None, path: str) -> LocalStore:
    return kind.open(path, map_size)


def close_removed_stores() -> None:
    """Let go of stores of this process whose directory is gone: their jobs have ended. Not while a round is running here."""
    for kind in STORES.values():
        kind.close_removed()
