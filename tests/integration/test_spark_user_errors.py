"""What user code raises in a worker is seen on the driver as if it had been raised there: causes, traceback, the user's line."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext

from tests.integration.job_tools import check_message
from tidegate.base.errors import ConfigurationError, JobFailedError, RoundError, UserCodeError
from tidegate.base.portable_errors import RemoteTraceback
from tidegate.common import WatermarkStrategy
from tidegate.datastream import MapFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.datagen import DataGeneratorSource


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(Path(__file__).read_text().split("\n"), 1) if text in line)


def failure_of(env: StreamExecutionEnvironment) -> JobFailedError:
    with pytest.raises(JobFailedError) as failed:
        env.execute()
    return failed.value


class OrderNotRead(Exception):
    pass


class ReadOrder(MapFunction):
    def map(self, value: Any) -> Any:
        try:
            return self.parse(value)
        except ValueError as error:
            raise OrderNotRead("an order must be JSON") from error

    def parse(self, value: Any) -> Any:
        return json.loads(value)["id"]


def test_an_error_in_a_library_names_the_users_line_and_keeps_the_traceback(make_env: Any) -> None:
    env = make_env()
    env.from_collection(["[]", "{"]).map(lambda text: json.loads(text)).name("parse").add_sink(lambda v: None)
    failed = failure_of(env)
    error = failed.__cause__
    assert isinstance(error, UserCodeError)
    check_message(
        error, rule="A user function", where=f"{__file__}:{line_of('lambda text: json.loads')} in", found="JSON"
    )
    assert isinstance(error.__cause__, json.JSONDecodeError)
    shown = "".join(traceback.format_exception(failed))
    assert f'{__file__}", line {line_of("lambda text: json.loads")}' in shown
    assert "lambda text: json.loads(text)" in shown and "json/decoder.py" in shown


def test_raise_from_keeps_its_cause(make_env: Any) -> None:
    env = make_env()
    env.from_collection(["{"]).map(ReadOrder()).add_sink(lambda v: None)
    error = failure_of(env).__cause__
    assert error is not None
    assert isinstance(error.__cause__, OrderNotRead)
    assert isinstance(error.__cause__.__cause__, json.JSONDecodeError)
    remote = error.__cause__.__cause__.__cause__
    assert isinstance(remote, RemoteTraceback)
    assert "in parse" in str(remote) and "in map" in str(remote)


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt("now"), StopIteration("done"), GeneratorExit("x")])
@pytest.mark.parametrize("part", ["map", "sink", "key"])
def test_what_would_end_the_worker_is_an_error_with_operator_and_record(
    make_env: Any, ending: BaseException, part: str
) -> None:
    def leave(value: Any) -> Any:
        if value == 3:
            raise ending
        return value

    def same(value: Any) -> Any:
        return value

    env = make_env(parallelism=1)
    stream = env.from_collection([1, 2, 3, 4]).map(leave if part == "map" else same).name("leaving")
    stream = stream.key_by(leave).map(same) if part == "key" else stream
    stream.add_sink(leave if part == "sink" else same)
    error = failure_of(env).__cause__
    assert isinstance(error, UserCodeError)
    where = "operator 'Sink: Unnamed', sink function" if part == "sink" else "operator 'leaving'"
    check_message(
        error, rule="A user function raised", where=where, found=f"{type(ending).__name__}: {ending}; record 3"
    )
    assert f"{__file__}:{line_of('raise ending')} in leave" in str(error)


def test_a_generator_function_that_raises_stop_iteration_does_not_end_the_stream(make_env: Any) -> None:
    def draw(index: int) -> int:
        if index == 50:
            raise StopIteration
        return index

    env = make_env()
    env.from_source(DataGeneratorSource(draw, 1_000), WatermarkStrategy.no_watermarks(), "numbers").add_sink(
        lambda v: None
    )
    error = failure_of(env).__cause__
    check_message(error, rule="The generator function failed", where="in draw", found="StopIteration:  (index 50)")  # type: ignore[arg-type]


def test_the_log_of_a_restart_has_the_traceback(make_env: Any, caplog: pytest.LogCaptureFixture) -> None:
    env = make_env(
        {
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 1,
            "restart-strategy.fixed-delay.delay": "1 ms",
        }
    )
    env.from_collection(["{"]).map(ReadOrder()).add_sink(lambda v: None)
    with caplog.at_level(logging.WARNING):
        failure_of(env)
    restarts = [r for r in caplog.records if "restart in" in r.getMessage()]
    assert len(restarts) == 1
    assert 'json.loads(value)["id"]' in logging.Formatter().format(restarts[0])


def test_a_function_no_worker_can_load_is_named(make_env: Any) -> None:
    class Odd:
        def __reduce__(self) -> Any:
            return eval, ("missing_in_the_worker",)

    env = make_env()
    odd = Odd()
    env.from_collection([1]).map(lambda v: (odd, v)).add_sink(lambda v: None)
    error = failure_of(env).__cause__
    assert isinstance(error, RoundError)
    assert "NameError: name 'missing_in_the_worker' is not defined" in str(error)


PROGRAM = """
import functools, json, sys
from tidegate.datastream import StreamExecutionEnvironment

