"""Corners an attacker would try: restores from elsewhere, starts of finished jobs, cancelling, damage, outages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.observer import Outside
from tests.simulation.simulation import Simulation, seeded_tokens, simulate
from tests.unit.simulation.simulated_programs import SCENARIOS, inputs_of, source_of
from tests.unit.simulation.test_faults import second_life
from tidegate.base.errors import CorruptFileError
from tidegate.base.files import Files
from tidegate.checkpoint.locate import locate_own, read_lineage
from tidegate.testing.simulation.driver import Fault, Kind

RECOVERY = "execution.state-recovery.path"
TOLERABLE = "execution.checkpointing.tolerable-failed-checkpoints"
RETENTION = "execution.checkpointing.externalized-checkpoint-retention"


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    Outside.forget_all()
    with seeded_tokens(5):
        yield


def crashed(name: str, root: str, point: str = "*", passing: int = 450) -> Simulation:
    """A job whose first driver was killed."""
    simulation = Simulation(SCENARIOS[name], root, 5)
    assert simulation.live([Fault(0, point, passing, Kind.CRASH)]).crashed
    return simulation


def continued(first: Simulation) -> Simulation:
    """Another job that starts from the first one's latest checkpoint and writes to the same sinks."""
    latest = read_lineage(Files(first.place.job)).latest
    assert latest is not None
    path = f"{first.place.job}/chk-{latest.checkpoint_id}"
    other = Simulation(first.scenario, first.place.root, 6, job_id="other", settings={RECOVERY: path})
    other.history.coverage.update({-number: seen for number, seen in first.history.coverage.items()})
    other.history.settled = False
    return other


def check_output(simulation: Simulation) -> None:
    """I1 to I4: what another job has left in its own name is not looked at."""
    for observer in simulation.observers:
        observer.check_records()


# -- from a checkpoint of another job ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_job_continues_from_another_jobs_checkpoint(name: str, root: str) -> None:
    other = continued(crashed(name, root, "C7.subsumed", 1))
    assert other.live(parallelism=3).finished
    check_output(other)


@pytest.mark.parametrize("point", range(5, 500, 15))
def test_a_driver_restarted_with_the_same_recovery_path_continues(point: int, root: str) -> None:
    """It must not go back to where it first started from: what came after is committed."""
    other = continued(crashed("keyed_count", root))
    other.live([Fault(0, "*", point, Kind.CRASH)])
    assert other.live().finished
    assert not other.live().starts, "a finished job was run again"
    check_output(other)


def test_a_driver_restarted_with_its_own_checkpoint_as_recovery_path_continues(root: str) -> None:
    first = crashed("keyed_count", root)
    latest = read_lineage(Files(first.place.job)).latest
    assert latest is not None
    first.settings[RECOVERY] = f"{first.place.job}/chk-{latest.checkpoint_id}"
    assert first.live([Fault(1, "C6.all-committed", 1, Kind.CRASH)]).crashed
    assert max(first.history.committed) > latest.checkpoint_id
    assert first.live().finished
    check_output(first)
    assert not first.live().starts, "a finished job was run again"
    check_output(first)


def test_disk_full_while_state_of_another_job_is_taken_over(root: str) -> None:
    """Files of the other directory must not get into this job's checkpoints, nor may the job fail for good."""
    other = continued(crashed("keyed_count", root))
    other.settings |= {"execution.checkpointing.interval": 10, TOLERABLE: 50}
    full = [Fault(0, "storage.write", number, Kind.ERROR) for number in range(2, 30)]
    life = other.live(full)
    assert len(life.fired) == len(full)
    assert life.starts == 1
    assert life.finished, f"{life.error!r}"
    check_output(other)


# -- the end of a job ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_finished_job_is_started_again(name: str, root: str) -> None:
    simulation = simulate(SCENARIOS[name], root, 5)
    for parallelism in (2, 3):
        again = simulation.live(parallelism=parallelism)
        assert (again.finished, again.starts) == (True, 0)
        simulation.check_end()


