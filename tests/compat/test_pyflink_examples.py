"""Examples that come with PyFlink print by ``tidegate run --pyflink``, unchanged, what they printed on PyFlink.

What PyFlink printed is recorded in ``examples.json``; the programs are those of an installed PyFlink. ``make record-pyflink``
records anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.pyflink_place import pyflink_python

HERE = Path(__file__).parent
RECORDED = HERE / "examples.json"
PLAIN = ["basic_operations", "event_time_timer", "process_json_data", "state_access", "word_count"]
WINDOWS = ["session_with_dynamic_gap", "session_with_gap", "sliding_time", "tumbling_count", "tumbling_time"]
EXAMPLES = [*PLAIN, *(f"windowing/{name}_window" for name in WINDOWS)]
ELSEWHERE = {
    "streaming_word_count": "reads a table, random words without an end",
    "asyncio/remote_model_inference": "reads a table, random texts without an end",
    "connectors/elasticsearch": "needs Elasticsearch",
    "connectors/kafka_avro_format": "in test_pyflink_kafka_examples.py",
    "connectors/kafka_bytearray_format": "in test_pyflink_kafka_examples.py",
    "connectors/kafka_csv_format": "in test_pyflink_kafka_examples.py",
    "connectors/kafka_json_format": "in test_pyflink_kafka_examples.py",
    "connectors/kafka_row_field_extractor_example": "in test_pyflink_kafka_examples.py",
    "connectors/pulsar": "needs Pulsar",
}
"""Those of pyflink/examples/datastream that are not run here."""
MARK = "### "

pytestmark = [pytest.mark.pyflink, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def examples() -> Path:
    find = "import pathlib, pyflink; print(pathlib.Path(pyflink.__file__).parent / 'examples' / 'datastream')"
    return Path(subprocess.check_output([pyflink_python(), "-c", find], text=True).strip())


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[str]]:
    """Read before PyFlink runs: when its results are recorded anew, the tests still tell which ones have changed."""
    found: dict[str, list[str]] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    return found


def output(command: list[str]) -> str:
    environment = {**os.environ, "PATH": f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def printed(python: str, engine: str, examples: Path) -> dict[str, list[str]]:
    """What each example prints, all run by one process: the records, which are tuples; some examples log to the same output.
    Without the subtask in front of a line: which one a key belongs to is the engine's choice."""
    programs = {str(examples / f"{name}.py"): name for name in EXAMPLES}
    found: dict[str, list[str]] = {}
    for line in output([python, str(HERE / "run_examples.py"), engine, MARK, *programs]).splitlines():
        if line.startswith(MARK):
            found[programs[line.removeprefix(MARK)]] = []
        elif (record := re.sub(r"^\d+> ", "", line)).startswith("("):
            found[list(found)[-1]].append(record)
    return {name: sorted(lines) for name, lines in found.items()}


@pytest.fixture(scope="module")
def of_pyflink(examples: Path) -> dict[str, list[str]]:
    found = printed(str(pyflink_python()), "pyflink", examples)
    if os.environ.get("TIDEGATE_RECORD_PYFLINK"):
        RECORDED.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n")
    return found


@pytest.fixture(scope="module")
def of_tidegate(examples: Path) -> dict[str, list[str]]:
    return printed(sys.executable, "tidegate", examples)


@pytest.mark.parametrize("name", EXAMPLES)
def test_pyflink_prints_what_is_recorded(
    name: str, of_pyflink: dict[str, list[str]], recorded: dict[str, list[str]]
) -> None:
    assert of_pyflink[name], "nothing was printed"
    assert of_pyflink[name] == recorded.get(name), "make record-pyflink takes it over"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_printed_on_pyflink(
    name: str, of_tidegate: dict[str, list[str]], recorded: dict[str, list[str]]
) -> None:
    assert of_tidegate[name], "nothing was printed"
    assert of_tidegate[name] == recorded[name]


def test_every_example_is_run_or_has_a_reason(examples: Path) -> None:
    there = {path.relative_to(examples).with_suffix("").as_posix() for path in examples.rglob("*.py")}
    assert there - {"__init__"} == {*EXAMPLES, *ELSEWHERE}


def test_word_count_reads_and_writes_files_alike(examples: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("to be or not to be\n\nthat is the question\n")
    found = []
    tidegate = [sys.executable, "-m", "tidegate.cli.main", "run", "--pyflink"]
    for engine, command in [("pyflink", [str(pyflink_python())]), ("tidegate", tidegate)]:
        out = tmp_path / engine
        output([*command, str(examples / "word_count.py"), "--input", str(text), "--output", str(out)])
        parts = [path for path in out.rglob("*") if path.is_file() and not path.name.startswith(".")]
        names = [(path.name.split("-")[0], path.suffix) for path in parts]
        found.append((names, sorted(line for path in parts for line in path.read_text().splitlines())))
    assert found[0] == found[1]
    assert "(be,2)" in found[0][1]
