"""``tidegate explain``: the graph and how each function runs, and nothing is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.simulation.executor import SimulatedExecutor
from tidegate.cli.main import app
from tidegate.cli.outcome import ExitCode
from tidegate.datastream import executor

PROGRAM = """
import logging
from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.number_seq import NumberSequenceSource

def told(value):
    logging.info("%s", value)
    return value

env = StreamExecutionEnvironment.get_execution_environment()
pair = Types.TUPLE([Types.LONG(), Types.LONG()])
numbers = env.from_source(NumberSequenceSource(1, 10), WatermarkStrategy.no_watermarks(), "n", Types.LONG())
numbers = numbers.map(lambda x: (x % 3, x), output_type=pair).name("pairs")
totals = numbers.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1])).uid("totals")
totals.map(told).name("told").print()
try:
    env.execute("sums")
except Exception:
    print("went on")
print("went on")
"""


@pytest.fixture(autouse=True)
def _in_its_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_graph_ids_and_functions(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    result = CliRunner().invoke(app, ["explain", "-p", "2", "job.py"])
    assert result.exit_code == 0, result.output
    text = result.output
    assert "went on" not in text
    assert "job 'sums': 5 operators, 2 chains, 2 levels" in text
    assert "guarantee: no guarantee (without checkpoints a failure ends the job)" in text
    assert (
        "  NumberSequenceSource 'n' -> PrintSink at job.py:16: no guarantee (without checkpoints a failure ends the job); "
        "to raise it: env" in text
    )
    assert "parallelism 2" in text
    assert "uid totals, maximum parallelism 128, keyed" in text
    assert "pairs: <lambda> is on columns" in text
    assert "key of 'pairs': <lambda> is on columns" in text
    assert "told: told is called" in text
    assert "not inlined: calls logging.info" in text


def test_a_program_that_sets_its_target_is_explained_and_not_run(tmp_path: Path) -> None:
    target = 'get_execution_environment(Configuration.from_dict({"execution.target": "simulated"}))'
    text = PROGRAM.replace("import Types", "import Configuration, Types").replace("get_execution_environment()", target)
    (tmp_path / "job.py").write_text(text)
    result = CliRunner().invoke(app, ["explain", "job.py"])
    assert "job 'sums': 5 operators" in result.output and "went on" not in result.output


def test_a_program_that_executes_nothing(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("x = 1\n")
    result = CliRunner().invoke(app, ["explain", "job.py"])
    assert result.exit_code == ExitCode.BAD_PROGRAM
    assert "explain needs a program that calls execute()" in result.output


def test_the_guarantee_of_every_path(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    result = CliRunner().invoke(app, ["explain", "--json", "-Dexecution.checkpointing.interval=1s", "job.py"])
    (path,) = json.loads(result.output)["paths"]
    assert (path["source"], path["sink"], path["guarantee"]) == (
        "NumberSequenceSource 'n'",
        "PrintSink at job.py:16",
        "at-least-once",
    )
    assert "FileSink" in path["cure"]


def test_a_job_that_does_not_keep_what_is_required_is_not_started(tmp_path: Path) -> None:
    executor.register_executor("simulated", SimulatedExecutor)
    text = PROGRAM.replace("except Exception:", "except KeyError:")
    (tmp_path / "job.py").write_text(text)
    options = ["-Dexecution.target=simulated", "-Dexecution.checkpointing.interval=1s"]
    result = CliRunner().invoke(app, ["run", *options, "--require", "exactly-once", "job.py"])
    assert result.exit_code == ExitCode.BAD_PROGRAM, result.output
    assert "The job is not exactly-once" in result.output
    assert "sink PrintSink at job.py:16 repeats output after a failure" in result.output
    result = CliRunner().invoke(app, ["run", *options, "--require", "at-least-once", "job.py"])
    assert result.exit_code == 0, result.output


def test_what_may_be_required(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM.replace("except Exception:", "except KeyError:"))
    result = CliRunner().invoke(app, ["run", "--require", "perfect", "job.py"])
    assert "must be one of exactly-once, at-least-once, at-most-once" in result.output


FIVE_SINKS = """
from tidegate.common import Encoder, Types, WatermarkStrategy
from tidegate.datastream import SinkFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink
from tidegate.datastream.connectors.number_seq import NumberSequenceSource