def cancelling(simulation: Simulation, round: int, faults: Any = (), how: str = "cancel") -> Any:
    """A life that is cancelled, or suspended, while a round runs."""
    life = simulation.new_life(faults)
    run, count = life.engine.run, 0

    def run_and_cancel(plan: Any) -> Any:
        nonlocal count
        count += 1
        if count == round:
            getattr(life.master, how)()
        return run(plan)

    life.engine.run = run_and_cancel
    simulation.run(life)
    return life


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("round", [1, 3, 4])
def test_cancelled_and_not_retained_leaves_nothing_unfinished(name: str, round: int, root: str) -> None:
    simulation = Simulation(SCENARIOS[name], root, 5)
    life = cancelling(simulation, round)
    assert "cancelled" in str(life.error)
    for observer in simulation.observers:
        observer.check_leftovers()
    simulation.check_storage(ended=True)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("round", [1, 3, 4])
def test_cancelled_and_retained_continues_where_it_was(name: str, round: int, root: str) -> None:
    simulation = Simulation(SCENARIOS[name], root, 5, settings={RETENTION: "RETAIN_ON_CANCELLATION"})
    assert "cancelled" in str(cancelling(simulation, round).error)
    simulation.conclude(3)


@pytest.mark.parametrize("name", ["states", "two_sources"])
def test_killed_while_cancelling(name: str, root: str) -> None:
    """Either the checkpoint restores with all its sinks need, or the job begins anew, and beside committed output only when it
    is told to; never something between."""
    refused = 0
    recorded = Simulation(SCENARIOS[name], f"{root}/recorded", 5)
    total = cancelling(recorded, 5).passed["*"]
    for back in range(1, 60, 2):
        Outside.forget_all()
        simulation = Simulation(SCENARIOS[name], f"{root}/{back}", 5)
        life = cancelling(simulation, 5, [Fault(0, "*", total - back, Kind.CRASH)])
        assert life.crashed
        after = simulation.live()
        if after.error is not None and "would start with empty state, but has committed output" in str(after.error):
            refused += 1
            simulation.settings["tidegate.start-anew"] = simulation.may_begin_anew = True
            after = simulation.live()
        assert after.finished, f"killed {back} points before the end: {after.error!r}"
    assert 0 < refused < 30


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("round", [1, 3, 4])
def test_suspended_continues_where_it_was_whatever_the_retention(name: str, round: int, root: str) -> None:
    simulation = Simulation(SCENARIOS[name], root, 5)
    assert "suspended" in str(cancelling(simulation, round, how="suspend").error)
    simulation.conclude(3)


@pytest.mark.parametrize("name", ["states", "two_sources"])
def test_killed_while_being_suspended(name: str, root: str) -> None:
    recorded = Simulation(SCENARIOS[name], f"{root}/recorded", 5)
    total = cancelling(recorded, 5, how="suspend").passed["*"]
    for back in range(1, 40):
        Outside.forget_all()
        simulation = Simulation(SCENARIOS[name], f"{root}/{back}", 5)
        life = cancelling(simulation, 5, [Fault(0, "*", total - back, Kind.CRASH)], how="suspend")
        assert life.crashed
        simulation.conclude(3)


# -- damage ----------------------------------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


DAMAGES: dict[str, Any] = {
    "flipped": flip,
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "missing": os.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["keyed_count", "states"])
def test_a_damaged_state_file_is_named(name: str, damage: str, root: str) -> None:
    """I10: no host has the state any more, and a file of the checkpoint is not what it was."""
    simulation = crashed(name, root)
    files = Files(simulation.place.job)
    latest = read_lineage(files).latest
    assert latest is not None
    victim = locate_own(files, latest).metadata.state_files()[-1].path
    DAMAGES[damage](Path(files.location(victim)))
    simulation.lose_local_state()
    life = simulation.new_life()
    simulation.run(life, look=False)
    assert isinstance(life.error, CorruptFileError)
    assert victim in str(life.error)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_metadata_is_named_and_no_older_checkpoint_taken(damage: str, root: str) -> None:
    simulation = crashed("keyed_count", root, "C6.all-committed", 2)
    lineage = read_lineage(Files(simulation.place.job))
    assert len(lineage.retained) == 2
    victim = f"{simulation.place.job}/chk-{lineage.retained[-1].checkpoint_id}/_metadata"
    DAMAGES[damage](Path(victim))
    life = simulation.new_life()
    simulation.run(life, look=False)
    assert isinstance(life.error, CorruptFileError)
    assert victim in str(life.error)


