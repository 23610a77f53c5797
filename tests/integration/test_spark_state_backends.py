"""State backends on Spark: savepoints carry a job from one to the other and back, at other parallelisms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from job_tools import committed_lines, hidden_files
from test_spark_restore import KEYS, expected
from test_spark_savepoints import EVERY, counting, wait_for

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
