"""SIGTERM ends every command that can take long, whatever it waits for: real processes, on the simulated engine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.unit.control.drivers import PROGRAM, Driver
from tests.waiting import eventually
from tidegate.control import registry

TIDEGATE = [sys.executable, "-m", "tidegate.cli"]
ENDED = (-signal.SIGTERM, 128 + signal.SIGTERM)
SIMULATED = "-Dexecution.target=simulated"
HANGS = """
import threading
from tidegate.datastream import executor
from tidegate.testing.simulation import engine as simulated_engine
from tidegate.operators.contracts.sink import Sink

executor.START_S = executor.END_S = 0.5


def hangs(*_):
    open("hangs", "w").close()
    threading.Event().wait()


{}
"""
PHASES = {
    "the program is built": "hangs()",
    "a sink is asked before the start": "Sink.validate = hangs",
    "Spark starts": "simulated_engine.SimulatedEngine.start = hangs",
    "a round cannot be cancelled": "simulated_engine.SimulatedEngine.run = hangs",
}


@pytest.fixture(autouse=True)
def place(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command; what is left of it at the end is killed."""
    processes: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        for each in children(process) if process.poll() is None else []:
            each.kill()
        process.kill()
        process.communicate()


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def hanging(place: Path, phase: str) -> None:
    (place / "job.py").write_text(HANGS.format(PHASES[phase]) + PROGRAM)


def end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    told = process.communicate(timeout=90)[0]
    assert process.returncode in ENDED, told


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("how", [[], ["--supervise"], ["-d"]], ids=["attached", "supervised", "detached"])
def test_run_ends_with_its_driver_while_it_hangs(
    place: Path, started: Callable[..., subprocess.Popen[str]], phase: str, how: list[str]
) -> None:
    if phase == "a round cannot be cancelled" and how == ["-d"]:
        pytest.skip("the job runs: the command has ended")
    hanging(place, phase)
    run = started(*TIDEGATE, "run", SIMULATED, *how, "job.py", f"execution.checkpointing.dir={place}/ck")
    eventually((place / "hangs").exists, "it hangs")
    drivers = children(run)
    assert bool(drivers) == bool(how)
    end(run)
    _, alive = psutil.wait_procs(drivers, timeout=90)
    assert not alive


@pytest.mark.parametrize("waiting", ["savepoint", "stop", "checkpoint", "cancel"])
def test_command_that_waits_for_a_job(
    place: Path, driver: Callable[..., Driver], started: Callable[..., subprocess.Popen[str]], waiting: str
) -> None:
    """The driver is stopped, so that it answers nobody."""
    job = driver("waiting").running()
    record = job.record()
    os.kill(record.owner.pid, signal.SIGSTOP)
    command = started(*TIDEGATE, waiting, "waiting", *(["/tmp/sp"] if waiting == "savepoint" else []))
    eventually(lambda: psutil.Process(command.pid).net_connections("all"), "it asks the driver")
    end(command)
    assert registry.records()[-1].state == "RUNNING"


def test_debugger_that_waits_for_its_user(place: Path, started: Callable[..., subprocess.Popen[str]]) -> None:
    program = PROGRAM.replace("(index % 3, index)", "(index % 3, index // (5 - index))")
    (place / "job.py").write_text(program)
    keys = ["tidegate.job-id=bad", f"execution.checkpointing.dir={place}/ck", "restart-strategy.type=none"]
    failed = started(*TIDEGATE, "run", SIMULATED, "job.py", *keys)
    assert failed.communicate(timeout=90) and failed.returncode == 1
    debug = started(*TIDEGATE, "debug", f"{place}/ck/bad")
    assert debug.stdout is not None
    assert any("variables: record, key" in line for line in debug.stdout)
    end(debug)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root makes a process 1")
@pytest.mark.parametrize("phase", ["the program is built", "a sink is asked before the start"])
def test_first_process_of_a_container(place: Path, started: Callable[..., subprocess.Popen[str]], phase: str) -> None:
    """The kernel keeps signals from it that it has no handler for."""
    hanging(place, phase)
    run = started("unshare", "--fork", "--pid", "--kill-child", *TIDEGATE, "run", SIMULATED, "job.py")
    eventually((place / "hangs").exists, "it hangs")
    [first] = psutil.Process(run.pid).children()
    first.terminate()
    assert run.wait(90) in ENDED
