"""What a person sees on a terminal while a job runs: in a real pseudo terminal, with a job on the simulated engine."""

from __future__ import annotations

import fcntl
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from tidegate.cli.terminal import TerminalFace
from tidegate.control.face import ControlFace
from tidegate.control.telemetry import TelemetryFace
from tidegate.datastream import executor

PROGRAM = """
import logging, sys, threading
from tidegate.common import Configuration
from tidegate.datastream import StreamExecutionEnvironment, executor
from tests.simulation.executor import SimulatedExecutor

executor.register_executor("simulated", SimulatedExecutor)
keys = {"execution.target": "simulated", "tidegate.round.max-records": 1}
keys |= dict(argument.split("=") for argument in sys.argv[1:])
env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(keys)).set_parallelism(1)
"""
JOB = """
def slow(value):
    threading.Event().wait(0.3)
    logging.warning("value %d", value)
    return value

logging.basicConfig(format="LOG %(message)s")
env.from_collection(range(5)).uid("numbers").map(slow).print("out")
env.execute("five")
print("the program goes on")
"""
END = b"<the end of the test>"


def plain_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in ("CI", "NO_COLOR")} | {"TERM": "xterm"}


def on_terminal(
    directory: Path, program: str, *arguments: str, environment: dict[str, str] | None = None, columns: int = 250
) -> str:
    """What comes out of a pseudo terminal that all three streams of the program are connected to."""
    (directory / "job.py").write_text(PROGRAM + program)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    command = [sys.executable, "job.py", *arguments]
    child = subprocess.Popen(
        command,
        cwd=directory,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=plain_environment() | (environment or {}),
    )
    heard = bytearray()
    reading = threading.Thread(target=_read_until_end, args=(ours, heard))
    reading.start()
    child.wait()
    # The last writer is this test: what a terminal has not handed on when it is closed may be lost
    os.write(theirs, END)
    reading.join()
    os.close(theirs)
    os.close(ours)
    return heard.removesuffix(END).decode().replace("\r\n", "\n")


def _read_until_end(terminal: int, heard: bytearray) -> None:
    while not heard.endswith(END):
        heard += os.read(terminal, 65536)


def screen(heard: str) -> list[str]:
    """What is on the screen in the end: an erased line is not, and colours are none."""
    lines = [line.rpartition("\r\x1b[2K")[2] for line in heard.split("\n")]
    return [re.sub(r"\x1b\[\dm", "", line) for line in lines if line]


def test_start_live_and_end_line_and_nothing_is_garbled(tmp_path: Path) -> None:
    heard = on_terminal(
        tmp_path,
        JOB,
        "tidegate.job-id=five",
        f"execution.checkpointing.dir={tmp_path}/ck",
        "execution.checkpointing.interval=10 ms",
    )
    seen = screen(heard)
    assert seen[0] == (
        "job 'five' (five) starts from the beginning; at-least-once (sink PrintSink at job.py:18 repeats output after a "
        f"failure); a checkpoint every 10 ms in {tmp_path}/ck/five"
    )
    ends = [line for line in seen if line.startswith("job 'five' has finished: 5 records in ")]
    assert len(ends) == 1
    others = [line for line in seen[1:] if line not in ends]
    assert [line for line in others if line.startswith("out> ")] == [f"out> {n}" for n in range(5)]
    assert [line for line in others if line.startswith("LOG ")] == [f"LOG value {n}" for n in range(5)]
    assert all(re.fullmatch(r"out> \d|LOG value \d|the program goes on", line) for line in others), others
    live = re.findall(r"\x1b\[2K\x1b\[2m(.*?)\x1b\[0m", heard)
    assert any(re.match(r"RUNNING \d s · \d rounds?, \d records?, \d+/s · (no )?checkpoint", line) for line in live), (
        live
    )
    assert all(line.endswith(f"five · more in {tmp_path}/ck/five/history.json") for line in live)


def test_the_live_line_fits_into_a_narrow_terminal(tmp_path: Path) -> None:
    heard = on_terminal(tmp_path, JOB, columns=30)
    live = re.findall(r"\x1b\[2K\x1b\[2m(.*?)\x1b\[0m", heard)
    assert live and all(len(line) <= 29 for line in live), live


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"CI": "true"}])
def test_a_terminal_that_cannot_erase_gets_two_lines_only(tmp_path: Path, environment: dict[str, str]) -> None:
    heard = on_terminal(tmp_path, JOB, environment=environment)
    assert "\x1b" not in heard and "\r" not in heard and "RUNNING" not in heard
    assert len([line for line in screen(heard) if line.startswith("job 'five' ")]) == 2


