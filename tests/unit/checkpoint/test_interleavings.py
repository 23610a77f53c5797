"""Crashes and pauses at every fault point: whatever attempts overlap, each position is committed once and everything restores."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.checkpoint.attempt_model import (
    FINISHED_AT,
    Actor,
    Attempt,
    Crash,
    ModelSink,
    check_invariants,
    check_recorded,
    crashing_at,
    stepping,
)
from tidegate.base import faults
from tidegate.base.errors import StorageError
from tidegate.base.files import Files
from tidegate.checkpoint.metadata import CheckpointMetadata, encode_metadata

NewFiles = Callable[[], Files]


def _points_of_a_run(files: Files, until: int | None) -> list[str]:
    sink = ModelSink()
    Attempt(files, sink, "first", checkpoints=2).run()
    with crashing_at(1_000_000) as passed:
        Attempt(files, sink, "second", until=until).run()
    return passed


def test_every_point_of_the_protocol_is_passed(new_files: NewFiles) -> None:
    points = set(_points_of_a_run(new_files(), until=FINISHED_AT))
    expected = {
        *("C1.before-trigger", "C1.id-taken", "C1.triggered", "C4.before-publish"),
        *("C6.published", "C6.recorded", "C6.completed", "C7.recorded", "C7.metadata-deleted", "C7.directory-deleted"),
        *("C7.file-deleted", "C7.subsumed", "C7.discard-recorded", "C8.deciding", "C8.before-record", "C8.recorded"),
        *("C9.before-claim", "C9.claimed", "C9.check", "C9.checked", "storage.publish.before-link"),
        *("storage.publish.after-link", "storage.replace.before-rename", "storage.write", "storage.delete"),
    }
    assert expected <= points


@pytest.mark.parametrize("until", [None, FINISHED_AT])
def test_killed_at_every_point_then_recovered(new_files: NewFiles, until: int | None) -> None:
    total = len(_points_of_a_run(new_files(), until))
    for number in range(1, total + 1):
        files, sink = new_files(), ModelSink()
        Attempt(files, sink, "first", checkpoints=2).run()
        with crashing_at(number) as passed, pytest.raises(Crash):
            Attempt(files, sink, "second", until=until).run()
        assert len(passed) == number, "the fault fired"
        check_invariants(files, sink)


def test_killed_at_a_point_and_again_while_restoring(new_files: NewFiles) -> None:
    randoms = random.Random(8)
    total = len(_points_of_a_run(new_files(), None))
    for _ in range(150):
        files, sink = new_files(), ModelSink()
        Attempt(files, sink, "first", checkpoints=2).run()
        for _ in range(randoms.randint(1, 4)):
            with crashing_at(randoms.randint(1, total // 2)) as passed, pytest.raises(Crash):
                Attempt(files, sink, "killed").run()
            assert passed
        check_invariants(files, sink)


def test_paused_at_every_point_while_a_newer_attempt_runs(new_files: NewFiles) -> None:
    """Fault C9: the old one wakes up when the new one is in full swing, or has ended."""
    total = len(_points_of_a_run(new_files(), None))
    fenced = 0
    for number in range(total):
        files, sink = new_files(), ModelSink()
        Attempt(files, sink, "first", checkpoints=2).run()
        with stepping():
            old = Attempt(files, sink, "old")
            paused = Actor(old.run)
            paused.advance(number)
            newer = Attempt(files, sink, "new", checkpoints=2).run()
            paused.finish()
        assert newer.outcome == "done"
        assert set(old.ids).isdisjoint(newer.ids)
        fenced += old.outcome == "FencedError"
        check_invariants(files, sink)
    assert fenced > total // 2


def test_an_old_attempt_deletes_nothing_that_counts_for_a_newer_one(new_files: NewFiles) -> None:
    """Step 9 against C9: paused anywhere, also between writing down what is kept and deleting the rest."""
    total = len(_points_of_a_run(new_files(), None))
    for number in range(total):
        files, sink = new_files(), ModelSink()
        Attempt(files, sink, "first", checkpoints=2).run()
        with stepping():
            paused = Actor(Attempt(files, sink, "old").run)
            paused.advance(number)
            assert Attempt(files, sink, "new", checkpoints=0, retained=9).run().outcome == "done"
            paused.finish()
        check_recorded(files)


def test_three_attempts_in_any_order(new_files: NewFiles) -> None:
    """Seeded schedules of three overlapping attempts, each going on for a few points at a time; some never wake up."""
    for seed in range(250):
        randoms = random.Random(seed)
        files, sink = new_files(), ModelSink()
        Attempt(files, sink, "first", checkpoints=1).run()
        attempts = [Attempt(files, sink, name, checkpoints=3) for name in ("a", "b", "c")]
        with stepping():
            actors = [Actor(attempt.run) for attempt in attempts]
            awake = list(actors)
            while awake:
                actor = randoms.choice(awake)
                actor.advance(randoms.choice((1, 3, 10, 40, 100)))
                if actor.over or randoms.random() < 0.02:
                    awake.remove(actor)
            used = [number for attempt in attempts for number in attempt.ids]
            assert len(used) == len(set(used)), f"seed {seed}: an id was used twice"
            check_invariants(files, sink)
            for actor in actors:  # those still asleep wake up after everything is over
                actor.finish()
        assert sink.violations == [], f"seed {seed}"
        check_invariants(files, sink)


@pytest.mark.parametrize("until", [None, FINISHED_AT])
def test_storage_fails_once_at_every_point(new_files: NewFiles, until: int | None) -> None:
    """The operation reports an error; before the link it has not happened, after it it has (C5)."""
    total = len(_points_of_a_run(new_files(), until))
    for number in range(1, total + 1):
        files, sink = new_files(), ModelSink()
        Attempt(files, sink, "first", checkpoints=2).run()
        with crashing_at(number, lambda: OSError(5, "input/output error")) as passed:
            try:
                Attempt(files, sink, "second", until=until).run()
            except OSError:
                assert not passed[-1].startswith("storage."), "errors of storage are typed"
        check_invariants(files, sink)


def test_publish_reported_as_failed_and_arrived_late(new_files: NewFiles) -> None:
    """C5 with a restart of the job: a delayed write must not bring back what the restart aborted."""
    files, sink = new_files(), ModelSink()
    Attempt(files, sink, "first", checkpoints=2).run()
    attempt = Attempt(files, sink, "second", checkpoints=0).run()
    number = attempt.lease.take_id()
    attempt.round(number)
    metadata = CheckpointMetadata(
        checkpoint_id=number, job_id="job", job_name="model", token=attempt.lease.token, trigger_ms=0, complete_ms=0,
        round=3, operators=[attempt.operator()],
    )  # fmt: skip
    faults.install(_refuse_publish)
    with pytest.raises(StorageError, match="metadata of a checkpoint could not be stored"):
        attempt.completed.add(metadata)
    faults.install(None)
    restarted = Attempt(files, sink, "restarted", checkpoints=0).run()
    assert restarted.state.position == 2
    assert sink.aborted == {f"txn-{attempt.lease.token}-{number}"}
    files.publish(f"chk-{number}/_metadata", encode_metadata(metadata))  # the delayed write
    check_invariants(files, sink)


def _refuse_publish(name: str, where: dict[str, Any]) -> None:
    if name == "storage.publish.before-link":
        raise TimeoutError(110, "timed out")
