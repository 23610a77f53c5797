"""Which checkpoint is restored: by lineage, never by a listing alone, never an older one in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.checkpoint.attempt_model import Attempt, ModelSink, check_invariants, restored_state
from tidegate.base.clock import ManualClock
from tidegate.base.errors import CorruptFileError, RestoreError
from tidegate.base.files import Files
from tidegate.checkpoint.lease import Lease, acquire
from tidegate.checkpoint.lease_records import AttemptStatus, live_path
from tidegate.checkpoint.locate import locate, locate_exactly, read_lineage
from tidegate.checkpoint.metadata import read_metadata
from tidegate.checkpoint.recovery import decide


@pytest.fixture
def sink() -> ModelSink:
    return ModelSink()


def claim(files: Files) -> Lease:
    return acquire(files, ManualClock(), job_id="job", liveness=lambda owner: False)


class StaleFiles(Files):
    """A store whose listings show the past: what was there when it was made."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._names: dict[str, list[str]] = {}
        for path in ("", "lease"):
            self._names[path] = super().list_names(path)

    def list_names(self, path: str = "") -> list[str]:
        return self._names.get(path, [])


def test_nothing_yet(files: Files) -> None:
    recovery = decide(files, claim(files))
    assert (recovery.located, recovery.previous) == (None, None)


def test_latest_completed(files: Files, sink: ModelSink) -> None:
    Attempt(files, sink, "first", checkpoints=3).run()
    recovery = decide(files, claim(files))
    assert recovery.located is not None
    assert recovery.located.metadata.checkpoint_id == 3
    assert [point.checkpoint_id for point in recovery.retained] == [2, 3]
    assert recovery.previous is AttemptStatus.RUNNING


def test_asked_twice_gives_the_same(files: Files, sink: ModelSink) -> None:
    Attempt(files, sink, "first", checkpoints=3).run()
    lease = claim(files)
    assert decide(files, lease).point == decide(files, lease).point


def test_a_stale_listing_hides_neither_claims_nor_checkpoints(files: Files, sink: ModelSink) -> None:
    Attempt(files, sink, "first", checkpoints=1).run()
    stale = StaleFiles(files.root)
    Attempt(files, sink, "second", checkpoints=3).run()
    Attempt(files, sink, "third", checkpoints=2).run()
    lease = claim(stale)
    assert lease.token == 4
    recovery = decide(stale, lease)
    assert recovery.point is not None
    assert (recovery.point.checkpoint_id, recovery.point.token) == (6, 3)
    assert lease.take_id() == 7


def test_missing_metadata_of_the_latest_is_never_passed_over(files: Files, sink: ModelSink) -> None:
    Attempt(files, sink, "first", checkpoints=3).run()
    files.delete("chk-3/_metadata")
    with pytest.raises(CorruptFileError) as caught:
        decide(files, claim(files))
    assert caught.value.where == files.location("chk-3/_metadata")
    assert caught.value.found == "no such file; expected a file"
    assert "execution.state-recovery.path" in str(caught.value.cure)


def test_damaged_metadata_of_the_latest_is_never_passed_over(files: Files, sink: ModelSink) -> None:
    Attempt(files, sink, "first", checkpoints=3).run()
    files.replace("chk-3/_metadata", files.read_bytes("chk-3/_metadata")[:-1])
    with pytest.raises(CorruptFileError, match="latest completed checkpoint cannot be read"):
        decide(files, claim(files))


def test_going_back_on_purpose_loses_nothing(files: Files, sink: ModelSink) -> None:
    Attempt(files, sink, "first", checkpoints=3).run()
    back = Attempt(files, sink, "back", checkpoints=0, explicit=files.location("chk-2")).run()
    assert back.outcome == "done"
    assert back.state.position == 2
    assert [point.checkpoint_id for point in back.lease.live.protected] == [2, 3]
    # The next attempt continues from there, and what was left behind stays restorable.
    following = decide(files, claim(files))
    assert following.point is not None
    assert following.point.checkpoint_id == 2
    assert restored_state(locate(files.location("chk-3"))).position == 3


def test_going_back_and_on_keeps_the_protected_ones(files: Files, sink: ModelSink) -> None:
    Attempt(files, sink, "first", checkpoints=3).run()
    Attempt(files, sink, "back", checkpoints=5, explicit=files.location("chk-2")).run()
    Attempt(files, sink, "on", checkpoints=2).run()
    assert restored_state(locate(files.location("chk-2"))).position == 2
    assert restored_state(locate(files.location("chk-3"))).position == 3
    assert restored_state(locate(files.root)).position == 2 + 5 + 2


def test_explicit_path_works_with_damaged_lease_records(files: Files, sink: ModelSink) -> None:
    Attempt(files, sink, "first", checkpoints=3).run()
    files.replace(live_path(1), b"tidegate-live torn")
    with pytest.raises(CorruptFileError):
        decide(files, claim(files))
    chosen = Attempt(files, sink, "chosen", checkpoints=2, explicit=files.location("chk-3")).run()
    assert chosen.outcome == "done"
    assert chosen.ids == [4, 5]
    assert sink.violations == []


def test_from_another_jobs_directory(tmp_path: Path, files: Files, sink: ModelSink) -> None:
    source = Files(str(tmp_path / "source"))
    Attempt(source, ModelSink(), "source", checkpoints=2).run()
    lease = claim(files)
    recovery = decide(files, lease, source.location("chk-2"))
    assert recovery.located is not None
    assert recovery.located.root.root == source.root
    recovery.record(lease)
    # The next attempt without a checkpoint of its own goes back to the same place.
    again = decide(files, claim(files))
    assert again.located is not None
    assert again.located.address == source.location("chk-2")


