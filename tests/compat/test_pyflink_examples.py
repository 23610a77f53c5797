"""Examples that come with PyFlink print the same by ``tidegate run --pyflink``, unchanged, and without PyFlink."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyflink_place import pyflink_python

PLAIN = ["basic_operations", "event_time_timer", "process_json_data", "state_access", "word_count"]
WINDOWS = ["session_with_dynamic_gap", "session_with_gap", "sliding_time", "tumbling_count", "tumbling_time"]
EXAMPLES = [*PLAIN, *(f"windowing/{name}_window" for name in WINDOWS)]
"""Of pyflink/examples/datastream, all that need neither tables nor other systems."""
TIDEGATE = [sys.executable, "-m", "tidegate.cli.main", "run", "--pyflink"]

pytestmark = [pytest.mark.pyflink, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def examples() -> Path:
    find = "import pathlib, pyflink; print(pathlib.Path(pyflink.__file__).parent / 'examples' / 'datastream')"
    return Path(subprocess.check_output([pyflink_python(), "-c", find], text=True).strip())


def printed(command: list[str], program: Path, *arguments: str) -> list[str]:
    """The records, which are tuples: some examples log to the same output. Without the subtask in front of a line: which one a key
    belongs to is the engine's choice."""
    environment = {**os.environ, "PATH": f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"}
    whole = [*command, str(program), *arguments]
    ended = subprocess.run(whole, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = [re.sub(r"^\d+> ", "", line) for line in ended.stdout.splitlines()]
    return sorted(line for line in lines if line.startswith("("))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_prints_on_pyflink(name: str, examples: Path) -> None:
    program = examples / f"{name}.py"
    expected = printed([str(pyflink_python())], program)
    assert expected, "nothing was printed"
    assert printed(TIDEGATE, program) == expected


def test_word_count_reads_and_writes_files_alike(examples: Path, tmp_path: Path) -> None:
    program = examples / "word_count.py"
    text = tmp_path / "text"
    text.write_text("to be or not to be\n\nthat is the question\n")
    found = []
    for engine, command in [("pyflink", [str(pyflink_python())]), ("tidegate", TIDEGATE)]:
        out = tmp_path / engine
        printed(command, program, "--input", str(text), "--output", str(out))
        parts = [path for path in out.rglob("*") if path.is_file() and not path.name.startswith(".")]
        names = [(path.name.split("-")[0], path.suffix) for path in parts]
        found.append((names, sorted(line for path in parts for line in path.read_text().splitlines())))
    assert found[0] == found[1]
    assert "(be,2)" in found[0][1]
