"""The walks of one record and one checkpoint stay as short as ARCHITECTURE.md says."""

from __future__ import annotations

from pathlib import Path

from scripts.walk import Walker, run


def test_record_and_checkpoint_pass_few_files(tmp_path: Path) -> None:
    walker = Walker()
    run(tmp_path, walker)
    assert {"connectors/files/source.py", "connectors/files/writer.py"} <= set(walker.record.stops)
    assert {"checkpoint/lease.py", "checkpoint/completed.py"} <= set(walker.checkpoint.stops)
    assert len(walker.record.stops) <= 40, str(walker.record)
    assert walker.checkpoint.files <= 12, str(walker.checkpoint)
