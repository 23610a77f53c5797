"""Starts incidents as drivers of their own, on Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.incidents.programs import HOOKS

ROOT = Path(__file__).parents[2]
NAMES = (
    "hot-key",
    "slow-function",
    "slow-storage",
    "stuck-watermark",
    "lagging-partition",
    "growing-state",
    "restart-loop",
    "commit-retried",
)
"""Each is the name of the program, the id of its job, and the ``kind`` of the finding that must come of it."""


class Incident:
    """A driver that runs one of ``programs.py``. It registers in the TIDEGATE_HOME of this process. ``keys``: more keys."""

    def __init__(self, name: str, directory: Path, **keys: str) -> None:
        self.name, self.directory = name, directory
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / f"{name}.log"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        if name in HOOKS:
            environment["TIDEGATE_FAULT_HOOK"] = HOOKS[name]
        given = [f"{key}={value}" for key, value in keys.items()]
        command = [sys.executable, "-m", "tests.incidents.programs", name, str(directory), *given]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=environment)

    def check(self) -> None:
        """Raise AssertionError with the log if the driver has ended."""
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-4000:]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
