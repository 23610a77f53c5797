"""Every command that prints, with a reader that has gone (``| head``): it ends quietly, also when the interpreter ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.main

from tests.unit.control.drivers import PROGRAM, Driver
from tidegate.cli.main import app
from tidegate.cli.outcome import ExitCode
from tidegate.control import registry
from tidegate.control.registry import folder

# Each command runs in a fork, which costs no start of an interpreter, and ends as the process of a command does.
FORKS = """
import json, os, sys
from tidegate.cli import checkpoint_list, explain, job_lines, state_views
from tidegate.cli.main import main
from tidegate.control import jobs
from tests.simulation import executor
ends = []
for number, arguments in enumerate(json.loads(sys.argv[1])):
    ours, theirs = os.pipe()
    os.close(ours)
    child = os.fork()
    if child == 0:
        os.dup2(theirs, 1)
        os.dup2(os.open(f"stderr-{number}", os.O_WRONLY | os.O_CREAT), 2)
        sys.argv = ["tidegate", *arguments]
        main()
        sys.exit(0)
    os.close(theirs)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ends.append([code, open(f"stderr-{number}").read()])
print(json.dumps(ends))
"""
PRINTING = """
import sys
from tidegate.common import Configuration, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment, executor
from tidegate.datastream.connectors.datagen import DataGeneratorSource
from tests.simulation.executor import SimulatedExecutor

executor.register_executor("simulated", SimulatedExecutor)
keys = {"execution.target": "simulated", "tidegate.round.max-records": 10}
keys |= {"execution.checkpointing.interval": "1 h", "restart-strategy.type": "fixed-delay"}
keys |= {"restart-strategy.fixed-delay.attempts": 1_000_000, "restart-strategy.fixed-delay.delay": "1 ms"}
env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(keys)).set_parallelism(1)
source = DataGeneratorSource(lambda index: index, None, records_per_second=1000)
env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").print()
env.execute("endless")
"""
WITHOUT_OUTPUT = {
    ("dev", "kafka", "start"),
    ("dev", "kafka", "stop"),  # of the machine's broker, which tests leave alone
    ("debug",),  # of a job whose code has failed: reads from a terminal
    ("kafka", "transactions"),  # asks a broker
    ("dev", "session"),  # keeps a Spark session
    ("dev", "run"),  # runs in that session
    ("web",),  # serves until it is stopped
    ("top",),  # draws on a terminal
    ("certify",),  # has tests of its own
}


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def ended(directory: Path, lines: list[list[str]]) -> list[tuple[list[str], int, str]]:
    forks = [sys.executable, "-c", FORKS, json.dumps(lines)]
    done = subprocess.run(forks, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [(line, *end) for line, end in zip(lines, json.loads(done.stdout), strict=True)]


def test_every_command_that_prints_ends_quietly(driver: Callable[..., Driver], home: Path, tmp_path: Path) -> None:
    driver("first").running()
    driver("second").running()
    third = driver("third", count="5")
    third.process.wait()
    log = folder("logs") / "a-launch.log"
    log.write_text("a line\n")
    registry.write(msgspec.structs.replace(third.record(), launch="a-launch"))
    (tmp_path / "graph.py").write_text(PROGRAM)
    (tmp_path / "print.py").write_text("print('a line')")
    directory = f"{tmp_path}/checkpoints/first"
    savepoint = f"{tmp_path}/savepoints"
    lines = [
        ["options"],
        ["doctor"],
        ["init", "new"],
        ["completion", "bash"],
        ["list"],
        ["info", "first"],
        ["info", "first", "--json"],
        ["explain", "graph.py"],
        ["run", "-Dexecution.target=simulated", "print.py"],
        ["checkpoint", "first"],
        ["checkpoints", "first"],
        ["checkpoints", directory, "--json"],
        ["checkpoints", directory, "--id", "1"],
        ["state", "show", directory],
        ["state", directory, "--json"],
        ["state", directory, "-s", "_reduce"],
        ["state", directory, "-s", "_reduce", "--csv"],
        ["state", "diff", f"{directory}/chk-1", f"{directory}/chk-1"],
        ["savepoint", "first", savepoint],
        ["stop", "first", "-p", savepoint, "--json"],
        ["wait", "second", "--timeout", "0"],
        ["cancel", "second"],
        ["logs", "third"],
        ["dev", "kafka", "status", "--port", "1"],
    ]
    tried = {tuple(line[: len(name)]) for line in lines for name in commands() if tuple(line[: len(name)]) == name}
    assert set(commands()) - tried - WITHOUT_OUTPUT == set(), "a command that is not tried here"
    ends = ended(tmp_path, lines)
    assert [(line, code, text) for line, code, text in ends if (code, text) != (ExitCode.BROKEN_PIPE, "")] == []


def test_a_job_whose_records_nobody_reads_ends_though_it_would_be_restarted(home: Path, tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(PRINTING)
    ((_, code, text),) = ended(tmp_path, [["run", "-Dexecution.target=simulated", "endless.py"]])
    assert (code, text) == (ExitCode.BROKEN_PIPE, "")


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help_ends_quietly(home: Path, tmp_path: Path, arguments: list[str]) -> None:
    ((_, code, text),) = ended(tmp_path, [arguments])
    assert code != 0 and text == ""


def test_an_error_is_shown_though_nobody_reads_the_output(home: Path, tmp_path: Path) -> None:
    ((_, code, text),) = ended(tmp_path, [["info", "nobody"]])
    assert code == 4 and "There is no job with this id" in text