@functools.lru_cache
def parse(text):
    return json.loads(text)

def read(text):
    return parse(text)["id"]

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.from_collection(['{"id": 7}'] + sys.argv[1:]).map(read).print()
env.execute()
"""


def tidegate_run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tidegate.cli.main import main; main()", "run", "--master", "local[1]"]
    script = directory / "main.py"
    script.write_text(PROGRAM)
    options = [a for a in arguments if a.startswith("-")]
    rest = [a for a in arguments if not a.startswith("-")]
    return subprocess.run(
        [*command, *options, str(script), *rest], capture_output=True, text=True, timeout=200, check=False
    )


def test_a_cached_function_of_the_main_program_runs(tmp_path: Path) -> None:
    done = tidegate_run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "7\n"


def test_the_command_line_shows_the_message_and_with_v_the_traceback(tmp_path: Path) -> None:
    plain, verbose = tidegate_run(tmp_path, "{"), tidegate_run(tmp_path, "-v", "{")
    assert plain.returncode == verbose.returncode == 1
    for done in (plain, verbose):
        assert "A user function raised an exception" in done.stderr
        assert f"{tmp_path}/main.py:7 in parse" in done.stderr
    assert 'return parse(text)["id"]' not in plain.stderr and "json/decoder.py" not in plain.stderr
    assert 'return parse(text)["id"]' in verbose.stderr and "json/decoder.py" in verbose.stderr
    assert "The above exception was the direct cause" in verbose.stderr


# -- errors that no restart cures ----------------------------------------------------------------------------------------------


def _arrive(error: Exception) -> Any:
    if TaskContext.get() is not None:
        raise error
    return NotThere(error)


class NotThere(MapFunction):
    """A function that cannot be loaded in a worker, so that its task ends before it can acknowledge anything."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return _arrive, (self.error,)

    def map(self, value: Any) -> Any:
        return value


FOR_EVER = {
    "execution.checkpointing.interval": "1 s",
    "restart-strategy.type": "exponential-delay",
    "restart-strategy.exponential-delay.initial-backoff": "1 ms",
    "restart-strategy.exponential-delay.max-backoff": "1 ms",
}


def test_configuration_error_that_ends_a_task_ends_the_job(make_env: Any, caplog: pytest.LogCaptureFixture) -> None:
    env = make_env(FOR_EVER)
    error = ConfigurationError("a name node must be named", where="hdfs:///", found="none", cure="set HADOOP_CONF_DIR")
    env.from_collection([1]).map(NotThere(error)).add_sink(lambda v: None)
    failed = failure_of(env).__cause__
    assert type(failed) is ConfigurationError and str(failed) == str(error)
    assert not [record for record in caplog.records if "restart in" in record.getMessage()]


def test_first_round_that_never_succeeds_ends_the_job_with_the_cure(
    make_env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    env = make_env(FOR_EVER)
    missing = ModuleNotFoundError("No module named 'of_this_host_only'")
    env.from_collection([1]).map(NotThere(missing)).add_sink(lambda v: None)
    failed = failure_of(env).__cause__
    assert isinstance(failed, RoundError)
    check_message(failed, rule="A Spark job failed", where="round", found="No module named 'of_this_host_only'")
    assert failed.cure is not None and "ship it with python.files" in failed.cure and "3 times" in failed.cure
    restarts = [record.getMessage() for record in caplog.records if "restart in" in record.getMessage()]
    assert len(restarts) == 2 and "same failure as before, attempt 2 of 3" in restarts[1]
