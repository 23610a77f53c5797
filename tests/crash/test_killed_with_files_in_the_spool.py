"""State files wait on the host for their checkpoint (``tidegate.state.upload: behind``), and the driver is killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.crash_run import KILLED, CrashRun

STORED = "[checkpoints/crash/shared]"
"""Only the driver writes state files there, in step 7: a kill at them is a kill of it."""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_driver_killed_while_state_files_are_stored(crash: Callable[..., CrashRun], backend: str) -> None:
    """Files of the spool are not stored, or are and no metadata names them, or it does and they wait to be deleted."""
    keys = {"tidegate.state.upload": "behind", "state.backend.type": backend}
    plan = [f"storage.write{STORED}@3=self", f"storage.written{STORED}@8=self", "C7.metadata-deleted@4=self"]
    crash(*plan, keys=keys).run().check([KILLED] * 3 + [0])


@pytest.mark.slow
def test_workers_and_driver_killed_with_files_in_the_spool(crash: Callable[..., CrashRun]) -> None:
    """What a worker has left in the spool is its round's, or nobody's."""
    plan = ["T2.after-segment@7=self", "T2.before-ack@18=driver", f"storage.write{STORED}@9=workers"]
    crash(*plan, keys={"tidegate.state.upload": "behind"}).run().check([KILLED, 0])
