"""A task that hangs on real Spark: its round is cut off, the job restarts and ends with the right output."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.integration.job_tools import committed_lines, file_sink, history
from tidegate.datastream import MapFunction, StreamExecutionEnvironment

MakeEnv = Callable[..., StreamExecutionEnvironment]


class HangOnce(MapFunction):
    """Waits for ever at record 5, the first time any worker comes to it."""

    def __init__(self, directory: Path) -> None:
        self._marker = str(directory / "hung")

    def map(self, value: int) -> Any:
        if value == 5:
            try:
                os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return value
            threading.Event().wait()
        return value


def test_a_hanging_task_does_not_hold_the_job_for_ever(make_env: MakeEnv, tmp_path: Path) -> None:
    keys = {
        "execution.checkpointing.interval": "50 ms",
        "execution.checkpointing.timeout": "4 s",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 10,
        "restart-strategy.fixed-delay.delay": "10 ms",
        "tidegate.job-id": "hanging",
    }
    env = make_env(keys)
    env.from_collection(list(range(10))).map(HangOnce(tmp_path)).sink_to(file_sink(tmp_path / "out"))
    env.execute()
    assert sorted(map(int, committed_lines(tmp_path / "out"))) == list(range(10))
    expired = [entry.message for entry in history(tmp_path / "checkpoints" / "hanging") if entry.reason == "EXPIRED"]
    assert any("had not ended after" in message for message in expired)
