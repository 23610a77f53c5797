"""Workers are killed that have a RocksDB store open: others take over, and nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.crash_run import CrashRun


@pytest.mark.slow
def test_workers_killed_with_their_stores_open(crash: Callable[..., CrashRun]) -> None:
    keys = {"state.backend.type": "rocksdb", "tidegate.state.cache-size": "0 b"}
    crash("T2.before-segment@7=self", "T2.before-ack@16=self", "C3.acks-in@6=workers", keys=keys).run().check([0])
