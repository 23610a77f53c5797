"""At-least-once in threads: output is committed with its round, whatever checkpoint storage is doing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.small_jobs import SmallJob
from tidegate.base import faults
from tidegate.base.errors import ConfigurationError
from tidegate.common import Encoder
from tidegate.connectors.files.parts import FileCompactor, FileCompactStrategy
from tidegate.connectors.files.sink import FileSink
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine

MODE = {"execution.checkpointing.mode": "AT_LEAST_ONCE"}


def test_output_is_committed_while_storage_hangs(tmp_path: Path) -> None:
    job, out, storing = SmallJob(tmp_path, *range(30)), threading.Event(), threading.Event()
    waited: list[bool] = []

    def hook(name: str, where: dict[str, Any]) -> None:
        if name == "C6.sink-committed" and storing.is_set():
            out.set()
        elif name == "C4.before-publish" and not storing.is_set():
            storing.set()
            waited.append(out.wait(60))

    faults.install(hook)
    JobMaster(job.program(**MODE), SimulatedEngine(1), local_root=job.local).run()
    assert waited == [True]
    assert job.committed() == list(range(30))


def test_a_sink_that_holds_output_back_is_refused(tmp_path: Path) -> None:
    strategy = FileCompactStrategy.builder().set_size_threshold(1 << 20).build()
    builder = FileSink.for_row_format(f"{tmp_path}/out", Encoder.simple_string_encoder())
    sink = builder.enable_compact(strategy, FileCompactor.concat_file_compactor()).build()
    job = SmallJob(tmp_path, sink=sink)
    with pytest.raises(ConfigurationError) as refused:
        JobMaster(job.program(**MODE), SimulatedEngine(1), local_root=job.local).prepare()
    text = str(refused.value)
    assert "holds output back" in text and "'ledger'" in text and "enable_compact" in text
    assert "execution.checkpointing.mode: EXACTLY_ONCE" in text
