"""Drivers in processes of their own, on the simulated engine, for tests of what operators do to running jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import eventually
from tidegate.control import registry
from tidegate.control.registry import JobRecord

PROGRAM = """
import sys
from tidegate.common import Configuration, Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment, executor
from tidegate.datastream.connectors.datagen import DataGeneratorSource
from tests.simulation.executor import SimulatedExecutor

executor.register_executor("simulated", SimulatedExecutor)
keys = {"execution.target": "simulated", "tidegate.round.max-records": 10, "execution.checkpointing.interval": "1 h"}
keys |= dict(argument.split("=", 1) for argument in sys.argv[1:])
count = int(keys.pop("count", 0)) or None
stoppable = keys.pop("stoppable", "yes") == "yes"


class Source(DataGeneratorSource):
    can_stop = stoppable


env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(keys)).set_parallelism(1)
source = Source(lambda index: (index % 3, index), count, records_per_second=1000)
numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
totals = numbers.key_by(lambda pair: pair[0], key_type=Types.LONG()).sum(1).uid("totals")
totals.add_sink(lambda value: None).uid("out")
env.execute("counting")
"""


class Driver:
    """``home``: its TIDEGATE_HOME. The job runs for ever, unless the keys have ``count``."""

    def __init__(self, directory: Path, job_id: str, *command: str, **keys: str) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "job.py").write_text(PROGRAM)
        given = {"tidegate.job-id": job_id, "execution.checkpointing.dir": f"{directory}/checkpoints"}
        given |= {"tidegate.state.local-dir": f"{directory}/local", **keys}
        arguments = [f"{key}={value}" for key, value in given.items()]
        self.job_id = job_id
        with open(directory / f"{job_id}.log", "wb") as log:
            line = [sys.executable, *command, "job.py", *arguments]
            self.process = subprocess.Popen(line, cwd=directory, stdout=log, stderr=log, env=os.environ.copy())

    def record(self) -> JobRecord:
        found = [record for record in registry.records() if record.job_id == self.job_id]
        return found[-1]

    def running(self) -> Driver:
        eventually(lambda: self._is_open() or self.process.poll() is not None, "the driver takes commands")
        assert self.process.poll() is None, (self.directory / f"{self.job_id}.log").read_text()
        return self

    def _is_open(self) -> bool:
        found = [record for record in registry.records() if record.job_id == self.job_id]
        return bool(found) and found[-1].endpoint is not None and found[-1].state == "RUNNING"

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
