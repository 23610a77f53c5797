"""Jobs as their program sees them: start, status, result, cancel, several at once, records of the user's script."""

from __future__ import annotations

import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.integration.job_tools import Count
from tests.sources import Pause, ScriptedSource
from tests.waiting import eventually
from tidegate.base.errors import JobCancelledError, JobFailedError, ProgramError
from tidegate.cli.main import app
from tidegate.common import JobStatus, WatermarkStrategy
from tidegate.connectors.values import sinks
from tidegate.datastream import MapFunction
from tidegate.datastream.connectors.datagen import DataGeneratorSource
from tidegate.datastream.connectors.number_seq import NumberSequenceSource

NONE = WatermarkStrategy.no_watermarks()


def test_execute_waits_and_the_result_names_the_job(make_env: Any) -> None:
    env = make_env({"tidegate.job-id": "named"})
    env.from_collection([1]).add_sink(lambda v: None)
    result = env.execute("my job")
    assert str(result.get_job_id()) == "named"
    assert result.get_net_runtime() > 0


def test_an_asynchronous_job_runs_until_it_is_cancelled(make_env: Any) -> None:
    env = make_env()
    env.from_source(ScriptedSource([1], ends=False), NONE, "s").add_sink(lambda v: None)
    job = env.execute_async("endless")
    eventually(lambda: job.get_job_status().result() is JobStatus.RUNNING)
    result = job.get_job_execution_result()
    assert not result.done()
    job.cancel()
    with pytest.raises(JobCancelledError, match="The job was cancelled"):
        result.result()
    assert job.get_job_status().result() is JobStatus.CANCELED
    job.cancel()  # after the end it changes nothing
    assert job.get_job_status().result() is JobStatus.CANCELED


class Hang(MapFunction):
    """Waits for a file that never comes: a round that would last for ever."""

    def __init__(self, path: str) -> None:
        self.path = path

    def map(self, value: Any) -> Any:
        Path(self.path).touch()
        return threading.Event().wait(600)


def test_cancelling_ends_a_running_round(make_env: Any, tmp_path: Path) -> None:
    env = make_env()
    env.from_collection([1]).map(Hang(str(tmp_path / "hangs"))).add_sink(lambda v: None)
    job = env.execute_async()
    eventually(lambda: (tmp_path / "hangs").exists())
    job.cancel()
    with pytest.raises(JobCancelledError):
        job.get_job_execution_result().result()


