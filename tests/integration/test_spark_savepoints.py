"""Savepoints on Spark: taken, moved, resumed at other parallelisms and by changed programs. Exactly once, seen from outside."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.job_tools import Count, committed_lines, file_sink, files_below, hidden_files
from tests.integration.test_spark_restore import KEYS, NONE, expected
from tests.sources import ScriptedSource
from tests.waiting import eventually
from tidegate.base.errors import RestoreError
from tidegate.common import JobClient, JobStatus, Types
from tidegate.datastream.state import ValueStateDescriptor

EVERY = {"execution.checkpointing.interval": "100 ms", "pipeline.max-parallelism": 16}


def counting(env: Any, out: Path, times: int, *, last: bool = False, changed: bool = False) -> JobClient:
    """Every key so many times since the first start. ``changed``: the same operators under other names, with one more between."""
    script = [key for _ in range(times) for key in KEYS]
    source = env.from_source(ScriptedSource(script, ends=last), NONE, "other" if changed else "keys").uid("source")
    if changed:
        source = source.map(lambda v: v, Types.INT()).uid("new")
    counts = (
        source.key_by(lambda v: v, Types.INT()).process(Count()).name("renamed" if changed else "count").uid("count")
    )
    if changed:
        counts = counts.disable_chaining()
    counts.sink_to(file_sink(out)).uid("sink")
    return env.execute_async()


class CountedAsText(Count):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.STRING()))


def wait_for(out: Path, lines: int) -> None:
    eventually(lambda: len(committed_lines(out)) >= lines)


def test_stopped_and_resumed_at_other_parallelisms(make_env: Any, tmp_path: Path) -> None:
    """1 -> 3 -> 8 -> 2, each from a directory that was moved away from a job whose own is gone."""
    out, path = tmp_path / "out", None
    for times, parallelism in enumerate((1, 3, 8, 2), start=1):
        keys: dict[str, Any] = dict(EVERY)
        if path is not None:
            keys["execution.state-recovery.path"] = str(path)
        env = make_env(keys).set_parallelism(parallelism)
        job = counting(env, out, times, changed=times == 3)
        wait_for(out, (times - 1) * len(KEYS) + 1)
        saved = Path(job.stop_with_savepoint(False, str(tmp_path / "savepoints")).result())
        job.get_job_execution_result().result()
        assert job.get_job_status().result() is JobStatus.FINISHED
        if path is not None:
            shutil.rmtree(path)
        path = tmp_path / f"moved-{times}"
        shutil.move(saved, path)
        shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
    env = make_env({**EVERY, "execution.state-recovery.path": str(path)}).set_parallelism(2)
    counting(env, out, 5, last=True).get_job_execution_result().result()
    assert sorted(committed_lines(out)) == expected(5)
    assert hidden_files(out) == []


def test_a_savepoint_beside_the_job_stays_as_it_is(make_env: Any, tmp_path: Path) -> None:
    job = counting(make_env(EVERY), tmp_path / "out", 2)
    wait_for(tmp_path / "out", 2 * len(KEYS))
    path = Path(job.trigger_savepoint(str(tmp_path / "savepoints")).result())
    job.stop_with_savepoint(True, str(tmp_path / "last")).result()
    before = files_below(path)
    fork = make_env({**EVERY, "execution.state-recovery.path": str(path / "_metadata")}).set_parallelism(3)
    counting(fork, tmp_path / "fork", 3, last=True).get_job_execution_result().result()
    assert files_below(path) == before
    assert sorted(committed_lines(tmp_path / "out")) == expected(2)
    assert sorted(committed_lines(tmp_path / "fork")) == sorted(set(expected(3)) - set(expected(2)))


def test_a_program_that_does_not_fit_is_refused_with_all_that_is_wrong(make_env: Any, tmp_path: Path) -> None:
    job = counting(make_env(EVERY), tmp_path / "out", 1)
    wait_for(tmp_path / "out", 1)
    path = job.stop_with_savepoint(False, str(tmp_path / "savepoints")).result()
    env = make_env({**EVERY, "execution.state-recovery.path": path})
    counts = env.from_source(ScriptedSource(list(KEYS)), NONE, "keys").uid("other source")
    counts = counts.key_by(lambda v: str(v), Types.STRING()).process(CountedAsText()).uid("count").name("counts")
    counts.sink_to(file_sink(tmp_path / "new")).uid("sink")
    with pytest.raises(RestoreError) as refused:
        env.execute()
    assert str(refused.value.found).split("\n    - ")[1:] == [
        "operator 'counts' (uid count) is stored with keys of type INT and now has STRING",
        "operator 'counts' (uid count): state 'count' is stored as value of LONG and declared as value of STRING",
        "operator 'keys' (uid source; source positions) is not in the program",
    ]
    assert list((tmp_path / "new").iterdir()) == []  # made by the check whether it can be written
