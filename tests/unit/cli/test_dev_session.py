"""A development session with programs that need no Spark: streams, exit codes, edits, signals, hosts that die, and strangers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TIDEGATE = [sys.executable, "-m", "tidegate.cli", "dev"]
PROGRAM = """\
import os
import sys

import beside

print(beside.word, sys.argv[1:], os.environ["CITY"], os.getcwd() == os.path.dirname(__file__))
print(os.getpid(), file=sys.stderr)
if "text" in sys.argv:
    sys.exit("said at the end")
if "raise" in sys.argv:
    raise ValueError("raised")
if "read" in sys.argv:
    print(input())
sys.exit(7 if "seven" in sys.argv else None)
"""
WAITS = """\
import time
try:
    print("waits", flush=True)
    while True:
        time.sleep(0.1)  # signal.pause() would miss a signal that arrives just before it
except KeyboardInterrupt:
    print("interrupted")
    raise
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("word = 'first'\n")
    (tmp_path / "waits.py").write_text(WAITS)
    (tmp_path / "dies.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    return tmp_path


@pytest.fixture
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {**os.environ, "TIDEGATE_HOME": str(tmp_path_factory.mktemp("h")), "CITY": "Rome"}


@pytest.fixture
def session(variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([*TIDEGATE, "session"], cwd="/", env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and "run programs with tidegate dev run" in process.stdout.readline()
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert not Path(variables["TIDEGATE_HOME"], "sockets", "dev-session").exists()


def run(place: Path, variables: dict[str, str], *arguments: str, code: int = 0, given: str = "") -> tuple[str, str]:
    """What the program prints and what it reports."""
    done = subprocess.run(
        [*TIDEGATE, "run", *arguments],
        cwd=place,
        env=variables,
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.mark.usefixtures("session")
def test_streams_arguments_environment_and_exit_codes_are_the_programs(place: Path, variables: dict[str, str]) -> None:
    printed, first = run(place, variables, "job.py", "a", "-b")
    assert printed == "first ['a', '-b'] Rome True\n"
    assert run(place, {**variables, "CITY": "Oslo"}, "job.py", "seven", code=7) == (
        "first ['seven'] Oslo True\n",
        first,
    )
    assert run(place, variables, "job.py", "text", code=1)[1] == f"{first}said at the end\n"
    assert "ValueError: raised" in run(place, variables, "job.py", "raise", code=1)[1]
    assert run(place, variables, "job.py", "read", given="from the client\n")[0].endswith("from the client\n")
    assert run(place, variables, "no.py", code=10)[1].startswith("ConfigurationError: There is no program at this path")


@pytest.mark.usefixtures("session")
def test_an_edited_program_needs_no_new_process_and_an_edited_module_does(
    place: Path, variables: dict[str, str]
) -> None:
    first = run(place, variables, "job.py")[1]
    (place / "job.py").write_text(PROGRAM.replace("beside.word", "beside.word.upper()"))
    assert run(place, variables, "job.py") == ("FIRST [] Rome True\n", first)
    (place / "beside.py").write_text("word = 'second word'\n")
    printed, second = run(place, variables, "job.py")
    assert printed == "SECOND WORD [] Rome True\n" and second != first
    other = run(place, variables, "-Dspark.master=local[1]", "job.py")[1]
    assert other != second, "Spark reads its settings when it starts"


def test_ctrl_c_ends_the_program_and_not_the_session(
    session: subprocess.Popen[str], place: Path, variables: dict[str, str]
) -> None:
    command = [*TIDEGATE, "run", "waits.py"]
    with subprocess.Popen(command, cwd=place, env=variables, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None and client.stdout.readline() == "waits\n"
        client.send_signal(signal.SIGINT)
        assert client.stdout.read() == "interrupted\n" and client.wait(60) == 130
    assert session.poll() is None
    assert run(place, variables, "job.py")[0] == "first [] Rome True\n"


@pytest.mark.usefixtures("session")
def test_a_program_whose_client_is_killed_is_interrupted(place: Path, variables: dict[str, str]) -> None:
    command = [*TIDEGATE, "run", "waits.py"]
    with subprocess.Popen(command, cwd=place, env=variables, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None and client.stdout.readline() == "waits\n"
        client.kill()
    assert run(place, variables, "job.py")[0] == "first [] Rome True\n", "the session is free again"


@pytest.mark.usefixtures("session")
def test_a_program_that_is_the_first_to_import_multiprocessing_may_be_edited(
    place: Path, variables: dict[str, str]
) -> None:
    """multiprocessing, which pyspark imports, gives the program a second name, ``__mp_main__``: it is no module beside it."""
    (place / "forks.py").write_text("import multiprocessing, os\nprint(os.getpid())\n")
    first = run(place, variables, "forks.py")
    (place / "forks.py").write_text("import multiprocessing, os\nprint(os.getpid())  # edited\n")
    assert run(place, variables, "forks.py") == first


@pytest.mark.usefixtures("session")
def test_a_process_that_dies_is_reported_and_replaced(place: Path, variables: dict[str, str]) -> None:
    said = run(place, variables, "dies.py", code=7)[1]
    assert said.startswith("UnreachableError: The process of the session that ran the program has died\n")
    assert run(place, variables, "job.py")[0] == "first [] Rome True\n"


@pytest.mark.usefixtures("session")
def test_a_second_session_is_refused(variables: dict[str, str]) -> None:
    command = [*TIDEGATE, "session"]
    second = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 10
    assert second.stderr.startswith("ConfigurationError: A development session of this user already runs\n")


def test_without_a_session_the_error_names_the_command(place: Path, variables: dict[str, str]) -> None:
    said = run(place, variables, "job.py", code=7)[1]
    assert said.startswith("UnreachableError: No development session runs\n")
    assert "  cure: start one in another terminal: tidegate dev session\n" in said


def test_a_session_that_was_killed_does_not_stop_the_next_one(place: Path, variables: dict[str, str]) -> None:
    for _ in range(2):
        with subprocess.Popen([*TIDEGATE, "session"], env=variables, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and "run programs" in process.stdout.readline()
            assert run(place, variables, "job.py")[0] == "first [] Rome True\n"
            process.kill()


@pytest.mark.usefixtures("session")
def test_nonsense_does_not_stop_the_session(place: Path, variables: dict[str, str]) -> None:
    address = Path(variables["TIDEGATE_HOME"], "sockets", "dev-session")
    assert address.parent.stat().st_mode & 0o077 == 0, "only the user reaches it"
    for nonsense in (b"", b"\xff\xff\xff\xff", b"\x00\x00\x00\x05hello", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(address))
            stranger.sendall(nonsense)
    assert run(place, variables, "job.py")[0] == "first [] Rome True\n"
