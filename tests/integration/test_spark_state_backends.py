"""State backends on Spark: savepoints carry a job from one to the other and back, at other parallelisms."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.job_tools import Count, committed_lines, file_sink, hidden_files
from tests.integration.test_spark_restore import KEYS, expected
from tests.integration.test_spark_savepoints import EVERY, counting, wait_for
from tests.sources import ScriptedSource
from tidegate.common import Types, WatermarkStrategy

BACKENDS = [
    {"state.backend.type": "hashmap"},
    {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "false"},
    {"state.backend.type": "hashmap", "state.changelog.enabled": "true"},
]


def test_savepoints_carry_a_job_from_one_backend_to_the_other_and_back(make_env: Any, tmp_path: Path) -> None:
    out, local, path = tmp_path / "out", tmp_path / "local", None
    for times, (backend, parallelism) in enumerate(zip(BACKENDS, (2, 3, 1), strict=True), start=1):
        keys: dict[str, Any] = {**EVERY, **backend, "state.backend.rocksdb.localdir": str(local)}
        keys["tidegate.state.cache-size"] = "0 b"  # every round reads the store
        if path is not None:
            keys["execution.state-recovery.path"] = path
        last = times == len(BACKENDS)
        job = counting(make_env(keys).set_parallelism(parallelism), out, times, last=last)
        if not last:
            wait_for(out, times * len(KEYS))
            assert bool(list(local.rglob("CURRENT"))) == (backend["state.backend.type"] == "rocksdb")
            path = job.stop_with_savepoint(False, str(tmp_path / "savepoints")).result()
        job.get_job_execution_result().result()
    assert sorted(committed_lines(out)) == expected(3)
    assert hidden_files(out) == []
    assert not list(local.rglob("CURRENT"))


class ForkingCount(Count):
    """Each worker starts a child with its first record, which outlives the round."""

    def __init__(self, children: str) -> None:
        self._children = children
        self._child: Any = None

    def process_element(self, value: Any, ctx: Any) -> Any:
        if self._child is None:
            self._child = multiprocessing.get_context("fork").Process(target=signal.pause)
            self._child.start()
            Path(self._children, str(self._child.pid)).touch()
        yield from super().process_element(value, ctx)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_children_of_functions_that_outlive_rounds_cost_no_rebuild(make_env: Any, tmp_path: Path, backend: str) -> None:
    """Nor has the daemon that forks Spark's workers ever opened a store: a worker would be refused."""
    (tmp_path / "children").mkdir()
    source = ScriptedSource([key for _ in range(3) for key in KEYS])
    source.initial_limit = source.maximum_limit = 4
    keys = {**EVERY, "state.backend.type": backend, "tidegate.state.cache-size": "0 b"}
    env = make_env({**keys, "tidegate.state.local-dir": str(tmp_path / "local")}).set_parallelism(2)
    records = env.from_source(source, WatermarkStrategy.no_watermarks(), "keys")
    records.key_by(lambda v: v, Types.INT()).process(ForkingCount(str(tmp_path / "children"))).sink_to(
        file_sink(tmp_path / "out")
    )
    try:
        job = env._start("forks")
        job.result()
        children = os.listdir(tmp_path / "children")
        assert children and all(Path("/proc", child).exists() for child in children)
        assert sorted(committed_lines(tmp_path / "out")) == expected(3)
        assert (job.view().totals.rounds > 5, job.view().totals.rebuilds) == (True, 0)
    finally:
        for child in os.listdir(tmp_path / "children"):
            os.kill(int(child), signal.SIGKILL)