def test_no_color_is_respected(tmp_path: Path) -> None:
    heard = on_terminal(tmp_path, JOB, environment={"NO_COLOR": "1"})
    assert "RUNNING" in heard and "\x1b[2m" not in heard


def test_a_failed_job_ends_with_its_line_before_the_traceback(tmp_path: Path) -> None:
    heard = on_terminal(tmp_path, 'env.from_collection([1]).map(lambda v: 1 / 0).print()\nenv.execute("bad")\n')
    seen = screen(heard)
    assert [n for n, line in enumerate(seen) if line.startswith("job 'bad' has failed: 0 records in 0 rounds, ")] == [1]
    assert any("ZeroDivisionError" in line for line in seen[2:])


def test_a_line_the_user_has_not_ended_is_left_alone(tmp_path: Path) -> None:
    program = JOB.replace('logging.warning("value %d", value)', 'print(value, end=" ", flush=True)')
    heard = on_terminal(tmp_path, program.replace('.print("out")', ".add_sink(lambda value: None)"))
    lines = re.sub(r"\r\x1b\[2K(\x1b\[2m.*?\x1b\[0m)?", "", heard).split("\n")
    assert any(line.startswith("0 1 2 3 4 ") for line in lines), lines
    assert any(line.startswith("job 'five' has finished") for line in lines), lines


FINISHED = """
for _ in range(2):
    env.from_collection([1]).uid("one").print()
    env.execute("once")
"""


def test_a_job_that_had_finished_says_so_once(tmp_path: Path) -> None:
    keys = (
        "tidegate.job-id=once",
        f"execution.checkpointing.dir={tmp_path}/ck",
        "execution.checkpointing.interval=1 s",
    )
    seen = screen(on_terminal(tmp_path, FINISHED, *keys))
    assert seen[-1] == (
        "job 'once' (once) finished in an earlier run: there is nothing to do. To run it again from the start, give it "
        "another tidegate.job-id"
    )
    assert seen[-2].startswith("job 'once' has finished: 1 record in ")


def test_the_program_has_the_terminal_while_its_job_is_in_the_background(tmp_path: Path) -> None:
    program = JOB.replace('env.execute("five")', 'env.execute_async("five").get_job_execution_result().result()')
    heard = on_terminal(tmp_path, program)
    assert "RUNNING" not in heard and "\x1b" not in heard
    assert len([line for line in screen(heard) if line.startswith("job 'five' ")]) == 2


def test_where_there_is_no_terminal_nothing_is_shown(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM + 'env.from_collection([1, 2]).print()\nenv.execute("x")\n')
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, env=plain_environment(), check=True
    )
    assert (done.stdout, done.stderr) == ("1\n2\n", "")


def test_output_that_goes_into_a_file_is_untouched_while_the_terminal_shows_the_job(tmp_path: Path) -> None:
    program = f'sys.stdout = open("{tmp_path}/out", "w")\n' + JOB
    heard = on_terminal(tmp_path, program)
    assert (tmp_path / "out").read_text() == "".join(f"out> {n}\n" for n in range(5)) + "the program goes on\n"
    assert "out>" not in heard and "RUNNING" in heard


class Broken:
    def watch(self, job: Any, *, awaited: bool) -> Any:
        raise RuntimeError("no face")


class BrokenLater:
    def watch(self, job: Any, *, awaited: bool) -> Any:
        def wait() -> None:
            raise RuntimeError("no face")

        return wait


class Point:
    def __init__(self, face: Any) -> None:
        self.face, self.name = face, "test"

    def load(self) -> Any:
        return self.face


@pytest.mark.parametrize("face", [Broken, BrokenLater])
def test_a_face_that_fails_does_not_break_the_job(
    face: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor, "entry_points", lambda group: [Point(face)])
    with caplog.at_level(logging.DEBUG):
        executor.watch(object(), awaited=True)()  # type: ignore[arg-type]
    assert "RuntimeError: no face" in caplog.text


def test_the_faces_are_installed() -> None:
    assert {point.load() for point in entry_points(group=executor.FACES)} == {
        ControlFace,
        TelemetryFace,
        TerminalFace,
    }
