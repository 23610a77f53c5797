"""Formats on checkpoint storage: what was written once is read for ever, and no format changes by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat import kept_job
from tests.compat.formats import FORMATS, GOLDEN, Format
from tidegate.checkpoint import metadata


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: known.name)
def test_every_version_ever_written_is_read(known: Format) -> None:
    assert known.path in known.all_versions(), "run `python -m tests.compat.formats` and commit the new file"
    for path in known.all_versions():
        assert known.read(path.read_bytes()) == known.content, path.name


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: known.name)
def test_the_present_version_is_written_as_ever(known: Format) -> None:
    """Another byte is another version: raise it, keep a reader of the old one, and add the new file beside the old."""
    written = known.write(known.content)
    assert written == known.path.read_bytes() if known.exact else known.read(written) == known.content


@pytest.mark.parametrize("kept", sorted(GOLDEN.glob("job-*")), ids=lambda kept: kept.name)
@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_a_job_of_every_version_continues(kept: Path, parallel: int, tmp_path: Path) -> None:
    [checkpoint] = kept.glob("chk-*")
    restored = kept_job.run(str(tmp_path), fails=False, restore=checkpoint, parallelism=parallel)
    assert restored == kept_job.expected()


@pytest.mark.parametrize("kept", sorted(GOLDEN.glob("savepoint-*")), ids=lambda kept: kept.name)
@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_a_savepoint_of_every_version_is_resumed(kept: Path, parallel: int, tmp_path: Path) -> None:
    assert kept_job.run(str(tmp_path), fails=False, restore=kept, parallelism=parallel) == kept_job.expected()


def test_this_version_has_a_kept_job(tmp_path: Path) -> None:
    assert (GOLDEN / f"job-{metadata.VERSION}").exists(), (
        "run `python -m tests.compat.kept_job` and commit what it wrote"
    )
    assert (GOLDEN / f"savepoint-{metadata.VERSION}").exists()
    assert kept_job.run(str(tmp_path), fails=False) == kept_job.expected()


def test_no_golden_file_is_forgotten() -> None:
    named = {path for known in FORMATS for path in known.all_versions()}
    assert {path for path in GOLDEN.iterdir() if path.is_file()} == named