def test_checkpoints_without_lease_records_are_not_guessed(tmp_path: Path, files: Files, sink: ModelSink) -> None:
    Attempt(files, sink, "first", checkpoints=2).run()
    copied = Files(str(tmp_path / "copied"))
    for path in files.list():
        if not path.startswith("lease/"):
            copied.write(path, files.read_bytes(path))
    with pytest.raises(RestoreError, match="chk-1, chk-2 and no record of the attempts"):
        decide(copied, claim(copied))
    chosen = Attempt(copied, sink, "chosen", checkpoints=1, explicit=copied.location("chk-2")).run()
    assert chosen.outcome == "done"
    assert restored_state(locate(copied.location("chk-1"))).position == 1  # protected


def test_a_finished_job_says_so(files: Files, sink: ModelSink) -> None:
    Attempt(files, sink, "first", until=6, checkpoints=9).run()
    assert read_lineage(files).status is AttemptStatus.FINISHED
    check_invariants(files, sink)


# -- locate --


@pytest.mark.parametrize("path", ["", "chk-2", "chk-2/", "chk-2/_metadata"])
def test_locate_accepts_the_forms_users_have(files: Files, sink: ModelSink, path: str) -> None:
    Attempt(files, sink, "first", checkpoints=2).run()
    for prefix in ("", "file://"):
        located = locate(f"{prefix}{files.root}/{path}")
        assert located.root.root == files.root
        assert located.directory == "chk-2"
        assert located.metadata == read_metadata(files, "chk-2/_metadata")
        located.check_files()


def test_locate_errors(tmp_path: Path, files: Files, sink: ModelSink) -> None:
    Attempt(files, sink, "first", checkpoints=1).run()
    files.make_directory("chk-9")
    expected = {
        str(tmp_path / "nowhere"): "no such file or directory",
        str(tmp_path): "a directory of jobs: job",
        files.location("chk-9"): "an incomplete checkpoint: it has no _metadata",
        files.location("shared"): "an incomplete savepoint, or an incomplete copy of one",
        str(tmp_path / "empty"): "no checkpoint in it: it is empty",
        str(tmp_path / "some"): "no checkpoint in it: a, b, c, d, e and 1 more",
    }
    (tmp_path / "empty").mkdir()
    for name in "abcdef":
        (tmp_path / "some" / name).mkdir(parents=True)
    for path, found in expected.items():
        with pytest.raises(RestoreError) as caught:
            locate(path)
        assert found in str(caught.value.found)
        assert caught.value.where == path
        assert caught.value.rule == "The path to restore from must be a checkpoint or a savepoint."
        assert "chk-<n> directory" in str(caught.value.cure)


def test_the_parent_of_checkpoints_is_none(files: Files, sink: ModelSink) -> None:
    Attempt(files, sink, "first", checkpoints=3).run()
    with pytest.raises(RestoreError) as caught:
        locate_exactly(files.root)
    assert caught.value.found == "the directory of a job, with chk-2, chk-3"
    assert (
        caught.value.cure
        == f"give one of its checkpoints; its latest completed checkpoint is {files.location('chk-3')}"
    )
    for path in [path for path in files.list() if path.startswith("lease/")]:
        files.delete(path)
    with pytest.raises(RestoreError) as caught:
        locate_exactly(files.root)
    assert caught.value.cure == "give one of its checkpoints"


def test_locate_of_a_job_without_checkpoint(files: Files) -> None:
    lease = claim(files)
    lease.record_restored(None, [], [])
    for find in (locate, locate_exactly):
        with pytest.raises(RestoreError) as caught:
            find(files.root)
        assert caught.value.found == "the directory of a job, with no checkpoint"
        assert caught.value.cure == "start without execution.state-recovery.path, or give another snapshot"


def test_a_renamed_checkpoint_directory_is_refused(tmp_path: Path, files: Files, sink: ModelSink) -> None:
    Attempt(files, sink, "first", checkpoints=1).run()
    Files(str(tmp_path)).write("backup/_metadata", files.read_bytes("chk-1/_metadata"))
    with pytest.raises(RestoreError, match="checkpoint 1 in a directory named backup"):
        locate(str(tmp_path / "backup"))


def test_missing_and_short_state_files_are_reported_together(files: Files, sink: ModelSink) -> None:
    Attempt(files, sink, "first", checkpoints=2).run()
    files.delete("shared/1-1.seg")
    files.replace("shared/1-2.seg", b"")
    with pytest.raises(CorruptFileError) as caught:
        locate(files.root).check_files()
    assert "shared/1-1.seg: no such file, expected 1 bytes" in str(caught.value.found)
    assert "shared/1-2.seg: 0 bytes, expected 1" in str(caught.value.found)
    assert caught.value.where == files.location("chk-2")


def test_the_whole_life_on_a_store_that_is_not_local(sink: ModelSink) -> None:
    files = Files("memory://recovery-test/job")
    try:
        Attempt(files, sink, "first", checkpoints=3).run()
        Attempt(files, sink, "second", checkpoints=4).run()
        check_invariants(files, sink)
        assert restored_state(locate("memory://recovery-test/job")).position == 8
        assert locate("memory://recovery-test/job/chk-8").root.root == files.root
        with pytest.raises(RestoreError, match="a directory of jobs: job"):
            locate("memory://recovery-test")
    finally:
        Files("memory://recovery-test").delete_tree("")
