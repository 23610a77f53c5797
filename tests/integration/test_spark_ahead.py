"""``tidegate run`` starts Spark while the program is built. Whatever the program does, it cannot tell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COUNTS_JVMS = """
import atexit, os, psutil
from tidegate.spark import launch
from tidegate.datastream import StreamExecutionEnvironment

launched = []
real = launch.launch_gateway
assert launch._ahead is not None

def jvms():
    children = psutil.Process().children(recursive=True)
    return len([c for c in children if c.name() == "java" and c.status() != psutil.STATUS_ZOMBIE])

def counting(stderr, properties):
    launched.append(properties)
    return real(stderr, properties)

launch.launch_gateway = counting
env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
"""
RUNS = """
env.from_collection([1]).map(lambda v: [v, os.environ.get("MINE"), __import__("beside").NAME]).print()
env.execute()
print("launched at execute:", len(launched), "running:", jvms(), "ahead:", launch._ahead)
"""
PROGRAMS = {
    "as it is known": ("", "None", 0),
    "its environment changed": ("os.environ['MINE'] = 'yes'", "yes", 1),
    "a setting of its own": (
        "from tidegate.common import Configuration; c = Configuration(); "
        "c.set_string('spark.executorEnv.MINE', 'set'); env.configure(c)",
        "set",
        1,
    ),
    "a session of its own": (
        "from pyspark.sql import SparkSession; "
        "s = SparkSession.builder.master('local[1,4]').config('spark.executorEnv.MINE', 'own').getOrCreate()",
        "own",
        0,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_cannot_tell(name: str, tmp_path: Path) -> None:
    changes, seen, launched = PROGRAMS[name]
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    (tmp_path / "job.py").write_text(COUNTS_JVMS + changes + RUNS)
    command = [sys.executable, "-m", "tidegate.cli.main", "run", "--master", "local[1,4]", "job.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *records, told = done.stdout.splitlines()
    assert records == [f"[1, {seen!r}, 'beside']" if seen != "None" else "[1, None, 'beside']"]
    assert told == f"launched at execute: {launched} running: 1 ahead: None"
