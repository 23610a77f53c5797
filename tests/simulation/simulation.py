"""Simulated lives of a job: drivers crash, wake up late, storage fails, workers die; then everything is looked at.

A run is a scenario, a seed and a list of faults: the same three give the same run again. Every run is audited from
outside for the invariants I1 to I13 of FAULTS.md.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.lives import Life
from tests.simulation.observer import (
    Coverage,
    OutputObserver,
    Outside,
    RepeatingObserver,
    check_retained,
    check_state,
    check_storage,
    coverage_of,
)
from tests.simulation.scenario import Place, Scenario
from tidegate.base import hashing
from tidegate.base.clock import ManualClock
from tidegate.base.files import Files
from tidegate.checkpoint.lease_records import RestoredRecord, read_record, restored_path
from tidegate.checkpoint.locate import locate, locate_own, read_lineage
from tidegate.checkpoint.metadata import read_metadata
from tidegate.common import options
from tidegate.testing.simulation.driver import Fault, Kind, current, unobserved
from tidegate.testing.simulation.engine import Chances, LateRows


@dataclass
class History:
    """What was seen of a job over all its lives: checkpoint hashing, what each covers, what was committed."""

    coverage: dict[int, Coverage] = field(default_factory=dict)
    triggered: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    settled: bool = True
    """No commit is under way, or was cut short."""

    def trigger(self, checkpoint_id: int, alone: bool) -> None:
        """I11. Of two drivers one may be paused between taking an id and this, so only one alone sees them grow."""
        grows = not self.triggered or checkpoint_id > self.triggered[-1]
        assert grows if alone else checkpoint_id not in self.triggered, (
            f"I11: id {checkpoint_id} after {self.triggered}"
        )
        self.triggered.append(checkpoint_id)

    def commit(self, checkpoint_id: int, alone: bool) -> None:
        """I11. A driver that wakes up in a commit may repeat an older one, without effect: the outputs tell."""
        last = self.committed[-1] if self.committed else 0
        if checkpoint_id < last:
            assert not alone, f"I11: {checkpoint_id} committed after {last}"
            return
        self.committed.append(checkpoint_id)

    @property
    def published(self) -> list[Coverage]:
        return list(self.coverage.values())

    @property
    def latest_committed(self) -> Coverage:
        return self.coverage.get(self.committed[-1], {}) if self.committed else {}


class Simulation:
    """The lives of one job in one place. ``settings`` override the scenario's configuration."""

    def __init__(
        self,
        scenario: Scenario,
        root: str,
        seed: int,
        *,
        chances: Chances | None = None,
        settings: dict[str, Any] | None = None,
        job_id: str = "simulated",
    ) -> None:
        self.scenario, self.place, self.seed = scenario, Place(root, job_id), seed
        self.chances, self.settings = chances or Chances(), settings or {}
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.history = History()
        self.zombies: list[LateRows] = []
        self.lives: list[Life] = []
        self.alone = True
        """No other driver of this job is awake: then storage holds exactly what is referenced."""
        self.may_begin_anew = False
        """The job was cancelled and its checkpoints may be gone."""
        self.repeats = self.settings.get(options.CHECKPOINT_MODE.key) == "AT_LEAST_ONCE"
        self.follows_another = bool(self.settings.get(options.RECOVERY_PATH.key))
        """It begins where another job was, which may have left something of its own."""
        self.concurrent = self.settings.get(options.CHECKPOINT_CONCURRENT.key, 1) > 1
        observer = RepeatingObserver if self.repeats else OutputObserver
        self.observers = [observer(output) for output in scenario.outputs(self.place)]
        for seen in self.observers:
            seen.unaligned = bool(self.settings.get(options.UNALIGNED.key))

    def new_life(self, planned: Iterable[Fault] = (), parallelism: int = 2) -> Life:
        life = Life(self, len(self.lives), planned, parallelism)
        self.lives.append(life)
        return life

    def live(self, planned: Iterable[Fault] = (), parallelism: int = 2) -> Life:
        """One driver from start to end in this thread, then a look from outside."""
        life = self.new_life(planned, parallelism)
        self.run(life)
        return life

    def run(self, life: Life, *, look: bool = True) -> None:
        """Run a life of ``new_life``; ``look`` False where the test itself has damaged what would be looked at."""
        with current(life):
            life.run()
        if look:
            self.look(life)

    def lose_local_state(self) -> None:
        """No host has the job's stores any more."""
        shutil.rmtree(self.place.local, ignore_errors=True)

    # -- looking -----------------------------------------------------------------------------------------------------------

    def look(self, life: Life) -> None:
        """I5 on all outputs; I6 and I7 on retained checkpoints, now and then."""
        with unobserved():
            for observer in self.observers:
                settled = self.history.settled and self.alone
                observer.look(self.history.published, self.history.latest_committed, settled)
            if self.alone and not life.finished:
                check_retained(self.place.job)
                probe = self.scenario.probe()
                if probe is not None and self.random.random() < 0.3:
                    check_state(self.place.job, probe)

    def published(self, location: str) -> None:
        with unobserved():
            directory, _, name = location.removesuffix("/_metadata").rpartition("/")
            metadata = read_metadata(Files(directory), f"{name}/_metadata")
            self.history.coverage[metadata.checkpoint_id] = coverage_of(metadata)
            if self.alone:
                files = Files(directory)
                gone = sorted(path for path in metadata.paths() if not files.exists(path))
                assert not gone, f"I7: checkpoint {metadata.checkpoint_id} is published, and deleted are {gone}"

    def restored(self, token: int) -> int | None:
        """The checkpoint the attempt with this token says it restores; 0: one of another job."""
        with unobserved():
            record = read_record(Files(self.place.job), restored_path(token), RestoredRecord)
            assert record is not None or not self.alone  # a newer driver may have swept it
            if record is None or record.point is None:
                return None
            if not record.point.directory:
                return record.point.checkpoint_id
            self.history.coverage[0] = coverage_of(locate(record.point.directory).metadata)
            return 0

    def check_started(self, life: Life) -> None:
        """An attempt has restored, committed again, aborted and swept: I8, I11 and I13."""
        if life.restored is not None:
            self.history.commit(life.restored, self.alone)
        if self.alone:
            assert life.restored is not None or not self.history.coverage or self.may_begin_anew, (
                "I13: nothing restored"
            )
            if not self.zombies:
                self._check_aborted(life)
                self._check_swept(life)

    def _check_aborted(self, life: Life) -> None:
        """I12 and K2, after the start: what the restored checkpoint names is committed, so whatever else was prepared is gone. A
        sink that keeps its files open over checkpoints has some."""
        for observer in self.observers if not (life.failed_at or self.follows_another) else ():
            if observer.output.every_checkpoint:
                left = observer.output.leftovers()
                assert not left, f"K2: {observer.output.name}: prepared before the crash, and not aborted: {left}"

    def check_tidy(self, life: Life) -> None:
        """I12, before a round begins: what is prepared waits for a checkpoint, or is a writer's. Tasks that were tried again have
        left nothing, nor has a round that was discarded. Not of sinks that keep files open, whose names nobody here knows."""
        attempt = life.master._attempt
        zombies = self.chances.zombie or self.chances.late  # what those leave is found at the next start
        failed = any(fault.kind is Kind.ERROR for fault in life.fired)
        if attempt is None or not self.alone or self.follows_another or zombies or failed:
            return
        progress = attempt.progress
        waiting = repr((progress.committables, progress.writer_states()))
        for observer in self.observers if not self.repeats else ():
            if observer.output.every_checkpoint:
                left = [name for name in observer.output.leftovers() if os.path.basename(name) not in waiting]
                assert not left, f"I12: {observer.output.name}: prepared, and nobody waits for it: {left}"

    def check_subsumed(self, life: Life) -> None:
        """I8 after step 9: a file that was needed once, and was needed no more at the last look, is gone."""
        attempt = life.master._attempt
        if attempt is None or not self.alone or self.concurrent or life.fired or life.at_round:
            return
        files = Files(self.place.job)
        needed = attempt.progress.paths() | attempt.checkpoints.paths()
        for point in read_lineage(files).retained:
            needed |= locate_own(files, point).metadata.paths()
        there = set(files.list("shared"))
        left = sorted(life.unneeded & there)
        assert not left, f"I8: not needed any more, and not deleted by step 9: {left}"
        life.needed |= needed
        life.unneeded = (life.needed & there) - needed

    def _check_swept(self, life: Life) -> None:
        """I8 after the sweep of a start. A delete that storage refused cannot have happened, and a job does not fail for
        it; I8 then demands that the next step 9 makes up for it: see ``check_made_up_for``."""
        failed = "storage.delete" in life.failed_at
        life.failed_at.clear()
        life.left = check_storage(self.place.job, ended=False, delete_failed=failed)

    def check_made_up_for(self, life: Life) -> None:
        """After step 9: what the sweep of this attempt could not delete is gone, unless storage failed once more."""
        if self.alone and not life.failed_at:
            left = life.left & set(Files(self.place.job).list())
            assert not left, f"I8: not deleted at the start, and not by step 9 either: {sorted(left)}"
        life.failed_at.clear()

    def check_storage(self, *, ended: bool) -> None:
        """I8 and I12."""
        check_storage(self.place.job, ended=ended)
        local = Files(self.place.local).list() if ended else []
        assert not local, f"I12: local state left behind: {local}"

    def check_end(self) -> None:
        """All invariants, when the last life has finished."""
        life = self.lives[-1]
        assert life.finished, f"I9: the last life did not finish: {life.error}"
        with unobserved():
            for observer in self.observers:
                observer.check_records()
                observer.check_leftovers()
            if self.alone and not self.zombies:
                self.check_storage(ended=True)

    def conclude(self, parallelism: int = 2) -> None:
        """A driver without faults brings the job to its end; late tasks end, and a last start sweeps what they left."""
        if not any(life.finished for life in self.lives):
            life = self.live((), parallelism)
            assert life.error is None, f"I9: a life without faults failed: {life.error!r}"
            assert life.completed or not life.starts, "I9: no checkpoint completed after the last fault"
        if self.zombies or not self.alone or self.lives[-1].fired:
            # late tasks, a second driver or a failing storage may have left what a finished job's next start sweeps
            self.lives[-1].engine.lay_zombies()
            self.alone = True
            unrecorded = any(fault.kind is Kind.ERROR for fault in self.lives[-1].fired)
            again = self.live((), parallelism)
            assert unrecorded or not again.starts, "a finished job was run again"
        self.check_end()


def simulate(
    scenario: Scenario,
    root: str,
    seed: int,
    planned: Sequence[Fault] = (),
    *,
    chances: Chances | None = None,
    parallelism: Sequence[int] = (2,),
    settings: dict[str, Any] | None = None,
) -> Simulation:
    """A whole run: a life for each number the faults name, with the parallelism of its turn, then one to the end."""
    Outside.forget_all()
    with seeded_tokens(seed):
        simulation = Simulation(scenario, root, seed, chances=chances, settings=settings)
        for number in range(1 + max((fault.life for fault in planned), default=0)):
            life = simulation.live(planned, parallelism[number % len(parallelism)])
            if life.finished:
                break
        simulation.conclude(parallelism[len(simulation.lives) % len(parallelism)])
    return simulation


class _SeededTokens:
    """In place of the module ``secrets``: the same seed gives the same names."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token_hex(self, size: int) -> str:
        return self._random.randbytes(size).hex()


@contextmanager
def seeded_tokens(seed: int) -> Iterator[None]:
    before = vars(hashing)["secrets"]
    vars(hashing)["secrets"] = _SeededTokens(seed)
    try:
        yield
    finally:
        vars(hashing)["secrets"] = before
