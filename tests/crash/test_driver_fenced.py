"""A driver that is stopped while another takes its job over does nothing any more when it continues (fault C9)."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.crash.crash_run import CrashRun

Crash = Callable[..., CrashRun]

KEYS = {"tidegate.checkpoint.lease-timeout": "1 s"}


@pytest.mark.parametrize(
    "point",
    [
        "C4.before-publish",
        "C6.before-commit",
        pytest.param("C6.published", marks=pytest.mark.slow),
        pytest.param("C1.id-taken", marks=pytest.mark.slow),
        pytest.param("C3.acks-in", marks=pytest.mark.slow),
        pytest.param("C6.all-committed", marks=pytest.mark.slow),
        pytest.param("C7.recorded", marks=pytest.mark.slow),
        pytest.param("C9.checked", marks=pytest.mark.slow),
        pytest.param("K3.file-sink.before-rename", marks=pytest.mark.slow),
    ],
)
def test_a_driver_stopped_at(crash: Crash, point: str) -> None:
    run = crash(f"{point}@6=stop", keys=KEYS)
    first = run.start()
    run.watch(first, until=lambda: bool(run.fired()))
    # Refused while the other is not silent for long enough, as any second driver would be.
    while run.wait(run.start()) != 0:
        assert "A job's directory is used by one driver at a time." in run.last_log()
    run.observer.check_complete()
    first.send_signal(signal.SIGCONT)
    assert run.wait(first) == 1
    log = (run.directory / "log-0").read_text()
    assert "The attempt has lost its lease: it must not publish, commit or delete anything." in log
    # Metadata it was about to publish may be there, and counts for nothing: one more start finds a finished job and sweeps.
    assert run.wait(run.start()) == 0
    run.check()