# -- outages ---------------------------------------------------------------------------------------------------------------------


def test_storage_is_full_for_a_while(root: str) -> None:
    """More checkpoints in a row fail than are tolerated: the job restarts, again and again, until there is space."""
    outage = [Fault(1, "storage.write", number, Kind.ERROR) for number in range(6, 40)]
    simulation = simulate(SCENARIOS["keyed_count"], root, 5, [Fault(0, "*", 300, Kind.CRASH), *outage])
    assert len(simulation.lives[1].fired) > 10
    assert simulation.lives[1].starts > 1
    assert simulation.lives[1].finished


@pytest.mark.parametrize("failures", [1, 2, 5, 30])
def test_the_last_checkpoint_fails(failures: int, root: str) -> None:
    count = second_life("keyed_count").passed["C4.before-publish"]
    links = second_life("keyed_count").passed["storage.publish.before-link"]
    assert count >= 2
    outage = [Fault(1, "storage.publish.before-link", links + extra, Kind.ERROR) for extra in range(failures)]
    simulation = simulate(SCENARIOS["keyed_count"], root, 1, [Fault(0, "*", 150, Kind.CRASH), *outage])
    assert simulation.lives[1].fired


@pytest.mark.parametrize("then_crash", [False, True])
def test_outcome_of_a_publish_is_unknown(then_crash: bool, root: str) -> None:
    """Fault C5: the metadata is there, but storage says no and does not answer when asked."""
    points = second_life("two_sources").order
    linked = next(n for n, name in enumerate(points, 1) if name == "C6.published") - 1
    assert points[linked - 1] == "storage.publish.after-link"
    faults = [Fault(0, "*", 150, Kind.CRASH), Fault(1, "*", linked, Kind.ERROR)]
    faults += [Fault(1, "*", linked + 1 + extra, Kind.ERROR) for extra in (1, 2, 3)]
    if then_crash:
        faults.append(Fault(1, "*", linked + 30, Kind.CRASH))
    simulation = simulate(SCENARIOS["two_sources"], root, 1, faults)
    assert len(simulation.lives[1].fired) == 4 + then_crash
    assert simulation.lives[-1].finished


@pytest.mark.parametrize("refusals", [1, 2, 7, 40])
def test_the_outside_system_is_down_at_commit(refusals: int, root: str) -> None:
    """Faults K3 and K5: commits are refused, or taken and the answer lost; first retried, then the job restarts."""
    simulation = Simulation(SCENARIOS["two_sources"], root, 5)
    Outside.at(simulation.place.outside("transactions")).refusals = refusals
    assert simulation.live().finished
    assert Outside.at(simulation.place.outside("transactions")).refusals == 0
    simulation.check_end()


@pytest.mark.parametrize("name", SCENARIOS)
def test_checkpoints_expire(name: str, root: str) -> None:
    """Rounds take 5, 30 or 60 ms here: most checkpoints expire, and what they covered goes into the next."""
    settings = {"execution.checkpointing.timeout": 10, "execution.checkpointing.interval": 30}
    expired = 0
    for seed in (5, 6, 7):
        crash = Fault(0, "*", 400, Kind.CRASH)
        simulation = simulate(SCENARIOS[name], f"{root}/{seed}", seed, [crash], settings=settings)
        expired += sum(life.passed["C2.aborted"] for life in simulation.lives)
    assert expired


def test_crash_among_many_checkpoints_with_one_retained_loses_nothing(root: str) -> None:
    """The interval is shorter than most rounds, so every second or third round carries a checkpoint, which subsumes the last."""
    settings = {"execution.checkpointing.interval": 10, "execution.checkpointing.num-retained": 1}
    completed = 0
    for seed in (4, 5, 6):
        crash = Fault(0, "*", 700, Kind.CRASH)
        simulation = simulate(SCENARIOS["states"], f"{root}/{seed}", seed, [crash], settings=settings)
        completed += sum(life.completed for life in simulation.lives)
    assert completed >= 18  # else the crash came among few: how many there are depends on the schedules of the seeds


def test_inputs_are_unique() -> None:
    """The observer would not see a record doubled if another one looked the same."""
    values = inputs_of(source_of("s", splits=3, records=50, limit=5))
    assert len({tuple(value) for value in values}) == len(values) == 150
