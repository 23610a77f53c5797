"""Examples that come with PyFlink print the same with ``tidegate`` written for ``pyflink`` in them, and nothing else changed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyflink_place import pyflink_python

EXAMPLES = ["basic_operations", "event_time_timer", "process_json_data", "state_access", "word_count"]
"""Of pyflink/examples/datastream, those that need neither tables nor windows nor connectors of other systems."""

pytestmark = [pytest.mark.pyflink, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def examples() -> Path:
    find = "import pathlib, pyflink; print(pathlib.Path(pyflink.__file__).parent / 'examples' / 'datastream')"
    return Path(subprocess.check_output([pyflink_python(), "-c", find], text=True).strip())


def printed(python: Path, program: Path, *arguments: str) -> list[str]:
    """The records, which are tuples: some examples log to the same output. Without the subtask in front of a line: which one a key
    belongs to is the engine's choice."""
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    command = [str(python), str(program), *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = [re.sub(r"^\d+> ", "", line) for line in ended.stdout.splitlines()]
    return sorted(line for line in lines if line.startswith("("))


def translated(program: Path, directory: Path) -> Path:
    copied = directory / program.name
    copied.write_text(program.read_text().replace("from pyflink.", "from tidegate."))
    return copied


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_prints_on_pyflink(name: str, examples: Path, tmp_path: Path) -> None:
    program = examples / f"{name}.py"
    expected = printed(pyflink_python(), program)
    assert expected, "nothing was printed"
    assert printed(Path(sys.executable), translated(program, tmp_path)) == expected


def test_word_count_reads_and_writes_files_alike(examples: Path, tmp_path: Path) -> None:
    program = examples / "word_count.py"
    text = tmp_path / "text"
    text.write_text("to be or not to be\n\nthat is the question\n")
    found = []
    for engine, python, source in [
        ("pyflink", pyflink_python(), program),
        ("tidegate", Path(sys.executable), translated(program, tmp_path)),
    ]:
        out = tmp_path / engine
        printed(python, source, "--input", str(text), "--output", str(out))
        parts = [path for path in out.rglob("*") if path.is_file() and not path.name.startswith(".")]
        names = [(path.name.split("-")[0], path.suffix) for path in parts]
        found.append((names, sorted(line for path in parts for line in path.read_text().splitlines())))
    assert found[0] == found[1]
    assert "(be,2)" in found[0][1]
