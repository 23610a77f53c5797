"""Test the contracts of ``GenericWriteAheadSink`` and ``CheckpointCommitter``.

Subclass a suite, and define how to make your object, and how to read its output::

class TestMyCommitter(CheckpointCommitterContract):
    def make_committer(self, directory):
        return MyCommitter(...)
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import cloudpickle

from tidegate.base import faults
from tidegate.connectors.functions.write_ahead import CheckpointCommitter, GenericWriteAheadSink
from tidegate.operators.contracts.sink import CommitterContext
from tidegate.testing.sink_contract import SinkContract, killed
from tidegate.testing.sink_run import Crash

_SENT = "K6.write-ahead.sent"


class WriteAheadContract(SinkContract):
    """Test all of ``SinkContract``, except for one gap: a crash between sending and confirming (K6) sends the values of
    one subtask and round again. Override ``make_sink`` and ``visible``."""

    repeats_in_the_gap = True
    """False: sending the same values again changes nothing (upserts), or the confirmation is stored with the values."""

    def make_sink(self, directory: Path) -> GenericWriteAheadSink:
        """Return a sink that writes into this directory."""
        raise NotImplementedError

    def leftovers(self, directory: Path) -> list[str]:
        return [str(path) for path in directory.glob("staging/write-ahead/*")]

    def test_killed_at_any_point_of_the_commit(self, tmp_path: Path) -> None:
        points, number = list[str](), 0
        while number == len(points):
            directory = tmp_path / str(number)
            directory.mkdir()
            points += self._killed_at(directory, number)
            number += 1
        assert _SENT in points, "no value was ever sent"

    def test_killed_at_any_point_of_a_restore(self, tmp_path: Path) -> None:
        """A restore sends, too: values that are sent and not confirmed are sent again."""
        number, fired = 0, True
        while fired:
            directory = tmp_path / str(number)
            directory.mkdir()
            run = self._run(directory)
            run.accept(run.attempt(6, checkpoint=True), 6)
            run.complete()
            run.attempt(3, checkpoint=True)
            fired = killed(number, run.restore)
            run.restore()
            found, expected = Counter(self.visible(directory)), Counter(map(self.value, range(6)))
            assert not expected - found, f"crash at point {number} of a restore: lost {expected - found}"
            assert set(found) == set(expected) and (self.repeats_in_the_gap or found == expected)
            run.finish()
            assert self.leftovers(directory) == []
            number += 1

    def _killed_at(self, directory: Path, number: int) -> list[str]:
        """Crash at the n-th point of the commit, and check the values after the restore. Return the name of the
        point."""
        run, passed = self._run(directory), list[str]()
        run.accept(run.attempt(6, checkpoint=True), 6)
        run.complete()

        def hook(name: str, where: dict[str, Any]) -> None:
            passed.append(name)
            if len(passed) == number + 1:
                raise Crash(name)

        faults.install(hook)
        try:
            run.commit()
        except Crash:
            pass
        finally:
            faults.install(None)
        run.restore()
        found, expected = Counter(self.visible(directory)), Counter(map(self.value, range(6)))
        at = passed[-1] if len(passed) == number + 1 else "none"
        sent = [name for name in passed if name.startswith("K6")]
        in_gap = self.repeats_in_the_gap and at != "none" and sent[-1:] == [_SENT]
        assert not expected - found, f"crash at {at}: lost {expected - found}"
        assert in_gap or found == expected, f"crash at {at}: repeated {found - expected}"
        assert not in_gap or set(found - expected) < set(expected), f"crash at {at}: more than one subtask repeated"
        return [at] if at != "none" else []


class CheckpointCommitterContract:
    """Test a committer. Override ``make_committer``: each call makes a committer for the same place, as another process
    would."""

    def make_committer(self, directory: Path) -> CheckpointCommitter:
        """Return a new committer over this directory. Committers over one directory share their confirmations."""
        raise NotImplementedError

    def _opened(self, directory: Path, job: str = "job", sink: str = "sink") -> CheckpointCommitter:
        made: CheckpointCommitter = cloudpickle.loads(cloudpickle.dumps(self.make_committer(directory)))
        made.open(CommitterContext(job, sink, str(directory / job / sink)))
        return made

    def test_nothing_is_confirmed_at_first(self, tmp_path: Path) -> None:
        committer = self._opened(tmp_path)
        assert not committer.is_checkpoint_committed(0, _id(1, 1))
        committer.close()

    def test_what_is_confirmed_stays_so_in_another_process(self, tmp_path: Path) -> None:
        first = self._opened(tmp_path)
        first.commit_checkpoint(0, _id(1, 5))
        first.commit_checkpoint(0, _id(1, 7))
        first.close()
        second = self._opened(tmp_path)
        assert all(second.is_checkpoint_committed(0, _id(1, round)) for round in (4, 5, 6, 7))
        assert not second.is_checkpoint_committed(0, _id(1, 8)), "an id that is not confirmed yet counts as confirmed"
        second.commit_checkpoint(0, _id(1, 8))
        assert second.is_checkpoint_committed(0, _id(1, 8))
        second.close()

    def test_subtasks_attempts_sinks_and_jobs_are_confirmed_apart(self, tmp_path: Path) -> None:
        committer = self._opened(tmp_path)
        committer.commit_checkpoint(1, _id(2, 5))
        assert not committer.is_checkpoint_committed(0, _id(2, 5)), "an id of another subtask counts as confirmed"
        assert not committer.is_checkpoint_committed(1, _id(3, 1)), "an id of a later attempt counts as confirmed"
        assert not committer.is_checkpoint_committed(1, _id(1, 9)), (
            "an id of an earlier attempt, whose rounds had other records, counts as confirmed"
        )
        for other in (self._opened(tmp_path, sink="other"), self._opened(tmp_path, job="other")):
            assert not other.is_checkpoint_committed(1, _id(2, 5)), "an id of another sink or job counts as confirmed"
            other.close()
        committer.close()

    def test_a_repeated_confirmation_changes_nothing(self, tmp_path: Path) -> None:
        committer = self._opened(tmp_path)
        for _ in range(2):
            committer.commit_checkpoint(0, _id(1, 5))
            assert committer.is_checkpoint_committed(0, _id(1, 5))
        committer.close()


def _id(attempt: int, round: int) -> int:
    return (attempt << 32) + round
