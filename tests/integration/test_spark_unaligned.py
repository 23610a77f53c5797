"""Unaligned checkpoints on Spark: one completes while records wait in front of a slow function, and nothing is lost or doubled."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.job_tools import Count, committed_lines, file_sink, history
from tests.waiting import eventually
from tidegate.checkpoint.history import CheckpointStatus, HistoryEntry
from tidegate.datastream import MapFunction

RECORDS = 600


class SlowUntil(MapFunction):
    """20 ms a record, until a file is there."""

    def __init__(self, switch: Path) -> None:
        self.switch = switch

    def map(self, value: Any) -> Any:
        if not self.switch.exists():
            time.sleep(0.02)
        return value


def with_records_in_flight(job: Path) -> list[HistoryEntry]:
    entries = history(job) if (job / "history.json").exists() else []
    return [entry for entry in entries if entry.in_flight_records and entry.status is CheckpointStatus.COMPLETED]


@pytest.mark.parametrize("spread", ["behind a shuffle", "behind the source"])
def test_a_checkpoint_completes_while_records_are_in_flight(spread: str, make_env: Any, tmp_path: Path) -> None:
    keys = {
        "tidegate.job-id": "slow",
        "execution.checkpointing.interval": "100 ms",
        "execution.checkpointing.unaligned.enabled": True,
    }
    env = make_env(keys)
    numbers = env.from_collection(list(range(RECORDS)))
    slow = (numbers.rebalance() if spread == "behind a shuffle" else numbers).map(SlowUntil(tmp_path / "switch"))
    slow.key_by(lambda v: v % 10).process(Count()).sink_to(file_sink(tmp_path / "out"))
    job = env.execute_async("slow")
    directory = tmp_path / "checkpoints" / "slow"
    found = eventually(lambda: len(entries := with_records_in_flight(directory)) >= 2 and entries)
    assert found[0].in_flight_records > found[-1].in_flight_records > 0
    assert found[0].in_flight_bytes > 0
    (tmp_path / "switch").touch()
    job.get_job_execution_result().result()
    expected = [f"({key}, {n})" for key in range(10) for n in range(1, RECORDS // 10 + 1)]
    assert Counter(line.replace("'", "") for line in committed_lines(tmp_path / "out")) == Counter(expected)
    assert not history(directory)[-1].in_flight_records
