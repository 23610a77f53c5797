"""A damaged latest checkpoint: named, the one before offered, and taken only where nothing would be committed twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.sources import ScriptedSource
from tests.unit.runtime.small_jobs import SETTINGS, SlowRounds, SmallJob
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import CorruptFileError, RestoreError
from tidegate.base.faults import Killed
from tidegate.base.files import Files
from tidegate.checkpoint.locate import locate_exactly
from tidegate.graph.transformation import Input, Partitioning, Program, Ship, Transformation
from tidegate.operators.contracts.specs import FilterSpec, ReduceSpec, SourceSpec
from tidegate.runtime.commands import StopWithSavepoint
from tidegate.runtime.master import JobMaster

PREVIOUS: dict[str, Any] = {"tidegate.restore-previous": True}
RETAINED = "execution.checkpointing.num-retained"
QUIET = range(6, 24)
"""Numbers whose output is dropped in front of the sink, in a job that is quiet."""


class Damaged:
    """A job of 24 numbers, three in a round and each round with a checkpoint, that was killed when it had five."""

    def __init__(self, directory: Path, *, quiet: bool, **settings: Any) -> None:
        self.small, self.quiet = SmallJob(directory), quiet
        self.files = Files(f"{directory}/checkpoints/small")
        faults.install(self._die)
        with pytest.raises(Killed):
            self.run(**settings)
        faults.install(None)
        self.newest, self.before = self.files.location("chk-5"), self.files.location("chk-4")

    @staticmethod
    def _die(name: str, where: dict[str, Any]) -> None:
        if name == "C1.triggered" and where["checkpoint_id"] == 6:
            raise Killed

    def program(self, **settings: Any) -> Program:
        source = ScriptedSource(list(range(24)))
        source.initial_limit = source.maximum_limit = 3
        read = Transformation(1, "numbers", SourceSpec(source), uid="numbers")
        by_itself = Partitioning(Ship.HASH, lambda value: value)
        summed = Transformation(2, "sum", ReduceSpec(lambda a, b: a + b), (Input(1, by_itself),), uid="sum")
        dropped = QUIET if self.quiet else range(0)
        said = Transformation(3, "said", FilterSpec(lambda value: value not in dropped), (Input(2),), uid="said")
        sink = self.small.program().transformations[-1]
        where = {"execution.checkpointing.dir": f"{self.small.directory}/checkpoints", RETAINED: 3}
        sink = replace(sink, id=4, inputs=(Input(3),), uid="ledger")
        return Program("small", (read, summed, said, sink), {**SETTINGS, **where, **settings})

    def run(self, **settings: Any) -> JobMaster:
        clock = ManualClock()
        self.master = JobMaster(
            self.program(**settings),
            SlowRounds(clock, 20),
            clock=clock,
            local_root=self.small.local,
            liveness=lambda _: False,
        )
        self.master.run()
        return self.master

    @property
    def expected(self) -> list[int]:
        return [number for number in range(24) if not self.quiet or number not in QUIET]

    # -- damage --

    def damage_metadata(self, number: int = 5, how: str = "flipped") -> str:
        return self._damage(f"chk-{number}/_metadata", how)

    def damage_state(self, how: str) -> str:
        """A file only the newest has."""
        old = {file.path for file in locate_exactly(self.before).metadata.state_files()}
        new = {file.path for file in locate_exactly(self.newest).metadata.state_files()}
        return self._damage(min(new - old), how)

    def _damage(self, path: str, how: str) -> str:
        good = self.files.read_bytes(path)
        place = Path(self.files.location(path))
        if how == "missing":
            place.unlink()
        elif how == "short":
            place.write_bytes(good[:-3])
        else:
            middle = len(good) // 2
            place.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
        return str(place)


DAMAGES = ("missing", "short", "flipped")


@pytest.mark.parametrize("how", DAMAGES)
def test_the_error_names_the_file_and_offers_the_one_before(tmp_path: Path, how: str) -> None:
    job = Damaged(tmp_path, quiet=True)
    path = job.damage_metadata(how=how)
    with pytest.raises(CorruptFileError) as refused:
        job.run()
    assert refused.value.where == path
    assert f"or continue from {job.before}, the previous checkpoint, with tidegate.restore-previous=true" in str(
        refused.value
    )


@pytest.mark.parametrize("how", ["missing", "short"])
def test_a_damaged_state_file_too(tmp_path: Path, how: str) -> None:
    job = Damaged(tmp_path, quiet=True)
    path = job.damage_state(how)
    with pytest.raises(CorruptFileError) as refused:
        job.run()
    assert Path(path).name in str(refused.value)
    assert f"or continue from {job.before}" in str(refused.value)


@pytest.mark.parametrize("what", ["metadata", "state"])
@pytest.mark.parametrize("how", DAMAGES)
def test_without_output_after_it_the_one_before_is_taken(tmp_path: Path, what: str, how: str) -> None:
    job = Damaged(tmp_path, quiet=True)
    job.damage_metadata(how=how) if what == "metadata" else job.damage_state(how)
    before = job.small.committed()
    master = job.run(**PREVIOUS)
    assert master.view().attempts[0].checkpoint == job.before
    assert before == job.small.committed() == job.expected
    assert not job.files.list("shared")  # and nothing is left of the damaged one


def test_it_can_be_killed_again_and_continues_from_what_it_took(tmp_path: Path) -> None:
    job = Damaged(tmp_path, quiet=True)
    job.damage_metadata()

    def die(name: str, where: dict[str, Any]) -> None:
        if name == "C2.cut":
            raise Killed

    faults.install(die)
    with pytest.raises(Killed):
        job.run(**PREVIOUS)
    faults.install(None)
    assert job.run().view().attempts[0].checkpoint == job.before
    assert job.small.committed() == job.expected


def test_several_damaged_ones_are_passed_over(tmp_path: Path) -> None:
    job = Damaged(tmp_path, quiet=True)
    for number in (5, 4):
        job.damage_metadata(number)
    assert job.run(**PREVIOUS).view().attempts[0].checkpoint == job.files.location("chk-3")
    assert job.small.committed() == job.expected


def test_all_damaged(tmp_path: Path) -> None:
    job = Damaged(tmp_path, quiet=True)
    paths = [job.damage_metadata(number) for number in (5, 4, 3)]
    with pytest.raises(CorruptFileError) as refused:
        job.run(**PREVIOUS)
    assert refused.value.where in paths


@pytest.mark.parametrize("what", ["metadata", "state"])
def test_refused_where_its_output_is_committed(tmp_path: Path, what: str) -> None:
    job = Damaged(tmp_path, quiet=False)
    path = job.damage_metadata() if what == "metadata" else job.damage_state("flipped")
    before = job.small.committed()
    with pytest.raises(RestoreError) as refused:
        job.run(**PREVIOUS)
    message = str(refused.value)
    assert "its output may have been committed" in message
    assert path in message
    assert "its output (1 committable) has been committed, and would be duplicated" in message
    assert "set execution.state-recovery.path to an older checkpoint" in message
    assert job.small.committed() == before
    assert job.files.exists("chk-5")


def test_refused_where_nobody_knows(tmp_path: Path) -> None:
    job = Damaged(tmp_path, quiet=True)
    job.damage_metadata()
    job.files.delete("history.json")
    with pytest.raises(RestoreError, match="neither its metadata nor the history says"):
        job.run(**PREVIOUS)


def test_no_other_is_kept(tmp_path: Path) -> None:
    one: dict[str, Any] = {RETAINED: 1}
    job = Damaged(tmp_path, quiet=True, **one)
    job.damage_metadata()
    for settings in ({}, PREVIOUS):
        with pytest.raises(
            CorruptFileError, match=r"no other checkpoint of the job is retained \(execution.checkpointing.num-"
        ):
            job.run(**one, **settings)


def test_one_that_is_not_damaged_is_never_passed_over(tmp_path: Path) -> None:
    job = Damaged(tmp_path, quiet=False)
    assert job.run(**PREVIOUS).view().attempts[0].checkpoint == job.newest
    assert job.small.committed() == job.expected


def test_at_least_once_may_always_go_back(tmp_path: Path) -> None:
    """Its output does not wait for checkpoints, and may repeat."""
    mode: dict[str, Any] = {"execution.checkpointing.mode": "AT_LEAST_ONCE"}
    job = Damaged(tmp_path, quiet=False, **mode)
    job.damage_metadata()
    assert job.run(**PREVIOUS, **mode).view().attempts[0].checkpoint == job.before
    assert set(job.small.committed()) == set(job.expected)


@pytest.mark.parametrize("what", ["metadata", "state"])
def test_one_with_which_the_job_was_told_to_end_is_never_passed_over(tmp_path: Path, what: str) -> None:
    """Its savepoint is complete, and somebody may have gone on from there."""
    job = Damaged(tmp_path, quiet=True)
    stop = StopWithSavepoint(f"{tmp_path}/savepoint")

    def die(name: str, where: dict[str, Any]) -> None:
        if name == "C2.cut":
            job.master.submit(stop)
        if name == "C11.published":
            raise Killed

    faults.install(die)
    with pytest.raises(Killed):
        job.run()
    faults.install(None)
    last = max(int(name[4:]) for name in job.files.list_names() if name.startswith("chk-"))
    if what == "metadata":
        job.damage_metadata(last)
    else:
        [path, *_] = {file.path for file in locate_exactly(job.files.location(f"chk-{last}")).metadata.state_files()}
        job._damage(path, "short")
    with pytest.raises(RestoreError) as refused:
        job.run(**PREVIOUS)
    told = f"the job was asked to end with it: its savepoint is {tmp_path}/savepoint"
    assert ("neither its metadata nor the history says" if what == "metadata" else told) in str(refused.value)


def test_metadata_that_was_published_and_not_written_down(tmp_path: Path) -> None:
    """The driver died after the publish, and what it left is torn: it may have been committed, nobody knows."""
    job = Damaged(tmp_path, quiet=True)

    def die(name: str, where: dict[str, Any]) -> None:
        if name == "C6.published" and where["checkpoint_id"] == 7:
            raise Killed

    faults.install(die)
    with pytest.raises(Killed):
        job.run()
    faults.install(None)
    path = job.damage_metadata(7)
    with pytest.raises(CorruptFileError) as refused:
        job.run()
    assert refused.value.where == path
    with pytest.raises(RestoreError, match="neither its metadata nor the history says"):
        job.run(**PREVIOUS)
