"""Test the contract of committing sinks.

Subclass ``SinkContract`` in a test module, and define how to make the sink, and how to read its output::

class TestMySink(SinkContract):
    def make_sink(self, directory):
        return MySink(...)

    def visible(self, directory):
        return [...]  # what an outside reader sees, as values
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import SkipTest

from tidegate.base import faults
from tidegate.base.errors import FencedError
from tidegate.operators.contracts.sink import Sink
from tidegate.testing.sink_run import Crash, SinkRun, crash_at


class SinkContract:
    """Test a committing sink. Override ``make_sink`` and ``visible``, and ``leftovers`` where unpublished data can be
    listed."""

    publishes_every_checkpoint = True
    """False: a checkpoint may keep records back (unfinished files) until the end of input."""
    survives_restart = True
    """False: published data lives in the process (collect, print), and a recovered commit repeats it."""

    commits_in_parts = True
    """False: a checkpoint is one commit, of all its committables."""

    sweeps_attempts = True
    """False: a crash at the moment when an attempt begins may leave data outside that no one finds."""

    seeds = 30
    """The number of random runs; fewer where each write asks a server."""

    def make_sink(self, directory: Path) -> Sink:
        """Return a sink that writes into this directory. Called once for each driver that the contract plays."""
        raise NotImplementedError

    def visible(self, directory: Path) -> list[Any]:
        """Return all records that a reader of the output sees now, in any order."""
        raise NotImplementedError

    def leftovers(self, directory: Path) -> list[str]:
        """Return everything that the sink keeps outside and that is neither published nor needed at the end."""
        return []

    def value(self, number: int) -> Any:
        """Return the record with this number. Different numbers give different records."""
        return number

    def _needs_restart(self) -> None:
        if not self.survives_restart:
            raise SkipTest("The published data of the sink does not outlive its process.")

    def _run(self, directory: Path, parallelism: int = 2) -> SinkRun:
        return SinkRun(self.make_sink(directory), str(directory / "staging"), self.value, parallelism)

    def _check(self, directory: Path, count: int, hint: str = "") -> None:
        found, expected = Counter(self.visible(directory)), Counter(map(self.value, range(count)))
        assert found == expected, f"{hint} lost {expected - found}, duplicate or unknown {found - expected}"

    def _check_end(self, run: SinkRun, directory: Path, hint: str = "") -> None:
        count = run.position
        run.finish()
        self._check(directory, count, hint)
        assert self.leftovers(directory) == [], f"{hint} left unpublished data"

    def test_nothing_is_visible_before_the_commit(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        run.accept(run.attempt(10, checkpoint=True), 10)
        run.complete()
        assert self.visible(tmp_path) == []
        run.commit()
        if self.publishes_every_checkpoint:
            self._check(tmp_path, 10)
        self._check_end(run, tmp_path)

    def test_committed_output_never_shrinks_and_holds_whole_checkpoints(self, tmp_path: Path) -> None:
        run, before = self._run(tmp_path), Counter[Any]()
        for number in range(12):
            run.step(5, checkpoint=number % 3 == 2)
            now = Counter(self.visible(tmp_path))
            assert not before - now, "committed records disappeared"
            assert now == before or number % 3 == 2, "records appeared without a commit"
            before = now
        self._check_end(run, tmp_path)

    def test_a_second_commit_has_no_effect(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        run.accept(run.attempt(10, checkpoint=True, end=True), 10)
        run.complete()
        run.committer.commit(list(run.pending))
        run.committer.commit(list(run.pending))
        if self.survives_restart:
            run.restore()
        self._check(tmp_path, 10)

    def test_a_part_of_the_commit_then_all_of_it(self, tmp_path: Path) -> None:
        if not self.commits_in_parts:
            raise SkipTest("The sink commits each checkpoint as a whole.")
        run = self._run(tmp_path, parallelism=3)
        run.accept(run.attempt(9, checkpoint=True, end=True), 9)
        run.complete()
        run.committer.commit(list(run.pending)[:1])
        if self.survives_restart:
            run.restore()
        else:
            run.commit()
        self._check(tmp_path, 9)

    def test_killed_at_any_point_of_the_commit(self, tmp_path: Path) -> None:
        self._needs_restart()
        number, fired = 0, True
        while fired:
            directory = tmp_path / str(number)
            directory.mkdir()
            fired = self._killed_in_commit(directory, number)
            number += 1

    def _killed_in_commit(self, directory: Path, number: int) -> bool:
        run = self._run(directory)
        for _ in range(3):
            run.step(4)
        run.accept(run.attempt(6, checkpoint=True), 6)
        run.complete()
        fired = killed(number, run.commit)
        run.restore()
        run.step(5)
        self._check_end(run, directory, f"crash at point {number} of the commit")
        return fired

    def test_killed_at_any_point_of_an_attempt(self, tmp_path: Path) -> None:
        """A worker dies while it writes or prepares. Its unpublished data is found, and none of it is visible."""
        self._needs_restart()
        number, fired = 0, True
        while fired:
            directory = tmp_path / str(number)
            directory.mkdir()
            run = self._run(directory)
            run.step(4, checkpoint=True)
            run.step(3)
            fired = killed(number, lambda run=run: run.attempt(6, checkpoint=True))  # type: ignore[misc]
            run.restore()
            run.step(5)
            hint = f"crash at point {number} of an attempt"
            if self.sweeps_attempts:
                self._check_end(run, directory, hint)
            else:
                count = run.position
                run.finish()
                self._check(directory, count, hint)
            number += 1

    def test_killed_at_any_point_of_a_restore(self, tmp_path: Path) -> None:
        """Restore with a checkpoint that is not committed, and with work of attempts that no one will commit; then
        restore again."""
        self._needs_restart()
        number, fired = 0, True
        while fired:
            directory = tmp_path / str(number)
            directory.mkdir()
            run = self._run(directory)
            run.step(4, checkpoint=True)
            run.accept(run.attempt(6, checkpoint=True), 6)
            run.complete()
            run.attempt(3, checkpoint=True)
            fired = killed(number, run.restore)
            run.restore()
            run.step(5)
            self._check_end(run, directory, f"crash at point {number} of a restore")
            number += 1

    def test_two_attempts_of_a_round_do_not_meet(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        run.step(4)
        zombie, winner = run.attempt(6), run.attempt(6)
        run.accept(winner, 6)
        run.discard(zombie)
        run.step(3, checkpoint=True)
        self._check_end(run, tmp_path)

    def test_a_failed_attempt_leaves_nothing_visible(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        run.step(4)
        run.failed_attempt(3)
        run.step(3, checkpoint=True)
        self._check_end(run, tmp_path)

    def test_a_discarded_round_is_run_again(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        run.step(7)
        run.discard(run.attempt(5, checkpoint=True))
        run.discard(run.attempt(5, checkpoint=True, end=True))
        run.step(5, checkpoint=True)
        self._check_end(run, tmp_path)

    def test_lingering_work_is_aborted_and_nothing_else(self, tmp_path: Path) -> None:
        self._needs_restart()
        run = self._run(tmp_path)
        run.step(6, checkpoint=True)
        run.step(4)  # accepted, in no checkpoint
        run.attempt(4)  # a zombie of the next round
        run.restore()
        run.step(2)
        run.complete()
        run.restore(parallelism=3)
        run.restore(parallelism=3)  # a crash during the restore
        self._check_end(run, tmp_path)

    def test_who_has_lost_the_lease_sweeps_nothing(self, tmp_path: Path) -> None:
        """An older driver wakes up: the data that it takes for lingering is what the newer driver is about to
        commit."""
        run = self._run(tmp_path)
        run.step(6, checkpoint=True)
        older = run.fenced_committer()
        run.accept(run.attempt(5, checkpoint=True), 5)
        run.complete()
        with contextlib.suppress(FencedError):
            older.abort_lingering([], [])
        if self.survives_restart:
            run.restore()
        self._check_end(run, tmp_path, "the older driver has swept:")

    def test_what_waits_for_its_commit_does_not_linger(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        run.step(6)
        run.accept(run.attempt(5, checkpoint=True), 5)
        run.committer.abort_lingering(list(run.pending), [entry for state in run.states for entry in state])
        self._check_end(run, tmp_path)

    def test_a_checkpoint_that_holds_what_the_one_before_it_has_committed(self, tmp_path: Path) -> None:
        """The checkpoint was cut before that commit was confirmed. When it is restored, a part of its contents is
        done."""
        self._needs_restart()
        for commits_both in (False, True):
            directory = tmp_path / str(commits_both)
            directory.mkdir()
            run = self._run(directory)
            run.step(3)
            run.accept(run.attempt(4, checkpoint=True), 4)
            run.complete()
            first = list(run.pending)
            run.step(2)
            run.accept(run.attempt(5, checkpoint=True), 5)
            run.complete()
            run.committer.commit(first)
            if commits_both:
                run.committer.commit(run.pending[len(first) :])
            run.restore()
            run.step(1, checkpoint=True)
            self._check_end(run, directory)

    def test_random_runs_with_crashes_and_rescales(self, tmp_path: Path) -> None:
        for seed in range(self.seeds):
            directory = tmp_path / str(seed)
            directory.mkdir()
            run, dice = self._run(directory), random.Random(seed)
            for _ in range(25):
                self._random_action(run, dice)
            self._check_end(run, directory, f"seed {seed}:")

    def _random_action(self, run: SinkRun, dice: random.Random) -> None:
        count = dice.choice((0, 1, 5, 12))
        action = dice.choice(("round", "round", "checkpoint", "discard", "late", "idle", "crash"))
        if action in ("round", "checkpoint"):
            run.step(count, checkpoint=action == "checkpoint")
        elif action == "discard":
            run.discard(run.attempt(count, checkpoint=True))
        elif action == "late":
            run.accept(run.attempt(count, checkpoint=True), count)
            run.complete()
        elif action == "idle":
            run.now_ms += 120_000
        elif self.survives_restart:
            run.restore(dice.choice((1, 2, 3)))


def killed(number: int, act: Callable[[], object]) -> bool:
    """Crash at the n-th fault point that ``act`` passes; return whether there was one."""
    crashed = crash_at(number)
    try:
        act()
    except Crash:
        pass
    finally:
        faults.install(None)
    return crashed()
