"""Fixtures of the tests on real Spark: environments that keep all their files below the test's own directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fault_switch import DIRECTORY, FaultSwitch, hook
from tidegate.base import faults
from tidegate.common import Configuration
from tidegate.datastream import StreamExecutionEnvironment

MakeEnv = Callable[..., StreamExecutionEnvironment]

CHECKPOINTING = {"execution.checkpointing.interval": "50 ms"}


@pytest.fixture
def make_env(spark: Any, tmp_path: Path) -> MakeEnv:
    """``make_env(keys, parallelism=2)``: a new environment. No restarts unless the keys say so: a test wants to see the error."""

    def make(keys: dict[str, Any] | None = None, *, parallelism: int = 2) -> StreamExecutionEnvironment:
        settings = {
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            "tidegate.state.local-dir": str(tmp_path / "local"),
            "restart-strategy.type": "none",
            **(keys or {}),
        }
        env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings))
        return env.set_parallelism(parallelism)

    return make


@pytest.fixture
def env(make_env: MakeEnv) -> StreamExecutionEnvironment:
    """Two subtasks, no checkpoints."""
    return make_env()


@pytest.fixture
def fault_switch(spark: Any, fault_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultSwitch]:
    """Faults in the workers and, while the test runs, in the driver."""
    switch = FaultSwitch(fault_directory)
    monkeypatch.setitem(os.environ, DIRECTORY, str(fault_directory))
    faults.install(hook)
    yield switch
    switch.off()
    faults.install(None)