def test_a_failed_job_says_so_and_raises_its_cause(make_env: Any) -> None:
    env = make_env()
    env.from_collection([0]).map(lambda v: 1 // v).add_sink(lambda v: None)
    job = env.execute_async()
    with pytest.raises(JobFailedError, match="ZeroDivisionError"):
        job.get_job_execution_result().result()
    assert job.get_job_status().result() is JobStatus.FAILED


def test_an_environment_is_empty_again_after_execute(make_env: Any) -> None:
    env = make_env()
    env.from_collection([1]).add_sink(lambda v: None)
    env.execute()
    with pytest.raises(ProgramError, match="The job has no operator"):
        env.execute()


def test_execute_and_collect_with_a_limit_ends_an_endless_job(make_env: Any) -> None:
    env = make_env(parallelism=1)
    endless = env.from_source(DataGeneratorSource(lambda index: index), NONE, "g")
    assert endless.execute_and_collect("some", limit=5) == [0, 1, 2, 3, 4]


def test_collecting_raises_the_error_behind_the_records(make_env: Any) -> None:
    env = make_env(parallelism=1)
    stream = env.from_source(ScriptedSource([1, Pause(1), 0]), NONE, "s").map(lambda v: 1 // v)
    found = iter(stream.execute_and_collect())
    assert next(found) == 1
    with pytest.raises(JobFailedError, match="ZeroDivisionError"):
        next(found)


def test_two_jobs_share_the_session(make_env: Any) -> None:
    first = make_env().from_source(ScriptedSource(["a", Pause(1), "a", Pause(1), "a"]), NONE, "s").key_by(lambda v: v)
    second = make_env().from_source(NumberSequenceSource(1, 1_000), NONE, "n").key_by(lambda v: v % 2)
    one, two = first.process(Count()).execute_and_collect(), second.process(Count()).execute_and_collect()
    assert list(one) == [("a", 1), ("a", 2), ("a", 3)]
    assert sorted(two) == sorted((key, n) for key in (0, 1) for n in range(1, 501))


def test_a_record_does_not_wait_for_others(make_env: Any) -> None:
    env = make_env().set_buffer_timeout(0)
    script: list[Any] = [1, Pause(50), 2, Pause(3_600_000), 3]
    with env.from_source(ScriptedSource(script, ends=False), NONE, "s").execute_and_collect() as found:
        assert list(islice(found, 2)) == [1, 2]


def test_listeners_see_every_round(make_env: Any) -> None:
    env = make_env({"tidegate.round.max-records": 200})
    env.from_source(NumberSequenceSource(1, 1_000), NONE, "n").rebalance().map(lambda v: v).add_sink(lambda v: None)
    rounds: list[Any] = []
    job = env.execute_async()
    job.add_round_listener(rounds.append)
    job.get_job_execution_result().result()
    seen = [r.round for r in rounds]
    assert seen == list(range(seen[0], seen[0] + len(seen)))
    assert all(r.records_in == 200 and r.records_out == 200 and r.checkpoint_id is None for r in rounds if r.records_in)


SCRIPT = """
class Order:
    def __init__(self, city, amount):
        self.city, self.amount = city, amount

def scaled(order):
    return Order(order.city, order.amount * FACTOR)
"""


@pytest.mark.parametrize("factor", [2, 3])  # twice: the second script brings another class of the same name
def test_records_and_functions_of_the_users_script_travel(
    make_env: Any, monkeypatch: pytest.MonkeyPatch, factor: int
) -> None:
    # What `python job.py` makes of a class in job.py: it lives in __main__, which workers cannot import.
    main: Any = sys.modules["__main__"]
    for name in ("Order", "scaled", "FACTOR"):
        monkeypatch.setattr(main, name, None, raising=False)
    exec(SCRIPT.replace("FACTOR", str(factor)), vars(main))
    orders = make_env().from_collection([main.Order("a", 1), main.Order("b", 2), main.Order("a", 3)])
    stream = orders.rebalance().map(main.scaled).key_by(lambda order: order.city).sum("amount")
    found = list(stream.execute_and_collect())
    assert all(type(order) is main.Order for order in found)
    assert sorted((order.city, order.amount // factor) for order in found) == [("a", 1), ("a", 4), ("b", 2)]


def test_a_script_run_by_the_command_line(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import sys\n"
        "from tidegate.datastream import StreamExecutionEnvironment\n"
        "class Word(str): pass\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "words = env.from_collection([Word(w) for w in sys.argv[1:]]).rebalance().map(lambda w: Word(w + '!'))\n"
        "words.print()\n"
        "env.execute()\n"
    )
    keys = ["-D", "execution.checkpointing.interval=50 ms", "-D", f"execution.checkpointing.dir={tmp_path}/checkpoints"]
    result = CliRunner().invoke(app, ["run", "-p", "2", *keys, str(script), "to", "be"])
    assert result.exit_code == 0, result.output
    assert sorted(line[3:] for line in result.output.splitlines() if line[1:3] == "> ") == ["be!", "to!"]
    assert len(list((tmp_path / "checkpoints").glob("*/history.json"))) == 1  # the keys had their effect


def test_local_state_and_job_directories_go_with_the_job(make_env: Any, tmp_path: Path) -> None:
    list(make_env().from_collection(range(20)).key_by(lambda v: v).process(Count()).execute_and_collect())
    assert [path for path in (tmp_path / "local").rglob("*") if path.is_file()] == []
    assert [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()] == []


def test_rounds_leave_nothing_behind_in_the_jvm(spark: Any, make_env: Any) -> None:
    """A path to be deleted at exit is remembered for good: one a round would fill the heap of a job that runs for months."""
    hook = spark._jvm.java.lang.Class.forName("java.io.DeleteOnExitHook").getDeclaredField("files")
    hook.setAccessible(True)
    env = make_env({"tidegate.round.max-records": "10"})
    env.from_source(NumberSequenceSource(1, 200), NONE, "numbers").add_sink(lambda v: None)
    before = hook.get(None).size()
    env.execute()
    assert hook.get(None).size() - before < 5


def threads_of(job_id: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == f"tidegate-{job_id}"]


def test_a_limit_ends_the_job_and_releases_what_nobody_reads(make_env: Any) -> None:
    env = make_env({"tidegate.job-id": "limited"})
    numbers = env.from_source(DataGeneratorSource(lambda index: index), NONE, "numbers")
    others = set(sinks.channels)
    assert len(numbers.execute_and_collect(limit=3)) == 3
    eventually(lambda: not threads_of("limited"))
    assert set(sinks.channels) <= others


def test_an_iterator_that_is_dropped_ends_its_job(make_env: Any) -> None:
    env = make_env({"tidegate.job-id": "dropped"})
    numbers = env.from_source(DataGeneratorSource(lambda index: index), NONE, "numbers")
    others = set(sinks.channels)
    records = numbers.execute_and_collect()
    assert next(records) is not None
    assert threads_of("dropped") and set(sinks.channels) - others
    del records
    eventually(lambda: not threads_of("dropped"))
    assert set(sinks.channels) <= others