class Upload(SinkFunction):
    def invoke(self, value, context):
        pass

def files(name):
    return FileSink.for_row_format(f"/tmp/{name}", Encoder.simple_string_encoder()).build()

env = StreamExecutionEnvironment.get_execution_environment()
numbers = env.from_source(NumberSequenceSource(1, 10), WatermarkStrategy.no_watermarks(), "n", Types.LONG())
numbers.sink_to(files("a")).uid("orders-out")
numbers.sink_to(files("b")).name("totals").uid("by-day")
numbers.sink_to(files("c"))
numbers.add_sink(Upload()).uid("sent")
numbers.add_sink(lambda value: None)
env.execute("five")
"""


def test_sinks_of_one_kind_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(FIVE_SINKS)
    named = [
        "FileSink 'orders-out'",
        "FileSink 'totals'",
        "FileSink at job.py:18",
        "Upload 'sent'",
        "lambda at job.py:20",
    ]
    every = ["explain", "-Dexecution.checkpointing.interval=1s"]
    shown = CliRunner().invoke(app, [*every, "job.py"]).output
    assert [line for line in shown.splitlines() if "exactly-once" in line] == [
        f"  NumberSequenceSource 'n' -> {name}: exactly-once" for name in named[:3]
    ]
    assert "    FileSink 'totals': uid by-day, maximum" in shown and "Writer" not in shown
    facts = json.loads(CliRunner().invoke(app, [*every, "--json", "job.py"]).output)
    assert [operator["label"] for operator in facts["operators"]] == ["NumberSequenceSource 'n'", *named]
    assert [operator["name"] for operator in facts["operators"]][1:3] == ["Sink: Writer", "totals"]  # as in Flink

    executor.register_executor("simulated", SimulatedExecutor)
    every = ["-Dexecution.target=simulated", "-Dexecution.checkpointing.interval=1s", "--require", "exactly-once"]
    refused = CliRunner().invoke(app, ["run", *every, "job.py"]).output
    assert "n' -> Upload 'sent': at-least-once (sink Upload 'sent' repeats output after a failure); " in refused
    assert "n' -> lambda at job.py:20: at-least-once" in refused and "FileSink '" not in refused


def test_the_graph_as_a_drawing(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    result = CliRunner().invoke(app, ["explain", "--svg", "graph.svg", "job.py"])
    assert result.exit_code == 0 and result.output == "drew graph.svg\n"
    drawn = (tmp_path / "graph.svg").read_text()
    assert drawn.startswith("<svg") and "told" in drawn and ">hash<" in drawn
    assert CliRunner().invoke(app, ["explain", "--svg", "-", "job.py"]).output == drawn


def test_a_drawing_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    result = CliRunner().invoke(app, ["explain", "--svg", "no/such/place.svg", "job.py"])
    assert (
        result.exit_code == ExitCode.BAD_PROGRAM
        and "The drawing cannot be written\n  where: no/such/place.svg" in result.output
    )


def test_types_that_annotations_give_are_shown_with_their_function(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM.replace("def told(value):", "def told(value) -> tuple[int, int]:"))
    shown = CliRunner().invoke(app, ["explain", "-Dtidegate.types.from-annotations=true", "job.py"]).output
    section = shown[shown.index("types from annotations") :].splitlines()
    assert section[0] == "types from annotations (tidegate.types.from-annotations):"
    assert section[1].startswith("  told: Tuple") and section[1].endswith(", the annotation of told")
    assert len(section) == 2, "declared types are not among them"
    facts = json.loads(
        CliRunner().invoke(app, ["explain", "--json", "-Dtidegate.types.from-annotations=true", "job.py"]).output
    )
    by_name = {operator["name"]: (operator["type"], operator["annotated"]) for operator in facts["operators"]}
    assert by_name["told"] == ("TUPLE<LONG, LONG>", "told") and by_name["pairs"] == ("TUPLE<LONG, LONG>", None)
    assert "types from annotations" not in CliRunner().invoke(app, ["explain", "job.py"]).output
